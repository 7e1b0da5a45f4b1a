"""Wall-clock rules of plans: cutoff times for ages, and no removal by age while the wall clock is untrusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model import ClockTrust
    from nodeagent.plan.decision import Detail


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
