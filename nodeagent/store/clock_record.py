"""Record of the wall clock and the boot clock: jumps of the wall clock, and the node time of stored times.

Stored times are in node time. Node time advances with CLOCK_BOOTTIME and ignores every jump of the wall clock, so that
ages within a boot are exact and a wrong wall clock changes no stored time. At the first reading of a boot, node time
advances by the difference of the wall times if both are plausible, and by the uptime otherwise. With a correct wall
clock, node time equals wall time. A wall time is plausible unless it is before 2026 or before
the last recorded wall time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nodeagent.model.clock import ClockTrust
from nodeagent.record import Record, replace
from nodeagent.units import format_time

TOLERANCE_S: Final = 2.0
"""Total difference between wall time and boot time, in seconds, above which it counts as a jump.

It is the maximum error of ages, and above the step of a leap second. Both clocks are slewed equally, so that only steps
add up. Source: clock_gettime(2), adjtimex(2).
"""

GRACE_S: Final = 600.0
"""Time after a jump in which nothing is removed, ended or pruned because of its age.

Time services correct a wrong clock within it, often in more than one step.
"""

PLAUSIBLE_FROM: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""A wall time before this date is implausible.

The date precedes version 0.1, so that the state of every earlier version remains plausible after an upgrade.
"""

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class ClockReading(Record):
    """Reading of the wall clock and the boot clock at one instant.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        boottime_s: seconds since boot, suspend included.
        wall: wall time, aware UTC.
    """

    boot_id: str
    boottime_s: float
    wall: datetime


class ClockRecord(Record):
    """State of the clocks after one or more readings.

    Attributes:
        boot_id: boot of the readings; empty if unknown.
        first_s: boot time of the first reading of the boot.
        last_s: boot time of the last reading.
        anchor: reading with which later readings are compared to detect a jump.
        node_zero: node time at boot time 0.
        jumped_s: boot time at the detection of the last jump; ``None`` without a jump in this boot.
        jump_s: size of the last jump, in seconds.
        known_wall: last plausible wall time of any boot; ``None`` before the first plausible wall time.
        known_node: node time at ``known_wall``.
        calendar_zero: wall time at boot time 0, by the earliest setting of the wall clock in this boot that remained
            without a jump for the grace period; ``None`` before the end of that period.
    """

    boot_id: str
    first_s: float
    last_s: float
    anchor: ClockReading
    node_zero: datetime
    jumped_s: float | None = None
    jump_s: float = 0.0
    known_wall: datetime | None = None
    known_node: datetime = _EARLIEST
    calendar_zero: datetime | None = None

    def node_time(self, boottime_s: float) -> datetime:
        """Return the node time at ``boottime_s`` seconds after boot."""
        return later(self.node_zero, boottime_s)

    @property
    def valid_since_s(self) -> float:
        """Boot time of the last jump of the wall clock in seconds; 0 without a jump.

        Times that the kernel or the runtime recorded before that jump are by a former setting of the wall clock.
        """
        return max(0.0, self.jumped_s or 0.0)

    def is_current(self, reading: ClockReading) -> bool:
        """Return whether a reading is of the boot of this record; false if the boot id is unknown."""
        return bool(reading.boot_id) and reading.boot_id == self.boot_id


def find_jump(before: ClockReading | None, now: ClockReading) -> float | None:
    """Return the jump of the wall clock in seconds; ``None`` without a jump, or between readings of different boots.

    Within one boot the wall clock and the boot clock must advance equally.
    """
    if before is None or not now.boot_id or before.boot_id != now.boot_id:
        return None
    elapsed_s = now.boottime_s - before.boottime_s
    jump_s = (now.wall - before.wall).total_seconds() - elapsed_s
    return jump_s if elapsed_s >= 0 and abs(jump_s) > TOLERANCE_S else None


def advance(before: ClockRecord | None, reading: ClockReading, *, is_lost: bool = False) -> ClockRecord:
    """Return the record after a reading. A reading older than the last recorded reading changes nothing.

    ``is_lost`` is whether a former record cannot be read. Jumps before the first reading are then unknown, and the
    first reading counts as a jump.
    """
    if before is None or not before.is_current(reading):
        record = _start_boot(before, reading)
        if before is None and is_lost:
            record = replace(record, jumped_s=reading.boottime_s)
        return _settled(record, reading)
    if reading.boottime_s < before.last_s:
        return before
    record = replace(before, last_s=reading.boottime_s)
    jump_s = find_jump(before.anchor, reading)
    if jump_s is not None:
        record = replace(record, anchor=reading, jumped_s=reading.boottime_s, jump_s=jump_s)
    return _settled(record, reading)


def trust(record: ClockRecord, reading: ClockReading) -> ClockTrust:
    """Return the trust in the wall clock at a reading."""
    jumped_at = untrusted_until = expiry_now = None
    if record.jumped_s is not None:
        jumped_at = later(reading.wall, record.jumped_s - reading.boottime_s)
        if reading.boottime_s - record.jumped_s < GRACE_S:
            untrusted_until = later(jumped_at, GRACE_S)
    plausible = reading.wall >= PLAUSIBLE_FROM
    if record.calendar_zero is not None and untrusted_until is None and plausible:
        expiry_now = min(reading.wall, later(record.calendar_zero, reading.boottime_s))
    return ClockTrust(
        boot_id=reading.boot_id,
        boottime_s=reading.boottime_s,
        jump_s=record.jump_s,
        jumped_at=jumped_at,
        untrusted_until=untrusted_until,
        expiry_now=expiry_now,
        problem="" if plausible else f"wall clock {format_time(reading.wall)} is before the build of this agent",
    )


def later(moment: datetime, seconds: float) -> datetime:
    """Return ``moment`` plus ``seconds``, limited to the range of ``datetime``."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return _LATEST if seconds > 0 else _EARLIEST


def _start_boot(before: ClockRecord | None, reading: ClockReading) -> ClockRecord:
    """Return the record after the first reading of a boot; a wall time before the last recorded wall time is a jump."""
    wall, at_s = reading.wall, reading.boottime_s
    if before is None:
        return ClockRecord(reading.boot_id, at_s, at_s, reading, later(wall, -at_s))
    uptime_s = at_s if reading.boot_id and before.boot_id else 0.0
    node = later(before.node_time(before.last_s), max(0.0, uptime_s))
    jumped_s, jump_s = None, 0.0
    if before.known_wall is not None:
        since_s = (wall - before.known_wall).total_seconds()
        if since_s < -TOLERANCE_S:
            jumped_s, jump_s = at_s, since_s
        elif wall >= PLAUSIBLE_FROM:
            node = max(node, later(before.known_node, since_s))
    return ClockRecord(
        reading.boot_id,
        at_s,
        at_s,
        reading,
        later(node, -at_s),
        jumped_s,
        jump_s,
        before.known_wall,
        before.known_node,
    )


def _settled(record: ClockRecord, reading: ClockReading) -> ClockRecord:
    """Return the record with the wall time of a reading, if it is plausible and without a jump for the grace period.

    The first plausible wall time of all boots is recorded without the grace period. ``calendar_zero`` never increases
    during a boot: after a forward jump it remains behind until the next boot, which only delays the end of holds.
    """
    if reading.wall < PLAUSIBLE_FROM:
        return record
    steady_s = reading.boottime_s - max(record.first_s, record.jumped_s or 0.0)
    if steady_s < GRACE_S and record.known_wall is not None:
        return record
    record = replace(record, known_wall=reading.wall, known_node=record.node_time(reading.boottime_s))
    if steady_s < GRACE_S:
        return record
    zero = later(reading.wall, -reading.boottime_s)
    calendar = zero if record.calendar_zero is None else min(zero, record.calendar_zero)
    return replace(record, calendar_zero=calendar)
