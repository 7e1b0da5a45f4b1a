"""Grammar of ``quick_parser``: the options of commands, derived from their typer declarations."""

from __future__ import annotations

import inspect
import json
import types
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

from nodeagent.cli.main import app
from nodeagent.cli.quick import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer

_KINDS = {str: "text", int: "int", float: "float", bool: "flag"}


def rendered() -> str:
    """Return the grammar of the commands that ``quick`` runs, as JSON text."""
    callbacks = dict(_callbacks(app, ""))
    grammar = {name: _command(callbacks[name]) for name in sorted(COMMANDS)}
    return json.dumps(grammar, indent=1, sort_keys=True) + "\n"


def _callbacks(group: typer.Typer, prefix: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        if command.callback is not None:
            yield f"{prefix}{command.name or command.callback.__name__}", command.callback
    for each in group.registered_groups:
        if each.typer_instance is None or not each.name:
            continue
        callback = each.typer_instance.registered_callback
        if callback is not None and callback.callback is not None and callback.invoke_without_command:
            yield f"{prefix}{each.name}", callback.callback
        yield from _callbacks(each.typer_instance, f"{prefix}{each.name} ")


def _command(callback: Callable[..., Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    arguments: list[str] = []
    for name, parameter in inspect.signature(callback).parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            continue  # the typer context is neither an option nor an argument
        kind, info = get_args(parameter.annotation)[:2]
        default = parameter.default
        if default is not inspect.Parameter.empty:
            defaults[name] = default.value if isinstance(default, Enum) else default
        if isinstance(info, ArgumentInfo):
            arguments.append(name)
            continue
        if not isinstance(info, OptionInfo):
            raise TypeError(f"{name}: not an option")
        found = _option(name, kind, info)
        if found is not None:  # with Annotated, typer stores the first flag of an option as its default
            declared = (info.default, *(info.param_decls or ()))
            options |= {each: found for each in declared if isinstance(each, str) and each.startswith("-")}
    return {"arguments": arguments, "defaults": defaults, "options": options}


def _option(name: str, kind: Any, info: OptionInfo) -> dict[str, Any] | None:  # noqa: ANN401 - a type expression
    """Return the grammar of an option; ``None`` if only the full parser accepts the option, such as a path."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is list:
        return {"name": name, "kind": "list"} if get_args(kind) == (str,) else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"name": name, "kind": "choice", "choices": [each.value for each in kind]}
    if kind is Path or kind not in _KINDS:
        return None
    limits = {"min": info.min, "max": info.max} if kind in (int, float) else {}
    return {"name": name, "kind": _KINDS[kind], **limits}
