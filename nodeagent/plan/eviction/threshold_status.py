"""Status of one eviction threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.eviction.signals import Operator
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.observations import Rejection
    from nodeagent.plan.eviction.thresholds import Threshold


class ThresholdStatus(Record):
    """Status of one threshold in a pass.

    Attributes:
        observation: the accepted reading; ``None`` if the signal was not read or its reading was rejected.
        rejection: rejection of the reading; ``None`` without a rejected reading.
        limit: threshold quantity in the unit of the signal, without minimum reclaim; ``None`` without a reading.
        met: whether the reading meets the threshold, with minimum reclaim if ``latched``.
        latched: whether the threshold was due in the last pass, so that only its minimum reclaim clears it.
        met_for_s: seconds for which the threshold has been met; 0 if it is not met.
        due: whether the threshold is met and its grace period has passed.
        acting: whether the threshold is due by a new reading, so that the pass may act on it.
    """

    threshold: Threshold
    observation: Observation | None = None
    rejection: Rejection | None = None
    limit: float | None = None
    met: bool = False
    latched: bool = False
    met_for_s: float = 0.0
    due: bool = False
    acting: bool = False

    @property
    def grace_left_s(self) -> float:
        """Remaining grace period in seconds."""
        return max(0.0, self.threshold.grace_s - self.met_for_s)

    @property
    def shortfall(self) -> float | None:
        """Amount missing to clear the threshold with its minimum reclaim, in the unit of the signal.

        0 if the reading clears the threshold; ``None`` without a reading. Node-level reclaim stops at this amount.
        """
        if self.observation is None:
            return None
        limit = self.threshold.limit(self.observation.capacity, with_reclaim=True)
        missing = limit - self.observation.available
        return max(0.0, missing if self.threshold.operator is Operator.LESS_THAN else -missing)
