"""Which dead containers go."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from nodeagent.model import ContainerState
from nodeagent.plan.decision import NO_FAILURES, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.pods.deletion import check_pods, contradiction, pod_uid_of
from nodeagent.plan.pods.names import container_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodeagent.model import Container, NodeSnapshot
    from nodeagent.plan.pods.deletion import PodDeletionStatus

_Unit = tuple[str, str]
"""Pod UID and container name."""

_Candidate = tuple[float, int, str, int, "Container"]
"""Second of creation, attempt and id, which order candidates; the position settles that no two are equal."""

_Judged = tuple["Container", Reason]

_STARTING_S: Final = 60.0
_R_RUNNING = Reason(ReasonCode.RUNNING)
_R_STATE_UNKNOWN = Reason(ReasonCode.STATE_UNKNOWN)
_R_UNMANAGED = Reason(ReasonCode.NOT_KUBELET_MANAGED)
_R_AGE_UNKNOWN = Reason(ReasonCode.AGE_UNKNOWN)

# Members used for every container are looked up once; in its class that takes ten times as long.
_RUNNING, _UNKNOWN = ContainerState.RUNNING, ContainerState.UNKNOWN
_CONTAINER, _KEEP, _REMOVE = ItemKind.CONTAINER, Verdict.KEEP, Verdict.REMOVE
_FAILED, _WITHIN_LIMITS = ReasonCode.FAILED_EARLIER, ReasonCode.WITHIN_LIMITS


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
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
    statuses: Mapping[str, PodDeletionStatus] | None = None,
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
        failed: container id to why it could not be removed earlier in this pass.
        evict_non_deleted_pods: also remove the containers of pods that still exist but have finished.
        statuses: as ``check_pods`` answers for this snapshot and policy, if that is known already.

    Source: kubelet ``containerGC.evictContainers``.
    """
    if statuses is None:
        statuses = check_pods(snapshot, policy.deleted_pod_grace_s)
    sieve = _Sieve(snapshot, policy, failed, _reasons_of_pods_over(statuses, finished_too=evict_non_deleted_pods))
    sieve.sift()
    kept, units, removed = sieve.kept, sieve.units, sieve.of_pods_over()
    if policy.max_per_pod_container >= 0:
        removed += _take_over_unit_limit(units, policy.max_per_pod_container)
    if policy.max_containers >= 0:
        removed += _take_over_total(units, policy.max_containers)
    sizes = snapshot.writable_bytes
    for (uid, _), members in units.items():
        kept += _within_limits(members, statuses.get(uid), sizes)
    kept.sort(key=lambda decision: f"{decision.name}\0{decision.id}")
    decisions = [
        Decision(_CONTAINER, each.id, container_name(each), _REMOVE, reason, sizes.get(each.id))
        for each, reason in removed
    ]
    return Plan("containers", snapshot.observed_at, (*decisions, *kept))


def _reasons_of_pods_over(statuses: Mapping[str, PodDeletionStatus], *, finished_too: bool) -> dict[str, Reason]:
    """Return the UID of every pod all of whose dead containers go, with the reason."""
    reasons = {}
    for uid, status in statuses.items():
        if status.gone:
            reasons[uid] = Reason(ReasonCode.POD_DELETED, {"how": status.how})
        elif finished_too and status.finished:
            reasons[uid] = Reason(ReasonCode.POD_FINISHED, {"how": status.how})
    return reasons


class _Sieve:
    """Sorts containers into those that stay whatever the limits, those of pods that are over, and units.

    Attributes:
        kept: decisions on what stays without being counted.
        units: the other candidates by unit, newest first.
    """

    def __init__(
        self,
        snapshot: NodeSnapshot,
        policy: ContainerGCPolicy,
        failed: Mapping[str, str],
        pods_over: Mapping[str, Reason],
    ) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._failed = failed
        self._pods_over = pods_over
        self._sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
        self._over: list[tuple[float, int, str, int, Container, Reason]] = []
        self.kept: list[Decision] = []
        self.units: defaultdict[_Unit, list[_Candidate]] = defaultdict(list)

    def sift(self) -> None:
        """Sort all containers of the snapshot."""
        sizes = self._snapshot.writable_bytes
        for position, container in enumerate(self._snapshot.containers):
            verdict, reason = _KEEP, _R_RUNNING
            if container.state is not _RUNNING:
                why = self._kept_because(container)
                if why is None:
                    self._add_candidate(position, container)
                    continue
                verdict, reason = (Verdict.FAILED if why.code is _FAILED else _KEEP), why
            container_id, name = container.id, container_name(container)
            self.kept.append(Decision(_CONTAINER, container_id, name, verdict, reason, sizes.get(container_id)))
        for members in self.units.values():
            if len(members) > 1:
                members.sort(reverse=True)

    def of_pods_over(self) -> list[_Judged]:
        """Return the containers of pods that are over, oldest first."""
        return [(container, reason) for *_, container, reason in sorted(self._over)]

    def _add_candidate(self, position: int, container: Container) -> None:
        if container.created_at is None:  # such are kept
            raise ValueError(container.id)
        uid = container.pod_uid or pod_uid_of(container, self._sandboxes) or container.sandbox_id
        created_s = container.created_at.timestamp()
        reason = self._pods_over.get(uid)
        if reason is not None:
            self._over.append((created_s, container.attempt, container.id, position, container, reason))
        else:
            candidate = (created_s, container.attempt, container.id, position, container)
            self.units[uid, container.name].append(candidate)

    def _kept_because(self, container: Container) -> Reason | None:  # noqa: PLR0911 - one for each rule
        """Return why a container that does not run stays whatever the limits and its pod."""
        if not self._policy.include_unlabelled and not container.has_kubelet_labels:
            return _R_UNMANAGED
        if container.state is _UNKNOWN:
            return _R_STATE_UNKNOWN
        if container.id in self._failed:
            return Reason(ReasonCode.FAILED_EARLIER, {"detail": self._failed[container.id]})
        home = self._sandboxes.get(container.sandbox_id)
        if home is not None and home.uid != container.pod_uid:
            against = contradiction(container, self._sandboxes)
            if against:
                return Reason(ReasonCode.SANDBOX_UNKNOWN, {"detail": against})
        if container.created_at is None:
            return _R_AGE_UNKNOWN
        age_s = (self._snapshot.observed_at - container.created_at).total_seconds()
        minimum_s = self._policy.minimum_age_s
        if container.state is ContainerState.CREATED:  # on its way to be started, not dead
            minimum_s = max(minimum_s, _STARTING_S)
        if age_s < minimum_s:
            return Reason(ReasonCode.CREATED_RECENTLY, {"age_s": max(0.0, age_s), "minimum_s": minimum_s})
        return None


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
    members: Iterable[_Candidate], status: PodDeletionStatus | None, sizes: Mapping[str, int]
) -> Iterator[Decision]:
    note = f" ({status.how})" if status is not None else ""
    for rank, (*_, container) in enumerate(members, start=1):
        name = container_name(container)
        reason = Reason(_WITHIN_LIMITS, {"rank": rank, "name": name, "note": note})
        yield Decision(_CONTAINER, container.id, name, _KEEP, reason, sizes.get(container.id))
