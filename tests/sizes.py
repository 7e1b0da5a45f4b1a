"""Check the sizes of files, functions and classes: ``python -m tests.sizes [PATH...]``, part of ``make check``.

A size above its limit is an error unless a comment gives a reason. The comment states a higher limit, on any line of a
file (``# 450 lines: a table``) or on the line of a class (``# 12 attributes: one per source of the snapshot``); for a
constructor, the reason of ``noqa: PLR0913`` is sufficient. Functions have no exceptions.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES: Final = 500
FUNCTION_LINES: Final = 60
ATTRIBUTES: Final = 10
PARAMETERS: Final = 7

_EXCLUDED = ("nodeagent/_proto/",)
_LINES_REASON = re.compile(r"^# (\d+) lines: \S", re.MULTILINE)
_ATTRIBUTES_REASON = re.compile(r"# (\d+) attributes: \S")
_PARAMETERS_REASON = re.compile(r"# noqa: [\w, ]*PLR0913[\w, ]* - \S")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """Size of a file, function or class above its limit."""

    line: int
    text: str


def find(text: str) -> Iterator[Finding]:
    """Yield the sizes in a file that are above their limits."""
    lines = text.splitlines()
    reason = _LINES_REASON.search(text)
    limit = int(reason[1]) if reason else FILE_LINES
    if len(lines) > limit:
        yield Finding(1, f"{len(lines)} lines, limit {limit}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            yield from _function(node, lines)
        elif isinstance(node, ast.ClassDef):
            reason = _ATTRIBUTES_REASON.search(lines[node.lineno - 1])
            limit = int(reason[1]) if reason else ATTRIBUTES
            count = len(_attributes(node))
            if count > limit:
                yield Finding(node.lineno, f"class {node.name} has {count} attributes, limit {limit}")


def _function(node: Function, lines: list[str]) -> Iterator[Finding]:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > FUNCTION_LINES:
        yield Finding(node.lineno, f"function {node.name} has {length} lines, limit {FUNCTION_LINES}")
    parameters = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
    if node.name == "__init__" and parameters > PARAMETERS and not _PARAMETERS_REASON.search(lines[node.lineno - 1]):
        yield Finding(node.lineno, f"constructor has {parameters} parameters, limit {PARAMETERS}")


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a constructor assigns; fields of a dataclass do not count."""
    return {
        part.attr
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for part in ast.walk(function)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if isinstance(part.value, ast.Name) and part.value.id == "self"
    }


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], capture_output=True, text=True, check=True).stdout
    return [each for each in listed.split("\0") if each]


def main(paths: list[str]) -> int:
    """Print the findings of files, by default of all tracked files; return 1 if there are findings, otherwise 0."""
    failed = False
    for name in paths or _tracked():
        path = Path(name)
        if name.startswith(_EXCLUDED) or not path.is_file():
            continue
        for each in find(path.read_text(encoding="utf-8")):
            failed = True
            print(f"{name}:{each.line}: {each.text}; split it, or write the reason beside it")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
