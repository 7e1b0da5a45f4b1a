"""``nodeagent status`` and ``nodeagent top``: the status of the node and the daemon, once or until interrupted.

The document is read from the running daemon; without a daemon, the command reads the node directly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from msgspec import UnsetType, structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.cli.control_client import connected
from nodeagent.cli.display import Line, warning_lines
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import load_settings, open_for_command, watch_document
from nodeagent.cli.table import Heading, Table, ago, amount, done_cell, is_stall, signal_name, size_cell, used_share
from nodeagent.daemon.documents import Status, Top
from nodeagent.eviction.documents import FactDocument, PodUsageDocument, RankedPodUsage, SignalDocument
from nodeagent.gc.plan.image_protection import describe_gap
from nodeagent.text import Cut, escape, fit
from nodeagent.units import format_bytes, format_duration, format_local_time

T = TypeVar("T")

_BAR: Final = 30
_SHORT_BAR: Final = 16
_WIDE: Final = 120
_LABEL: Final = 16
_PASSES: Final = 5
_PODS: Final = 40
_STYLES: Final[Mapping[str, str]] = {"disabled": "dim", "paused": "yellow", "running": "cyan", "waiting": ""}
_BAD_RESULTS: Final = ("crashed", "failed", "runtime-unavailable")


def show_status(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the status of the node and the daemon; exit with code 1 unless a daemon is running and ready.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    with _sources(config) as (read, _):
        status = watch_document(read, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if status.agent.ready is True else ExitCode.FAILED)


def show_top(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the eviction signals and the pods of the node, once or every ``watch_s`` seconds.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: the node cannot be read.
    """
    with _sources(config) as (read, read_pods):
        watch_document(lambda: Top.of(read(), read_pods()), form, watch_s, top_view)


@contextmanager
def _sources(config: Path | None) -> Iterator[tuple[Callable[[], Status], Callable[[], PodUsageDocument]]]:
    """Yield functions that read the status and the pods from the daemon, or from the node without a daemon."""
    try:
        agent = connected(config)
    except DaemonAbsentError as error:
        problem = str(error)
    else:
        yield lambda: agent.call("Status", Status), lambda: agent.call("Pods", PodUsageDocument)
        return
    import asyncio  # noqa: PLC0415 - needed only without a daemon

    from nodeagent.daemon.status import StatusReader, pods_document, status_document  # noqa: PLC0415

    settings = load_settings(config, {})
    with asyncio.Runner() as runner:
        opened = open_for_command(settings, record=False)
        node = runner.run(opened.__aenter__())
        reader = StatusReader(node)
        try:
            yield (
                lambda: _with_warning(runner.run(status_document(node, reader, None)), problem),
                lambda: runner.run(pods_document(node, reader)),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))


def _with_warning(status: Status, warning: str) -> Status:
    return structs.replace(status, warnings=(warning, *status.warnings))


def status_view(status: Status, columns: int | None) -> Iterator[Line]:
    """Yield the status document as one screen, ``columns`` wide."""
    yield from _head(status)
    yield Line()
    yield from gauges(status, columns)
    if status.loops:
        yield Line()
        yield from _loop_table(status).lines(columns)
        for loop in status.loops:
            if loop.why or loop.detail:
                bad = loop.stuck or loop.result in _BAD_RESULTS
                yield Line(f"{loop.name}: {loop.why or loop.detail}", "red" if bad else "dim")
    if status.last_passes:
        yield Line()
        yield from _pass_table(status).lines(columns)
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


def _pass_table(status: Status) -> Table:
    table = Table("LAST PASSES", "TRIGGER", "SCOPE", "RESULT", "REMOVED", Heading("FREED", right=True))
    for past in status.last_passes[:_PASSES]:
        table.add(
            ago(past.started_at, status.observed_at),
            past.trigger,
            past.scope,
            "dry-run" if past.dry_run else past.end,
            done_cell(past.trigger, past.removed, past.planned),
            "" if past.freed_bytes is None else size_cell(past.freed_bytes),
        )
    return table


def top_view(status: Top, columns: int | None) -> Iterator[Line]:
    """Yield the signals and the pods in eviction order, ``columns`` wide."""
    yield from _head(status)[:1]
    yield from gauges(status, columns)
    yield Line()
    yield Line("pods in eviction order for memory.available", "dim")
    wide = columns is None or columns >= _WIDE
    numbers = [Heading(title, right=True) for title in ("MEMORY", "REQUEST", "DISK", "PRIORITY")]
    pod = Heading("POD", cut=Cut.MIDDLE, name=True, at_least=16)
    more_columns = (Heading("PIDS", right=True), Heading("QOS")) if wide else ()
    table = Table(Heading("#", right=True), pod, *numbers, *more_columns, "REASON")
    pods = status.pods
    for each in pods.pods[:_PODS]:
        facts, protection = each.facts, each.kept_because
        table.add(
            str(each.rank),
            f"{each.namespace}/{each.name}",
            size_cell(each.memory_bytes),
            ("~" if each.memory_request_bytes and facts.memory_request_bytes.source == "inferred" else "")
            + size_cell(each.memory_request_bytes),
            size_cell(_disk_bytes(each)),
            _fact(facts.priority),
            *(["?" if each.pids is None else str(each.pids), _fact(facts.qos)] if wide else []),
            "evictable" if protection is None else str(protection.code),
            style="" if protection is None else "dim",
        )
    yield from table.lines(columns)
    more = len(pods.pods) - _PODS
    if more > 0:
        yield Line(f"and {more} more pods", "dim")
    yield from warning_lines((*status.warnings, *pods.warnings))


def _state(status: Status) -> Line:
    """Return the state of the agent in one line."""
    agent, paused, waiting = status.agent, status.paused, status.waiting
    first = Line(f"nodeagent {agent.version}  ", "bold")
    if not agent.running:
        first.append("not running", "bold red")
    elif not agent.ready:
        first.append(f"not ready: {'; '.join(given(agent.not_ready_because) or ())}", "bold red")
    elif paused is not None:
        left = "" if paused.seconds_left is None else f" ({format_duration(paused.seconds_left)} left)"
        first.append(f"paused{left}: {paused.why}", "bold yellow")
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
    lines = [_state(status)]
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
            line.append(f"; {describe_gap(gap.started_at, gap.ended_at, gap.cause)}", "dim")
        lines.append(line)
    elif use.maximum_unused_age_s is not None:
        lines.append(Line("image use: not observed; no image is removed by age", "yellow"))
    if clock.problem:
        lines.append(Line(f"clock: {clock.problem}", "bold red"))
    if clock.untrusted_until is not None:
        until = format_local_time(clock.untrusted_until)
        lines.append(Line(f"clock: {clock.detail}; nothing is removed by age before {until}", "bold yellow"))
    return lines


def given(value: T | UnsetType) -> T | None:
    """Return the value of a field that a document may lack; ``None`` without the field."""
    return None if isinstance(value, UnsetType) else value


def _is_shown(signal: SignalDocument) -> bool:
    """Return whether a signal is shown: memory, process ids, stalls from 1%, and any signal above its threshold."""
    if any(each.met for each in signal.thresholds):
        return True
    return signal.available >= 1 if is_stall(signal) else signal.signal in ("memory.available", "pid.available")


def gauges(status: Status, columns: int | None) -> Iterator[Line]:
    """Yield bars of filesystems, memory, process ids, stalls and every exceeded signal; then the conditions.

    A bar is filled by the used share or the stalled share of time. On a narrow terminal bars are shorter, and paths and
    lower shares of used inodes are omitted.
    """
    wide = columns is None or columns >= _WIDE
    cells = _BAR if wide else _SHORT_BAR
    signals = [each for each in status.signals if _is_shown(each)]
    names = (*(each.name for each in status.filesystems), *map(signal_name, signals))
    label = max((_LABEL, *map(len, names)))
    for each in status.filesystems:
        used, high = given(each.used_percent), each.high_percent
        capacity_bytes, available_bytes = given(each.capacity_bytes), given(each.available_bytes)
        if used is None or capacity_bytes is None or available_bytes is None:
            yield Line(f"{each.name} {each.path}: {each.problem}", "bold red")
            continue
        used_bytes = capacity_bytes - available_bytes
        line = Line(f"{each.name:<{label}} ").append_bar(used / 100, cells, bad=high is not None and used >= high)
        line.append(f" {used:>3}%", "bold")
        line.append(f" {format_bytes(used_bytes)} of {format_bytes(capacity_bytes)}")
        inodes = given(each.inodes) or 0
        inodes_used = 100 - 100 * (given(each.inodes_free) or 0) // inodes if inodes else 0
        if inodes and (wide or inodes_used > used):
            line.append(f", inodes {inodes_used}%")
        if high is not None:
            line.append(f" (high {high}%, low {each.low_percent}%)", "dim")
        more = ", ".join(role for role in each.roles if role not in each.name.split())
        yield line.append(f" {each.path} ({more})" if more else f" {each.path}", "dim") if wide else line
    for signal in signals:
        met = [one for one in signal.thresholds if one.met]
        share = used_share(signal)
        line = Line(f"{signal_name(signal):<{label}} ").append_bar(share, cells, bad=bool(met))
        line.append(f" {share:>4.0%}", "bold")
        if is_stall(signal):
            line.append(" stalled")
        else:
            line.append(f" {amount(signal, signal.available)} available of {amount(signal, signal.capacity)}")
            line.append(f" (limited by {signal.limited_by})" if wide and signal.limited_by else "", "dim")
        yield line.append("".join(f"  exceeded: {one.text}" for one in met), "bold red")
    found, nearly_full = ", ".join(status.conditions), [each.nearly_full for each in status.filesystems]
    if found or not any(nearly_full):
        yield Line(found or "no pressure", "bold red" if found else "green")
    for sentence in filter(None, nearly_full):
        yield Line(escape(sentence), "bold red")
    for statement in status.unrelieved:
        yield Line(statement, "bold red")


def _disk_bytes(pod: RankedPodUsage) -> int | None:
    """Return the sum of the known disk usage values of a pod, in bytes; ``None`` if no value is known."""
    parts = [each for each in (pod.writable_bytes, pod.logs_bytes, pod.volumes_bytes) if each is not None]
    return sum(parts) if parts else None


def _fact(fact: FactDocument) -> str:
    return "?" if fact.value is None else str(fact.value)
