"""Pod log garbage collection plan: the log directories and dead links to remove, and the reason to keep others."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.consistency import withheld
from nodeagent.model.clock import ClockTrust, clock_untrusted
from nodeagent.model.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.model.node import ContainerLogLink, LogOpeners, LogTree, NodeSnapshot, PodLogDirectory, Role
from nodeagent.model.runtime import Container, ContainerState
from nodeagent.pods.plan.deletion import BESIDE_KUBELET_UNPROVEN, PodDeletionStatus, is_in_pod_list, pod_uid_of
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import PodLogPolicy

READERS_S: Final = 86400.0
"""Seconds since the last change after which a file that is open only for reading no longer keeps its log directory."""

_NOT_READ: Final = Reason(ReasonCode.LOG_NOT_READ, {"detail": "its pod had a ready sandbox during the observation"})

_Removable = tuple[bool, Reason]
"""Whether a directory or link is removed, and the reason."""


def plan_pod_logs(
    snapshot: NodeSnapshot,
    policy: PodLogPolicy,
    *,
    statuses: Mapping[str, PodDeletionStatus],
    removed_containers: frozenset[str] = frozenset(),
    removed_sandboxes: frozenset[str] = frozenset(),
) -> Plan:
    """Return the plan that removes log directories of deleted pods and log links without a target.

    A directory is removed if its pod is deleted and all containers and sandboxes of the pod are removed earlier in the
    pass. If the runtime lists no container or sandbox of the pod, the directory is removed once it is unchanged for the
    minimum age, counted from the boot at the earliest. In addition, a synced pod list of the API server must not
    contain the pod; without a decisive list, no kubelet may manage the node. In both cases the content must be
    removable (see ``keep_tree``). Entries that are not directories, or have no pod name or UID, are kept.

    A link without a target is removed if its container has exited. If the container is unknown, the link is removed at
    the minimum age, counted from the boot at the earliest; the kubelet does not wait. Directories precede links, both
    sorted by name; the id of a decision is the name of the entry.

    Args:
        snapshot: snapshot of the node.
        policy: minimum age and interval of readings.
        statuses: the result of ``check_pods`` for this snapshot.
        removed_containers: ids of containers removed earlier in the pass.
        removed_sandboxes: ids of sandboxes removed earlier in the pass.

    Source: kubelet ``containerGC.evictPodLogsDirectories``.
    """
    check = _DirectoryChecker(snapshot, policy, statuses, removed_containers | removed_sandboxes)
    containers = _ContainersById(snapshot.containers if snapshot.dead_log_links else ())
    decisions = [
        _decision(ItemKind.POD_LOG_DIRECTORY, entry, check.check(entry))
        for entry in sorted(snapshot.pod_log_directories, key=lambda each: each.name)
    ]
    decisions += [
        _decision(ItemKind.CONTAINER_LOG_LINK, entry, _check_link(entry, containers, snapshot, policy))
        for entry in sorted(snapshot.dead_log_links, key=lambda each: each.name)
    ]
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return withheld(Plan("logs", snapshot.observed_at, tuple(decisions)), snapshot.contradictions)


class _DirectoryChecker:
    """Check of log directories by the state of their pods."""

    def __init__(
        self,
        snapshot: NodeSnapshot,
        policy: PodLogPolicy,
        statuses: Mapping[str, PodDeletionStatus],
        removed: frozenset[str],
    ) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._statuses = statuses
        self._remaining = _count_remaining(snapshot, removed) if snapshot.pod_log_directories else Counter()

    def check(self, directory: PodLogDirectory) -> _Removable:
        """Return whether a log directory is removed, and the reason."""
        if not directory.is_directory or not directory.uid:
            wrong_name = "name is neither NAMESPACE_NAME_UID nor a UID"
            return _not_a_pod_log(wrong_name if directory.is_directory else "not a directory")
        status = self._statuses.get(directory.uid)
        if status is None:
            return self._check_unlisted(directory)
        if not status.deleted:
            return _present(status.how)
        remaining = self._remaining[directory.uid]
        if remaining:
            return False, Reason(ReasonCode.POD_ITEMS_KEPT, {"how": status.how, "count": remaining})
        kept = keep_tree(
            directory.tree, self._policy, self._snapshot.observed_at, self._snapshot.clock, minimum_age_s=0.0
        )
        return kept is None, kept or Reason(ReasonCode.POD_DELETED, {"how": status.how})

    def _check_unlisted(self, directory: PodLogDirectory) -> _Removable:
        """Return whether to remove the directory of a pod without containers and sandboxes in CRI, and the reason."""
        pods = self._snapshot.pod_list
        exists = is_in_pod_list(directory.uid, (), pods, directory.tree.changed_at if directory.tree else None)
        if exists and pods is not None:
            return _present(f"in the pod list of the {pods.source}")
        if exists is None and self._snapshot.role is Role.BESIDE_KUBELET:
            return _present(BESIDE_KUBELET_UNPROVEN)
        kept = keep_tree(
            directory.tree,
            self._policy,
            self._snapshot.observed_at,
            self._snapshot.clock,
            minimum_age_s=self._policy.minimum_age_s,
        )
        kept = kept or _booted_recently(self._snapshot, self._policy)
        if kept is not None or directory.tree is None:
            return False, kept or _NOT_READ
        age_s = _age_s(directory.tree.changed_at, self._snapshot.observed_at)
        how = "not in the runtime" if exists is None else "in neither the API server's list nor the runtime"
        return True, Reason(ReasonCode.POD_DELETED, {"how": f"{how}, last changed {format_duration(age_s)} ago"})


def keep_tree(
    tree: LogTree | None, policy: PodLogPolicy, now: datetime, clock: ClockTrust, *, minimum_age_s: float
) -> Reason | None:
    """Return the reason to keep the content of a log directory; ``None`` if it may be removed.

    A file that is open for writing keeps the directory. A file that is open only for reading keeps the directory until
    ``READERS_S`` after the last change: a log shipper loses unread lines if the file is removed earlier, but some
    shippers never close an existing file. If open files cannot be determined, two equal readings one period apart are
    required before the removal.
    """
    if tree is None:
        return _NOT_READ
    if tree.problem:
        return Reason(ReasonCode.LOG_NOT_READ, {"detail": tree.problem})
    age_s = _age_s(tree.changed_at, now)
    return _too_young(age_s, minimum_age_s, clock) or _keep_open(tree, policy, age_s, clock)


def _keep_open(tree: LogTree, policy: PodLogPolicy, age_s: float, clock: ClockTrust) -> Reason | None:
    """Return the reason to keep a log directory because of its open files; ``None`` if it may be removed."""
    if tree.openers is LogOpeners.WRITERS:
        return Reason(ReasonCode.LOG_OPEN, {"use": "writing", "path": tree.openers_detail, "note": ""})
    if tree.openers is LogOpeners.READERS and _too_young(age_s, READERS_S, clock):
        note = f"; kept at most until {format_duration(READERS_S)} after its last change"
        return Reason(ReasonCode.LOG_OPEN, {"use": "reading", "path": tree.openers_detail, "note": note})
    if tree.openers is LogOpeners.UNKNOWN and (not tree.unchanged_s or tree.unchanged_s < policy.period_s):
        return Reason(
            ReasonCode.LOG_OPENERS_UNKNOWN,
            {"detail": tree.openers_detail, "unchanged_s": tree.unchanged_s, "period_s": policy.period_s},
        )
    return None


def _count_remaining(snapshot: NodeSnapshot, removed: frozenset[str]) -> Counter[str]:
    """Return the number of containers and sandboxes that are not removed, by pod UID."""
    sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
    remaining = Counter(sandbox.uid for sandbox in snapshot.sandboxes if sandbox.id not in removed)
    remaining.update(pod_uid_of(each, sandboxes) for each in snapshot.containers if each.id not in removed)
    return remaining


def _check_link(
    link: ContainerLogLink, containers: _ContainersById, snapshot: NodeSnapshot, policy: PodLogPolicy
) -> _Removable:
    """Return whether to remove a dangling container log link, and the reason.

    The minimum age is needed because the target is missing briefly during a log rotation.

    Source: kubelet ``evictPodLogsDirectories``.
    """
    found = containers.find(link.container_id)
    for container in found:
        if container.state is not ContainerState.EXITED:
            return False, Reason(ReasonCode.CONTAINER_PRESENT, {"state": container.state.value})
    if not found:
        young = _too_young(_age_s(link.modified_at, snapshot.observed_at), policy.minimum_age_s, snapshot.clock)
        young = young or _booted_recently(snapshot, policy)
        if young is not None:
            return False, young
    return True, Reason(ReasonCode.LINK_TARGET_MISSING, {"target": link.target})


class _ContainersById:
    """Index of containers that finds truncated ids, since names of log links are truncated to 255 characters."""

    def __init__(self, containers: Sequence[Container]) -> None:
        self._sorted = sorted(containers, key=lambda each: each.id)
        self._ids = [each.id for each in self._sorted]

    def find(self, container_id: str) -> Sequence[Container]:
        """Return all containers whose id starts with ``container_id``; empty for an empty ``container_id``."""
        if not container_id:
            return ()
        start = end = bisect_left(self._ids, container_id)
        while end < len(self._ids) and self._ids[end].startswith(container_id):
            end += 1
        return self._sorted[start:end]


def _age_s(changed_at: datetime, now: datetime) -> float:
    """Return the seconds since a change, at least 0."""
    return max(0.0, (now - changed_at).total_seconds())


def _too_young(age_s: float, minimum_age_s: float, clock: ClockTrust) -> Reason | None:
    """Return the reason to keep an entry because of its age or an untrusted wall clock; ``None`` otherwise."""
    if age_s < minimum_age_s:
        return Reason(ReasonCode.MODIFIED_RECENTLY, {"age_s": age_s, "minimum_s": minimum_age_s})
    return clock_untrusted(clock) if minimum_age_s > 0 else None


def _booted_recently(snapshot: NodeSnapshot, policy: PodLogPolicy) -> Reason | None:
    """Return the reason to keep an entry during the minimum age after a boot; ``None`` afterwards.

    If the wall clock was corrected after the boot, an entry changed before the correction can have a change time before
    the boot, like an entry of an earlier boot. The two cases cannot be distinguished.
    """
    if snapshot.booted_at is None:
        return None
    uptime_s = _age_s(snapshot.booted_at, snapshot.observed_at)
    if uptime_s >= policy.minimum_age_s:
        return None
    return Reason(ReasonCode.BOOTED_RECENTLY, {"age_s": uptime_s, "minimum_s": policy.minimum_age_s})


def _not_a_pod_log(detail: str) -> _Removable:
    return False, Reason(ReasonCode.NOT_A_POD_LOG_DIRECTORY, {"detail": detail})


def _present(how: str) -> _Removable:
    return False, Reason(ReasonCode.POD_PRESENT, {"note": f" ({how})"})


def _decision(kind: ItemKind, entry: PodLogDirectory | ContainerLogLink, checked: _Removable) -> Decision:
    is_removed, reason = checked
    verdict = Verdict.REMOVE if is_removed else Verdict.KEEP
    size_bytes = entry.size_bytes if isinstance(entry, PodLogDirectory) else None
    return Decision(kind, entry.name, entry.name, verdict, reason, size_bytes)
