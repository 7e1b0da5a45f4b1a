"""``nodeagent gc undo``: restore removed images within their undo window."""

from __future__ import annotations

import sys
from pathlib import Path

from nodeagent.api.common import encode
from nodeagent.cli.control_client import daemon_for_user
from nodeagent.cli.display import say, standard_output, warn
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import load_settings, run_with_agent
from nodeagent.cli.table import Heading, Table, short_id, short_reference, size_cell
from nodeagent.errors import UsageError
from nodeagent.gc.documents.readings import list_undoable
from nodeagent.gc.documents.undo import RemovedImage, UndoablePass, UndoList, Undone
from nodeagent.gc.restore import UndoOutcome, UndoResult
from nodeagent.text import Cut
from nodeagent.units import SystemClock, format_duration

_WITHIN_S = 300.0
_MOST_NAMES = 3


def undo(pass_id: str, config: Path | None, form: str, *, only_list: bool, direct: bool) -> None:
    """Restore the images removed by a pass, or list the passes that can be undone.

    Args:
        pass_id: id of the pass, or the beginning of its id; empty for the newest pass.
        config: configuration file.
        form: ``table``, ``wide``, ``json`` or ``yaml``.
        only_list: whether the passes that can be undone are listed, and nothing is restored.
        direct: whether the node is read even if a daemon is running.

    Raises:
        UsageError: nothing can be undone, or a pass is named with ``--list``.
        NodeAgentError: the runtime cannot undo removals, or another pass is running.
    """
    if only_list:
        if pass_id:
            raise UsageError("--list lists every pass that can be undone: omit PASS")
        _print_list(_listed(config, direct=direct), form)
        return
    sys.exit(_print_undone(_undone(pass_id, config, direct=direct), form))


def _listed(config: Path | None, *, direct: bool) -> UndoList:
    if (agent := daemon_for_user(config, {}, root_too=True, direct=direct)) is not None:
        return agent.call("UndoList", UndoList, within_s=_WITHIN_S)
    return run_with_agent(load_settings(config, {}), list_undoable)


def _undone(pass_id: str, config: Path | None, *, direct: bool) -> Undone:
    if (agent := daemon_for_user(config, {}, root_too=True, direct=direct)) is not None:
        return agent.call("Undo", Undone, {"pass_id": pass_id}, within_s=_WITHIN_S)
    settings = load_settings(config, {})
    return Undone.of(run_with_agent(settings, lambda node: node.undo_removals(pass_id), record=True, dry_run=False))


def _print_list(document: UndoList, form: str) -> None:
    if form not in ("table", "wide"):
        sys.stdout.write(encode(document, form))
        return
    if not document.passes:
        warn("nothing to undo: no image removal is in its undo window")
        return
    now = SystemClock().now()
    table = Table(
        "PASS",
        Heading("IMAGES", right=True),
        Heading("FREES", right=True),
        "TIME LEFT",
        Heading("NAMES", cut=Cut.END, at_least=24),
    )
    for each in document.passes:
        left = "?" if each.until is None else format_duration(max(0.0, (each.until - now).total_seconds()))
        size = "?" if each.size_bytes is None else size_cell(each.size_bytes)
        table.add(each.pass_id, str(len(each.images)), size, left, _names(each, wide=form == "wide"))
    display = standard_output()
    display.write(table.lines(display.columns))


def _name(image: RemovedImage | UndoResult) -> str:
    return short_reference(image.names[0]) if image.names else short_id(image.id)


def _names(undoable: UndoablePass, *, wide: bool) -> str:
    names = [_name(each) for each in undoable.images]
    shown = names if wide else names[:_MOST_NAMES]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more}"


def _print_undone(document: Undone, form: str) -> ExitCode:
    failed = sum(each.outcome is UndoOutcome.FAILED for each in document.results)
    if form not in ("table", "wide"):
        sys.stdout.write(encode(document, form))
    else:
        for each in document.results:
            say(f"{each.outcome.value}: {_name(each)}" + (f": {each.detail}" if each.detail else ""))
        restored = sum(each.outcome is UndoOutcome.RESTORED for each in document.results)
        say(
            f"Restored {restored} of {len(document.results)} images of pass {document.pass_id} in "
            f"{format_duration(document.duration_s)}"
        )
    if not failed:
        return ExitCode.DONE
    return ExitCode.FAILED if failed == len(document.results) else ExitCode.PARTIAL
