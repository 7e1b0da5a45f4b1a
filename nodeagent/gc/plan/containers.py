"""Plans of dead containers and sandboxes: the items to remove, and the reason to keep every other item."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import count
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.consistency import withheld
from nodeagent.last_result import keep_last_result
from nodeagent.model.clock import clock_untrusted, earlier
from nodeagent.model.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict, sort_by_name
from nodeagent.model.node import NodeSnapshot, Role
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.pods.plan.deletion import PodDeletionStatus, check_pods, contradiction, pod_uid_of
from nodeagent.pods.plan.facts import sandbox_name
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import ContainerGCPolicy, SandboxGCPolicy

_Unit = tuple[str, str]
"""Unit of the limit per container: pod UID and container name."""

_Candidate = tuple["datetime", int, str, int, "Container"]
"""Creation time, attempt, id, position in the snapshot and container; the position makes equal keys distinct."""

_Removal = tuple["Container", Reason]

_STARTING_S: Final = 60.0
_R_RUNNING = Reason(ReasonCode.RUNNING)
_R_STATE_UNKNOWN = Reason(ReasonCode.STATE_UNKNOWN)
_R_UNMANAGED = Reason(ReasonCode.NOT_KUBELET_MANAGED)
_R_AGE_UNKNOWN = Reason(ReasonCode.AGE_UNKNOWN)

# Enum members used for every container are module constants: a lookup in the enum class takes ten times as long.
_CREATED, _RUNNING, _UNKNOWN = ContainerState.CREATED, ContainerState.RUNNING, ContainerState.UNKNOWN
_CONTAINER, _KEEP, _REMOVE = ItemKind.CONTAINER, Verdict.KEEP, Verdict.REMOVE
_WITHIN_LIMITS = ReasonCode.WITHIN_LIMITS


def plan_container_gc(
    snapshot: NodeSnapshot,
    policy: ContainerGCPolicy,
    *,
    evict_non_deleted_pods: bool = False,
    statuses: Mapping[str, PodDeletionStatus] | None = None,
) -> Plan:
    """Return the plan that removes dead containers of deleted pods and the oldest dead containers above the limits.

    Removals follow the steps of the kubelet: containers of deleted pods; containers above the limit per unit (all
    attempts of one container name of one pod); containers above the total limit. For the total limit, each unit is
    first reduced to an equal share of at least one container, then the oldest containers are removed. Within a step the
    oldest container is first, ties by attempt, then by id. Unlike in the kubelet, a container of unknown state is kept,
    since it may be running.

    Beside a kubelet, the newest dead container of each unit is kept regardless of the limits, unless its pod is
    deleted: the kubelet needs this container for ``kubectl logs``, ``kubectl logs --previous``, back-off and restart
    count.

    Args:
        snapshot: snapshot of the node.
        policy: limits and minimum age.
        evict_non_deleted_pods: also remove the containers of pods that have finished but still exist.
        statuses: the result of ``check_pods`` for this snapshot and policy, if already computed.

    Source: kubelet ``containerGC.evictContainers``.
    """
    if statuses is None:
        statuses = check_pods(snapshot, policy.deleted_pod_grace_s)
    keep_newest = snapshot.role is Role.BESIDE_KUBELET
    pod_reasons = _pod_reasons(statuses, include_finished=evict_non_deleted_pods and not keep_newest)
    evicted = frozenset([uid for uid, status in statuses.items() if status.evicted])
    classifier = _Classifier(snapshot, policy, pod_reasons, evicted)
    classifier.classify()
    kept, units, removed = classifier.kept, classifier.units, classifier.pod_removals()
    newest = {members[0][2] for members in units.values()} if keep_newest else frozenset()
    needed: list[_Removal] = []
    if policy.max_per_pod_container >= 0:
        needed += _remove_over_unit_limit(units, policy.max_per_pod_container)
    if policy.max_containers >= 0:
        needed += _remove_over_total(units, policy.max_containers)
    removed += [each for each in needed if each[0].id not in newest]
    sizes = snapshot.writable_bytes
    kept += [_newest(each, sizes) for each, _ in needed if each.id in newest]
    for (uid, _), members in units.items():
        kept += _within_limits(members, statuses.get(uid), sizes)
    sort_by_name(kept)
    decisions = [
        Decision(_CONTAINER, each.id, each.display_name, _REMOVE, reason, sizes.get(each.id))
        for each, reason in removed
    ]
    return withheld(Plan("containers", snapshot.observed_at, (*decisions, *kept)), snapshot.contradictions)


def _pod_reasons(statuses: Mapping[str, PodDeletionStatus], *, include_finished: bool) -> dict[str, Reason]:
    """Return the reason to remove all dead containers of a deleted (or included finished) pod, by pod UID."""
    found = ((uid, _pod_reason(status, include_finished=include_finished)) for uid, status in statuses.items())
    return {uid: reason for uid, reason in found if reason is not None}


class _Classifier:
    """Classification of containers: kept regardless of the limits, of deleted or finished pods, or subject to limits.

    Attributes:
        kept: decisions on containers that are kept and do not count against the limits.
        units: candidates subject to the limits by unit, newest first.
    """

    def __init__(
        self,
        snapshot: NodeSnapshot,
        policy: ContainerGCPolicy,
        pod_reasons: Mapping[str, Reason],
        evicted: frozenset[str],
    ) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._pod_reasons = pod_reasons
        self._evicted = evicted
        self._untrusted = clock_untrusted(snapshot.clock)
        self._sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
        self._pod_removals: list[tuple[datetime, int, str, int, Container, Reason]] = []
        self._newest = earlier(snapshot.observed_at, policy.minimum_age_s)
        self.kept: list[Decision] = []
        self.units: defaultdict[_Unit, list[_Candidate]] = defaultdict(list)

    def classify(self) -> None:
        """Classify all containers of the snapshot."""
        sizes, containers = self._snapshot.writable_bytes, tuple(self._snapshot.containers)
        running, ids = _running(containers)
        if not ids.isdisjoint(sizes):
            running = tuple(replace(each, frees_bytes=sizes.get(each.id)) for each in running)
        self.kept += running
        for position, container in enumerate(containers):
            if container.state is _RUNNING:
                continue
            keep = self._keep_reason(container)
            if keep is None:
                self._add_candidate(position, container)
                continue
            name = container.display_name
            self.kept.append(Decision(_CONTAINER, container.id, name, _KEEP, keep, sizes.get(container.id)))
        for members in self.units.values():
            if len(members) > 1:
                members.sort(reverse=True)

    def pod_removals(self) -> list[_Removal]:
        """Return the removals of containers of deleted and finished pods, oldest first."""
        return [(container, reason) for *_, container, reason in sorted(self._pod_removals)]

    def _add_candidate(self, position: int, container: Container) -> None:
        if container.created_at is None:  # kept by _keep_reason
            raise ValueError(container.id)
        uid = container.pod_uid or pod_uid_of(container, self._sandboxes) or container.sandbox_id
        reason = self._pod_reasons.get(uid)
        candidate = (container.created_at, container.attempt, container.id, position, container)
        if reason is not None:
            self._pod_removals.append((*candidate, reason))
        else:
            self.units[uid, container.name].append(candidate)

    def _keep_reason(self, container: Container) -> Reason | None:  # noqa: PLR0911 - one return for each rule
        """Return the reason to keep a dead container regardless of the limits and its pod; ``None`` for a candidate."""
        if not (container.has_kubelet_labels or self._policy.include_unlabelled):
            return _R_UNMANAGED
        if container.state is _UNKNOWN:
            return _R_STATE_UNKNOWN
        sandbox = self._sandboxes.get(container.sandbox_id)
        if sandbox is not None and sandbox.uid != container.pod_uid:
            detail = contradiction(container, self._sandboxes)
            if detail:
                return Reason(ReasonCode.SANDBOX_UNKNOWN, {"detail": detail})
        if container.created_at is None:
            return _R_AGE_UNKNOWN
        uid = container.pod_uid or (sandbox.uid if sandbox is not None else "")
        if uid in self._evicted:
            return None
        minimum_s = self._policy.minimum_age_s
        is_starting = container.state is _CREATED  # not dead
        if is_starting or container.created_at > self._newest:
            age_s = (self._snapshot.observed_at - container.created_at).total_seconds()
            minimum_s = max(minimum_s, _STARTING_S) if is_starting else minimum_s
            if age_s < minimum_s:
                return Reason(ReasonCode.CREATED_RECENTLY, {"age_s": max(0.0, age_s), "minimum_s": minimum_s})
        return self._untrusted if minimum_s > 0 else None


@keep_last_result
def _running(containers: tuple[Container, ...]) -> tuple[tuple[Decision, ...], frozenset[str]]:
    """Return the decisions to keep running containers, by name and without layer sizes, and the container ids."""
    kept = [
        Decision(_CONTAINER, each.id, each.display_name, _KEEP, _R_RUNNING)
        for each in containers
        if each.state is _RUNNING
    ]
    sort_by_name(kept)
    return tuple(kept), frozenset([each.id for each in kept])


def _newest(container: Container, sizes: Mapping[str, int]) -> Decision:
    name = container.display_name
    reason = Reason(ReasonCode.NEWEST_DEAD_CONTAINER, {"name": name})
    return Decision(_CONTAINER, container.id, name, _KEEP, reason, sizes.get(container.id))


def _remove_over_unit_limit(units: dict[_Unit, list[_Candidate]], limit: int) -> list[_Removal]:
    """Remove the containers above ``limit`` from each unit; return the removals, oldest first."""
    over: list[tuple[_Candidate, int]] = []
    for members in units.values():
        if len(members) > limit:
            over += zip(members[limit:], count(limit + 1))
            del members[limit:]
    removals: list[_Removal] = []
    for (*_, container), rank in sorted(over, key=itemgetter(0)):
        name = container.display_name
        reason = Reason(ReasonCode.OVER_PER_CONTAINER_LIMIT, {"rank": rank, "name": name, "limit": limit})
        removals.append((container, reason))
    return removals


def _remove_over_total(units: dict[_Unit, list[_Candidate]], limit: int) -> list[_Removal]:
    """Remove the containers above the total limit from the units; return the removals.

    Each unit is first reduced to an equal share of the limit, at least one container; then the oldest containers of all
    units are removed.
    """
    total = sum(map(len, units.values()))
    if total <= limit:
        return []
    reason = Reason(ReasonCode.OVER_TOTAL_LIMIT, {"total": total, "limit": limit})
    share = max(1, limit // len(units))
    above_share = sorted(candidate for members in units.values() for candidate in members[share:])
    within_share = sorted(candidate for members in units.values() for candidate in members[:share])
    surplus = within_share[: max(0, len(within_share) - limit)]
    surplus_ids = {candidate[2] for candidate in surplus}
    for members in units.values():
        members[:] = [candidate for candidate in members[:share] if candidate[2] not in surplus_ids]
    return [(candidate[4], reason) for candidate in above_share + surplus]


def _within_limits(
    members: Iterable[_Candidate], status: PodDeletionStatus | None, sizes: Mapping[str, int]
) -> Iterator[Decision]:
    note = f" ({status.how})" if status is not None else ""
    for rank, (*_, container) in enumerate(members, start=1):
        name = container.display_name
        reason = Reason(_WITHIN_LIMITS, {"rank": rank, "name": name, "note": note})
        yield Decision(_CONTAINER, container.id, name, _KEEP, reason, sizes.get(container.id))


# Enum members used for every sandbox are module constants: a lookup in the enum class takes ten times as long.
_SANDBOX = ItemKind.SANDBOX

_SANDBOX_ID = attrgetter("sandbox_id")
_READY = Reason(ReasonCode.SANDBOX_READY)
_SUPERSEDED = Reason(ReasonCode.SANDBOX_SUPERSEDED)


def plan_sandbox_gc(
    snapshot: NodeSnapshot,
    policy: SandboxGCPolicy,
    *,
    statuses: Mapping[str, PodDeletionStatus],
    removed_containers: frozenset[str] = frozenset(),
    evict_non_deleted_pods: bool = False,
) -> Plan:
    """Return the plan that removes inactive sandboxes: all of deleted pods, and all but the newest of other pods.

    A sandbox is active while it is ready or has a container. The newest sandbox of an existing pod is always kept. The
    oldest sandbox is removed first, ties by attempt, then by id. The minimum age does not apply to evicted pods.

    Args:
        snapshot: snapshot of the node.
        policy: minimum age, and treatment of sandboxes without kubelet labels.
        statuses: the result of ``check_pods`` for this snapshot.
        removed_containers: ids of containers removed earlier in the pass, which no longer count for their sandboxes.
        evict_non_deleted_pods: also remove the sandboxes of pods that have finished but still exist.

    Source: kubelet ``containerGC.evictSandboxes``.
    """
    remaining: Iterable[Container] = snapshot.containers
    if removed_containers:
        remaining = [each for each in remaining if each.id not in removed_containers]
    container_counts = Counter(map(_SANDBOX_ID, remaining))
    removed: list[tuple[Sandbox, Reason]] = []
    kept: list[Decision] = []
    others: list[Sandbox] = []
    without_minimum_age = replace(policy, minimum_age_s=0.0)
    for sandbox in snapshot.sandboxes:
        status = statuses.get(sandbox.uid)
        in_force = without_minimum_age if status is not None and status.evicted else policy
        reason = _keep_reason(sandbox, snapshot, in_force, container_counts[sandbox.id])
        if reason is not None:
            kept.append(_decision(sandbox, Verdict.KEEP, reason))
            continue
        reason = _pod_reason(status, include_finished=evict_non_deleted_pods)
        if reason is not None:
            removed.append((sandbox, reason))
        else:
            others.append(sandbox)
    newest = _newest_of_each_pod(snapshot) if others else frozenset()
    for sandbox in others:
        if sandbox.id not in newest:
            removed.append((sandbox, _SUPERSEDED))
            continue
        status = statuses.get(sandbox.uid)
        note = f" ({status.how})" if status is not None else ""
        kept.append(_decision(sandbox, Verdict.KEEP, Reason(ReasonCode.NEWEST_OF_POD, {"note": note})))
    removed.sort(key=lambda entry: _age_key(entry[0]))
    sort_by_name(kept)
    decisions = [_decision(sandbox, Verdict.REMOVE, reason) for sandbox, reason in removed]
    return withheld(Plan("sandboxes", snapshot.observed_at, (*decisions, *kept)), snapshot.contradictions)


def _keep_reason(sandbox: Sandbox, snapshot: NodeSnapshot, policy: SandboxGCPolicy, containers: int) -> Reason | None:
    """Return the reason to keep a sandbox regardless of its pod; ``None`` for a candidate."""
    if sandbox.ready:
        return _READY
    if containers:
        return Reason(ReasonCode.SANDBOX_HAS_CONTAINERS, {"count": containers})
    if not sandbox.has_kubelet_labels and not policy.include_unlabelled:
        return _R_UNMANAGED
    if sandbox.created_at is None:
        return _R_AGE_UNKNOWN
    age_s = (snapshot.observed_at - sandbox.created_at).total_seconds()
    if age_s < policy.minimum_age_s:
        details = {"age_s": max(0.0, age_s), "minimum_s": policy.minimum_age_s}
        return Reason(ReasonCode.CREATED_RECENTLY, details)
    return clock_untrusted(snapshot.clock) if policy.minimum_age_s > 0 else None


def _pod_reason(status: PodDeletionStatus | None, *, include_finished: bool) -> Reason | None:
    if status is not None and status.deleted:
        return Reason(ReasonCode.POD_DELETED, {"how": status.how})
    if status is not None and include_finished and status.finished:
        return Reason(ReasonCode.POD_FINISHED, {"how": status.how})
    return None


def _newest_of_each_pod(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the ids of the newest sandbox of each pod; sandboxes without a creation time are ignored."""
    pods: defaultdict[str, list[Sandbox]] = defaultdict(list)
    for sandbox in snapshot.sandboxes:
        if sandbox.created_at is not None:
            pods[sandbox.uid or sandbox.id].append(sandbox)
    return frozenset(max(members, key=_age_key).id for members in pods.values())


def _age_key(sandbox: Sandbox) -> tuple[datetime, int, str]:
    if sandbox.created_at is None:  # excluded by the callers
        raise ValueError(sandbox.id)
    return sandbox.created_at, sandbox.attempt, sandbox.id


def _decision(sandbox: Sandbox, verdict: Verdict, reason: Reason) -> Decision:
    return Decision(_SANDBOX, sandbox.id, sandbox_name(sandbox), verdict, reason)
