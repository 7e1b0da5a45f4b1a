"""Plans of one garbage collection pass, in the kubelet's order, and the usage that each plan leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nodeagent.gc.plan.containers import plan_container_gc, plan_sandbox_gc
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.image_users import ImageUsers, find_users
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.pod_logs import plan_pod_logs
from nodeagent.model.decision import Plan, Reason, ReasonCode, Verdict
from nodeagent.model.runtime import FsObservation, ImageUsage, ReferenceKind, StorageGraph
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import GCPolicy
    from nodeagent.model.node import NodeSnapshot


def project_with_users(
    snapshot: NodeSnapshot, removed_containers: frozenset[str], removed_sandboxes: frozenset[str], users: ImageUsers
) -> tuple[NodeSnapshot, ImageUsers]:
    """Return the snapshot after removal of these containers and sandboxes, and the remaining users of images.

    The known sizes of the writable layers are added to the available bytes of the image filesystem, so that no image is
    removed for space that a removed container frees. On a node with several image filesystems the sizes are added to
    each, since the filesystem of a layer is unknown. The image layers lose the references of the removed containers,
    so that an image frees the layers that only they referenced. Images without remaining users count as last used now,
    so that the image planner removes them last.
    """
    if not removed_containers and not removed_sandboxes:
        return snapshot, users
    users_after = users.without(removed_containers, removed_sandboxes)
    freed_bytes = sum(snapshot.writable_bytes.get(container_id, 0) for container_id in removed_containers)
    after = replace(
        snapshot,
        containers=tuple([each for each in snapshot.containers if each.id not in removed_containers]),
        sandboxes=tuple([each for each in snapshot.sandboxes if each.id not in removed_sandboxes]),
        sandboxes_unread=snapshot.sandboxes_unread - removed_sandboxes,
        writable_bytes={key: size for key, size in snapshot.writable_bytes.items() if key not in removed_containers},
        image_filesystem=_filesystem_after(snapshot.image_filesystem, freed_bytes),
        image_filesystems=tuple(
            replace(each, observed=_filesystem_after(each.observed, freed_bytes)) for each in snapshot.image_filesystems
        ),
        storage=_storage_after(snapshot.storage, removed_containers | removed_sandboxes),
        image_usage=_usage_after(snapshot, users.images - users_after.images),
    )
    return after, users_after


def _storage_after(storage: StorageGraph | None, removed: frozenset[str]) -> StorageGraph | None:
    """Return the graph in which removed containers and sandboxes reference no piece."""
    if storage is None:
        return None
    released: set[int] = set()
    remaining: set[int] = set()
    for container_id, indexes in storage.by_container.items():
        (released if container_id in removed else remaining).update(indexes)
    pieces = list(storage.pieces)
    for index in released - remaining:
        references = tuple(each for each in pieces[index].references if each is not ReferenceKind.CONTAINER)
        pieces[index] = replace(pieces[index], references=references)
    return replace(storage, pieces=tuple(pieces))


def _filesystem_after(before: FsObservation | None, freed_bytes: int) -> FsObservation | None:
    if before is None:
        return None
    return replace(before, available_bytes=min(before.capacity_bytes, before.available_bytes + freed_bytes))


def _usage_after(before: NodeSnapshot, released: frozenset[str]) -> Mapping[str, ImageUsage]:
    if not released:
        return before.image_usage
    now = before.observed_at
    usage = dict(before.image_usage)
    for image_id in released:
        known = usage.get(image_id)
        usage[image_id] = ImageUsage(known.first_detected if known is not None else now, now)
    return usage


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


def plan_containers(
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    *,
    evict_non_deleted_pods: bool = False,
    evicted: frozenset[str] = frozenset(),
    only: frozenset[str] | None = None,
) -> GCPlan:
    """Return the plans for dead containers, sandboxes and logs; each assumes the removals of the previous plan.

    Args:
        snapshot: snapshot of the node.
        policy: policies of all planners.
        evict_non_deleted_pods: also remove the containers and sandboxes of pods that have finished but still exist.
        evicted: UIDs of pods evicted by nodeagent; see ``check_pods``.
        only: ids of the items that may be removed; ``None`` for all items.

    Source: kubelet ``containerGC.GarbageCollect``.
    """
    statuses = check_pods(snapshot, policy.containers.deleted_pod_grace_s, evicted)
    containers = plan_container_gc(
        snapshot,
        policy.containers,
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
        evict_non_deleted_pods=evict_non_deleted_pods,
    )
    sandboxes = _restricted(sandboxes, only)
    logs = plan_pod_logs(
        snapshot,
        policy.logs,
        statuses=statuses,
        removed_containers=removed_containers,
        removed_sandboxes=_removed_ids(sandboxes),
    )
    return GCPlan(containers, sandboxes, _restricted(logs, only))


def plan_all(snapshot: NodeSnapshot, policy: GCPolicy, *, only: frozenset[str] | None = None) -> GCPlan:
    """Return the plans of ``plan_containers`` and the image plan, which assumes the removals of these plans.

    If a user requested available bytes, containers, sandboxes and logs are removed only until these are reached.
    """
    made = plan_containers(snapshot, policy, only=only)
    wanted, observed = policy.images.wanted_available_bytes, snapshot.image_filesystem
    if wanted is not None and observed is not None:
        needed = SpaceNeeded(max(0, wanted - observed.available_bytes))
        made = GCPlan(*until_freed(made.plans, needed))
    after, users = project_with_users(
        snapshot, _removed_ids(made.containers), _removed_ids(made.sandboxes), find_users(snapshot)
    )
    return replace(made, images=plan_image_gc(after, policy.images, users=users, only=only))


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


def until_freed(plans: Iterable[Plan], needed: SpaceNeeded) -> tuple[Plan, ...]:
    """Return plans limited to the removals that free the needed space, in their order over all plans.

    The later removals become kept items. An unknown amount counts as 0.
    """
    size_bytes = inodes = 0
    limited = []
    for plan in plans:
        decisions = []
        for each in plan.decisions:
            if each.verdict is Verdict.REMOVE and needed.met_by(size_bytes, inodes):
                decisions.append(replace(each, verdict=Verdict.KEEP, reason=_ENOUGH))
                continue
            decisions.append(each)
            if each.verdict is Verdict.REMOVE:
                size_bytes, inodes = size_bytes + (each.frees_bytes or 0), inodes + (each.frees_inodes or 0)
        limited.append(replace(plan, decisions=tuple(decisions)))
    return tuple(limited)


_ENOUGH = Reason(ReasonCode.ENOUGH_FREED)


def _removed_ids(plan: Plan) -> frozenset[str]:
    return frozenset([decision.id for decision in plan.removals])
