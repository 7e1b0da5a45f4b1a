"""Report of code sizes, a part of ``make check``: ``python -m tests.sizes [DIRECTORY]``, by default of the package.

Lines of code are lines with a token other than comments and docstrings. The report has no limits: a size is a question
for the reader of a change, not an error.
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final, NamedTuple

_LISTED: Final = 8
_GENERATED: Final = "/_proto/"
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Sizes(NamedTuple):
    """Sizes of one file: lines of code, those of imports, lines of each function, and attributes of each class."""

    code: int
    imports: int
    functions: dict[str, int]
    attributes: dict[str, int]


def measure(text: str) -> Sizes:
    """Return the sizes of a source text; fields of a class and the attributes that its constructor sets count alike."""
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    imports: set[int] = set()
    functions: dict[str, int] = {}
    attributes: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, _Documented) and ast.get_docstring(node) is not None:
            code.difference_update(_lines(node.body[0]))
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_lines(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[node.name] = len(_lines(node))
        elif isinstance(node, ast.ClassDef):
            attributes[node.name] = len(_attributes(node))
    return Sizes(len(code), len(imports & code), functions, attributes)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _attributes(node: ast.ClassDef) -> set[str]:
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        part.attr
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for part in ast.walk(function)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if isinstance(part.value, ast.Name) and part.value.id == "self"
    }
    return fields | assigned


def report(directory: str) -> str:
    """Return the report of the tracked files of a directory."""
    command = ["git", "ls-files", "-z", f"{directory}/*.py"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    found = {
        name: measure(Path(name).read_text(encoding="utf-8")) for name in listed if name and _GENERATED not in name
    }
    code, imports = sum(each.code for each in found.values()), sum(each.imports for each in found.values())
    functions = {f"{name}: {key}": size for name, each in found.items() for key, size in each.functions.items()}
    attributes = {f"{name}: {key}": size for name, each in found.items() for key, size in each.attributes.items()}
    p90 = statistics.quantiles(functions.values(), n=10)[-1]
    totals = f"{len(found)} modules, {code} lines of code, {imports / code:.1%} of them imports"
    return "\n".join(
        (
            f"{totals}; 90 % of the functions have at most {p90:.0f} lines",
            *_largest("files, lines of code", {name: each.code for name, each in found.items()}),
            *_largest("functions, lines", functions),
            *_largest("classes, attributes", attributes),
        )
    )


def _largest(title: str, sizes: dict[str, int]) -> list[str]:
    names = sorted(sizes, key=lambda each: -sizes[each])[:_LISTED]
    return [f"largest {title}:", *(f"  {sizes[each]:5} {each}" for each in names)]


if __name__ == "__main__":
    print(report(sys.argv[1] if len(sys.argv) > 1 else "nodeagent"))
