"""The pod to evict, with reason and message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts, Resource
    from nodeagent.plan.decision import Reason
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus


class Eviction(Record):
    """The one pod to evict.

    Attributes:
        signal: the signal or storage limit, spelt as the kubelet labels its metric.
        starved: the resource that is short.
        status: the selected threshold with the latest reading; ``None`` for a storage limit.
        ranked: the pod with its rank; ``None`` for a storage limit.
        grace_s: termination grace period; 0 for none.
        message: for the pod's status, in the kubelet's wording.
    """

    pod: PodFacts
    reason: Reason
    signal: str
    starved: Resource
    status: ThresholdStatus | None
    ranked: RankedPod | None
    grace_s: float
    message: str
