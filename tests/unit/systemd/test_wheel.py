"""Wheel, sdist and Containerfile: the wheel alone installs the files of a checkout, and the others build this wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.command import nodeagent

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = ("nodeagent", "systemd", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
BUILD: Final = "from setuptools import build_meta; import sys; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def built(kind: str, source: Path, target: Path) -> Path:
    """Build a ``wheel`` or an ``sdist`` of a source tree into a new directory."""
    target.mkdir()
    subprocess.run(
        [sys.executable, "-I", "-c", BUILD, f"build_{kind}", target], cwd=source, check=True, capture_output=True
    )
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("source")
    for name in (*SOURCES, "CHANGELOG.md", "systemd/python/MANIFEST.in"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, directory)
    return directory


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", source, tmp_path_factory.mktemp("wheel") / "dist")


def content(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def files(root: Path) -> dict[str, str]:
    return {str(each.relative_to(root)): each.read_text() for each in root.rglob("*") if each.is_file()}


def test_wheel_alone_installs_the_files_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    pip = [sys.executable, "-I", "-m", "pip", "--python", environment, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(list(map(str, pip)), check=True, capture_output=True)
    libraries = environment / f"lib/python{sysconfig.get_python_version()}/site-packages"
    (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # those of the tests, without a download
    for root in ("of-wheel", "of-checkout"):
        (tmp_path / root).mkdir()
    options = ("--systemd", "257", "--root")
    command = [environment / "bin/nodeagent", "install", *options, tmp_path / "of-wheel"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert nodeagent("install", *options, str(tmp_path / "of-checkout")).returncode == 0
    installed = files(tmp_path / "of-wheel")
    assert installed == files(tmp_path / "of-checkout")
    assert {"etc/systemd/system/nodeagent.service", "etc/nodeagent/config.toml"} < installed.keys()
    assert len([each for each in installed if "/man/" in each]) == len([*(ROOT / "systemd/man").iterdir()])


def test_sdist_builds_the_same_wheel_and_has_lock_and_installer(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = built("sdist", source, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert content(built("wheel", unpacked, tmp_path / "wheel")) == content(wheel)
    assert (unpacked / "requirements.lock").read_text() == (ROOT / "requirements.lock").read_text()
    assert (unpacked / "systemd/installation").stat().st_mode & 0o111


def test_containerfile_copies_the_sources_of_the_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    copied = tmp_path / "source"
    copied.mkdir()
    containerfile = (ROOT / "systemd/image/Containerfile.debian").read_text()
    for line in re.findall(r"^COPY (?!--)(.+)$", containerfile, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            if (source / name).is_dir():
                shutil.copytree(source / name, tmp_path / target.lstrip("/"))
            else:
                shutil.copy(source / name, copied)
    assert (copied / "requirements.lock").is_file()
    assert content(built("wheel", copied, tmp_path / "wheel")) == content(wheel)


def test_archive_depends_on_names_and_content_alone(tmp_path: Path) -> None:
    packed = []
    for number, (names, mode) in enumerate(((("b", "a"), 0o644), (("a", "b"), 0o600))):
        tree = tmp_path / str(number) / "tree"
        tree.mkdir(parents=True)
        for name in names:
            (tree / name).write_text(name)
            (tree / name).chmod(mode)
            os.utime(tree / name, (number, number))
        archive = tmp_path / f"{number}.tar.gz"
        script = 'python=$1; . systemd/package-tree.sh; pack "$2" "$3" tree'
        subprocess.run(
            ["bash", "-euc", script, "bash", sys.executable, archive, tree.parent],
            cwd=ROOT,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1000000000"},
            check=True,
        )
        packed.append(archive.read_bytes())
    assert packed[0] == packed[1]
