"""Rule for removals by age while the wall clock is not trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model import ClockTrust
    from nodeagent.plan.decision import Detail


def clock_untrusted(clock: ClockTrust) -> Reason | None:
    """Return the reason to keep all items with a removal by age; ``None`` while the clock is trusted."""
    if clock.untrusted_until is None:
        return None
    details: dict[str, Detail] = {
        "jump_s": clock.jump_s,
        "eligible_at": clock.untrusted_until,
        "detail": clock.jump_text,
    }
    return Reason(ReasonCode.CLOCK_UNTRUSTED, details)
