"""Trust in the wall clock at one observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.record import Record
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from datetime import datetime


class ClockTrust(Record):
    """Validity of the wall clock of an observation for decisions.

    Attributes:
        boot_id: id of the boot; empty if unknown.
        boottime_s: CLOCK_BOOTTIME at the observation; ``None`` without a clock record.
        jump_s: last jump of the wall clock in this boot, negative if it was set back; 0 without one, and if the record
            of earlier readings is lost.
        jumped_at: detection of that jump or loss, by the wall clock of this observation; ``None`` without one.
        untrusted_until: end of the grace period after the last jump, by the wall clock of this observation; ``None``
            outside of it. Within it nothing is removed, ended or pruned because of its age.
        expiry_now: reference time for the expiry of wall times of other boots: never later than the
            wall clock, and unaffected by its jumps forward within a boot; ``None`` while it is unknown, so that no
            expiry is due.
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
        """The last jump, for display; empty without one."""
        if self.jumped_at is None:
            return ""
        if not self.jump_s:
            return "earlier clock readings lost with the state database"
        return f"wall clock set {'forward' if self.jump_s > 0 else 'back'} by {format_duration(abs(self.jump_s))}"


TRUSTED: Final = ClockTrust()
"""A wall clock without a known jump."""
