"""Status of one eviction threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.observations import Rejection
    from nodeagent.plan.eviction.thresholds import Threshold


class ThresholdStatus(Record):
    """Status of one threshold.

    Attributes:
        observation: the accepted reading; ``None`` if the signal was not read or its reading was rejected.
        rejection: of the reading; ``None`` without one.
        limit: threshold quantity, without minimum reclaim; ``None`` without a reading.
        met: whether the reading meets the threshold, with minimum reclaim if ``latched``.
        latched: whether the threshold was acted on in the last pass, so that the minimum reclaim counts.
        met_for_s: time for which it has been met; 0 if it is not.
        due: whether it is met and its grace period is over.
        acting: whether it is due by a new reading, so that it may be acted on in this pass.
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
        """Remaining grace period."""
        return max(0.0, self.threshold.grace_s - self.met_for_s)
