"""``nodeagent history``: what passes did."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from nodeagent.api import documents as document
from nodeagent.cli.control_answers import by_agent
from nodeagent.cli.control_answers import passes as passes_told
from nodeagent.cli.control_answers import stops as stops_told
from nodeagent.cli.control_client import request_for
from nodeagent.cli.session import load_settings
from nodeagent.cli.shutdown import stop_headline
from nodeagent.clock import SystemClock
from nodeagent.errors import UsageError
from nodeagent.store.history import History
from nodeagent.units import format_bytes, format_duration, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from nodeagent.model.node_stop import NodeStop
    from nodeagent.store.history import PastPass


_LEAST_S: Final = 1e-6
"""Asked for by 0 s the agent tells everything."""
_MOST: Final = 2**32 - 1


def show_history(config: Path | None, *, since: str, image: str, limit: int, idle: bool, form: str) -> None:
    """Print passes, newest first.

    Raises:
        UsageError: ``since`` is no duration.
        StoreError: the history cannot be read.
    """
    try:
        ago = timedelta(seconds=parse_duration_s(since)) if since else None
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since: {error}") from error
    with by_agent(config, {}) as agent:
        if agent is not None:
            seconds = max(_LEAST_S, ago.total_seconds()) if ago is not None else 0.0
            asked = request_for("History", seconds=seconds, image=image, limit=min(limit, _MOST), quiet=idle)
            told = agent.ask("History", asked)
            if form != "table":
                sys.stdout.write(document.dumps(told, form))
            else:
                _print(passes_told(told), stops_told(told), "the agent's history")
            return
    settings = load_settings(config, {})
    oldest = SystemClock().now() - ago if ago is not None else None
    kept = History(settings.state_directory)
    passes = kept.read(since=oldest, image=image, limit=limit, quiet=idle)
    stops = () if image else kept.read_stops(since=oldest, limit=limit)
    if form != "table":
        sys.stdout.write(document.dumps(document.history(passes, stops), form))
        return
    _print(passes, stops, str(settings.state_directory))


def _print(passes: Sequence[PastPass], stops: Sequence[NodeStop], where: str) -> None:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    console = render.make_console()
    for stop in stops:
        console.print(f"{stop_headline(stop)}; see nodeagent shutdown status", markup=False)
    if not passes:
        console.print(f"no passes in {where}")
        return
    for past in passes:
        console.print(_headline(past), style="bold", markup=False)
        if past.detail:
            console.print(f"  {past.result}: {past.detail}", style="yellow", markup=False)
        if not past.actions:
            continue
        table = render.table("outcome", "what", "name", "frees", "why", right=("frees",), wrap=("name", "why"))
        for each in past.actions:
            table.add_row(
                each.outcome,
                each.kind,
                render.short_reference(each.name),
                render.size(each.frees_bytes) if each.frees_bytes is not None else "",
                f"{each.sentence}; {each.detail}" if each.detail else each.sentence,
                style="red" if each.outcome == "failed" else "",
            )
        console.print(table)
        if past.eviction:
            _print_ranking(console, json.loads(past.eviction))


def _print_ranking(console: Console, eviction: dict[str, Any]) -> None:
    """Print what an eviction was decided by."""
    from nodeagent.cli import render  # noqa: PLC0415

    threshold = eviction.get("threshold") or {}
    before, after = eviction.get("available_before"), eviction.get("available_after")
    if threshold:
        console.print(
            f"  {threshold['threshold']}: {before:,.0f} was left of {threshold['capacity']:,.0f}, "
            f"{'?' if after is None else format(after, ',.0f')} afterwards",
            markup=False,
        )
    table = render.table("rank", "pod", "uses", "requests", "priority", "", right=("uses", "requests", "priority"))
    for each in eviction.get("ranking", ()):
        table.add_row(
            str(each["rank"]),
            each["name"],
            "?" if each["usage"] is None else f"{each['usage']:,}",
            f"{each['request']:,}",
            str(each["priority"]),
            each["reason"],
        )
    console.print(table)


def _headline(past: PastPass) -> str:
    when = past.started_at.isoformat(timespec="seconds").replace("+00:00", "Z")
    done = sum(each.outcome in ("done", "gone") for each in past.actions)
    words = [f"{when}  {past.trigger}, {past.scope}: {past.result}"]
    if past.dry_run:
        words.append("dry run")
    words.append(f"{done} of {len(past.actions)} removed in {format_duration(past.duration_s)}")
    if past.freed_bytes is not None and done:
        words.append(f"predicted {format_bytes(past.predicted_bytes)}, measured {format_bytes(past.freed_bytes)}")
    if past.percent_before is not None and past.percent_after is not None:
        words.append(f"imagefs {past.percent_before}% → {past.percent_after}%")
    return ", ".join(words)
