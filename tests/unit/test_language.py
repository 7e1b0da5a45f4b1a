"""Vocabulary check: banned words fail, quotations pass, identifiers are split into words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import language

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("# The log tells the cause.\n", [(1, "tells")]),
        ('# Message of kubectl: "unable to tell".\n', []),
        ("told_at = 1\n", [(1, "told")]),
        ("class ToldTwice: ...\n", [(1, "told")]),
        ("intelligent = 1\n", []),
        ('text = "cannot tell"\n', [(1, "tell")]),
        ('def f():\n    """Return it.\n\n    Nobody looks.\n    """\n', [(4, "nobody"), (4, "looks")]),
        ("held = 1\n", []),
    ],
    ids=["comment", "quotation", "snake-case", "camel-case", "part-of-a-word", "string", "docstring", "standard"],
)
def test_python_source_gives_findings_with_line_and_term(source: str, found: list[tuple[int, str]]) -> None:
    assert [(each.line, each.term) for each in language.find_in_python(source)] == found


@pytest.mark.parametrize(
    ("text", "code", "printed"),
    [
        ("Lists the images.\n", 0, ""),
        ("It tells.\n", 1, "a.md:1: error: 'tells'"),
        ("Read it anew.\n", 0, "a.md:1: warning: 'anew'"),
    ],
    ids=["clean", "banned", "discouraged"],
)
def test_only_a_banned_word_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, printed: str
) -> None:
    (tmp_path / "a.md").write_text(text)
    assert language.main([str(tmp_path / "a.md")]) == code
    assert printed in capsys.readouterr().out
