"""The threat model: each threat names a defence and existing tests, and every test of this directory is named."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "nodeagent" / "docs" / "threat-model.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def threats() -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [row for row in rows if row[0].strip() not in ("Threat", "---")]


def test_each_threat_has_a_defence_and_a_test() -> None:
    assert len(threats()) > 20
    assert [row for row in threats() if len(row) != 3 or not row[1].strip() or not NAMED.search(row[2])] == []


def test_every_named_test_exists() -> None:
    named = NAMED.findall(PAGE.read_text())
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (TESTS / file).is_file() or f"def {test}(" not in (TESTS / file).read_text()
    ]
    assert missing == []


def test_every_attack_of_this_directory_is_named() -> None:
    attacks = {
        (f"security/{path.name}", test)
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for test in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert attacks - set(NAMED.findall(PAGE.read_text())) == set()
