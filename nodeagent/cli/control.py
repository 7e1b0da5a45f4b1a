"""``nodeagent events``, ``pause``, ``resume``, ``trigger`` and ``reload``: following and steering the running agent."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from nodeagent.cli.asking import request_for
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.status import connected
from nodeagent.errors import UsageError
from nodeagent.units import parse_duration_s

if TYPE_CHECKING:
    from pathlib import Path

_TRIGGER_WITHIN_S: Final = 960.0
_RELOAD_WITHIN_S: Final = 90.0
_STYLES: Final = {"warning": "yellow", "error": "bold red", "critical": "bold red"}


def follow_events(config: Path | None, form: str) -> None:
    """Print what the agent does as it does it, until interrupted.

    Raises:
        NodeAgentError: no agent runs, or this user may not ask.
    """
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - not for every command

    console = make_console()
    with connected(config) as agent:
        for event in agent.follow("Events"):
            if form != "table":
                sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
                sys.stdout.flush()
                continue
            lost = event.pop("missed_before", 0)
            if lost:
                console.print(f"{lost} events were lost: too many at once", style="yellow")
            style = _STYLES.get(str(event.get("level")), "")
            console.print(_event_line(event), style=style, markup=False, soft_wrap=True)


def _event_line(event: dict[str, Any]) -> str:
    from nodeagent.daemon.events import sentence  # noqa: PLC0415 - only for people

    told = {key: value for key, value in event.items() if key not in ("schema", "event", "level", "timestamp")}
    when = str(event.get("timestamp", ""))[11:19]
    return f"{when}  {event.get('event')}: {sentence(str(event.get('event')), told)}"


def pause(config: Path | None, *, lasts: str, why: str) -> None:
    """Have the agent collect and evict nothing for a while.

    Raises:
        UsageError: the time is no duration, or too long.
        NodeAgentError: no agent runs, or this user may not.
    """
    try:
        seconds = parse_duration_s(lasts)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    with connected(config) as agent:
        answer = agent.ask("Pause", request_for("Pause", seconds=seconds, why=why))
    sys.stdout.write(f"paused until {answer['until']}; 'nodeagent resume' ends it earlier\n")


def resume(config: Path | None) -> None:
    """End the pause.

    Raises:
        NodeAgentError: no agent runs, or this user may not.
    """
    with connected(config) as agent:
        was = agent.ask("Resume")["was_paused"]
    sys.stdout.write("the agent goes on\n" if was else "it was not paused\n")


def trigger(config: Path | None, loop: str, *, wait: bool) -> None:
    """Have a loop run now.

    Raises:
        UsageError: there is no such loop here, or the agent is paused.
        NodeAgentError: no agent runs, or this user may not.
    """
    with connected(config) as agent:
        request = request_for("Trigger", loop=loop, wait=wait)
        answer = agent.ask("Trigger", request, within_s=_TRIGGER_WITHIN_S)
    if not wait:
        sys.stdout.write(f"{loop} runs; 'nodeagent status' tells how it ends\n")
        return
    detail = f": {answer['detail']}" if answer["detail"] else ""
    sys.stdout.write(f"{loop}: {answer['result']}{detail}\n")
    if answer["result"] in ("failed", "crashed", "runtime-unavailable"):
        sys.exit(ExitCode.FAILED)


def reload(config: Path | None) -> None:
    """Have the agent read its configuration again, and print what changed.

    Raises:
        ConfigError: the configuration cannot be used; the one before stays in force.
        NodeAgentError: no agent runs, or this user may not.
    """
    with connected(config) as agent:
        changes = agent.ask("Reload", within_s=_RELOAD_WITHIN_S)["changes"]
    sys.stdout.write("".join(f"{each}\n" for each in changes) or "nothing changed\n")
