"""Gapless observation of image use, the precondition for removal by age.

Between two detections a container may have used an image unnoticed, so a long gap restarts the observation. Time is
measured on the boot clock: a step of the wall clock cannot extend an observation. A reboot restarts it, since
containers may have run before the agent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nodeagent.store.clock_jumps import moved

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.store.clock_jumps import ClockJump, ClockReading

LONGEST_GAP_S: Final = 600.0
"""Sufficient for an upgrade of the agent; longer with a long interval of passes."""

_MISSED_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class GapLimits:
    """The longest gaps between two detections that continue an observation, in seconds.

    Attributes:
        running_s: between two detections of one process.
        restart_s: between the last detection of one process and the first of the next.
    """

    running_s: float = LONGEST_GAP_S
    restart_s: float = LONGEST_GAP_S


def gap_limits(interval_s: float | None, maximum_unused_age_s: float) -> GapLimits:
    """Return the gap limits for passes every ``interval_s`` (``None`` if only on request).

    A restart may not take longer than the maximum unused age (0 disables it): in the meantime an image could be used
    and reach that age. A running process may still miss passes, since the interval is configured by the operator.
    """
    scheduled_s = _MISSED_PASSES * (interval_s or 0.0)
    longest_s = max(LONGEST_GAP_S, scheduled_s)
    restart_s = min(longest_s, maximum_unused_age_s) if maximum_unused_age_s > 0 else longest_s
    return GapLimits(max(restart_s, scheduled_s), restart_s)


@dataclass(frozen=True, slots=True)
class Observation:
    """A sequence of detections without a gap, within one boot.

    Attributes:
        since_s: boot time of the first detection.
        last_s: boot time of the last detection.
        last_at: wall time of the last detection.
    """

    boot_id: str
    since_s: float
    last_s: float
    last_at: datetime

    def continues(self, now: ClockReading, longest_gap_s: float) -> bool:
        """Return whether a detection at ``now`` is part of this observation."""
        same_boot = bool(now.boot_id) and now.boot_id == self.boot_id
        return same_boot and 0 <= now.boottime_s - self.last_s <= longest_gap_s

    def extended(self, now: ClockReading) -> Observation:
        """Return the observation with one more detection."""
        return replace(self, last_s=now.boottime_s, last_at=now.wall)

    def moved(self, jump: ClockJump) -> Observation:
        """Return the observation with its wall time shifted by the jump."""
        return replace(self, last_at=moved(self.last_at, jump))


def start_observation(now: ClockReading) -> Observation:
    """Return an observation with ``now`` as its first detection."""
    return Observation(now.boot_id, now.boottime_s, now.boottime_s, now.wall)


class ObservationTracker:
    """The current observation of one process. Not thread-safe, except for reading ``current``.

    Attributes:
        current: the current observation; ``None`` before the first detection without a stored observation.
    """

    def __init__(self, gaps: GapLimits) -> None:
        self._gaps = gaps
        self._detected = False
        self.current: Observation | None = None

    def restore(self, stored: Observation | None) -> None:
        """Continue the stored observation of a former process unless this one has its own."""
        self.current = self.current or stored

    def shift(self, jump: ClockJump) -> None:
        """Shift the wall time of the observation by a jump of the clock."""
        if self.current is not None:
            self.current = self.current.moved(jump)

    def is_late(self, at: ClockReading) -> bool:
        """Return whether a detection of this process at a later time was already added."""
        last = self.current
        return self._detected and last is not None and last.boot_id == at.boot_id and at.boottime_s < last.last_s

    def extend(self, at: ClockReading) -> datetime | None:
        """Add a detection; return the time of the previous one, ``None`` if the observation starts with this one."""
        before = self.current
        continued = before is not None and before.continues(at, self._longest_gap_s)
        self._detected = True
        if before is None or not continued:
            self.current = start_observation(at)
            return None
        self.current = before.extended(at)
        return before.last_at

    def would_continue(self, at: ClockReading) -> bool:
        """Return whether a detection at ``at`` would continue the observation."""
        current = self.current
        return current is not None and current.continues(at, self._longest_gap_s)

    @property
    def _longest_gap_s(self) -> float:
        return self._gaps.running_s if self._detected else self._gaps.restart_s
