"""Trust in the wall clock, and its rules: ages and their cutoff times, and times that other programs compare."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from nodeagent.model.decision import Detail, Reason, ReasonCode
from nodeagent.record import Record
from nodeagent.units import format_duration


class ClockTrust(Record):
    """Trust in the wall clock for decisions that depend on one observation.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        boottime_s: CLOCK_BOOTTIME at the observation in seconds; ``None`` without a clock record.
        jump_s: last jump of the wall clock in this boot in seconds, negative if the clock was set back; 0 without a
            jump, and if the record of earlier readings is lost.
        jumped_at: time of detection of that jump or loss, by the wall clock of this observation; ``None`` without a
            jump or loss.
        untrusted_until: end of the grace period after the last jump, by the wall clock of this observation; ``None``
            outside the grace period. During the grace period, age is no reason to remove, end or prune an item.
        expiry_now: reference time for the expiry of wall times of other boots: never later than the
            wall clock, and unaffected by forward jumps of the wall clock within a boot; ``None`` if unknown, in which
            case no item expires.
        problem: reason that the wall clock is implausible; empty normally.
    """

    boot_id: str = ""
    boottime_s: float | None = None
    jump_s: float = 0.0
    jumped_at: datetime | None = None
    untrusted_until: datetime | None = None
    expiry_now: datetime | None = None
    problem: str = ""

    @property
    def jump_text(self) -> str:
        """Description of the last jump or of the lost clock record, for display; empty without a jump or loss."""
        if self.jumped_at is None:
            return ""
        if not self.jump_s:
            return "earlier clock readings lost with the state database"
        return f"wall clock set {'forward' if self.jump_s > 0 else 'back'} by {format_duration(abs(self.jump_s))}"


TRUSTED: Final = ClockTrust()
"""A wall clock without a known jump."""


def clock_untrusted(clock: ClockTrust) -> Reason | None:
    """Return the reason to suspend removals by age while the wall clock is untrusted; ``None`` if it is trusted."""
    if clock.untrusted_until is None:
        return None
    details: dict[str, Detail] = {
        "jump_s": clock.jump_s,
        "eligible_at": clock.untrusted_until,
        "detail": clock.jump_text,
    }
    return Reason(ReasonCode.CLOCK_UNTRUSTED, details)


def earlier(moment: datetime, seconds: float) -> datetime:
    """Return the time ``seconds`` before ``moment``; the earliest possible ``datetime`` on overflow."""
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def not_before(now: datetime, earlier: datetime | None, step_s: float = 0.0) -> datetime:
    """Return ``now``, or ``step_s`` seconds after ``earlier`` if ``now`` is before ``earlier``.

    Every time that another program compares with a former one is published through this function, since the wall clock
    can be set back: Lease renewals, condition times, Event times and time metrics.
    """
    if earlier is None or now >= earlier:
        return now
    try:
        return earlier + timedelta(seconds=step_s)
    except OverflowError:
        return earlier
