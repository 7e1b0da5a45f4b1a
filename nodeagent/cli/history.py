"""``nodeagent history``: past passes and node stops."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.api.codec import encode
from nodeagent.api.eviction import RecordedEviction
from nodeagent.api.history import History
from nodeagent.cli import values
from nodeagent.cli.control_client import daemon_for_user
from nodeagent.cli.session import load_settings
from nodeagent.cli.shutdown import stop_headline
from nodeagent.clock import SystemClock
from nodeagent.errors import UsageError
from nodeagent.host.process_identity import is_running
from nodeagent.store import history as store
from nodeagent.units import format_bytes, format_duration, parse_duration_s

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from nodeagent.api.history import PastPass


_MINIMUM_SINCE_S: Final = 1e-6
"""A request of 0 s means no limit."""
_MAX_LIMIT: Final = 2**32 - 1
"""Maximum of the field ``limit``, an unsigned integer of 32 bits."""


def show_history(
    config: Path | None, *, since: str, image: str, limit: int, idle: bool, form: str, direct: bool
) -> None:
    """Print passes, newest first; those in the state directory with ``direct`` or without a daemon.

    Raises:
        UsageError: ``since`` is not a duration.
        StoreError: the history cannot be read.
    """
    try:
        ago = timedelta(seconds=parse_duration_s(since)) if since else None
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since: {error}") from error
    with daemon_for_user(config, {}, root_too=not direct) as agent:
        if agent is not None:
            seconds = max(_MINIMUM_SINCE_S, ago.total_seconds()) if ago is not None else 0.0
            request = {"seconds": seconds, "image": image, "limit": min(limit, _MAX_LIMIT), "quiet": idle}
            _print(agent.call("History", History, request), form, "the agent's history")
            return
    settings = load_settings(config, {})
    oldest = SystemClock().now() - ago if ago is not None else None
    records = store.History(settings.state_directory, is_running=is_running)
    passes = records.read(since=oldest, image=image, limit=limit, quiet=idle)
    stops = () if image else records.read_stops(since=oldest, limit=limit)
    _print(History.of(passes, stops), form, str(settings.state_directory))


def _print(history: History, form: str, source: str) -> None:
    if form != "table":
        sys.stdout.write(encode(history, form))
        return
    from nodeagent.cli import render  # noqa: PLC0415 - imported only for tables

    console = render.make_console()
    for stop in history.node_stops:
        console.print(f"{stop_headline(stop)}; see nodeagent shutdown status", markup=False)
    if not history.passes:
        console.print(f"no passes in {source}")
        return
    for past in history.passes:
        console.print(_headline(past), style="bold", markup=False)
        if past.end_detail:
            console.print(f"  {past.end}: {past.end_detail}", style="yellow", markup=False)
        if not past.actions:
            continue
        table = render.table("outcome", "kind", "name", "frees", "reason", right=("frees",), wrap=("name", "reason"))
        for each in past.actions:
            sentence = each.reason.sentence
            table.add_row(
                each.outcome,
                each.kind,
                values.short_reference(each.name),
                values.size(each.frees_bytes) if each.frees_bytes is not None else "",
                f"{sentence}; {each.detail}" if each.detail else sentence,
                style="red" if each.outcome == "failed" else "",
            )
        console.print(table)
        if isinstance(past.eviction, dict):
            _print_ranking(console, RecordedEviction.of(past.eviction))


def _print_ranking(console: Console, eviction: RecordedEviction) -> None:
    """Print the readings and the ranking of an eviction decision."""
    from nodeagent.cli import render  # noqa: PLC0415 - imported only for tables

    threshold = eviction.threshold
    if threshold is not None:
        console.print(
            f"  {threshold.threshold}: {_quantity(eviction.available_before)} available of "
            f"{_quantity(threshold.capacity)}, {_quantity(eviction.available_after)} afterwards",
            markup=False,
        )
    table = render.table("rank", "pod", "uses", "requests", "priority", "", right=("uses", "requests", "priority"))
    for each in eviction.ranking:
        table.add_row(
            str(each.rank),
            each.name,
            "?" if each.usage is None else f"{each.usage:,}",
            f"{each.request:,}",
            str(each.priority),
            each.reason,
        )
    console.print(table)


def _quantity(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _headline(past: PastPass) -> str:
    when = past.started_at.isoformat(timespec="seconds").replace("+00:00", "Z")
    removed = past.removed
    words = [f"{when}  {past.trigger}, {past.scope}: {past.end}"]
    if past.dry_run:
        words.append("dry run")
    words.append(f"{removed} of {len(past.actions)} removed in {format_duration(past.duration_s)}")
    if past.freed_bytes is not None and removed:
        words.append(f"predicted {format_bytes(past.predicted_bytes)}, measured {format_bytes(past.freed_bytes)}")
    if past.imagefs_percent_before is not None and past.imagefs_percent_after is not None:
        words.append(f"imagefs {past.imagefs_percent_before}% → {past.imagefs_percent_after}%")
    return ", ".join(words)
