"""What each duty of the daemon is doing: for the watchdog, for status and for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.clock import Clock


class Activity(StrEnum):
    """What a duty is at. The values are part of the JSON output."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DISABLED = "disabled"


@dataclass(slots=True)
class LoopStatus:
    """One duty on the board.

    Attributes:
        why: why it is off or paused; empty otherwise.
        started_at: when its last run began, and ``ended_at`` when the last one ended.
        result: how its last run ended, in one word; empty before the first.
        detail: what was missing or went wrong.
        runs: how many runs ended, ``failures`` of them badly.
        due_s: monotonic seconds at which the next run begins; ``None`` where nothing is due.
        silent_until_s: monotonic seconds by which it reports again, else it is stuck; ``None`` if it need not.
    """

    name: str
    activity: Activity = Activity.WAITING
    why: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: str = ""
    detail: str = ""
    runs: int = 0
    failures: int = 0
    due_s: float | None = None
    silent_until_s: float | None = None


class LoopStatuses:
    """All duties in the order in which they first reported."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, LoopStatus] = {}

    @property
    def lines(self) -> tuple[LoopStatus, ...]:
        """Every duty."""
        return tuple(self._lines.values())

    def disabled(self, name: str, why: str) -> None:
        """Note that a duty is not done at all."""
        line = self._line(name)
        line.activity, line.why, line.due_s, line.silent_until_s = Activity.DISABLED, why, None, None

    def paused(self, name: str, why: str, within_s: float) -> None:
        """Note that a duty does nothing for now; it looks again within so many seconds."""
        line = self._line(name)
        line.activity, line.why, line.due_s = Activity.PAUSED, why, None
        self.beat(name, within_s)

    def running(self, name: str, within_s: float) -> None:
        """Note that a run begins; it reports again within so many seconds."""
        line = self._line(name)
        line.activity, line.why, line.due_s, line.started_at = Activity.RUNNING, "", None, self._clock.now()
        self.beat(name, within_s)

    def beat(self, name: str, within_s: float) -> None:
        """Note that a duty made progress and reports again within so many seconds."""
        self._line(name).silent_until_s = self._clock.monotonic_s() + within_s

    def ended(self, name: str, result: str, *, detail: str = "", failed: bool = False) -> None:
        """Note how a run ended."""
        line = self._line(name)
        line.activity, line.result, line.detail, line.ended_at = Activity.WAITING, result, detail, self._clock.now()
        line.runs += 1
        line.failures += failed

    def waiting(self, name: str, wait_s: float, slack_s: float) -> None:
        """Note that the next run begins in ``wait_s`` seconds, ``slack_s`` later at most."""
        line = self._line(name)
        line.activity, line.why, line.due_s = Activity.WAITING, "", self._clock.monotonic_s() + wait_s
        self.beat(name, wait_s + slack_s)

    def stuck(self) -> tuple[str, ...]:
        """Return the duties that should have reported by now."""
        now_s = self._clock.monotonic_s()
        return tuple(
            line.name for line in self.lines if line.silent_until_s is not None and line.silent_until_s < now_s
        )

    def _line(self, name: str) -> LoopStatus:
        return self._lines.setdefault(name, LoopStatus(name))
