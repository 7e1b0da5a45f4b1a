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
from typing import TYPE_CHECKING, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

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


def licence_of(metadata: Message) -> str:
    """Return the licence of a wheel: an SPDX expression or id, or the author's text; empty without one."""
    if expression := metadata["License-Expression"]:
        return str(expression)
    found = [_CLASSIFIERS[each] for each in metadata.get_all("Classifier", []) if each in _CLASSIFIERS]
    return found[0] if found else (metadata["License"] or "").strip().split("\n")[0]


def wheel_component(path: Path) -> Component:
    """Return the component of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        metadata = metadata_of(wheel)
    made = component(path, metadata["Name"], PackageURL("pypi", None, metadata["Name"], metadata["Version"]))
    if licence := licence_of(metadata):
        made.licenses.add(LicenseFactory().make_from_string(licence))
    made.properties.add(Property(name="nodeagent:file", value=path.name))
    return made


def debian_component(path: Path) -> Component:
    """Return the component of a Debian package."""
    command = ["dpkg-deb", "--field", str(path), "Package", "Version", "Architecture"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - found in PATH
    fields = HeaderParser().parsestr(text)
    qualifiers = {"arch": fields["Architecture"], "distro": "debian-13"}
    purl = PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers)
    return component(path, fields["Package"], purl)


def component(path: Path, name: str, purl: PackageURL) -> Component:
    """Return the component of a file with its hash."""
    digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())
    return Component(name=name, version=purl.version, purl=purl, bom_ref=path.name, hashes=[digest])


def document(wheels: list[Path], packages: list[Path], machine: str) -> str:
    """Return the SBOM; the wheel of the agent is the main component."""
    components = [*map(wheel_component, wheels), *map(debian_component, packages)]
    own = next(each for each in components if each.name == "nodeagent")
    own.type = ComponentType.APPLICATION
    own.properties.add(Property(name="nodeagent:machine", value=machine))
    bom = Bom(components=[each for each in components if each is not own])
    bom.metadata.component = own
    bom.register_dependency(own, bom.components)
    written = json.loads(JsonV1Dot5(bom).output_as_string())
    del written["metadata"]["timestamp"], written["serialNumber"]
    content = json.dumps(written, sort_keys=True)
    return json.dumps({**written, "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, content).urn}, indent=1)


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
    parser.add_argument("--sbom", type=Path, required=True)
    parser.add_argument("--licences", type=Path, required=True)
    parser.add_argument("--debs", type=Path, help="directory with the Debian packages of the image")
    options = parser.parse_args(arguments)
    wheels = sorted(options.wheels.glob("*.whl"))
    packages = sorted(options.debs.glob("*.deb")) if options.debs else []
    text = document(wheels, packages, options.machine)
    options.sbom.write_text(f"{text}\n", encoding="utf-8")
    for wheel in wheels:
        for name, content in licence_files(wheel):
            target = options.licences / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


if __name__ == "__main__":
    main(sys.argv[1:])
