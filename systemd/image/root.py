"""Complete the root file system of the image: environment, users, mount points, licences and SBOM.

Files that a container does not use are removed: manual pages, translations, and documentation except licences.
"""

# ruff: noqa: INP001 - a script, run by its path

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

if TYPE_CHECKING:
    from collections.abc import Iterator

REMOVED: Final = (
    *("usr/share/man", "usr/share/locale", "usr/share/perl5", "usr/share/info", "usr/share/lintian", "usr/share/bug"),
    *("usr/share/debconf", "usr/share/doc-base", "usr/share/menu", "usr/share/pixmaps", "usr/share/applications"),
    *("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "etc/apt", "etc/cron.daily", "boot", "home"),
    *(
        "usr/lib/dpkg",
        "usr/share/dpkg",
        "usr/share/polkit-1",
        "usr/share/dict",
        "usr/share/binfmts",
        "var/mail",
        "var/lock",
        "var/run",
    ),
    *("usr/lib/systemd/system/dpkg-db-backup.service", "usr/lib/systemd/system/dpkg-db-backup.timer"),
)
"""Files and directories unused in the image. The directories of apt and dpkg contain the state of the build host."""
MOUNT_POINTS: Final = (
    *("proc", "sys", "dev", "run", "tmp", "root", "etc/nodeagent", "var/tmp", "var/lib/nodeagent"),
    *("var/lib/containerd", "var/log/pods", "var/log/containers", "etc/kubernetes/manifests"),
)
FILES: Final = {
    "etc/passwd": "root:x:0:0::/root:/usr/sbin/nologin\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    # Empty instead of the name and DNS servers of the build host; container runtimes mount their own files here.
    "etc/hostname": "",
    "etc/resolv.conf": "",
}
LAUNCHER: Final = """#!/{prefix}/bin/python -I
import sys

from nodeagent.cli.start import main

sys.exit(main())
"""
SBOM: Final = "usr/share/nodeagent/sbom.cdx.json"
_CONTROL_FIELDS: Final = ("Package", "Version", "Architecture", "Maintainer")


def main() -> None:
    """Complete the root file system with the options of the command line."""
    parser = argparse.ArgumentParser(description="Complete the root file system of the image.")
    parser.add_argument("root", type=Path)
    parser.add_argument("debs", type=Path, help="directory of the extracted Debian packages")
    parser.add_argument("wheels", type=Path, help="SBOM of the installed wheels")
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--version", required=True)
    options = parser.parse_args()
    root: Path = options.root
    prune(root)
    add_environment(root, options.prefix)
    add_files(root)
    packages = list(read_packages(options.debs))
    add_package_records(root, packages)
    libraries = json.loads(options.wheels.read_text())["components"]
    document = sbom(packages, libraries, options.version, options.architecture, int(os.environ["SOURCE_DATE_EPOCH"]))
    write(root / SBOM, json.dumps(document, indent=1) + "\n")


def prune(root: Path) -> None:
    """Remove files that a container does not use, and all documentation except the licences."""
    for name in REMOVED:
        shutil.rmtree(root / name, ignore_errors=True)
        if (root / name).is_file():
            (root / name).unlink()
    for path in root.glob("usr/lib/*/gconv"):  # conversions of character sets; the agent uses only UTF-8
        shutil.rmtree(path)
    for path in (root / "usr/share/doc").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "copyright":
            path.unlink()
    for path in root.rglob("__pycache__"):
        shutil.rmtree(path)
    shutil.rmtree(root / "dev", ignore_errors=True)


def add_environment(root: Path, prefix: str) -> None:
    """Complete the virtual environment of the installed packages, with a launcher that isolates Python."""
    interpreter = min((root / "usr/bin").glob("python3.*[0-9]")).name
    environment = root / prefix
    write(
        environment / "pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {interpreter.removeprefix('python')}\n"
        f"executable = /usr/bin/{interpreter}\n",
    )
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(f"/usr/bin/{interpreter}")
    for name in ("python3", interpreter):
        (environment / "bin" / name).symlink_to("python")
    write(environment / "bin/nodeagent", LAUNCHER.format(prefix=prefix))
    (environment / "bin/nodeagent").chmod(0o755)
    # Entry points of the wheels are not in the image, and their checksums depend on the interpreter path of the build.
    for record in environment.glob("lib/*/site-packages/*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        write(record, "".join(line for line in lines if not line.startswith("../../bin/")))


def add_files(root: Path) -> None:
    """Write users, mount points and licence files."""
    for name in MOUNT_POINTS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        write(root / name, text)
    if not (root / "var/run").is_symlink():
        (root / "var/run").symlink_to("/run")  # the default address of D-Bus is below /var/run
    source = Path(__file__).resolve().parents[2]
    write(root / "usr/share/doc/nodeagent/copyright", (source / "systemd/debian/copyright").read_text())
    write(root / "usr/share/doc/nodeagent/LICENSE", (source / "LICENSE").read_text())


def write(path: Path, text: str) -> None:
    """Replace a file and create its parent directories.

    A symbolic link is replaced and not followed, since its target may be on the build host.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o644)


def read_packages(debs: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the control fields and the SHA-256 digest of each Debian package, sorted by package name."""
    for path in sorted(debs.glob("*.deb")):
        command = ["dpkg-deb", "--field", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - found in PATH
        yield dict(HeaderParser().parsestr(text).items()), hashlib.sha256(path.read_bytes()).hexdigest()


def add_package_records(root: Path, packages: list[tuple[dict[str, str], str]]) -> None:
    """Write a record of each Debian package to the path that vulnerability scanners read in images without dpkg."""
    for control, _ in packages:
        lines = [f"{name}: {control[name]}\n" for name in _CONTROL_FIELDS if name in control]
        source = [f"Source: {control['Source']}\n"] if "Source" in control else []
        write(root / "var/lib/dpkg/status.d" / control["Package"], "".join([*lines, *source]))


def sbom(
    packages: list[tuple[dict[str, str], str]],
    libraries: list[dict[str, Any]],
    version: str,
    architecture: str,
    created: int,
) -> dict[str, Any]:
    """Return the CycloneDX SBOM of the image, reproducible from its contents.

    ``libraries`` are the components of the installed wheels.
    """
    components = [
        _component(
            "library",
            control["Package"],
            control["Version"],
            f"pkg:deb/debian/{control['Package']}@{control['Version'].replace(':', '%3A').replace('+', '%2B')}"
            f"?arch={control['Architecture']}&distro=debian-13",
            sha256,
        )
        for control, sha256 in packages
    ]
    components += libraries
    content = json.dumps([version, architecture, components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "container",
                "bom-ref": "nodeagent",
                "name": "nodeagent",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "architecture", "value": architecture}],
            },
        },
        "components": components,
        "dependencies": [{"ref": "nodeagent", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _component(kind: str, name: str, version: str, purl: str, sha256: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


if __name__ == "__main__":
    main()
