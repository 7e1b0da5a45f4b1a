"""Plans of one garbage collection pass, in the kubelet's order: containers, sandboxes, logs, images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.decision import NO_FAILURES, Reason, ReasonCode, Verdict
from nodeagent.plan.gc.containers import plan_container_gc
from nodeagent.plan.gc.image_users import find_users
from nodeagent.plan.gc.images import plan_image_gc
from nodeagent.plan.gc.pod_logs import plan_pod_logs
from nodeagent.plan.gc.projection import project_with_users
from nodeagent.plan.gc.sandboxes import plan_sandbox_gc
from nodeagent.plan.pods.deletion import check_pods
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan
    from nodeagent.plan.gc.policy import GCPolicy

_NOT_IN_PLAN = Reason(ReasonCode.NOT_IN_PLAN)


class GCPlan(Record):
    """Plans of one pass; ``images`` is ``None`` in a pass without images."""

    containers: Plan
    sandboxes: Plan
    logs: Plan
    images: Plan | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the pass in order of execution."""
        made = (self.containers, self.sandboxes, self.logs)
        return made if self.images is None else (*made, self.images)

    @property
    def removals(self) -> tuple[Decision, ...]:
        """The removals of all plans in order of execution."""
        return tuple(decision for plan in self.plans for decision in plan.removals)


def plan_containers(  # noqa: PLR0913 - one argument for each input of a pass
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
    evicted: frozenset[str] = frozenset(),
    only: frozenset[str] | None = None,
) -> GCPlan:
    """Return the plans for dead containers, sandboxes and logs; each assumes the removals of the previous plan.

    Args:
        snapshot: snapshot of the node.
        policy: policies of all planners.
        failed: cause of the failure by item id, for removals that failed earlier in this pass.
        evict_non_deleted_pods: also remove the containers and sandboxes of pods that have finished but still exist.
        evicted: UIDs of pods evicted by nodeagent; see ``check_pods``.
        only: ids of the items that may be removed; ``None`` for all items.

    Source: kubelet ``containerGC.GarbageCollect``.
    """
    return _plan_containers(
        snapshot, policy, failed, only, evict_non_deleted_pods=evict_non_deleted_pods, evicted=evicted
    )[0]


def plan_all(  # noqa: PLR0913 - one argument for each input of a pass
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
    remove_all_unused: bool = False,
    only: frozenset[str] | None = None,
) -> GCPlan:
    """Return the plans of ``plan_containers`` and the image plan, which assumes the removals of these plans."""
    made, removed_containers, removed_sandboxes = _plan_containers(
        snapshot, policy, failed, only, evict_non_deleted_pods=evict_non_deleted_pods
    )
    after, users = project_with_users(snapshot, removed_containers, removed_sandboxes, find_users(snapshot))
    images = plan_image_gc(
        after, policy.images, failed=failed, remove_all_unused=remove_all_unused, users=users, only=only
    )
    return replace(made, images=images)


def _plan_containers(  # noqa: PLR0913 - one argument for each input of a pass
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    failed: Mapping[str, str],
    only: frozenset[str] | None,
    *,
    evict_non_deleted_pods: bool,
    evicted: frozenset[str] = frozenset(),
) -> tuple[GCPlan, frozenset[str], frozenset[str]]:
    """Return the plans without an image plan, and the ids of the containers and sandboxes to remove."""
    statuses = check_pods(snapshot, policy.containers.deleted_pod_grace_s, evicted)
    containers = plan_container_gc(
        snapshot,
        policy.containers,
        failed=failed,
        evict_non_deleted_pods=evict_non_deleted_pods,
        statuses=statuses,
    )
    containers = _restricted(containers, only)
    removed_containers = _removed_ids(containers)
    sandboxes = plan_sandbox_gc(
        snapshot,
        policy.sandboxes,
        statuses=statuses,
        removed_containers=removed_containers,
        failed=failed,
        evict_non_deleted_pods=evict_non_deleted_pods,
    )
    sandboxes = _restricted(sandboxes, only)
    removed_sandboxes = _removed_ids(sandboxes)
    logs = plan_pod_logs(
        snapshot,
        policy.logs,
        statuses=statuses,
        removed_containers=removed_containers,
        removed_sandboxes=removed_sandboxes,
        failed=failed,
    )
    return GCPlan(containers, sandboxes, _restricted(logs, only)), removed_containers, removed_sandboxes


def _restricted(plan: Plan, only: frozenset[str] | None) -> Plan:
    """Return the plan with removals restricted to the ids in ``only``; other removals become kept items."""
    if only is None:
        return plan
    kept = [
        replace(decision, verdict=Verdict.KEEP, reason=_NOT_IN_PLAN)
        for decision in plan.removals
        if decision.id not in only
    ]
    excluded = {decision.id for decision in kept}
    return replace(plan, decisions=(*(each for each in plan.decisions if each.id not in excluded), *kept))


def _removed_ids(plan: Plan) -> frozenset[str]:
    return frozenset([decision.id for decision in plan.removals])
