"""When the agent counts as alive and as ready, and the reasons that are given where it does not."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest

from nodeagent.config.handing import checked
from nodeagent.config.settings import Origin
from nodeagent.daemon import log
from nodeagent.daemon.board import Board
from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.daemon.station import Station
from nodeagent.daemon.turns import Pause, Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.daemon.agent import Agent


class Clock:
    at_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 10, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.at_s


def healthy() -> tuple[Station, Clock]:
    clock = Clock()
    made = Station(checked(Origin()), log.configure("json", "info", io.StringIO()), clock, Board(clock), Turns(clock))
    made.agent = cast("Agent", object())
    made.board.waiting("images", 60, 10)
    return made, clock


def lose_runtime(station: Station, _: Clock) -> None:
    station.tally.hear({"event": "runtime_unavailable", "loop": "images"})


def lose_and_find_runtime(station: Station, clock: Clock) -> None:
    lose_runtime(station, clock)
    station.tally.hear({"event": "runtime_available", "loop": "images"})


def take_agent(station: Station, _: Clock) -> None:
    station.agent = None


def take_agent_and_runtime(station: Station, clock: Clock) -> None:
    take_agent(station, clock)
    lose_runtime(station, clock)


def stick(station: Station, clock: Clock) -> None:
    del station
    clock.at_s = 71


def pause(*askers: str) -> Callable[[Station, Clock], None]:
    def hold(station: Station, _: Clock) -> None:
        for who in askers:
            station.turns.hold(Pause(who, "why"))

    return hold


@pytest.mark.parametrize(
    ("happens", "alive", "ready"),
    [
        (lambda *_: None, (), ()),
        (lose_runtime, (), ("the container runtime does not answer",)),
        (lose_and_find_runtime, (), ()),
        (take_agent, (), ("the agent is not composed: it starts, reloads, or there is no container runtime",)),
        (
            take_agent_and_runtime,
            (),
            ("the agent is not composed: it starts, reloads, or there is no container runtime",),
        ),
        (stick, ("no progress: images",), ("no progress: images",)),
        (pause("shutdown"), (), ("shutdown: why",)),
        (pause("operator"), (), ()),
        (pause("operator", "shutdown"), (), ("shutdown: why",)),
        (lambda station, _: station.stop.set(), (), ("the agent is stopping",)),
        (lambda station, _: station.board.off("images", "not enabled"), (), ()),
    ],
    ids=["well", "lost", "found", "no-agent", "neither", "stuck", "shutdown", "paused", "both", "stopping", "off"],
)
async def test_reasons(
    happens: Callable[[Station, Clock], None], alive: tuple[str, ...], ready: tuple[str, ...]
) -> None:
    made, clock = healthy()
    happens(made, clock)
    assert not_alive(made) == alive
    assert not_ready(made) == ready
