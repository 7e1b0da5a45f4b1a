"""Status of every loop and task of the daemon, for the watchdog, the status document and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.clock import Clock


class Activity(StrEnum):
    """State of a loop or task. The values are part of the JSON output."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DISABLED = "disabled"


@dataclass(slots=True)
class LoopStatus:  # one row of the status document: its attributes are the columns
    """Status of one loop or task.

    Attributes:
        reason: cause of ``DISABLED`` or ``PAUSED``; empty otherwise.
        removes: whether its runs remove or evict, so that a pause of all passes also pauses it.
        started_at: start of the last run; ``ended_at`` its end.
        result: result code of the last run; empty before the first.
        detail: error or shortfall of the last run.
        runs: number of finished runs; ``failures`` the number of failed runs.
        next_run_s: monotonic seconds of the next run; ``None`` if none is scheduled.
        report_until_s: monotonic seconds of the deadline for the next report, after which the task counts as stuck;
            ``None`` if no report is expected.
    """

    name: str
    activity: Activity = Activity.WAITING
    reason: str = ""
    removes: bool = False
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: str = ""
    detail: str = ""
    runs: int = 0
    failures: int = 0
    next_run_s: float | None = None
    report_until_s: float | None = None


class LoopStatuses:
    """Status of all loops and tasks, in the order of their first report."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, LoopStatus] = {}

    @property
    def all(self) -> tuple[LoopStatus, ...]:
        """Status of every loop and task that has reported."""
        return tuple(self._by_name.values())

    def disabled(self, name: str, reason: str) -> None:
        """Record that a task is disabled, with the reason."""
        status = self._status(name)
        status.activity, status.reason = Activity.DISABLED, reason
        status.next_run_s = status.report_until_s = None

    def paused(self, name: str, reason: str, within_s: float) -> None:
        """Record that a task is paused; the next report is due within ``within_s`` seconds."""
        status = self._status(name)
        status.activity, status.reason, status.next_run_s = Activity.PAUSED, reason, None
        self.beat(name, within_s)

    def running(self, name: str, within_s: float) -> None:
        """Record the start of a run; the next report is due within ``within_s`` seconds."""
        status = self._status(name)
        status.activity, status.reason, status.next_run_s = Activity.RUNNING, "", None
        status.started_at = self._clock.now()
        self.beat(name, within_s)

    def beat(self, name: str, within_s: float) -> None:
        """Record progress; the next report is due within ``within_s`` seconds."""
        self._status(name).report_until_s = self._clock.monotonic_s() + within_s

    def ended(self, name: str, result: str, *, detail: str = "", failed: bool = False) -> None:
        """Record the result of a run."""
        status = self._status(name)
        status.activity, status.result, status.detail = Activity.WAITING, result, detail
        status.ended_at = self._clock.now()
        status.runs += 1
        status.failures += failed

    def waiting(self, name: str, wait_s: float, slack_s: float, *, removes: bool = False) -> None:
        """Record that a task is waiting: the next run starts in ``wait_s`` seconds, at most ``slack_s`` later."""
        status = self._status(name)
        status.activity, status.reason, status.removes = Activity.WAITING, "", removes
        status.next_run_s = self._clock.monotonic_s() + wait_s
        self.beat(name, wait_s + slack_s)

    def stuck(self) -> tuple[str, ...]:
        """Return the names of the tasks whose report is overdue."""
        now_s = self._clock.monotonic_s()
        return tuple(
            status.name for status in self.all if status.report_until_s is not None and status.report_until_s < now_s
        )

    def _status(self, name: str) -> LoopStatus:
        return self._by_name.setdefault(name, LoopStatus(name))
