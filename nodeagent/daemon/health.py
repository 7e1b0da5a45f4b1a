"""Whether the agent is alive and ready, in sentences: for probes, for metrics and for the service manager's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.daemon.station import Station


def not_alive(station: Station) -> tuple[str, ...]:
    """Return why the agent had better be started anew: duties without progress. A runtime that is away is no reason."""
    return tuple(f"no progress: {name}" for name in station.board.stuck())


def not_ready(station: Station) -> tuple[str, ...]:
    """Return why the agent cannot do its work now."""
    found = list(not_alive(station))
    if station.stop.is_set():
        found.append("the agent is stopping")
    if station.agent is None:
        found.append("the agent is not composed: it starts, reloads, or there is no container runtime")
    elif station.tally.runtime_down:
        found.append("the container runtime does not answer")
    pause = station.turns.pause_of("shutdown")
    if pause is not None:
        found.append(pause.text)
    return tuple(found)
