"""Gapless observation of image use, the precondition for removal by age.

Between two detections a container may have used an image without being detected. A long gap therefore restarts the
observation; the latest gaps are recorded with their cause. Time is measured on the boot clock: a jump of the wall clock
cannot extend an observation. A reboot restarts the observation, since containers may have run before the agent, and the
length of the gap could be measured only by the wall clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model import GapCause, ObservationGap
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from nodeagent.store.clock_record import ClockReading

LONGEST_GAP_S: Final = 600.0
"""Longest gap in seconds for short pass intervals; sufficient for an upgrade of the agent. Long pass intervals allow a
longer gap.
"""

KEPT_GAPS: Final = 10
"""Maximum number of recorded gaps; older gaps are dropped."""

_MISSED_PASSES: Final = 3


class GapLimits(Record):
    """Longest gaps between two detections that do not restart an observation, in seconds.

    Attributes:
        running_s: longest gap between two detections of one process.
        restart_s: longest gap between the last detection of one process and the first detection of the next process.
    """

    running_s: float = LONGEST_GAP_S
    restart_s: float = LONGEST_GAP_S


def gap_limits(interval_s: float | None, maximum_unused_age_s: float) -> GapLimits:
    """Return the gap limits for passes every ``interval_s`` seconds; ``None`` for passes only on request.

    The gap of a restart must not exceed the maximum unused age (0: no maximum age): during a longer gap an image could
    be used and then reach that age. A running process may still miss passes, since the operator configures the
    interval.
    """
    scheduled_s = _MISSED_PASSES * (interval_s or 0.0)
    longest_s = max(LONGEST_GAP_S, scheduled_s)
    restart_s = min(longest_s, maximum_unused_age_s) if maximum_unused_age_s > 0 else longest_s
    return GapLimits(max(restart_s, scheduled_s), restart_s)


class Observation(Record):
    """Sequence of detections without a gap above the limit, within one boot.

    Attributes:
        since_s: boot time of the first detection.
        last_s: boot time of the last detection.
        last_at: time of the last detection, in node time.
    """

    boot_id: str
    since_s: float
    last_s: float
    last_at: datetime

    def continues(self, now: ClockReading, longest_gap_s: float) -> bool:
        """Return whether a detection at ``now`` continues this observation."""
        same_boot = bool(now.boot_id) and now.boot_id == self.boot_id
        return same_boot and 0 <= now.boottime_s - self.last_s <= longest_gap_s


class ObservationTracker:
    """Current observation of image use by one process. Not thread-safe, except for reading ``current`` and ``gaps``.

    Attributes:
        current: the current observation; ``None`` before the first detection without a stored observation.
        gaps: the latest gaps in node time, oldest first.
    """

    def __init__(self, limits: GapLimits) -> None:
        self._limits = limits
        self._detected = False
        self._interruption: GapCause | None = None
        self.current: Observation | None = None
        self.gaps: tuple[ObservationGap, ...] = ()

    def restore(self, stored: Observation | None, gaps: tuple[ObservationGap, ...]) -> None:
        """Continue the stored observation of a former process unless this process has its own; add the stored gaps."""
        self.current = self.current or stored
        self.gaps = (*gaps, *self.gaps)[-KEPT_GAPS:]

    def move(self, by: timedelta) -> None:
        """Add a duration to all node times."""
        if self.current is not None:
            self.current = replace(self.current, last_at=self.current.last_at + by)
        self.gaps = tuple(
            replace(each, started_at=each.started_at and each.started_at + by, ended_at=each.ended_at + by)
            for each in self.gaps
        )

    def interrupt(self, cause: GapCause) -> None:
        """Record the cause of a gap that begins now; a detection within the gap limits discards the cause."""
        self._interruption = cause

    def is_late(self, at: ClockReading) -> bool:
        """Return whether this process already added a detection later than ``at``."""
        last = self.current
        return self._detected and last is not None and last.boot_id == at.boot_id and at.boottime_s < last.last_s

    def extend(self, at: ClockReading, node_time: datetime) -> datetime | None:
        """Add a detection; return the node time of the previous detection, ``None`` if the observation restarts."""
        before = self.current
        continued = before is not None and before.continues(at, self._longest_gap_s)
        if not continued:
            self._add_gap(at, node_time)
        self._detected = True
        self._interruption = None
        if before is None or not continued:
            self.current = Observation(at.boot_id, at.boottime_s, at.boottime_s, node_time)
            return None
        self.current = replace(before, last_s=at.boottime_s, last_at=node_time)
        return before.last_at

    def would_continue(self, at: ClockReading) -> bool:
        """Return whether a detection at ``at`` would continue the current observation."""
        current = self.current
        return current is not None and current.continues(at, self._longest_gap_s)

    def _add_gap(self, at: ClockReading, node_time: datetime) -> None:
        before = self.current
        if before is None and self._interruption is None:  # the first detection ever follows no gap
            return
        if before is not None and before.boot_id != at.boot_id:
            cause = GapCause.REBOOT
        elif self._interruption is not None:
            cause = self._interruption
        else:
            cause = GapCause.NO_PASS if self._detected else GapCause.AGENT_DOWN
        started_at = before.last_at if before is not None else None
        self.gaps = (*self.gaps, ObservationGap(started_at, node_time, cause))[-KEPT_GAPS:]

    @property
    def _longest_gap_s(self) -> float:
        return self._limits.running_s if self._detected else self._limits.restart_s
