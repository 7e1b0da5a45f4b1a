"""Grammar of shell completion: commands, options and kinds of values, read from the command tree when used."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin

import typer
from typer.core import TyperGroup, TyperOption

from nodeagent.cli.list_views import CONTAINERS, HOLDS, IMAGES, PASSES, PODS
from nodeagent.cli.main import app
from nodeagent.cli.topics import topics

if TYPE_CHECKING:
    from nodeagent.cli.listing import ListView

_LOOPS: Final = ["containers", "images", "eviction"]
_VALUES: Final[Mapping[tuple[str, str], Any]] = {
    ("explain", "item"): "item",
    ("history", "pass_id"): "pass",
    ("history", "image"): "image",
    ("hold add", "image"): "image",
    ("hold remove", "hold_id"): "hold",
    ("trigger", "loop"): _LOOPS,
    ("config show", "key"): "setting",
    ("config reference", "key"): "setting",
    ("completion", "shell"): ["bash", "zsh", "fish"],
    ("help", "words"): list(topics()),
}
"""Completion values by command and parameter: a list of values, or a kind such as ``image``."""
_VIEWS: Final[Mapping[str, ListView[Any]]] = {
    "images": IMAGES,
    "containers": CONTAINERS,
    "pods": PODS,
    "history": PASSES,
    "hold list": HOLDS,
}


def program() -> dict[str, Any]:
    """Return the grammar of the program; the grammar of a command is read when its name is looked up."""
    command = typer.main.get_command(app)
    return _command(typer.Context(command, info_name="nodeagent", **command.context_settings))


def settings() -> list[str]:
    """Return the keys of all settings."""
    from nodeagent.config.fields import settings_of  # noqa: PLC0415
    from nodeagent.config.models import Config  # noqa: PLC0415 - slow to import

    return [each.key for each in settings_of(Config)]


class _Subcommands(Mapping[str, dict[str, Any]]):
    """Grammars of the visible commands of a group, by name."""

    def __init__(self, context: typer.Context) -> None:
        self._context = context

    def __getitem__(self, name: str) -> dict[str, Any]:
        group: Any = self._context.command
        command = group.get_command(self._context, name)
        if command is None or command.hidden:
            raise KeyError(name)
        return _command(typer.Context(command, info_name=name, parent=self._context))

    def __iter__(self) -> Iterator[str]:
        group: Any = self._context.command
        return (name for name, command in group.commands.items() if not command.hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _command(context: typer.Context) -> dict[str, Any]:
    path = " ".join(context.command_path.split()[1:])
    found: dict[str, Any] = {"help": (context.command.short_help or "").strip(), "options": {}}
    arguments, kinds = [], _kinds(context.command)
    for parameter in context.command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        name = str(parameter.name)
        value = _value(path, name, kinds.get(name, bool))
        if not isinstance(parameter, TyperOption) and name != "help":
            arguments.append(value)
            continue
        option: dict[str, Any] = {"help": (getattr(parameter, "help", "") or "").partition(" [default")[0]}
        if value is not None:
            option["value"] = value
        if name == "config":
            option["config"] = True
        found["options"] |= dict.fromkeys(parameter.opts, option)
    if arguments:
        found["arguments"] = arguments
    if isinstance(context.command, TyperGroup):
        found["commands"] = _Subcommands(context)
    return found


def _value(path: str, name: str, kind: object) -> Any:  # noqa: ANN401 - a JSON value
    """Return the completion values of a parameter: a list, or a kind such as ``file``; ``None`` for a flag."""
    view = _VIEWS.get(path)
    if view is not None and name == "sort_by":
        return [prefix + key for prefix in ("", "-") for key in view.sort_keys]
    if view is not None and name == "filters":
        return [f"{key}=" for key in view.filter_keys]
    if (path, name) in _VALUES:
        return _VALUES[path, name]
    if kind is bool:
        return None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.value for each in kind]
    return "file" if kind is Path else []


def _kinds(command: Any) -> dict[str, object]:  # noqa: ANN401 - a type private to typer
    """Return the declared type of each parameter by name; ``X`` for the optional type ``X | None``."""
    if command.callback is None:
        return {}
    found: dict[str, object] = {}
    for name, parameter in inspect.signature(command.callback).parameters.items():
        kind = parameter.annotation
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        found[name] = kind
    return found
