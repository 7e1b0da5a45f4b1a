"""``nodeagent events``, ``pause``, ``resume``, ``trigger`` and ``reload``: clients of the running daemon."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from nodeagent.api.common import decode_fields, encode, encode_line
from nodeagent.api.requests import TEXT_FORM, is_text
from nodeagent.cli.control_client import connected
from nodeagent.cli.display import Line, say, standard_output
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import duration_s
from nodeagent.daemon.control_documents import Paused, Reload, ReloadEffectDocument, Resumed, Triggered
from nodeagent.errors import UsageError
from nodeagent.loops.pause_file import LONGEST_PAUSE_S
from nodeagent.text import escape
from nodeagent.units import format_bytes, format_duration, format_local_time

_TRIGGER_WITHIN_S: Final = 960.0
_RELOAD_WITHIN_S: Final = 90.0
_COLUMNS: Final = 80
_STYLES: Final = {"warning": "yellow", "error": "bold red", "critical": "bold red"}


def follow_events(config: Path | None, form: str) -> None:
    """Print the events of the agent until interrupted.

    Raises:
        NodeAgentError: no agent is running, or this user has no read access to the control API.
    """
    display = standard_output()
    for event in connected(config).stream("Events", decode_fields):
        if form != "table":
            sys.stdout.write(encode_line(event))
            sys.stdout.flush()
            continue
        missed = event.pop("missed_before", 0)
        if missed:
            display.write_fitted([Line(f"{missed} events lost: read too slowly", "yellow")])
        display.write_fitted([Line(_event_line(event), _STYLES.get(str(event.get("level")), ""))])


def _event_line(event: dict[str, Any]) -> str:
    from nodeagent.telemetry.event_catalogue import sentence  # noqa: PLC0415 - needed only for tables

    fields = {key: value for key, value in event.items() if key not in ("schema", "event", "level", "timestamp")}
    when = str(event.get("timestamp", ""))
    with suppress(ValueError):  # of another version
        when = format_local_time(datetime.fromisoformat(when))
    return f"{when}  {event.get('event')}: {sentence(str(event.get('event')), fields)}"


def pause(config: Path | None, *, duration: str, why: str) -> None:
    """Pause garbage collection and eviction.

    Raises:
        UsageError: the duration is invalid or out of range, or the reason is not printable.
        NodeAgentError: no agent is running, or this user has no permission to pause the agent.
    """
    seconds = duration_s("--for", duration)
    if not 0 < seconds <= LONGEST_PAUSE_S:
        raise UsageError(f"--for {duration}: must be more than 0 and at most 7d")
    if not is_text(why):
        raise UsageError(f"--why: {TEXT_FORM}")
    answer = connected(config).call("Pause", Paused, {"seconds": seconds, "why": why})
    say(f"paused until {format_local_time(answer.until)}; 'nodeagent resume' ends it earlier")


def resume(config: Path | None) -> None:
    """End the pause of the agent.

    Raises:
        NodeAgentError: no agent is running, or this user has no permission to resume the agent.
    """
    was_paused = connected(config).call("Resume", Resumed).was_paused
    sys.stdout.write("resumed\n" if was_paused else "not paused\n")


def trigger(config: Path | None, loop: str, *, wait: bool) -> None:
    """Start a pass of a loop immediately; with ``wait`` print its result.

    Raises:
        UsageError: the loop is unknown or disabled, or the agent is paused.
        NodeAgentError: no agent is running, or this user has no permission to trigger a loop.
    """
    request = {"loop": loop, "wait": wait}
    answer = connected(config).call("Trigger", Triggered, request, within_s=_TRIGGER_WITHIN_S)
    if not wait:
        say(f"{loop} started; see 'nodeagent status' for the result")
        return
    detail = f": {answer.detail}" if answer.detail else ""
    dry_run = " (dry run)" if answer.dry_run and answer.result != "dry-run" else ""
    say(f"{loop}: {answer.result}{dry_run}{detail}")
    if answer.result in ("failed", "crashed", "runtime-unavailable"):
        sys.exit(ExitCode.FAILED)


def reload(config: Path | None, form: str = "table", *, dry_run: bool = False) -> None:
    """Reload the configuration of the agent; print the changes and their effect.

    With ``dry_run`` nothing is reloaded, and the exit code is 3 if the effect is unknown.

    Raises:
        ConfigError: the new configuration is invalid; the previous configuration remains in force.
        NodeAgentError: no agent is running, or this user has no permission to reload the configuration.
    """
    method = "PreviewReload" if dry_run else "Reload"
    answer = connected(config).call(method, Reload, within_s=_RELOAD_WITHIN_S)
    if form != "table":
        sys.stdout.write(encode(answer, form))
    else:
        for each in _reload_lines(answer, dry_run=dry_run):
            say(each)
    if dry_run and answer.effect is not None and not answer.effect.known:
        sys.exit(ExitCode.PARTIAL)


def _reload_lines(answer: Reload, *, dry_run: bool) -> Iterator[str]:
    """Yield the outcome of a reload, in lines of at most 80 columns."""
    changes, effect, grace = answer.changes, answer.effect, answer.grace
    count = f"{len(changes)} setting{'' if len(changes) == 1 else 's'}"
    if not changes:
        yield "Configuration unchanged"
    elif dry_run:
        yield f"Configuration not reloaded (--dry-run): {count} would change"
    else:
        yield f"Configuration reloaded: {count} changed"
    for each in changes:
        yield from _wrapped(each, indent=2)
    if effect is not None:
        would = dry_run or answer.dry_run
        yield from _effect_lines(effect, armed="dry_run: true -> false" in changes, would=would)
        if answer.dry_run:
            yield "dry_run = true: nothing is removed"
    if grace is not None:
        wait = format_duration(grace.seconds)
        if dry_run and changes:
            yield f"Removals would start in {wait}"
        elif grace.until is None:
            yield f"Removals starting {wait} after the end of the pause"
        else:
            yield f"Removals starting in {wait}; 'nodeagent pause --for 30m --why TEXT' stops it"


def _effect_lines(effect: ReloadEffectDocument, *, armed: bool, would: bool) -> Iterator[str]:
    verb = f"Next passes {'would ' if would else ''}remove{'' if armed else ' in addition'}"
    if effect.kinds:
        items = ", ".join(each.kind.counted(each.items) for each in effect.kinds)
        yield from _wrapped(f"{verb}: {items} ({format_bytes(effect.frees_bytes)})")
    elif not (effect.thresholds or effect.pods or effect.problem):
        yield "Effect on the next passes: none"
    for item in effect.first:
        size = "" if item.frees_bytes is None else f" ({format_bytes(item.frees_bytes)})"
        yield from _wrapped(f"{item.kind} {item.name}{size}", indent=2)
    more = effect.items - len(effect.first)
    if more > 0:
        yield f"  and {more} more; 'nodeagent gc all --dry-run' lists them"
    if effect.thresholds:
        met = ", ".join(
            each.text + (f" (after {format_duration(each.grace_s)})" if each.grace_s else "")
            for each in effect.thresholds
        )
        yield from _wrapped(f"Eviction thresholds met: {met}")
    if effect.pods:
        pods = ", ".join(f"{each.namespace}/{each.name}" for each in effect.pods)
        yield from _wrapped(f"Pods evicted first: {pods}")
    if effect.problem:
        yield from _wrapped(f"Effect unknown: {effect.problem}")


def _wrapped(text: str, *, indent: int = 0) -> list[str]:
    """Return the escaped text, wrapped into lines of at most 80 columns."""
    begin = " " * indent
    return textwrap.wrap(
        escape(text), _COLUMNS, initial_indent=begin, subsequent_indent=f"{begin}  ", break_on_hyphens=False
    )
