"""SBOM and licence files of the bundled Python packages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "systemd/sbom.py"


def add_wheel(directory: Path, name: str, metadata: str, **files: str) -> None:
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{metadata}\n"
        )
        for file, text in files.items():
            wheel.writestr(f"{name}-1.0.dist-info/licenses/{file}", text)


def written(directory: Path, *options: str | Path) -> tuple[dict[str, Any], str]:
    """Write SBOM and licence files; return the SBOM document and its text."""
    sbom = directory / "sbom.json"
    command: list[str | Path] = [sys.executable, "-I", SCRIPT, directory, "x86_64"]
    subprocess.run([*command, "--sbom", sbom, "--licences", directory / "licences", *options], check=True)
    text = sbom.read_text()
    return json.loads(text), text


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    add_wheel(tmp_path, "nodeagent", "")
    add_wheel(tmp_path, "Some_Library", "License-Expression: BSD-2-Clause OR MIT", LICENSE="text of it")
    add_wheel(tmp_path, "old", "Classifier: License :: OSI Approved :: MIT License")
    return tmp_path


def test_every_wheel_is_a_component_with_hash_and_licence(wheels: Path) -> None:
    document, _ = written(wheels)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == "nodeagent"
    found = {each["purl"]: each for each in document["components"]}
    assert set(found) == {"pkg:pypi/some-library@1.0", "pkg:pypi/old@1.0"}
    assert found["pkg:pypi/some-library@1.0"]["licenses"] == [{"expression": "BSD-2-Clause OR MIT"}]
    assert found["pkg:pypi/old@1.0"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert all(len(each["hashes"][0]["content"]) == 64 for each in found.values())
    assert (wheels / "licences/some_library-1.0/LICENSE").read_text() == "text of it"


def test_sbom_of_the_same_wheels_is_the_same_and_of_others_another(wheels: Path) -> None:
    first, second = written(wheels), written(wheels)
    assert first == second
    add_wheel(wheels, "more", "")
    assert written(wheels)[0]["serialNumber"] != first[0]["serialNumber"]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="requires dpkg-deb")
def test_debian_package_of_the_image_is_a_component_with_escaped_version(wheels: Path, tmp_path: Path) -> None:
    control = tmp_path / "tree/DEBIAN/control"
    control.parent.mkdir(parents=True)
    fields = {"Package": "some", "Version": "1:2.0+dfsg-1~deb13u1", "Architecture": "all"}
    fields |= {"Maintainer": "some <some@example.com>", "Description": "some"}
    control.write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    debs = tmp_path / "debs"
    debs.mkdir()
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tmp_path / "tree", debs], check=True)
    document, _ = written(wheels, "--debs", debs)
    purl = "pkg:deb/debian/some@1:2.0%2Bdfsg-1~deb13u1?arch=all&distro=debian-13"
    (found,) = [each for each in document["components"] if each["purl"] == purl]
    assert (found["name"], found["version"]) == ("some", "1:2.0+dfsg-1~deb13u1")
    assert len(found["hashes"][0]["content"]) == 64
