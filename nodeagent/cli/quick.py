"""Commands that run without the parser, where ``quick_parser`` matches the command line.

Each adapter calls the implementation as the command in ``nodeagent.cli.commands`` does, with the values of the same
parameters. Options that are paths or settings of the command's own are left to the parser: with them, a command reads
the node itself.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from nodeagent.cli.exit_codes import guarded
from nodeagent.cli.quick_parser import match, read_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.cli.listing import ListOptions
    from nodeagent.cli.source import Source

_COMPLETION: Final = "_NODEAGENT_COMPLETE"
PARSED_OPTIONS: Final = ("endpoint",)
"""Text options that are left to the parser nevertheless."""


def run(words: Sequence[str]) -> bool:
    """Run a command line; return whether it was matched. The exit code is raised as ``SystemExit``, unless it is 0."""
    if not words or words[0] not in _FIRST_WORDS or _COMPLETION in os.environ:
        return False
    found = match(words, read_grammar())
    if found is None or any(found[1].get(each) is not None for each in PARSED_OPTIONS):
        return False
    name, values = found
    gc.set_threshold(50_000, 20, 20)  # as with the parser
    with guarded():
        COMMANDS[name](values)
    return True


def _source(values: Mapping[str, Any]) -> Source:
    from nodeagent.cli.source import Source  # noqa: PLC0415 - with the implementation

    return Source(direct=values["direct"])


def _listing(values: Mapping[str, Any]) -> ListOptions:
    from nodeagent.cli.listing import ListOptions  # noqa: PLC0415 - with the implementation

    return ListOptions(
        form=values["output"],
        sort_by=values["sort_by"],
        filters=tuple(values["filters"] or ()),
        headers=not values["no_headers"],
        truncate=not values["no_trunc"],
        quiet=values["quiet"],
    )


def _images(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.lists import image_tree, list_images  # noqa: PLC0415

    show = image_tree if values["tree"] else list_images
    show(_source(values), _listing(values))


def _containers(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.lists import list_containers  # noqa: PLC0415

    list_containers(_source(values), _listing(values))


def _pods(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.lists import list_pods  # noqa: PLC0415

    list_pods(_source(values), _listing(values))


def _status(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.status import show_status  # noqa: PLC0415

    show_status(None, values["output"], watch_s=values["every"] if values["watch"] else None)


def _top(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.status import show_top  # noqa: PLC0415

    live = not values["once"] and values["output"] == "table" and sys.stdout.isatty()
    show_top(None, values["output"], watch_s=values["every"] if live else None)


def _history(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.history import EVERY_PASS, HistoryRequest, show_history  # noqa: PLC0415

    limit, idle = (EVERY_PASS, True) if values["pass_id"] else (values["limit"], values["idle"])
    request = HistoryRequest(values["pass_id"], values["since"], values["image"], limit, idle, values["details"])
    show_history(None, request, _listing(values), direct=values["direct"])


def _hold_list(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.hold_list import show  # noqa: PLC0415

    show(None, _listing(values), direct=values["direct"])


def _pressure(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.pressure import show  # noqa: PLC0415

    show(
        None,
        {},
        values["output"],
        hard=values["hard"],
        memory_source=values["memory"] or "",
        watch_s=values["every"] if values["watch"] else None,
        direct=values["direct"],
    )


def _pause(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.control import pause  # noqa: PLC0415

    pause(None, duration=values["duration"], why=values["why"])


def _resume(_: Mapping[str, Any]) -> None:
    from nodeagent.cli.control import resume  # noqa: PLC0415

    resume(None)


COMMANDS: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
    "containers": _containers,
    "history": _history,
    "hold list": _hold_list,
    "images": _images,
    "pause": _pause,
    "pods": _pods,
    "pressure": _pressure,
    "resume": _resume,
    "status": _status,
    "top": _top,
}
"""By the words of the command."""
_FIRST_WORDS: Final = frozenset([each.partition(" ")[0] for each in COMMANDS])
