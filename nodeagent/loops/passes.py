"""Shared by the tasks of the daemon: the lock of passes, the status of every loop, the announcement of a shutdown.

The watchdog, the status document and metrics show the statuses. A graceful shutdown waits a bounded time for its
announcement to the API server.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.units import Clock


class PausedBy(StrEnum):
    """Origin of a pause. The values are part of the JSON output."""

    OPERATOR = "operator"
    SHUTDOWN = "shutdown"


class Pause(Record):
    """A pause of all passes.

    Attributes:
        by: origin; each origin has at most one pause.
        reason: cause for display, with the user of the operator's pause.
        until_s: monotonic time of the expiry in seconds; ``None`` if the pause does not expire.
    """

    by: PausedBy
    reason: str
    until_s: float | None = None


class PassLock:
    """The lock that all passes of the daemon share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._pauses: dict[PausedBy, Pause] = {}
        self._resumed_s = -math.inf
        self._passes: set[asyncio.Event] = set()
        self._ended = False

    @asynccontextmanager
    async def take(self, *, urgent: bool = False) -> AsyncIterator[asyncio.Event]:
        """Acquire the lock for the block.

        Yields an event that is set to end the pass between two items: when the daemon stops or is paused, or when an
        urgent pass waits for the lock. The event may be set from the start.

        Args:
            urgent: whether to end the pass that holds the lock now.
        """
        if urgent:
            self.stop_passes()
        async with self._lock:
            end = asyncio.Event()
            if self._ended or self.pause() is not None:
                end.set()
            self._passes.add(end)
            try:
                yield end
            finally:
                self._passes.discard(end)

    def pause(self) -> Pause | None:
        """Return the oldest pause in force; ``None`` without a pause."""
        now_s = self._clock.monotonic_s()
        for by, pause in list(self._pauses.items()):
            if pause.until_s is not None and pause.until_s <= now_s:
                del self._pauses[by]
                self._resumed_s = max(self._resumed_s, pause.until_s)
        return next(iter(self._pauses.values()), None)

    def pause_of(self, by: PausedBy) -> Pause | None:
        """Return the pause of one origin, regardless of other pauses; ``None`` without a pause."""
        self.pause()
        return self._pauses.get(by)

    @property
    def paused_by_operator(self) -> str:
        """The operator's pause in force as text for display; empty without a pause."""
        pause = self.pause_of(PausedBy.OPERATOR)
        return "" if pause is None else f"paused: {pause.reason}"

    def add_pause(self, pause: Pause) -> None:
        """Start a pause, or replace the pause of the same origin; the running pass ends between two items."""
        self._pauses[pause.by] = pause
        self.stop_passes()

    def end_pause(self, by: PausedBy) -> bool:
        """End the pause of one origin; return whether it was in force."""
        in_force = self.pause_of(by) is not None
        if in_force:
            del self._pauses[by]
            self._resumed_s = self._clock.monotonic_s()
        return in_force

    @property
    def resumed_s(self) -> float:
        """Monotonic seconds at which the last pause ended; minus infinity before the first end."""
        self.pause()
        return self._resumed_s

    def end(self) -> None:
        """End the running pass between two items, and each later pass at its start."""
        self._ended = True
        self.stop_passes()

    def stop_passes(self) -> None:
        """End the running pass between two items."""
        for each in self._passes:
            each.set()


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
        collects_ahead: whether the last run planned a collection ahead of its threshold, and did not finish it.
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
    collects_ahead: bool = False
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

    def ended(
        self, name: str, result: str, *, detail: str = "", failed: bool = False, collects_ahead: bool = False
    ) -> None:
        """Record the result of a run."""
        status = self._status(name)
        status.activity, status.result, status.detail = Activity.WAITING, result, detail
        status.collects_ahead = collects_ahead
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


async def wait_for_any(seconds: float, *events: asyncio.Event) -> bool:
    """Wait until one of the events is set, at most ``seconds``; return whether one is set."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return any(each.is_set() for each in events)


class AnnouncedPart(StrEnum):
    """Parts of the Node object that announce a shutdown."""

    STATUS = "status"
    CORDON = "cordon"


class ShutdownAnnouncement:
    """Whether the API server knows of the shutdown in progress; nothing is announced without a registered node."""

    def __init__(self) -> None:
        """Create an announcement without expected parts."""
        self._settled = asyncio.Event()
        self._settled.set()
        self._open: set[AnnouncedPart] = set()

    def begin(self) -> None:
        """Expect every part, from now on and for each shutdown."""
        self._open = set(AnnouncedPart)
        self._settled.clear()

    def settle(self, part: AnnouncedPart) -> None:
        """Expect a part no longer: it was written, or refused in a way that another attempt does not change."""
        self._open.discard(part)
        if not self._open:
            self._settled.set()

    def expect(self, part: AnnouncedPart) -> None:
        """Expect a part again, as after a cancelled shutdown."""
        self._open.add(part)
        self._settled.clear()

    def end(self) -> None:
        """Expect nothing any longer."""
        self._open = set()
        self._settled.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until every expected part is settled, at most this time; return whether it is."""
        if not self._settled.is_set() and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._settled.wait()
        return self._settled.is_set()
