"""``nodeagent status``: the status of the node and the daemon, once or until interrupted; readings for ``top`` too.

The document is read from the running daemon; without a daemon, the command reads the node directly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.cli.control_client import connected
from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.gauges import gauge_lines, given
from nodeagent.cli.reading import OBSERVED_WITHIN_S, event_loop, load_settings, open_for_command, watch_document
from nodeagent.cli.table import Heading, Table, ago, done_cell, size_cell
from nodeagent.cli.trend import sparkline
from nodeagent.daemon.documents import Status
from nodeagent.eviction.documents import PodUsageDocument
from nodeagent.eviction.plan.thresholds import Unit, unit_of
from nodeagent.gc.documents.passes import ExplanationDocument
from nodeagent.gc.plan.image_protection import describe_gap
from nodeagent.text import Cut, escape, fit
from nodeagent.trend.words import growth_words, short_name
from nodeagent.units import format_duration, format_local_time, localize_times

_PASSES: Final = 5
_STYLES: Final[Mapping[str, str]] = {"disabled": "dim", "paused": "yellow", "running": "cyan", "waiting": ""}
_BAD_RESULTS: Final = ("crashed", "failed", "runtime-unavailable")


def show_status(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the status of the node and the daemon; exit with code 1 unless a daemon is running and ready.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    with node_reader(config) as reader:
        status = watch_document(reader.status, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if status.agent.ready is True else ExitCode.FAILED)


class NodeReader(NamedTuple):
    """Functions that read documents from the daemon, or from the node without a daemon.

    Attributes:
        status: returns the status.
        pods: returns the pods in eviction order.
        explain: returns the explanation of an image, container or pod.
    """

    status: Callable[[], Status]
    pods: Callable[[], PodUsageDocument]
    explain: Callable[[str], ExplanationDocument]


@contextmanager
def node_reader(config: Path | None) -> Iterator[NodeReader]:
    """Yield the functions that read the node; any thread may call them, one at a time.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    try:
        agent = connected(config)
    except DaemonAbsentError as error:
        problem = str(error)
    else:
        yield NodeReader(
            lambda: agent.call("Status", Status),
            lambda: agent.call("Pods", PodUsageDocument),
            lambda name: agent.call("Explain", ExplanationDocument, {"name": name}, within_s=OBSERVED_WITHIN_S),
        )
        return
    from nodeagent.daemon.status import (  # noqa: PLC0415
        StatusReader,
        explanation_document,
        pods_document,
        status_document,
    )

    settings = load_settings(config, {})
    with event_loop() as run:
        opened = open_for_command(settings, record=False)
        node = run(opened.__aenter__())
        reader = StatusReader(node)
        try:
            yield NodeReader(
                lambda: _with_warning(run(status_document(node, reader, None)), problem),
                lambda: run(pods_document(node, reader)),
                lambda name: run(explanation_document(node, reader, None, name)),
            )
        finally:
            run(opened.__aexit__(None, None, None))


def _with_warning(status: Status, warning: str) -> Status:
    return structs.replace(status, warnings=(warning, *status.warnings))


def _last_day(status: Status) -> Iterator[Line]:
    """Yield the last 24 hours of memory and of the bytes of each disk, with the rate and the part that grows most."""
    found = [each for each in status.outlook if unit_of(each.resource) is Unit.BYTES and each.forecasts]
    label = max((len(short_name(each)) for each in found), default=0)
    for each in found:
        if sum(hour is not None for hour in each.hours) > 1:
            line = Line(f"{short_name(each):<{label}} ").append(sparkline(each.hours), "cyan").append("  24 h", "dim")
            growing = growth_words(each)
            yield line.append(f"  {growing}") if growing else line


def status_view(status: Status, columns: int | None) -> Iterator[Line]:
    """Yield the status document as one screen, ``columns`` wide."""
    yield from _head(status)
    yield Line()
    yield from gauge_lines(status, columns)
    yield from _last_day(status)
    if status.loops:
        yield Line()
        yield from _loop_table(status).lines(columns)
        for loop in status.loops:
            if loop.why or loop.detail:
                bad = loop.stuck or loop.result in _BAD_RESULTS
                yield Line(f"{loop.name}: {localize_times(loop.why or loop.detail)}", "red" if bad else "dim")
    if status.last_passes:
        yield Line()
        yield from pass_table(status).lines(columns)
    for hold in status.holds:
        left = format_duration(hold.seconds_left)
        target = escape(hold.image or "all images")
        target = target if columns is None else fit(target, columns // 2, Cut.PATH)
        yield Line(f"hold {hold.id} on {target}, expires in {left}: {hold.why}", "cyan")
    yield from warning_lines(status.warnings)


def _loop_table(status: Status) -> Table:
    table = Table(
        "LOOP", "STATE", "LAST RUN", "RESULT", "NEXT", Heading("RUNS", right=True), Heading("FAILED", right=True)
    )
    for loop in status.loops:
        bad = loop.stuck or loop.result in _BAD_RESULTS
        table.add(
            loop.name,
            "STUCK" if loop.stuck else loop.activity,
            ago(loop.ended_at, status.observed_at),
            loop.result,
            "" if loop.due_in_s is None else f"in {format_duration(loop.due_in_s)}",
            str(loop.runs),
            str(loop.failures),
            style="bold red" if bad else _STYLES.get(loop.activity, ""),
        )
    return table


def pass_table(status: Status, most: int = _PASSES) -> Table:
    """Return the newest passes of the collection and of the eviction."""
    table = Table("LAST PASSES", "TRIGGER", "SCOPE", "RESULT", "REMOVED", Heading("FREED", right=True))
    for past in status.last_passes[:most]:
        table.add(
            ago(past.started_at, status.observed_at),
            past.trigger,
            past.scope,
            "dry-run" if past.dry_run else past.end,
            done_cell(past.trigger, past.removed, past.planned),
            "" if past.freed_bytes is None else size_cell(past.freed_bytes),
        )
    return table


def state_line(status: Status) -> Line:
    """Return the state of the agent in one line."""
    agent, paused, waiting = status.agent, status.paused, status.waiting
    first = Line(f"nodeagent {agent.version}  ", "bold")
    if not agent.running:
        first.append("not running", "bold red")
    elif not agent.ready:
        first.append(f"not ready: {'; '.join(given(agent.not_ready_because) or ())}", "bold red")
    elif paused is not None:
        left = "" if paused.seconds_left is None else f" ({format_duration(paused.seconds_left)} left)"
        first.append(f"paused{left}: {localize_times(paused.why)}", "bold yellow")
    elif waiting is not None:
        left = format_duration(waiting.seconds_left)
        first.append(f"waiting ({left} left): dry run during reload_grace", "bold yellow")
    else:
        first.append("running", "bold green")
    if agent.running:
        started_at = given(agent.started_at) or status.observed_at
        up_s = (status.observed_at - started_at).total_seconds()
        first.append(f" (pid {agent.pid}, up {format_duration(max(0, round(up_s)))})")
    if waiting is not None and paused is not None:
        first.append(f"  then dry run for {format_duration(waiting.period_s)} (reload_grace)", "yellow")
    elif agent.dry_run and waiting is None:
        first.append("  dry run: nothing is removed", "yellow")
    return first


def _head(status: Status) -> list[Line]:
    agent, runtime = status.agent, status.runtime
    lines = [state_line(status)]
    if runtime.up:
        role = f"{agent.role} ({agent.role_because})"
        lines.append(Line(f"{runtime.name} {runtime.version} at {runtime.endpoint}, {role}", "dim"))
    elif runtime.up is None:
        lines.append(Line("runtime not queried", "dim"))
    else:
        lines.append(Line(f"runtime unavailable: {runtime.problem}", "bold red"))
    if agent.config_problem:
        faults = f"configuration file not in force: {agent.config_problem}".splitlines()
        lines += [Line(each, "bold red") for each in faults]
    lines += _pod_lists(status)
    lines += _image_use(status)
    stop = status.shutdown
    if stop.off_because:
        lines.append(Line(f"graceful shutdown disabled: {stop.off_because}", "dim"))
    elif stop.lock_held is not None:
        held = "inhibitor lock held" if stop.lock_held else "inhibitor lock not held"
        lines.append(Line(f"graceful shutdown: {held}", "dim" if stop.lock_held else "bold red"))
    return lines


def _pod_lists(status: Status) -> list[Line]:
    """Return one line per pod list with its state; no line if an older daemon reports no pod lists."""
    lines = []
    for each in status.pod_lists:
        age = f", read {ago(each.observed_at, status.observed_at)}" if each.observed_at is not None else ""
        line = Line(f"pod list: {escape(each.address)}: {each.pods} pods{age}", "dim")
        if each.problem:
            line = Line(f"pod list: {escape(each.problem)}", "bold red")
        if each.completeness == "synced":
            line.append("; synced", "dim")
        if each.completeness == "outdated":
            because = f": {escape(each.detail)}" if each.detail else ""
            line.append(f"; outdated{because}; no deletion is proven", "bold yellow")
        if each.completeness == "partial":
            line.append(f"; {escape(each.detail)}; no image is removed", "bold yellow")
        lines.append(line)
    return lines


def _image_use(status: Status) -> list[Line]:
    """Return lines on the observation of image use and on clock problems; no line if an older daemon reports none."""
    use, clock = status.image_use, status.clock
    lines = []
    if use.observed_since is not None:
        observed_s = (status.observed_at - use.observed_since).total_seconds()
        since = f"{format_local_time(use.observed_since)} ({format_duration(max(0.0, round(observed_s)))})"
        line = Line(f"image use: observed since {since}", "dim")
        if use.maximum_unused_age_s is not None and observed_s <= use.maximum_unused_age_s:
            maximum = format_duration(use.maximum_unused_age_s)
            line.append(f"; no image is removed by age until use is observed for {maximum}", "yellow")
        for gap in use.gaps[:1]:
            line.append(f"; {localize_times(describe_gap(gap.started_at, gap.ended_at, gap.cause))}", "dim")
        lines.append(line)
    elif use.maximum_unused_age_s is not None:
        lines.append(Line("image use: not observed; no image is removed by age", "yellow"))
    if clock.problem:
        lines.append(Line(f"clock: {localize_times(clock.problem)}", "bold red"))
    if clock.untrusted_until is not None:
        until = format_local_time(clock.untrusted_until)
        lines.append(Line(f"clock: {clock.detail}; nothing is removed by age before {until}", "bold yellow"))
    return lines
