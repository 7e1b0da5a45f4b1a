"""Preview of the first evictions under settings that are not applied yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.eviction.local_storage import find_violation
from nodeagent.plan.eviction.planner import plan_eviction
from nodeagent.plan.eviction.protection import Protection
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodeagent.model.pressure import FilesystemLayout, OtherImageFilesystem, PodFacts
    from nodeagent.plan.decision import Reason
    from nodeagent.plan.eviction.policy import EvictionPolicy
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.state import Evaluation


class PodEviction(Record):
    """Pod that would be evicted first for a threshold, or for its own storage limit."""

    uid: str
    namespace: str
    name: str
    reason: Reason


def pods_over_limits(
    pods: Sequence[PodFacts], policy: EvictionPolicy, layout: FilesystemLayout
) -> tuple[PodEviction, ...]:
    """Return the unprotected pods over their own storage limits, ordered by namespace, name and UID."""
    protection = Protection(pods, policy)
    found = []
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name, each.uid)):
        violation = find_violation(pod, layout)
        if violation is not None and protection.keep_reason(pod) is None:
            found.append(PodEviction(pod.uid, pod.namespace, pod.name, violation.reason))
    return tuple(found)


def first_victim(  # noqa: PLR0913 - the inputs of a plan
    evaluation: Evaluation,
    pods: Sequence[PodFacts],
    policy: EvictionPolicy,
    layout: FilesystemLayout,
    others: Collection[OtherImageFilesystem] = (),
    *,
    removes_volumes: bool = False,
) -> PodEviction | None:
    """Return the first pod to evict for a threshold if node-level reclaim does not suffice; ``None`` without a victim.

    The decision is made at the time of the evaluation. A soft threshold is considered only after its grace period. The
    growth of the pods is not considered; ``removes_volumes`` as for ``plan_eviction``.
    """
    policy = replace(policy, local_storage_isolation=False)
    reclaimed: frozenset[ReclaimStep] = frozenset()
    while True:
        plan = plan_eviction(
            evaluation,
            pods,
            policy,
            layout=layout,
            now=evaluation.at,
            reclaimed=reclaimed,
            others=others,
            removes_volumes=removes_volumes,
        )
        if not plan.reclaim:
            break
        reclaimed |= frozenset(plan.reclaim)
    if plan.victim is None:
        return None
    pod = plan.victim.pod
    return PodEviction(pod.uid, pod.namespace, pod.name, plan.victim.reason)
