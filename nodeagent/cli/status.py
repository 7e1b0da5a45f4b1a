"""``nodeagent status`` and ``nodeagent top``: how the node and the agent are, once or until interrupted.

The running agent is asked; where none runs the command looks by itself, and tells the same of the node.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodeagent.cli.control_client import ControlConnection, DaemonUnavailableError, line, understood
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from rich.console import Console, RenderableType

    Shown = dict[str, Any]

_VARIABLE: Final = "NODEAGENT_CONTROL__SOCKET"
"""Goes before any configuration, so that with it none has to be read."""
_BAR: Final = 30
_PASSES: Final = 5
_PODS: Final = 40
_STALLS: Final = ".psi."
_STYLES: Final[Mapping[str, str]] = {"disabled": "dim", "paused": "yellow", "running": "cyan", "waiting": ""}


def show_status(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print how the node and the agent are; exit code 1 unless an agent runs and can do its work.

    Raises:
        DaemonRefusedError: this user may not ask.
        NodeAgentError: no agent runs, and the node cannot be looked at.
    """
    with _asker(config, "Status") as ask:
        shown = _show(ask, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if shown["agent"].get("ready") else ExitCode.FAILED)


def show_top(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the node's signals and its pods, again and again on a terminal.

    Raises:
        DaemonRefusedError: this user may not ask.
        NodeAgentError: the node cannot be looked at.
    """
    with _asker(config, "Status", "Pods") as ask:
        _show(ask, form, watch_s, top_view)


def find_socket(config: Path | None) -> Path | None:
    """Return where the agent listens by a configuration; ``None`` where by it none does."""
    from nodeagent.config.control import DEFAULT_SOCKET  # noqa: PLC0415 - not for every command

    told = os.environ.get(_VARIABLE)
    if told and told.startswith("/"):
        return Path(told)
    if config is None and told is None and _there(DEFAULT_SOCKET):
        return DEFAULT_SOCKET
    from nodeagent.cli.session import load_settings  # noqa: PLC0415 - it takes longer than all else

    return load_settings(config, {}).control.socket


def _there(path: Path) -> bool:
    """Return whether something is at a path; what may not be looked at is."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def connected(config: Path | None) -> Iterator[ControlConnection]:
    """Return a connection to the running agent.

    Raises:
        DaemonUnavailableError: no agent runs.
        DaemonRefusedError: this user may not connect.
    """
    where = find_socket(config)
    if where is None:
        raise DaemonUnavailableError('by its configuration the agent cannot be asked: control.socket = ""')
    with line(where) as asked:
        yield asked


@contextmanager
def _asker(config: Path | None, *methods: str) -> Iterator[Callable[[], Shown]]:
    """Return what gets the answers to some questions, the later ones below their method's name."""
    asked, away = None, ""
    with ExitStack() as stack:
        try:
            asked = stack.enter_context(connected(config))
        except DaemonUnavailableError as error:
            away = str(error)
        if asked is not None:
            ask = asked.ask
            with understood():
                yield lambda: _merged({each: ask(each) for each in methods})
            return
        from nodeagent.cli.local_status import looking  # noqa: PLC0415 - only where no agent runs

        look = stack.enter_context(looking(config))
        yield lambda: _without_agent(_merged({each: look(each) for each in methods}), away)


def _merged(answers: Mapping[str, Shown]) -> Shown:
    first, *rest = answers
    return {**answers[first], **{each.lower(): answers[each] for each in rest}}


def _without_agent(shown: Shown, why: str) -> Shown:
    return {**shown, "warnings": [why, *shown["warnings"]]}


def _show(ask: Callable[[], Shown], form: str, watch_s: float | None, view: Callable[[Shown], RenderableType]) -> Shown:
    """Print an answer, again and again if asked to; return the last."""
    console = None
    if form == "table":
        from nodeagent.cli.render import make_console  # noqa: PLC0415 - only for people

        console = make_console()
    if watch_s is None:
        shown = ask()
        _print(shown, form, console, view)
        return shown
    live = console is not None and console.is_terminal
    screen: AbstractContextManager[Any] = console.screen(hide_cursor=True) if console and live else nullcontext()
    with screen as on:
        while True:
            shown = ask()
            if on is not None and console is not None:
                on.update(view(shown))
            else:
                _print(shown, form, console, view)
            time.sleep(watch_s)


def _print(shown: Shown, form: str, console: Console | None, view: Callable[[Shown], RenderableType]) -> None:
    if console is not None:
        console.print(view(shown))
        return
    from nodeagent.api.documents import dumps  # noqa: PLC0415 - only for scripts

    sys.stdout.write(dumps(shown, form))
    sys.stdout.flush()


def status_view(shown: Shown) -> RenderableType:
    """Return everything on one screen."""
    from rich.console import Group  # noqa: PLC0415 - only for people

    from nodeagent.cli.render import table  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    parts: list[RenderableType] = [*_head(shown), Text("")]
    parts += [_filesystem(each) for each in shown["filesystems"]]
    parts += _signals(shown)
    parts.append(Text(""))
    if shown["loops"]:
        made = table("loop", "state", "last run", "result", "next", "runs", "failed", right=("runs", "failed"))
        for each in shown["loops"]:
            failed = each["stuck"] or each["result"] in ("crashed", "failed", "runtime-unavailable")
            made.add_row(
                each["name"],
                Text("STUCK" if each["stuck"] else each["activity"], style=_STYLES.get(each["activity"], "")),
                _ago(each["ended_at"], shown["observed_at"]),
                _ended(each),
                "" if each["due_in_s"] is None else f"in {format_duration(each['due_in_s'])}",
                str(each["runs"]),
                str(each["failures"]),
                style="bold red" if failed else "",
            )
        parts.append(made)
    if shown["last_passes"]:
        made = table("last passes", "by", "what", "end", "removed", "freed", right=("removed", "freed"))
        for each in shown["last_passes"][:_PASSES]:
            made.add_row(
                _ago(each["started_at"], shown["observed_at"]),
                each["trigger"],
                each["scope"],
                each["end"],
                f"{each['planned']} would be" if each["dry_run"] else f"{each['removed']} of {each['planned']}",
                "" if each["freed_bytes"] is None else format_bytes(max(0, each["freed_bytes"])),
            )
        parts.append(made)
    for each in shown["holds"]:
        what = "all images" if each["all"] else each["image"]
        left = format_duration(each["seconds_left"])
        parts.append(Text(f"hold {each['id']} on {what} for another {left}: {each['why']}", style="cyan"))
    parts += [Text(f"warning: {each}", style="yellow") for each in shown["warnings"]]
    return Group(*parts)


def top_view(shown: Shown) -> RenderableType:
    """Return signals and pods."""
    from rich.console import Group  # noqa: PLC0415 - only for people

    from nodeagent.cli.render import table  # noqa: PLC0415
    from nodeagent.cli.terminal import Text  # noqa: PLC0415

    made = table(
        *("#", "pod", "memory", "requests", "pids", "disk", "QoS", "priority", "evictable"),
        right=("#", "memory", "requests", "pids", "disk", "priority"),
        wrap=("pod", "evictable"),
    )
    pods = shown["pods"]
    for each in pods["pods"][:_PODS]:
        facts, kept = each["facts"], each["kept_because"]
        parts = [each[key] for key in ("writable_bytes", "logs_bytes", "volumes_bytes") if each[key] is not None]
        made.add_row(
            str(each["rank"]),
            f"{each['namespace']}/{each['name']}",
            _size(each["memory_bytes"]),
            _size(each["memory_request_bytes"]),
            "?" if each["pids"] is None else str(each["pids"]),
            _size(sum(parts) if parts else None),
            _fact(facts["qos"]),
            _fact(facts["priority"]),
            "yes" if kept is None else f"no: {kept['sentence']}",
            style="" if kept is None else "dim",
        )
    more = len(pods["pods"]) - _PODS
    rest = [Text(f"and {more} more pods", style="dim")] if more > 0 else []
    warnings = [Text(f"warning: {each}", style="yellow") for each in (*shown["warnings"], *pods["warnings"])]
    title = Text("pods in the order in which they would go for want of memory", style="dim")
    files = [_filesystem(each) for each in shown["filesystems"]]
    return Group(*_head(shown)[:1], *files, *_signals(shown), Text(""), title, made, *rest, *warnings)


def _state(shown: Shown) -> RenderableType:
    """Return the state of the agent in one line."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for people

    agent, paused, waiting = shown["agent"], shown["paused"], shown.get("waiting")
    first = Text(f"nodeagent {agent['version']}  ", style="bold")
    if not agent["running"]:
        first.append("not running", style="bold red")
    elif not agent["ready"]:
        first.append(f"not ready: {'; '.join(agent['not_ready_because'])}", style="bold red")
    elif paused is not None:
        left = "" if paused["seconds_left"] is None else f" for another {format_duration(paused['seconds_left'])}"
        first.append(f"paused{left}, {paused['who']}: {paused['why']}", style="bold yellow")
    elif waiting is not None:
        left = format_duration(waiting["seconds_left"])
        first.append(f"waiting: dry run for another {left} (reload_grace)", style="bold yellow")
    else:
        first.append("at work", style="bold green")
    if agent["running"]:
        first.append(f", for {_ago(agent['started_at'], shown['observed_at']).removesuffix(' ago')}, process ")
        first.append(str(agent["pid"]))
    if waiting is not None and paused is not None:
        first.append(f"  then dry run for {format_duration(waiting['period_s'])} (reload_grace)", style="yellow")
    elif agent["dry_run"] and waiting is None:
        first.append("  dry run: nothing is removed", style="yellow")
    return first


def _head(shown: Shown) -> list[RenderableType]:
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for people

    agent, runtime = shown["agent"], shown["runtime"]
    lines: list[RenderableType] = [_state(shown)]
    if runtime["up"]:
        role = f"{agent['role']} ({agent['role_because']})"
        lines.append(Text(f"{runtime['name']} {runtime['version']} at {runtime['endpoint']}, {role}", style="dim"))
    else:
        lines.append(Text(f"the container runtime does not answer: {runtime['problem']}", style="bold red"))
    if agent.get("config_problem"):
        faults = f"the configuration on disk is not in force: {agent['config_problem']}".splitlines()
        lines += [Text(each, style="bold red") for each in faults]
    lines += _image_use(shown)
    stop = shown["shutdown"]
    if stop["off_because"]:
        lines.append(Text(f"graceful shutdown is off: {stop['off_because']}", style="dim"))
    elif stop["lock_held"] is not None:
        held = "logind waits for the agent" if stop["lock_held"] else "logind does not wait for the agent"
        lines.append(Text(f"graceful shutdown: {held}", style="dim" if stop["lock_held"] else "bold red"))
    return lines


def _image_use(shown: Shown) -> list[RenderableType]:
    """Return since when image use has been observed, if images are removed by age."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for people

    use = shown.get("image_use")  # an older daemon does not report it
    if use is None or use["maximum_unused_age_s"] is None:
        return []
    if use["observed_since"] is None:
        return [Text("image use: not observed; no image is removed by age", style="yellow")]
    observed_s = (_moment(shown["observed_at"]) - _moment(use["observed_since"])).total_seconds()
    made = Text(f"image use: observed for {format_duration(max(0.0, round(observed_s)))}", style="dim")
    if observed_s <= use["maximum_unused_age_s"]:
        maximum = format_duration(use["maximum_unused_age_s"])
        made.append(f"; no image is removed by age before {maximum}", style="yellow")
    return [made]


def _filesystem(each: Shown) -> RenderableType:
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for people

    if each.get("problem"):
        return Text(f"{each['name']} {each['path']}: {each['problem']}", style="bold red")
    used, high = each["used_percent"], each["high_percent"]
    made = Text(f"{each['name']:<17} ")
    _bar(made, used / 100, bad=high is not None and used >= high)
    taken = each["capacity_bytes"] - each["available_bytes"]
    made.append(f"  {used}%", style="bold")
    made.append(f"  {format_bytes(taken)} of {format_bytes(each['capacity_bytes'])}")
    if high is not None:
        made.append(f"  (high {high}%, low {each['low_percent']}%)", style="dim")
    made.append(f"  {each['path']}", style="dim")
    return made


def _signals(shown: Shown) -> list[RenderableType]:
    """Return memory and process ids as bars, what is near or past its threshold, and the conditions."""
    from nodeagent.cli.terminal import Text  # noqa: PLC0415 - only for people

    lines: list[RenderableType] = []
    for each in shown["signals"]:
        met = [one for one in each["thresholds"] if one["met"]]
        name = each["signal"]
        if _STALLS in name and not met and each["available"] < 1:
            continue
        if name not in ("memory.available", "pid.available") and _STALLS not in name and not met:
            continue
        made = Text(f"{name:<17} ")
        if _STALLS in name:
            _bar(made, each["available"] / 100, bad=bool(met))
            made.append(f"  {each['available']:g}% of the time stalled")
        else:
            share = 1 - each["available"] / each["capacity"] if each["capacity"] else 0.0
            _bar(made, share, bad=bool(met))
            unit = str if name.startswith("pid") or name.endswith("inodesFree") else format_bytes
            made.append(f"  {round(100 * share)}%", style="bold")
            made.append(f"  {unit(int(each['available']))} left of {unit(int(each['capacity']))}")
        made.append("".join(f"  past {one['text']}" for one in met), style="bold red")
        lines.append(made)
    found = ", ".join(shown["conditions"])
    lines.append(Text(found or "no pressure", style="bold red" if found else "green"))
    return lines


def _bar(text: Any, share: float, *, bad: bool) -> None:  # noqa: ANN401 - a Text, loaded only for people
    full = min(_BAR, max(0, round(_BAR * share)))
    text.append("█" * full, style="red" if bad else "green")
    text.append("░" * (_BAR - full), style="dim")


def _ended(each: Shown) -> str:
    if each["why"]:
        return str(each["why"])
    return f"{each['result']}: {each['detail']}" if each["detail"] else str(each["result"])


def _ago(moment: str | None, now: str) -> str:
    if moment is None:
        return "never"
    passed = _moment(now) - _moment(moment)
    return f"{format_duration(max(0.0, round(passed.total_seconds())))} ago"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else format_bytes(size_bytes)


def _fact(fact: Shown) -> str:
    return "?" if fact["value"] is None else str(fact["value"])
