"""Decision to evict one pod: the pod, its reason and its status message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import Resource
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts
    from nodeagent.plan.decision import Reason
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus

_URGENT: Final = frozenset({Resource.MEMORY, Resource.PIDS})


class Eviction(Record):
    """The pod to evict in a pass; a pass evicts at most one pod.

    Attributes:
        signal: name of the signal or storage limit, as in the label of the kubelet's eviction metric.
        starved: the resource in shortage.
        status: the selected threshold with the latest reading; ``None`` for a storage limit.
        ranked: the pod with its rank; ``None`` for a storage limit.
        grace_s: termination grace period of the eviction in seconds; 0 kills immediately.
        message: message of the pod status, in the kubelet's wording.
    """

    pod: PodFacts
    reason: Reason
    signal: str
    starved: Resource
    status: ThresholdStatus | None
    ranked: RankedPod | None
    grace_s: float
    message: str

    @property
    def is_urgent(self) -> bool:
        """Whether the starved resource, memory or PIDs, can be exhausted within a second."""
        return self.starved in _URGENT
