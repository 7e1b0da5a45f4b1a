"""Which dead containers go."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING

from nodeagent.model import ContainerState
from nodeagent.plan.decision import NOTHING_SET_ASIDE, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.names import container_name
from nodeagent.plan.pods import contradiction, judge_pods, pod_uid_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodeagent.model import Container, NodeSnapshot, Sandbox
    from nodeagent.plan.pods import PodStanding

_Unit = tuple[str, str]
"""Pod UID and container name."""

_Candidate = tuple[float, int, str, int, "Container"]
"""Second of creation, attempt and id, which order candidates; the position settles that no two are equal."""

_Judged = tuple["Container", Reason]

_RUNNING = Reason(ReasonCode.RUNNING)
_STATE_UNKNOWN = Reason(ReasonCode.STATE_UNKNOWN)
_UNMANAGED = Reason(ReasonCode.NOT_KUBELET_MANAGED)
_AGE_UNKNOWN = Reason(ReasonCode.AGE_UNKNOWN)


@dataclass(frozen=True, slots=True)
class ContainerGCPolicy:
    """What dead containers are kept.

    Attributes:
        minimum_age_s: counted from creation, as the kubelet does; never from the end.
        max_per_pod_container: dead ones kept of each container of a pod; negative for no limit.
        max_containers: dead ones kept on the node; negative for no limit, 0 keeps none.
        deleted_pod_grace_s: how long nothing of a pod must have stirred before it counts as gone.
        include_unlabelled: also collect what carries no kubelet labels.

    Source: kubelet ``minimum-container-ttl-duration``, ``maximum-dead-containers-per-container``,
    ``maximum-dead-containers``.
    """

    minimum_age_s: float = 0.0
    max_per_pod_container: int = 1
    max_containers: int = -1
    deleted_pod_grace_s: float = 300.0
    include_unlabelled: bool = False


def plan_container_gc(
    snapshot: NodeSnapshot,
    policy: ContainerGCPolicy,
    *,
    set_aside: Mapping[str, str] = NOTHING_SET_ASIDE,
    evict_non_deleted_pods: bool = False,
    standings: Mapping[str, PodStanding] | None = None,
) -> Plan:
    """Choose the dead containers to remove: of gone pods all, else the oldest surplus of the limits.

    Order of removal is that of the kubelet's steps: containers of gone pods; those over the limit of their unit
    (one container name of one pod, all attempts together); those over the total, first down to an equal share of at
    least one per unit, then oldest first. Within a step oldest first, ties by attempt, then by id. Unlike the
    kubelet, a container of unknown state is kept, as it may be running. What was set aside counts as removed, so
    that nothing else goes in its stead.

    Args:
        snapshot: the node.
        policy: the limits.
        set_aside: container id to why it could not be removed earlier in this pass.
        evict_non_deleted_pods: also remove the containers of pods that still exist but have finished.
        standings: as ``judge_pods`` answers for this snapshot and policy, if that is known already.

    Source: kubelet ``containerGC.evictContainers``.
    """
    if standings is None:
        standings = judge_pods(snapshot, policy.deleted_pod_grace_s)
    kept, units = _sift(snapshot, policy, set_aside)
    removed = _take_pods_gone(units, standings, finished_too=evict_non_deleted_pods)
    if policy.max_per_pod_container >= 0:
        removed += _take_over_unit_limit(units, policy.max_per_pod_container)
    if policy.max_containers >= 0:
        removed += _take_over_total(units, policy.max_containers)
    sizes = snapshot.writable_bytes
    for (uid, _), members in units.items():
        kept += _within_limits(members, standings.get(uid), sizes)
    kept.sort(key=lambda decision: f"{decision.name}\0{decision.id}")
    decisions = [_decision(container, Verdict.REMOVE, reason, sizes) for container, reason in removed]
    return Plan("containers", snapshot.observed_at, (*decisions, *kept))


def _sift(
    snapshot: NodeSnapshot, policy: ContainerGCPolicy, set_aside: Mapping[str, str]
) -> tuple[list[Decision], dict[_Unit, list[_Candidate]]]:
    """Return what is kept without counting it, and the candidates by unit, newest first."""
    sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
    sizes = snapshot.writable_bytes
    kept: list[Decision] = []
    units: defaultdict[_Unit, list[_Candidate]] = defaultdict(list)
    for position, container in enumerate(snapshot.containers):
        reason = _kept_because(container, snapshot, policy, set_aside, sandboxes)
        if reason is not None:
            verdict = Verdict.COULD_NOT if reason.code is ReasonCode.FAILED_EARLIER else Verdict.KEEP
            kept.append(_decision(container, verdict, reason, sizes))
        elif container.created_at is not None:
            uid = pod_uid_of(container, sandboxes) or container.sandbox_id
            created_s = container.created_at.timestamp()
            units[uid, container.name].append((created_s, container.attempt, container.id, position, container))
    for members in units.values():
        if len(members) > 1:
            members.sort(reverse=True)
    return kept, units


def _kept_because(  # noqa: PLR0911 - one for each rule
    container: Container,
    snapshot: NodeSnapshot,
    policy: ContainerGCPolicy,
    set_aside: Mapping[str, str],
    sandboxes: Mapping[str, Sandbox],
) -> Reason | None:
    if container.state is ContainerState.RUNNING:
        return _RUNNING
    if container.state is ContainerState.UNKNOWN:
        return _STATE_UNKNOWN
    if not container.has_kubelet_labels and not policy.include_unlabelled:
        return _UNMANAGED
    if container.id in set_aside:
        return Reason(ReasonCode.FAILED_EARLIER, {"detail": set_aside[container.id]})
    against = contradiction(container, sandboxes)
    if against:
        return Reason(ReasonCode.SANDBOX_UNKNOWN, {"detail": against})
    if container.created_at is None:
        return _AGE_UNKNOWN
    age_s = (snapshot.observed_at - container.created_at).total_seconds()
    if age_s < policy.minimum_age_s:
        details = {"age_s": max(0.0, age_s), "minimum_s": policy.minimum_age_s}
        return Reason(ReasonCode.CREATED_RECENTLY, details)
    return None


def _take_pods_gone(
    units: dict[_Unit, list[_Candidate]], standings: Mapping[str, PodStanding], *, finished_too: bool
) -> list[_Judged]:
    """Take the containers of gone pods, and on request of finished ones, oldest first; forget their units."""
    reasons: dict[str, Reason] = {}
    taken: list[tuple[_Candidate, str]] = []
    for uid, name in list(units):
        standing = standings.get(uid)
        if standing is not None and (standing.gone or (finished_too and standing.finished)):
            if uid not in reasons:
                code = ReasonCode.POD_GONE if standing.gone else ReasonCode.POD_FINISHED
                reasons[uid] = Reason(code, {"how": standing.how})
            taken += [(candidate, uid) for candidate in units.pop((uid, name))]
    return [(candidate[4], reasons[uid]) for candidate, uid in sorted(taken, key=itemgetter(0))]


def _take_over_unit_limit(units: dict[_Unit, list[_Candidate]], limit: int) -> list[_Judged]:
    """Take what is more than ``limit`` of each unit, oldest first of all."""
    taken: list[tuple[_Candidate, int]] = []
    for members in units.values():
        if len(members) > limit:
            taken += zip(members[limit:], count(limit + 1))
            del members[limit:]
    judged: list[_Judged] = []
    for (*_, container), rank in sorted(taken, key=itemgetter(0)):
        name = container_name(container)
        reason = Reason(ReasonCode.OVER_PER_CONTAINER_LIMIT, {"rank": rank, "name": name, "limit": limit})
        judged.append((container, reason))
    return judged


def _take_over_total(units: dict[_Unit, list[_Candidate]], limit: int) -> list[_Judged]:
    """Share the total out, at least one per unit, then take the oldest of all."""
    total = sum(map(len, units.values()))
    if total <= limit:
        return []
    reason = Reason(ReasonCode.OVER_TOTAL_LIMIT, {"total": total, "limit": limit})
    share = max(1, limit // len(units))
    taken = sorted(candidate for members in units.values() for candidate in members[share:])
    left = sorted(candidate for members in units.values() for candidate in members[:share])
    surplus = left[: max(0, len(left) - limit)]
    over = {candidate[2] for candidate in surplus}
    for members in units.values():
        members[:] = [candidate for candidate in members[:share] if candidate[2] not in over]
    return [(candidate[4], reason) for candidate in taken + surplus]


def _within_limits(
    members: Iterable[_Candidate], standing: PodStanding | None, sizes: Mapping[str, int]
) -> Iterator[Decision]:
    note = f" ({standing.how})" if standing is not None else ""
    for rank, (*_, container) in enumerate(members, start=1):
        name = container_name(container)
        reason = Reason(ReasonCode.WITHIN_LIMITS, {"rank": rank, "name": name, "note": note})
        yield Decision(ItemKind.CONTAINER, container.id, name, Verdict.KEEP, reason, sizes.get(container.id))


def _decision(container: Container, verdict: Verdict, reason: Reason, sizes: Mapping[str, int]) -> Decision:
    container_id = container.id
    name = container_name(container)
    return Decision(ItemKind.CONTAINER, container_id, name, verdict, reason, sizes.get(container_id))
