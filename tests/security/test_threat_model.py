"""The threat model: each threat names a defence and existing tests, and every test of this directory is named."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "nodeagent" / "docs" / "threat-model.md"
NAME = re.compile(r"`([a-z0-9_]{20,})`")
TEST = re.compile(r"def test_(\w+)\(")


def rows() -> list[list[str]]:
    found = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [row for row in found if row[0].strip() not in ("Threat", "---")]


def named() -> set[str]:
    return {name for row in rows() for name in NAME.findall(row[-1])}


def test_each_threat_has_a_defence_and_a_test() -> None:
    assert len(rows()) > 20
    assert [row for row in rows() if len(row) != 3 or not row[1].strip() or not NAME.search(row[2])] == []


def test_every_named_test_exists() -> None:
    texts = (path.read_text() for path in TESTS.rglob("test_*.py"))
    assert named() - {name for text in texts for name in TEST.findall(text)} == set()


def test_every_attack_of_this_directory_is_named() -> None:
    attacks = (path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    assert {name for text in attacks for name in TEST.findall(text)} - named() == set()
