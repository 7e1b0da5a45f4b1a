"""``nodeagent status`` and ``nodeagent top``: the status of the node and the daemon, once or until interrupted.

The document is read from the running daemon; without a daemon, the command reads the node directly.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.api.codec import encode
from nodeagent.api.pods import PodUsage
from nodeagent.api.status import Status, Top
from nodeagent.cli.control_client import connected
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from rich.console import Console, RenderableType

    from nodeagent.api.pods import Fact
    from nodeagent.api.status import FilesystemStatus, LoopStatus
    from nodeagent.cli.control_client import ControlConnection

S = TypeVar("S", bound=Status)

_BAR: Final = 30
_PASSES: Final = 5
_PODS: Final = 40
_STALLS: Final = ".psi."
_STYLES: Final[Mapping[str, str]] = {"disabled": "dim", "paused": "yellow", "running": "cyan", "waiting": ""}


def show_status(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the status of the node and the daemon; exit code 1 unless a daemon is running and ready.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    with _status_source(config) as read:
        status = _show(read, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if status.agent.ready is True else ExitCode.FAILED)


def show_top(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the node's signals and its pods, repeatedly on a terminal.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: the node cannot be read.
    """
    with _top_source(config) as read:
        _show(read, form, watch_s, top_view)


@contextmanager
def _status_source(config: Path | None) -> Iterator[Callable[[], Status]]:
    """Return a function that reads the status: from the daemon, or from the node without a daemon."""
    with _connected_or_none(config) as (agent, problem):
        if agent is not None:
            yield lambda: agent.call("Status", Status)
            return
        from nodeagent.cli.local_status import open_local_status  # noqa: PLC0415 - only without a daemon

        with open_local_status(config) as local:
            yield lambda: _with_warning(local.status(), problem)


@contextmanager
def _top_source(config: Path | None) -> Iterator[Callable[[], Top]]:
    """Return a function that reads the status with the pods, as ``_status_source``."""
    with _connected_or_none(config) as (agent, problem):
        if agent is not None:
            yield lambda: Top.of(agent.call("Status", Status), agent.call("Pods", PodUsage))
            return
        from nodeagent.cli.local_status import open_local_status  # noqa: PLC0415 - only without a daemon

        with open_local_status(config) as local:
            yield lambda: Top.of(_with_warning(local.status(), problem), local.pods())


@contextmanager
def _connected_or_none(config: Path | None) -> Iterator[tuple[ControlConnection | None, str]]:
    """Return a connection to the daemon; ``None`` and the cause without a daemon."""
    agent, problem = None, ""
    with ExitStack() as stack:
        try:
            agent = stack.enter_context(connected(config))
        except DaemonAbsentError as error:
            problem = str(error)
        yield agent, problem


def _with_warning(status: Status, warning: str) -> Status:
    return structs.replace(status, warnings=(warning, *status.warnings))


def _show(read: Callable[[], S], form: str, watch_s: float | None, view: Callable[[S], RenderableType]) -> S:
    """Print a status, repeatedly with ``watch_s``; return the last."""
    console = None
    if form == "table":
        from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for tables

        console = make_console()
    if watch_s is None:
        status = read()
        _print(status, form, console, view)
        return status
    live = console is not None and console.is_terminal
    screen: AbstractContextManager[Any] = console.screen(hide_cursor=True) if console and live else nullcontext()
    with screen as screen_context:
        while True:
            status = read()
            if screen_context is not None and console is not None:
                screen_context.update(view(status))
            else:
                _print(status, form, console, view)
            time.sleep(watch_s)


def _print(status: S, form: str, console: Console | None, view: Callable[[S], RenderableType]) -> None:
    if console is not None:
        console.print(view(status))
        return
    sys.stdout.write(encode(status, form))
    sys.stdout.flush()


def status_view(status: Status) -> RenderableType:
    """Return the status document as one screen."""
    from rich.console import Group  # noqa: PLC0415 - only for tables

    from nodeagent.cli.render import table  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    parts: list[RenderableType] = [*_head(status), Text("")]
    parts += [_filesystem(each) for each in status.filesystems]
    parts += _signals(status)
    parts.append(Text(""))
    if status.loops:
        rows = table("loop", "state", "last run", "result", "next", "runs", "failed", right=("runs", "failed"))
        for loop in status.loops:
            failed = loop.stuck or loop.result in ("crashed", "failed", "runtime-unavailable")
            rows.add_row(
                loop.name,
                Text("STUCK" if loop.stuck else loop.activity, style=_STYLES.get(loop.activity, "")),
                _ago(loop.ended_at, status.observed_at),
                _result(loop),
                "" if loop.due_in_s is None else f"in {format_duration(loop.due_in_s)}",
                str(loop.runs),
                str(loop.failures),
                style="bold red" if failed else "",
            )
        parts.append(rows)
    if status.last_passes:
        rows = table("last passes", "trigger", "scope", "result", "removed", "freed", right=("removed", "freed"))
        for past in status.last_passes[:_PASSES]:
            rows.add_row(
                _ago(past.started_at, status.observed_at),
                past.trigger,
                past.scope,
                past.end,
                f"{past.planned} (dry run)" if past.dry_run else f"{past.removed} of {past.planned}",
                "" if past.freed_bytes is None else format_bytes(max(0, past.freed_bytes)),
            )
        parts.append(rows)
    for hold in status.holds:
        left = format_duration(hold.seconds_left)
        parts.append(Text(f"hold {hold.id} on {hold.target}, expires in {left}: {hold.why}", style="cyan"))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in status.warnings]
    return Group(*parts)


def top_view(status: Top) -> RenderableType:
    """Return the signals and the pods in eviction order."""
    from rich.console import Group  # noqa: PLC0415 - imported only for tables

    from nodeagent.cli.render import table  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    rows = table(
        *("#", "pod", "memory", "requests", "pids", "disk", "QoS", "priority", "evictable"),
        right=("#", "memory", "requests", "pids", "disk", "priority"),
        wrap=("pod", "evictable"),
    )
    pods = status.pods
    for each in pods.pods[:_PODS]:
        facts, protection = each.facts, each.kept_because
        rows.add_row(
            str(each.rank),
            f"{each.namespace}/{each.name}",
            _size(each.memory_bytes),
            _size(each.memory_request_bytes),
            "?" if each.pids is None else str(each.pids),
            _size(each.disk_bytes),
            _fact(facts.qos),
            _fact(facts.priority),
            "yes" if protection is None else f"no: {protection.sentence}",
            style="" if protection is None else "dim",
        )
    more = len(pods.pods) - _PODS
    rest = [Text(f"and {more} more pods", style="dim")] if more > 0 else []
    warnings = [Text(f"warning: {each}", style="yellow") for each in (*status.warnings, *pods.warnings)]
    title = Text("pods in eviction order for memory.available", style="dim")
    files = [_filesystem(each) for each in status.filesystems]
    return Group(*_head(status)[:1], *files, *_signals(status), Text(""), title, rows, *rest, *warnings)


def _state(status: Status) -> RenderableType:
    """Return the state of the agent in one line."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for tables

    agent, paused, waiting = status.agent, status.paused, status.waiting
    first = Text(f"nodeagent {agent.version}  ", style="bold")
    if not agent.running:
        first.append("not running", style="bold red")
    elif not agent.ready:
        first.append(f"not ready: {'; '.join(agent.problems)}", style="bold red")
    elif paused is not None:
        left = "" if paused.seconds_left is None else f" ({format_duration(paused.seconds_left)} left)"
        first.append(f"paused{left} by {paused.who}: {paused.why}", style="bold yellow")
    elif waiting is not None:
        left = format_duration(waiting.seconds_left)
        first.append(f"waiting ({left} left): dry run during reload_grace", style="bold yellow")
    else:
        first.append("running", style="bold green")
    if agent.running:
        uptime = format_duration(round(agent.uptime_s(status.observed_at)))
        first.append(f" (pid {agent.pid}, up {uptime})")
    if waiting is not None and paused is not None:
        first.append(f"  then dry run for {format_duration(waiting.period_s)} (reload_grace)", style="yellow")
    elif agent.dry_run and waiting is None:
        first.append("  dry run: nothing is removed", style="yellow")
    return first


def _head(status: Status) -> list[RenderableType]:
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for tables

    agent, runtime = status.agent, status.runtime
    lines: list[RenderableType] = [_state(status)]
    if runtime.up:
        role = f"{agent.role} ({agent.role_because})"
        lines.append(Text(f"{runtime.name} {runtime.version} at {runtime.endpoint}, {role}", style="dim"))
    else:
        lines.append(Text(f"runtime unavailable: {runtime.problem}", style="bold red"))
    if agent.config_problem:
        faults = f"configuration file not in force: {agent.config_problem}".splitlines()
        lines += [Text(each, style="bold red") for each in faults]
    lines += _image_use(status)
    stop = status.shutdown
    if stop.off_because:
        lines.append(Text(f"graceful shutdown disabled: {stop.off_because}", style="dim"))
    elif stop.lock_held is not None:
        held = "inhibitor lock held" if stop.lock_held else "inhibitor lock not held"
        lines.append(Text(f"graceful shutdown: {held}", style="dim" if stop.lock_held else "bold red"))
    return lines


def _image_use(status: Status) -> list[RenderableType]:
    """Return the observation time of image use as a line; no line if no image is removed by age."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for tables

    use = status.image_use
    if use.maximum_unused_age_s is None:
        return []
    if use.observed_since is None:
        return [Text("image use: not observed; no image is removed by age", style="yellow")]
    observed_s = (status.observed_at - use.observed_since).total_seconds()
    line = Text(f"image use: observed for {format_duration(max(0.0, round(observed_s)))}", style="dim")
    if observed_s <= use.maximum_unused_age_s:
        maximum = format_duration(use.maximum_unused_age_s)
        line.append(f"; no image is removed by age before {maximum}", style="yellow")
    return [line]


def _filesystem(each: FilesystemStatus) -> RenderableType:
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - imported only for tables

    reading = each.reading
    if reading is None:
        return Text(f"{each.name} {each.path}: {each.problem}", style="bold red")
    used, high = reading.used_percent, each.high_percent
    line = Text(f"{each.name:<17} ")
    _bar(line, used / 100, bad=high is not None and used >= high)
    used_bytes = reading.capacity_bytes - reading.available_bytes
    line.append(f"  {used}%", style="bold")
    line.append(f"  {format_bytes(used_bytes)} of {format_bytes(reading.capacity_bytes)}")
    if high is not None:
        line.append(f"  (high {high}%, low {each.low_percent}%)", style="dim")
    line.append(f"  {each.path}", style="dim")
    return line


def _signals(status: Status) -> list[RenderableType]:
    """Return bars of memory, process ids, stalls and every signal with an exceeded threshold; then the conditions."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for tables

    lines: list[RenderableType] = []
    for each in status.signals:
        met = [one for one in each.thresholds if one.met]
        name = each.signal
        if _STALLS in name and not met and each.available < 1:
            continue
        if name not in ("memory.available", "pid.available") and _STALLS not in name and not met:
            continue
        line = Text(f"{name:<17} ")
        if _STALLS in name:
            _bar(line, each.available / 100, bad=bool(met))
            line.append(f"  {each.available:g}% stalled")
        else:
            share = 1 - each.available / each.capacity if each.capacity else 0.0
            _bar(line, share, bad=bool(met))
            unit = str if name.startswith("pid") or name.endswith("inodesFree") else format_bytes
            line.append(f"  {round(100 * share)}%", style="bold")
            line.append(f"  {unit(int(each.available))} available of {unit(int(each.capacity))}")
        line.append("".join(f"  exceeded: {one.text}" for one in met), style="bold red")
        lines.append(line)
    found = ", ".join(status.conditions)
    lines.append(Text(found or "no pressure", style="bold red" if found else "green"))
    return lines


def _bar(text: Any, share: float, *, bad: bool) -> None:  # noqa: ANN401 - a Text, imported only for tables
    full = min(_BAR, max(0, round(_BAR * share)))
    text.append("█" * full, style="red" if bad else "green")
    text.append("░" * (_BAR - full), style="dim")


def _result(each: LoopStatus) -> str:
    if each.why:
        return str(each.why)
    return f"{each.result}: {each.detail}" if each.detail else str(each.result)


def _ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "never"
    return f"{format_duration(max(0.0, round((now - moment).total_seconds())))} ago"


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else format_bytes(size_bytes)


def _fact(fact: Fact) -> str:
    return "?" if fact.value is None else str(fact.value)
