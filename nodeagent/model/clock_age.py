"""Wall-clock rules: ages and their cutoff times, an untrusted wall clock, and times that other programs compare."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nodeagent.model.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model.clock_trust import ClockTrust
    from nodeagent.model.decision import Detail


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
