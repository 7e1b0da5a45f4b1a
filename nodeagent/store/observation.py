"""Gapless observation of image use, the precondition for removal by age.

Between two detections a container may have used an image without being detected. A long gap therefore restarts the
observation; the latest gaps are recorded with their cause. Time is measured on the boot clock: a jump of the wall clock
cannot extend an observation.

A reboot is a gap of unknown length: the boot clock restarts, and the node may have run without the agent. The
observation continues only if the agent has recorded its stop during the shutdown of the node, and the boot clocks show
that the node ran for a short time without a detection before and after the reboot. The wall clock can only refuse the
continuation, if it shows a longer gap, such as a boot without the agent.

First observations of items whose own time contradicts the clock.

The runtime and the kernel write the creation, exit and change times of items by the wall clock at that time, which may
have been wrong. A time is valid if, by the current wall clock, it is not in the future and not before the boot or the
last jump: the current setting of the clock then wrote it. Otherwise the item counts from its first observation with
that time, on the boot clock. An item that was observed in an earlier boot counts from the start of the current boot. An
item in the first reading with a time before the boot also counts from the start of the boot, unless the wall clock has
jumped since.

A backward jump that is undone before the next reading can be detected only by the times of items: an item that is
missing in one reading and present in the next cannot be older than the first of the two. An item with an older time
therefore also counts from its first observation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from nodeagent.model.runtime import GapCause, ObservationGap
from nodeagent.record import Record, replace
from nodeagent.store.clock_record import TOLERANCE_S, ClockReading, later

LONGEST_GAP_S: Final = 600.0
"""Longest gap in seconds for short pass intervals; sufficient for an upgrade of the agent. Long pass intervals allow a
longer gap.
"""

KEPT_GAPS: Final = 10
"""Maximum number of recorded gaps; older gaps are dropped."""

SHUTDOWN_S: Final = 90.0
"""Assumed seconds from the stop of the agent until the runtime, which systemd stops next, creates no more containers.

Source: systemd-system.conf(5), ``DefaultTimeoutStopSec=``.
"""

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


class ObservationPeriod(Record):
    """Sequence of detections without a gap above the limit, since its first detection in one boot.

    Attributes:
        since_s: boot time of the first detection in this boot.
        last_s: boot time of the last detection.
        last_at: time of the last detection, in node time.
        stopped_s: boot time at which the agent stopped during a shutdown of the node; ``None`` otherwise.
        stopped_at: wall time of that stop.
        before_s: seconds of observation before ``since_s``, of earlier boots; the time in which the node was off does
            not count.
        rebooted_at: wall time at which the agent stopped before this boot; ``None`` if ``before_s`` is 0.
    """

    boot_id: str
    since_s: float
    last_s: float
    last_at: datetime
    stopped_s: float | None = None
    stopped_at: datetime | None = None
    before_s: float = 0.0
    rebooted_at: datetime | None = None

    def continues(self, now: ClockReading, longest_gap_s: float) -> bool:
        """Return whether a detection at ``now`` continues this observation in its boot."""
        same_boot = bool(now.boot_id) and now.boot_id == self.boot_id
        return same_boot and 0 <= now.boottime_s - self.last_s <= longest_gap_s

    def after_reboot(self, now: ClockReading, node_time: datetime, longest_gap_s: float) -> ObservationPeriod | None:
        """Return the observation continued by the first detection in another boot; ``None`` after a long gap."""
        if self.stopped_s is None or self.stopped_at is None or not (self.boot_id and now.boot_id):
            return None
        running_s = self.stopped_s - self.last_s + now.boottime_s
        if self.stopped_s < self.last_s or running_s + SHUTDOWN_S > longest_gap_s:
            return None
        before_s = self.before_s + self.last_s - self.since_s + running_s
        made = ObservationPeriod(
            now.boot_id, now.boottime_s, now.boottime_s, node_time, before_s=before_s, rebooted_at=self.stopped_at
        )
        return made if made.was_short_reboot(now, longest_gap_s) else None

    def was_short_reboot(self, now: ClockReading, longest_gap_s: float) -> bool:
        """Return whether the wall clock, by its setting at ``now``, shows no long gap before this boot."""
        if self.rebooted_at is None:
            return False
        gap_s = (now.wall - self.rebooted_at).total_seconds() - (now.boottime_s - self.since_s)
        return self.since_s - TOLERANCE_S <= gap_s <= longest_gap_s

    def observed_s(self, now: ClockReading, longest_gap_s: float, *, is_wall_settled: bool) -> float:
        """Return the boot time since which use is observed, negative if since an earlier boot.

        Earlier boots count only while the wall clock is settled and shows no long gap before this boot.
        """
        counted = is_wall_settled and self.was_short_reboot(now, longest_gap_s)
        return self.since_s - (self.before_s if counted else 0.0)


class Extension(NamedTuple):
    """Effect of a detection on the times of use.

    Attributes:
        previous_at: node time of the previous detection; ``None`` if the observation restarts.
        uncounted_s: seconds of a reboot that do not count as time of observation. All times of use are moved by it, so
            that no image has an age by the wall clock across a reboot.
    """

    previous_at: datetime | None
    uncounted_s: float = 0.0


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
        self.current: ObservationPeriod | None = None
        self.gaps: tuple[ObservationGap, ...] = ()

    def restore(self, stored: ObservationPeriod | None, gaps: tuple[ObservationGap, ...]) -> None:
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

    def stop(self, at: ClockReading) -> None:
        """Record that the agent stops during a shutdown of the node."""
        if self.current is not None and self.current.boot_id == at.boot_id:
            self.current = replace(self.current, stopped_s=at.boottime_s, stopped_at=at.wall)

    def extend(self, at: ClockReading, node_time: datetime) -> Extension:
        """Add a detection."""
        before, longest_gap_s = self.current, self._longest_gap_s
        continued = None
        if before is not None and before.boot_id == at.boot_id:
            if before.continues(at, longest_gap_s):
                continued = replace(before, last_s=at.boottime_s, last_at=node_time, stopped_s=None, stopped_at=None)
        elif before is not None:
            continued = before.after_reboot(at, node_time, longest_gap_s)
        if continued is None:
            self._add_gap(at, node_time)
        self._detected = True
        self._interruption = None
        self.current = continued or ObservationPeriod(at.boot_id, at.boottime_s, at.boottime_s, node_time)
        if before is None or continued is None:
            return Extension(None)
        if before.boot_id == at.boot_id:
            return Extension(before.last_at)
        counted_s = continued.before_s - (before.before_s + before.last_s - before.since_s)
        uncounted_s = (node_time - before.last_at).total_seconds() - counted_s
        return Extension(later(node_time, -counted_s), max(0.0, uncounted_s))

    def observed_s(self, at: ClockReading, *, is_wall_settled: bool) -> float | None:
        """Return the boot time since which use is observed; ``None`` before the first detection."""
        if self.current is None:
            return None
        return self.current.observed_s(at, self._limits.restart_s, is_wall_settled=is_wall_settled)

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


ItemKey = tuple[str, str]
"""Kind of the item's time (creation, exit or change) and id of the item."""

FirstSeen = tuple[int, str, float]
"""Time of an item in microseconds since 1970 or number of its state; boot id and boot time of its first observation."""


class _KindReading(Record):
    """Items of one kind at one reading: the ids of all items, and the states of items that can change."""

    at: ClockReading
    ids: Collection[str]
    states: Mapping[str, int]


class ItemReadings:
    """Items of the previous reading of each kind by this process. Not thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[str, _KindReading] = {}

    def add(
        self,
        items: Mapping[ItemKey, datetime],
        listed: Mapping[str, Collection[str]],
        at: ClockReading,
        states: Mapping[ItemKey, int],
    ) -> set[ItemKey]:
        """Return the items that appeared or changed since the previous reading but have a time before that reading.

        The arguments are those of ``Store.first_seen``. Kinds that are not listed are not compared. A reading that is
        older than the previous reading of its kind is compared, but not stored.
        """
        before = {
            kind: last
            for kind in listed
            if (last := self._latest.get(kind)) is not None and last.at.boot_id == at.boot_id
        }
        read_at = {
            kind: later(at.wall, last.at.boottime_s - at.boottime_s - TOLERANCE_S) for kind, last in before.items()
        }
        found = set()
        for key, stamp in items.items():
            kind, item = key
            last = before.get(kind)
            if last is None or stamp >= read_at[kind]:
                continue
            if item not in last.ids or (item in last.states and last.states[item] != states.get(key)):
                found.add(key)
        for kind, ids in listed.items():
            if kind not in before or before[kind].at.boottime_s <= at.boottime_s:
                own = {item: state for (each, item), state in states.items() if each == kind} if states else {}
                self._latest[kind] = _KindReading(at, ids, own)
        return found


def update_first_seen(
    known: Mapping[ItemKey, FirstSeen],
    contradictory: Mapping[ItemKey, int],
    listed: Mapping[str, Collection[str]],
    at: ClockReading,
    since_boot: Collection[ItemKey] = (),
) -> dict[ItemKey, FirstSeen]:
    """Return the first observations of items whose timestamps contradict the clock, updated by a clock reading.

    Args:
        known: first observations before the reading.
        contradictory: time or state of each item whose time contradicts the clock.
        listed: ids of all existing items, by kind; entries of other items of these kinds are dropped.
        at: reading of the clocks.
        since_boot: contradictory items that were created before the boot.
    """
    updated = {key: seen for key, seen in known.items() if key[0] not in listed or key[1] in listed[key[0]]}
    for key, state in contradictory.items():
        before = known.get(key)
        if before is None or before[0] != state:
            updated[key] = (state, at.boot_id, 0.0 if key in since_boot else at.boottime_s)
        elif before[1] != at.boot_id:
            updated[key] = (state, at.boot_id, 0.0 if before[1] and at.boot_id else at.boottime_s)
        elif before[2] > at.boottime_s:
            updated[key] = (state, at.boot_id, at.boottime_s)
    return updated
