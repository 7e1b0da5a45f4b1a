# ruff: noqa: INP001 - a script, run by its path
"""SBOM (CycloneDX 1.5) and licence files of a package or of the image: ``sbom.py WHEELS MACHINE OPTIONS``.

The SBOM depends only on the wheels and Debian packages: it contains no time and no random serial number.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import uuid
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

_NAMES: Final = ("license", "licence", "copying", "notice", "authors")
_CLASSIFIERS: Final = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
}


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    """Return the core metadata (METADATA file) of a wheel."""
    (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA") and each.count("/") == 1]
    return HeaderParser().parsestr(wheel.read(name).decode())


def licence_of(metadata: Message) -> dict[str, Any] | None:
    """Return the CycloneDX licence of a wheel: an SPDX expression or id, or the author's text; ``None`` without one."""
    if expression := metadata["License-Expression"]:
        return {"expression": expression}
    found = [_CLASSIFIERS[each] for each in metadata.get_all("Classifier", []) if each in _CLASSIFIERS]
    if found:
        return {"license": {"id": found[0]}}
    stated = (metadata["License"] or "").strip().split("\n")[0]
    return {"license": {"name": stated}} if stated else None


def component(path: Path) -> dict[str, Any]:
    """Return the CycloneDX component of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        metadata = metadata_of(wheel)
    name, version = metadata["Name"], metadata["Version"]
    licence = licence_of(metadata)
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        **({"licenses": [licence]} if licence else {}),
        "properties": [{"name": "nodeagent:file", "value": path.name}],
    }


def debian_component(path: Path) -> dict[str, Any]:
    """Return the CycloneDX component of a Debian package."""
    command = ["dpkg-deb", "--field", str(path), "Package", "Version", "Architecture"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - found in PATH
    fields = HeaderParser().parsestr(text)
    name, version = fields["Package"], fields["Version"]
    purl = f"pkg:deb/debian/{name}@{quote(version, safe='~')}?arch={fields['Architecture']}&distro=debian-13"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }


def document(wheels: list[Path], packages: list[Path], machine: str, version: str) -> dict[str, Any]:
    """Return the SBOM; the wheel of the agent is the main component."""
    components = [*map(component, wheels), *map(debian_component, packages)]
    own = next(each for each in components if each["name"] == "nodeagent")
    libraries = [each for each in components if each is not own]
    digest = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                **own,
                "type": "application",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [*own["properties"], {"name": "nodeagent:machine", "value": machine}],
            }
        },
        "components": libraries,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in libraries]}],
    }


def licence_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path (directory and name) and the content of each licence file in a wheel."""
    with zipfile.ZipFile(path) as wheel:
        metadata = metadata_of(wheel)
        for name in sorted(wheel.namelist()):
            place = PurePosixPath(name)
            is_licence = place.name.lower().startswith(_NAMES) and ".dist-info" in place.parts[0]
            if is_licence and not name.endswith("/"):
                yield f"{metadata['Name'].lower()}-{metadata['Version']}/{place.name}", wheel.read(name)


def main(arguments: list[str]) -> None:
    """Write the SBOM and the licence files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", type=Path)
    parser.add_argument("machine")
    parser.add_argument("--version", required=True)
    parser.add_argument("--sbom", type=Path, required=True)
    parser.add_argument("--licences", type=Path, required=True)
    parser.add_argument("--debs", type=Path, help="directory with the Debian packages of the image")
    options = parser.parse_args(arguments)
    wheels = sorted(options.wheels.glob("*.whl"))
    packages = sorted(options.debs.glob("*.deb")) if options.debs else []
    text = json.dumps(document(wheels, packages, options.machine, options.version), indent=1)
    options.sbom.write_text(f"{text}\n", encoding="utf-8")
    for wheel in wheels:
        for name, content in licence_files(wheel):
            target = options.licences / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
