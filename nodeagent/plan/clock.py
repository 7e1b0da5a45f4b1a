"""Ages in plans: the latest time of an age, and the rule for removals while the wall clock is not trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model import ClockTrust
    from nodeagent.plan.decision import Detail


def clock_untrusted(clock: ClockTrust) -> Reason | None:
    """Return the reason to keep items that are removed by age otherwise; ``None`` while the clock is trusted."""
    if clock.untrusted_until is None:
        return None
    details: dict[str, Detail] = {
        "jump_s": clock.jump_s,
        "eligible_at": clock.untrusted_until,
        "detail": clock.jump_text,
    }
    return Reason(ReasonCode.CLOCK_UNTRUSTED, details)


def earlier(moment: datetime, seconds: float) -> datetime:
    """Return the time ``seconds`` before another, at least the begin of the calendar."""
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
