"""Commands that run without the typer parser, if ``quick_parser`` matches the command line.

Each adapter calls the implementation with the same parameter values as the command in ``nodeagent.cli.commands``.
Command lines with path options or setting options are left to the typer parser: with these options, a command reads the
node itself.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nodeagent.cli.exit_codes import guarded
from nodeagent.cli.quick_parser import match, read_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.cli.list_options import ListOptions
    from nodeagent.cli.source import Source

_SETTINGS: Final = ("image_gc_", "container_gc_")
_COMPLETION: Final = "_NODEAGENT_COMPLETE"
_GC_THRESHOLD: Final = 500_000
"""Threshold of Python's garbage collector that avoids collections during imports and on nodes of common size."""
PARSED_OPTIONS: Final = ("endpoint",)
"""Text options that only the typer parser accepts."""


def run(words: Sequence[str]) -> bool:
    """Run a command line if it matches; return whether it was run. A nonzero exit code is raised as ``SystemExit``."""
    if not words or words[0] not in _FIRST_WORDS or _COMPLETION in os.environ:
        return False
    found = match(words, read_grammar())
    if found is None or any(found[1].get(each) is not None for each in PARSED_OPTIONS):
        return False
    name, values = found
    gc.set_threshold(_GC_THRESHOLD, 20, 20)
    atexit.register(gc.freeze)  # avoids the garbage collections at interpreter exit
    with guarded():
        return COMMANDS[name](values) is not False


def _source(values: Mapping[str, Any]) -> Source:
    from nodeagent.cli.source import Source  # noqa: PLC0415 - imported with the implementation

    return Source(direct=values["direct"])


def _listing(values: Mapping[str, Any]) -> ListOptions:
    from nodeagent.cli.list_options import ListOptions  # noqa: PLC0415 - imported with the implementation

    return ListOptions(
        form=values["output"],
        sort_by=values["sort_by"],
        filters=tuple(values["filters"] or ()),
        headers=not values["no_headers"],
        truncate=not values["no_trunc"],
        quiet=values["quiet"],
    )


def _images(values: Mapping[str, Any]) -> None:
    if values["tree"]:
        from nodeagent.cli.image_tree import image_tree as show  # noqa: PLC0415
    else:
        from nodeagent.cli.lists import list_images as show  # noqa: PLC0415
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


def _explain(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.explain import show  # noqa: PLC0415

    show(_source(values), values["item"], values["output"])


def _du(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.du import show  # noqa: PLC0415

    show(_source(values), values["output"], details=values["details"], timeout=values["timeout"])


def _gc(scope: str, values: Mapping[str, Any]) -> bool:
    if not values["dry_run"] or any(values[each] is not None for each in values if each.startswith(_SETTINGS)):
        return False
    from nodeagent.cli.gc import Request, collect  # noqa: PLC0415

    direct = values["direct"]
    collect(Request(scope, None, True, values["yes"], values["output"], values["kept"], {}, direct))
    return True


def _gc_leaks(values: Mapping[str, Any]) -> bool:
    if values["yes"]:
        return False
    from nodeagent.cli.gc import Request  # noqa: PLC0415
    from nodeagent.cli.leaks import collect_leaks  # noqa: PLC0415

    dry_run, direct = values["dry_run"], values["direct"]
    request = Request("leaks", None, dry_run, False, values["output"], values["kept"], {}, direct)
    collect_leaks(request, minimum_age=values["minimum_age"], rooted=values["rooted"])
    return True


def _evict(values: Mapping[str, Any]) -> bool:
    if not values["dry_run"] and not values["simulate"]:
        return False
    from nodeagent.cli.evict import preview  # noqa: PLC0415

    preview(_source(values), values["output"], values["simulate"] or [])
    return True


def _shutdown(values: Mapping[str, Any]) -> bool:
    if not values["dry_run"]:
        return False
    from nodeagent.cli.shutdown import rehearse  # noqa: PLC0415

    rehearse(_source(values), values["output"])
    return True


def _version(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.version import show_version  # noqa: PLC0415

    show_version(_source(values), values["output"])


def _shutdown_status(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.shutdown import status  # noqa: PLC0415

    status(_source(values), values["output"], limit=values["limit"])


def _pause(values: Mapping[str, Any]) -> None:
    from nodeagent.cli.control import pause  # noqa: PLC0415

    pause(None, duration=values["duration"], why=values["why"])


def _resume(_: Mapping[str, Any]) -> None:
    from nodeagent.cli.control import resume  # noqa: PLC0415

    resume(None)


COMMANDS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool | None]]] = {
    "containers": _containers,
    "du": _du,
    "evict": _evict,
    "explain": _explain,
    "gc all": partial(_gc, "all"),
    "gc containers": partial(_gc, "containers"),
    "gc images": partial(_gc, "images"),
    "gc leaks": _gc_leaks,
    "history": _history,
    "hold list": _hold_list,
    "images": _images,
    "pause": _pause,
    "pods": _pods,
    "pressure": _pressure,
    "resume": _resume,
    "shutdown": _shutdown,
    "shutdown status": _shutdown_status,
    "status": _status,
    "top": _top,
    "version": _version,
}
"""Adapter of each command by name; the result ``False`` leaves the command line to the typer parser."""
_FIRST_WORDS: Final = frozenset([each.partition(" ")[0] for each in COMMANDS])
