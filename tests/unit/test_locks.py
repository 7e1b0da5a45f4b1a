"""Lock files of dependencies: complete, with allowed versions and hashes, and consistent with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = {"runtime": "requirements.lock", "dev": "requirements-dev.lock", "build": "requirements-build.lock"}


def locked(file: str) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes of each package in a lock file, by package name."""
    found: dict[str, tuple[str, int]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / FILES[file]).read_text().strip()):
        first, *hashes = entry.split(" \\\n    ")
        requirement = Requirement(first)
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
        found[canonicalize_name(requirement.name)] = (str(requirement.specifier).removeprefix("=="), len(hashes))
    return found


def required(file: str) -> list[Requirement]:
    groups: dict[str, list[Any]] = PROJECT["dependency-groups"]

    def group(name: str) -> list[str]:
        return [
            text
            for each in groups[name]
            for text in (group(each["include-group"]) if isinstance(each, dict) else [each])
        ]

    texts = {"runtime": [], "dev": [*group("dev"), *group("protos")], "build": group("build")}[file]
    return list(map(Requirement, texts if file == "build" else [*PROJECT["project"]["dependencies"], *texts]))


@pytest.mark.parametrize("file", FILES)
def test_every_dependency_is_locked_to_an_allowed_version_with_hashes(file: str) -> None:
    versions = locked(file)
    assert versions
    assert [name for name, (version, hashes) in versions.items() if not version or not hashes] == []
    outside = [
        str(each)
        for each in required(file)
        if not each.specifier.contains(versions.get(canonicalize_name(each.name), ("0", 0))[0])
    ]
    assert outside == [], "run: make lock"


def test_tests_run_with_the_versions_of_the_package() -> None:
    runtime, dev = locked("runtime"), locked("dev")
    assert {name: dev.get(name) for name in runtime} == runtime
