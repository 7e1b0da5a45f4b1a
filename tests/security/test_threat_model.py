"""Check that the threat model names a defence and tests for each threat, and every test of this directory.

The results of the attacks against version 0.1 are in the document on testing.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "nodeagent" / "docs" / "threat-model.md"
RESULTS = PAGE.with_name("tests.md")
NAME = re.compile(r"`([a-z0-9_]{20,})`")
TEST = re.compile(r"def test_(\w+)\(")


def rows(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of all tables in a Markdown page whose first column has the given heading."""
    found: list[list[str]] = []
    columns: list[str] = []
    for line in page.read_text().splitlines():
        row = line.strip("|").split("|") if line.startswith("|") else []
        columns = columns or [each.strip() for each in row] if row else []
        if columns[:1] == [heading] and row[0].strip() not in (heading, "---"):
            found.append(row)
    return found


THREATS = rows(PAGE, "Threat")
RESULTS_OF_ATTACKS = rows(RESULTS, "Attack")


def named(table: list[list[str]], column: int) -> set[str]:
    return {name for row in table for name in NAME.findall(row[column])}


def attacks(pattern: str) -> set[str]:
    """Return the names of the tests in the files of this directory that match a pattern, except those of this file."""
    texts = (path.read_text() for path in Path(__file__).parent.glob(pattern) if path != Path(__file__))
    return {name for text in texts for name in TEST.findall(text)}


def test_each_threat_has_a_defence_and_a_test() -> None:
    assert len(THREATS) > 20
    assert [row for row in THREATS if len(row) != 3 or not row[1].strip() or not NAME.search(row[2])] == []


def test_every_named_test_exists() -> None:
    texts = (path.read_text() for path in TESTS.rglob("test_*.py"))
    existing = {name for text in texts for name in TEST.findall(text)}
    assert (named(THREATS, 2) | named(RESULTS_OF_ATTACKS, 1)) - existing == set()


def test_every_attack_of_this_directory_is_named() -> None:
    assert attacks("**/test_*.py") - named(THREATS, 2) == set()


def test_every_attack_of_this_directory_has_a_result_against_version_0_1() -> None:
    assert attacks("test_*.py") - named(RESULTS_OF_ATTACKS, 1) == set()
    assert [row for row in RESULTS_OF_ATTACKS if len(row) != 3 or not row[2].strip()] == []
