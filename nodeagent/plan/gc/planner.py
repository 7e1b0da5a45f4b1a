"""A whole garbage collection in one plan, in the kubelet's order: containers, sandboxes, logs, then images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodeagent.plan.decision import NO_FAILURES, Reason, ReasonCode, Verdict
from nodeagent.plan.gc.containers import ContainerGCPolicy, plan_container_gc
from nodeagent.plan.gc.image_users import find_users
from nodeagent.plan.gc.images import ImageGCPolicy, plan_image_gc
from nodeagent.plan.gc.pod_logs import PodLogPolicy, plan_pod_logs
from nodeagent.plan.gc.projection import project_with_users
from nodeagent.plan.gc.sandboxes import SandboxGCPolicy, plan_sandbox_gc
from nodeagent.plan.pods.deletion import check_pods

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan

_NOT_IN_PLAN = Reason(ReasonCode.NOT_IN_PLAN)


@dataclass(frozen=True, slots=True)
class GCPolicy:
    """The settings of every planner of a garbage collection."""

    images: ImageGCPolicy = field(default_factory=ImageGCPolicy)
    containers: ContainerGCPolicy = field(default_factory=ContainerGCPolicy)
    sandboxes: SandboxGCPolicy = field(default_factory=SandboxGCPolicy)
    logs: PodLogPolicy = field(default_factory=PodLogPolicy)


@dataclass(frozen=True, slots=True)
class GCPlan:
    """The plans of one pass; ``images`` is ``None`` when it is about containers only."""

    containers: Plan
    sandboxes: Plan
    logs: Plan
    images: Plan | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans in order of execution."""
        made = (self.containers, self.sandboxes, self.logs)
        return made if self.images is None else (*made, self.images)

    @property
    def removals(self) -> tuple[Decision, ...]:
        """Every removal in order of execution."""
        return tuple(decision for plan in self.plans for decision in plan.removals)


def plan_containers(  # noqa: PLR0913 - what one pass carries from round to round
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
    evicted: frozenset[str] = frozenset(),
    only: frozenset[str] | None = None,
) -> GCPlan:
    """Plan dead containers, sandboxes and logs, each on what the plan before it leaves.

    ``failed`` holds ids of any kind, as does ``only``: what may go, all else staying; ``None`` for anything.
    ``evicted`` has the UIDs of pods evicted by this agent; see ``check_pods``.
    Source: kubelet ``containerGC.GarbageCollect``.
    """
    return _plan_containers(
        snapshot, policy, failed, only, evict_non_deleted_pods=evict_non_deleted_pods, evicted=evicted
    )[0]


def plan_all(  # noqa: PLR0913 - what one pass carries from round to round
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
    remove_all_unused: bool = False,
    only: frozenset[str] | None = None,
) -> GCPlan:
    """Plan as ``plan_containers`` does, then the images on the node as that leaves it."""
    made, containers_gone, sandboxes_gone = _plan_containers(
        snapshot, policy, failed, only, evict_non_deleted_pods=evict_non_deleted_pods
    )
    after, users = project_with_users(snapshot, containers_gone, sandboxes_gone, find_users(snapshot))
    images = plan_image_gc(
        after, policy.images, failed=failed, remove_all_unused=remove_all_unused, users=users, only=only
    )
    return replace(made, images=images)


def _plan_containers(  # noqa: PLR0913 - likewise
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    failed: Mapping[str, str],
    only: frozenset[str] | None,
    *,
    evict_non_deleted_pods: bool,
    evicted: frozenset[str] = frozenset(),
) -> tuple[GCPlan, frozenset[str], frozenset[str]]:
    """Return the plans but for images, and the ids of the containers and of the sandboxes that go."""
    statuses = check_pods(snapshot, policy.containers.deleted_pod_grace_s, evicted)
    containers = plan_container_gc(
        snapshot,
        policy.containers,
        failed=failed,
        evict_non_deleted_pods=evict_non_deleted_pods,
        statuses=statuses,
    )
    containers = _restricted(containers, only)
    containers_gone = _going(containers)
    sandboxes = plan_sandbox_gc(
        snapshot,
        policy.sandboxes,
        statuses=statuses,
        containers_gone=containers_gone,
        failed=failed,
        evict_non_deleted_pods=evict_non_deleted_pods,
    )
    sandboxes = _restricted(sandboxes, only)
    sandboxes_gone = _going(sandboxes)
    logs = plan_pod_logs(
        snapshot,
        policy.logs,
        statuses=statuses,
        containers_gone=containers_gone,
        sandboxes_gone=sandboxes_gone,
        failed=failed,
    )
    return GCPlan(containers, sandboxes, _restricted(logs, only)), containers_gone, sandboxes_gone


def _restricted(plan: Plan, only: frozenset[str] | None) -> Plan:
    """Return a plan that removes nothing but what ``only`` lists."""
    if only is None:
        return plan
    kept = [
        decision._replace(verdict=Verdict.KEEP, reason=_NOT_IN_PLAN)
        for decision in plan.removals
        if decision.id not in only
    ]
    out = {decision.id for decision in kept}
    return replace(plan, decisions=(*(each for each in plan.decisions if each.id not in out), *kept))


def _going(plan: Plan) -> frozenset[str]:
    return frozenset([decision.id for decision in plan.removals])
