"""Templates of ``-o jsonpath`` and paths of ``-o custom-columns``: a subset of the syntax of kubectl.

A template is text with expressions in braces: a path, a text in quotes, ``{range PATH}`` and ``{end}``. A path has the
steps ``.name``, ``['name']``, ``[2]``, ``[-1]``, ``[1:3]``, ``[*]``, ``.*`` and ``[?(@.name=="value")]`` with the
operators ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``. It starts at the current element, or with ``$`` at the
document. A field that is absent has no value.

Rejected: a library. The templates are a syntax of kubectl; the libraries for Python implement only paths, of another
dialect. Source: Kubernetes documentation, "JSONPath Support".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodeagent.errors import UsageError
from nodeagent.text import escape, shortened, to_json

MISSING: Final = "<none>"
"""Cell of a custom column without a value."""
_MAX_LENGTH: Final = 4096
_MAX_DEPTH: Final = 16
_NAME: Final = re.compile(r"(?:\\.|[^\s\\.\[\]{}()*'\"?@$,=<>!])+")
_INDEX: Final = re.compile(r"\[(-?\d{1,9})\]", re.ASCII)
_SLICE: Final = re.compile(r"\[(-?\d{1,9})?:(-?\d{1,9})?\]", re.ASCII)
_QUOTED: Final = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\")\]")
_FILTER: Final = re.compile(
    r"\[\?\(\s*@((?:\\.|[^\\=<>!\s)])*)\s*(?:(==|!=|<=|>=|<|>)\s*(\"[^\"]*\"|'[^']*'|[^\s)]+)\s*)?\)\]"
)
_TEXT: Final = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'((?:\\.|[^'\\])*)'")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_EXPRESSION: Final = re.compile(r"\{((?:\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^{}\"'])*)\}")
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}

Step = Callable[[Any], Iterator[Any]]


class Path(NamedTuple):
    """A parsed path.

    Attributes:
        of_document: whether the path starts at the document.
        steps: functions that return the values of a step, one after the other.
    """

    of_document: bool
    steps: tuple[Step, ...]

    def values(self, current: Any, document: Any) -> list[Any]:  # noqa: ANN401 - a JSON value
        """Return the values of the path."""
        found = [document if self.of_document else current]
        for step in self.steps:
            found = [each for value in found for each in step(value)]
        return found


class Range(NamedTuple):
    """A part of a template that is repeated for each value of a path."""

    path: Path
    parts: tuple[Any, ...]


class Template(NamedTuple):
    """A parsed template: texts, paths and ranges."""

    parts: tuple[Any, ...]

    def text(self, document: Any) -> str:  # noqa: ANN401 - a JSON value
        """Return the text of a document; values are escaped, and several values of a path separated by spaces."""
        return "".join(_texts(self.parts, document, document))


def _texts(parts: Sequence[Any], current: Any, document: Any) -> Iterator[str]:  # noqa: ANN401 - JSON values
    for part in parts:
        if isinstance(part, Range):
            for each in part.path.values(current, document):
                yield from _texts(part.parts, each, document)
        elif isinstance(part, Path):
            yield " ".join(map(value_text, part.values(current, document)))
        else:
            yield part


def value_text(value: Any) -> str:  # noqa: ANN401 - a JSON value
    """Return a value as escaped text; objects and lists as JSON."""
    return escape(value) if isinstance(value, str) else to_json(value)


def parse_template(text: str) -> Template:
    """Return the template of ``-o jsonpath=TEXT``.

    Raises:
        UsageError: the syntax is invalid or unsupported, or the template has no expression.
    """
    option = "-o jsonpath"
    _check_length(option, text)
    stack: list[tuple[Path | None, list[Any]]] = [(None, [])]
    position = 0
    while position < len(text):
        found = _EXPRESSION.match(text, position)
        if found is None:
            if text[position] in "{}":
                raise _fault(option, text[position:], "unbalanced braces or quotes")
            end = next((at for at in range(position, len(text)) if text[at] in "{}"), len(text))
            stack[-1][1].append(text[position:end])
            position = end
            continue
        _add(option, found[1].strip(), stack)
        position = found.end()
    if len(stack) > 1:
        raise _fault(option, text, "{range ...} without {end}")
    if all(isinstance(each, str) for each in stack[0][1]) and "{" not in text:
        raise _fault(option, text, "no expression in braces, such as '{.items[*].name}'")
    return Template(tuple(stack[0][1]))


def _add(option: str, expression: str, stack: list[tuple[Path | None, list[Any]]]) -> None:
    """Add an expression to the innermost range, or begin or end a range."""
    word, _, rest = expression.partition(" ")
    if word == "range":
        if len(stack) > _MAX_DEPTH:
            raise _fault(option, expression, f"more than {_MAX_DEPTH} nested ranges")
        stack.append((_path(option, rest.strip()), []))
    elif expression == "end":
        path, parts = stack.pop()
        if path is None:
            raise _fault(option, "{end}", "no {range ...} before it")
        stack[-1][1].append(Range(path, tuple(parts)))
    elif (quoted := _TEXT.fullmatch(expression)) is not None:
        stack[-1][1].append(_unescaped(quoted[1] if quoted[1] is not None else quoted[2]))
    else:
        stack[-1][1].append(_path(option, expression))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)


def parse_columns(text: str) -> tuple[tuple[str, Path], ...]:
    """Return the titles and paths of ``-o custom-columns=TITLE:PATH,...``; a path starts at a row of the list.

    Raises:
        UsageError: a column has no title or no path, or its path is invalid or unsupported.
    """
    option = "-o custom-columns"
    _check_length(option, text)
    columns = []
    for each in re.split(r",(?![^\[]*\])", text):
        title, colon, path = each.partition(":")
        if not (title.strip() and colon and path.strip()):
            raise _fault(option, each, "write TITLE:PATH,..., such as NAME:.name,EXIT:.exit_code")
        inner = path.strip()
        if inner.startswith("{") and inner.endswith("}"):
            inner = inner[1:-1].strip()
        columns.append((title.strip(), _path(option, inner if inner[:1] in ".[$@" else f".{inner}")))
    return tuple(columns)


def column_text(path: Path, row: Any, document: Any) -> str:  # noqa: ANN401 - JSON values
    """Return the cell of a custom column; ``<none>`` without a value. The cell is not escaped."""
    found = [each for each in path.values(row, document) if each is not None]
    return ",".join(each if isinstance(each, str) else to_json(each) for each in found) or MISSING


def _path(option: str, text: str) -> Path:
    rest = text
    of_document = rest.startswith("$")
    if rest[:1] in ("$", "@"):
        rest = rest[1:]
    if not rest and not text:
        raise _fault(option, text, "an empty expression")
    steps: list[Step] = []
    while rest:
        step, rest = _step(option, text, rest)
        steps.append(step)
    return Path(of_document, tuple(steps))


def _step(option: str, text: str, rest: str) -> tuple[Step, str]:  # noqa: C901, PLR0911 - a branch per kind of step
    """Return the first step of a path and the rest of the path."""
    if rest.startswith(".."):
        raise _fault(option, text, "the recursive step '..' is unsupported")
    if rest.startswith(".*"):
        return _every, rest[2:]
    if rest.startswith("[*]"):
        return _every, rest[3:]
    if rest.startswith(".["):
        return _step(option, text, rest[1:])
    if rest.startswith(".") and (name := _NAME.match(rest, 1)) is not None:
        return _field(option, text, re.sub(r"\\(.)", r"\1", name[0])), rest[name.end() :]
    if rest == ".":
        return _same, ""
    if (index := _INDEX.match(rest)) is not None:
        return _item(int(index[1])), rest[index.end() :]
    if (part := _SLICE.match(rest)) is not None:
        bounds = [None if each is None else int(each) for each in part.groups()]
        return _part(slice(*bounds)), rest[part.end() :]
    if (quoted := _QUOTED.match(rest)) is not None:
        key = quoted[1] if quoted[1] is not None else quoted[2]
        return _field(option, text, key), rest[quoted.end() :]
    if (condition := _FILTER.match(rest)) is not None:
        return _matching(option, text, *condition.groups()), rest[condition.end() :]
    raise _fault(option, text, f"unsupported at {shortened(rest, 20)!r}")


def _same(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
    yield value


def _every(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
    yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _field(option: str, text: str, name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
        if isinstance(value, list):
            raise _fault(option, text, f"{name!r} is a field of a list: write [*] before it, or [0]")
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _item(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _part(part: slice) -> Step:
    def step(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
        yield from value[part] if isinstance(value, list) else ()

    return step


def _matching(option: str, text: str, operand: str, operator: str | None, literal: str | None) -> Step:
    """Return the step of a filter; a comparison of different types is false, and ``!=`` true."""
    path = _path(option, operand or ".")
    compared: Any = None
    if operator is not None and literal is not None:
        quoted = _TEXT.fullmatch(literal)
        try:
            compared = json.loads(literal) if quoted is None else quoted[1] if quoted[1] is not None else quoted[2]
        except ValueError as error:
            raise _fault(option, text, f"{literal} is no text in quotes and no number") from error

    def holds(value: Any) -> bool:  # noqa: ANN401 - a JSON value
        if operator in ("==", "!="):
            is_equal = value == compared and isinstance(value, bool) is isinstance(compared, bool)
            return is_equal is (operator == "==")
        try:
            return _COMPARISONS[operator or ""](value, compared)
        except TypeError:
            return False

    def step(value: Any) -> Iterator[Any]:  # noqa: ANN401 - a JSON value
        for each in value if isinstance(value, list) else ():
            found = path.values(each, each)
            if (bool(found) and found[0] is not None) if operator is None else any(map(holds, found)):
                yield each

    return step


def _check_length(option: str, text: str) -> None:
    if len(text) > _MAX_LENGTH:
        raise _fault(option, text[:20], f"longer than {_MAX_LENGTH} characters")


def _fault(option: str, text: str, problem: str) -> UsageError:
    return UsageError(f"{option}: {shortened(text, 60)}: {problem}")
