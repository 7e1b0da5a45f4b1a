"""Parsers of JSON and YAML written by other programs and users: bounded in depth, size and time, with one error type.

The YAML loader of the library has no bounds: 415 bytes of merged aliases take minutes, a number with colons takes time
quadratic in its length, and values that contradict their tag raise errors of any kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import yaml

_MAX_NODES: Final = 10_000
"""Maximum number of values in a YAML document, aliases counted as copies; a static pod has about 400."""
_MAX_DEPTH: Final = 64
_MAX_NUMBER_LENGTH: Final = 64
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of a JSON text.

    Args:
        text: the JSON text.
        parse_constant: called for ``NaN`` and infinities; ``None`` accepts them.

    Raises:
        ValueError: the text is not JSON, is not UTF-8, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_yaml(text: str | bytes) -> Iterator[Any]:
    """Yield the documents of a YAML or JSON text; each document of a YAML text is parsed on demand.

    Dates are returned as text, as in the kubelet. An object in JSON is parsed as JSON, since YAML permits no tab as
    indentation.

    Raises:
        ValueError: the text is not YAML, has more than 10,000 values with aliases and merges counted as copies, is
            nested more than 64 levels deep, contains itself, or has a value that contradicts its tag. The number of
            values in JSON is not limited.
    """
    if text.lstrip()[:1] in ("{", b"{"):
        try:
            document = parse_json(text)
        except ValueError:
            pass  # a YAML flow mapping also starts with a brace
        else:
            _check_depth(document, 1)
            yield document
            return
    import yaml  # noqa: PLC0415 - slow import, used on some nodes only

    try:
        loader = _loader()(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                _check_size(node)
                yield loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        # PyYAML raises the last four types for values such as ``!!bool x`` and ``!!int ""``.
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@cache
def _loader() -> type[yaml.SafeLoader]:
    """Return the YAML loader class, based on the Python loader, since the C loader crashes on deep nesting."""
    import yaml  # noqa: PLC0415 - slow import, used on some nodes only

    class Loader(yaml.SafeLoader):
        """YAML loader that checks the number of values and levels before the construction of objects."""

        nodes = depth = 0

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            self.nodes += 1
            self.depth += 1
            _check_bounds(self.nodes, self.depth)
            node: yaml.Node | None = super().compose_node(parent, index)
            self.depth -= 1
            return node

    def number(loader: yaml.SafeLoader, node: yaml.Node) -> object:
        if len(str(node.value)) > _MAX_NUMBER_LENGTH:
            raise ValueError(f"a number has more than {_MAX_NUMBER_LENGTH} characters")
        return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)

    for tag in _NUMBERS:
        Loader.add_constructor(tag, number)
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in found if tag != _TIMESTAMP]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def _check_size(root: yaml.Node | None) -> None:
    """Reject a document that contains itself, or exceeds the limits with every alias counted as a copy."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, depth: int) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise ValueError("a value contains itself")
        if known is None:
            sizes[id(node)] = 0
            known = 1 + sum(size(each, depth + 1) for each in _children(node))
            _check_bounds(known, depth)
            sizes[id(node)] = known
        return known

    if root is not None:
        size(root, 1)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if not isinstance(node.value, list):
        return []
    return [part for each in node.value for part in (each if isinstance(each, tuple) else (each,))]


def _check_depth(value: object, depth: int) -> None:
    """Reject a value that is nested too deeply."""
    _check_bounds(0, depth)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(each, depth + 1)


def _check_bounds(nodes: int, depth: int) -> None:
    if nodes > _MAX_NODES:
        raise ValueError(f"more than {_MAX_NODES} values, aliases counted as copies")
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
