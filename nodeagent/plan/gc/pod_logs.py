"""Pod log garbage collection: the log directories and dead links to remove, and the reason to keep each other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.model import ContainerState, PodLogDirectory, Role
from nodeagent.plan.clock import clock_untrusted
from nodeagent.plan.decision import NO_FAILURES, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.pods.deletion import BESIDE_KUBELET_WITHOUT_LIST, pod_uid_of
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from nodeagent.model import Container, ContainerLogLink, NodeSnapshot
    from nodeagent.plan.pods.deletion import PodDeletionStatus

_Judgement = tuple[bool, Reason]
"""Whether the entry is removed, and the reason."""


@dataclass(frozen=True, slots=True)
class PodLogPolicy:
    """Limits of pod log garbage collection.

    Attributes:
        minimum_age_s: time since the last change of an entry that the runtime has no pod or container for.
    """

    minimum_age_s: float = 300.0


def plan_pod_logs(  # noqa: PLR0913 - results of the earlier plans
    snapshot: NodeSnapshot,
    policy: PodLogPolicy,
    *,
    statuses: Mapping[str, PodDeletionStatus],
    removed_containers: frozenset[str] = frozenset(),
    removed_sandboxes: frozenset[str] = frozenset(),
    failed: Mapping[str, str] = NO_FAILURES,
) -> Plan:
    """Choose the log directories of deleted pods and the links without target to remove.

    A directory is removed if its pod is deleted and all containers and sandboxes of the pod are removed before. If the
    runtime has none of the pod, it is removed once unchanged for the minimum age, provided that the pod list lacks the
    pod or, without a list, that no kubelet manages the node. Entries that are not directories, or have no pod's name,
    are kept. A link without a target is removed if its container has exited; if the container is unknown, once
    it has the minimum age (the kubelet waits in neither case). Directories precede links, each by name; the id of
    a decision is the entry's name.

    Args:
        snapshot: the node.
        policy: the limits.
        statuses: the result of ``check_pods`` for this snapshot.
        removed_containers: ids of containers removed before.
        removed_sandboxes: ids of sandboxes removed before.
        failed: entry name to the cause of a failure earlier in this pass.

    Source: kubelet ``containerGC.evictPodLogsDirectories``.
    """
    judge = _DirectoryJudge(snapshot, policy, statuses, removed_containers | removed_sandboxes)
    containers = _ContainersById(snapshot.containers if snapshot.dead_log_links else ())
    decisions = [
        _decision(ItemKind.POD_LOG_DIRECTORY, entry, judge.judge(entry), failed.get(entry.name))
        for entry in sorted(snapshot.pod_log_directories, key=lambda each: each.name)
    ]
    decisions += [
        _decision(
            ItemKind.CONTAINER_LOG_LINK,
            entry,
            _judge_link(entry, containers, snapshot, policy),
            failed.get(entry.name),
        )
        for entry in sorted(snapshot.dead_log_links, key=lambda each: each.name)
    ]
    decisions.sort(key=lambda decision: decision.verdict is not Verdict.REMOVE)
    return Plan("logs", snapshot.observed_at, tuple(decisions))


class _DirectoryJudge:
    """Judges directories by their pods."""

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

    def judge(self, directory: PodLogDirectory) -> _Judgement:
        """Return whether a directory is removed, and the reason."""
        if not directory.is_directory:
            return _not_a_pod_log("not a directory")
        if not directory.uid:
            return _not_a_pod_log("name is neither NAMESPACE_NAME_UID nor a UID")
        status = self._statuses.get(directory.uid)
        if status is None:
            return self._judge_unlisted(directory)
        if not status.deleted:
            return _present(status.how)
        remaining = self._remaining[directory.uid]
        if remaining:
            return _present(f"{remaining} of its containers and sandboxes are kept")
        return True, Reason(ReasonCode.POD_DELETED, {"how": status.how})

    def _judge_unlisted(self, directory: PodLogDirectory) -> _Judgement:
        """Judge a directory whose pod has no container or sandbox in the runtime."""
        live = self._snapshot.live_pod_uids
        if live is not None and directory.uid in live:
            return _present("in the pod list")
        if live is None and self._snapshot.role is Role.BESIDE_KUBELET:
            return _present(BESIDE_KUBELET_WITHOUT_LIST)
        age_s, young = _too_young(directory.modified_at, self._snapshot, self._policy)
        if young is not None:
            return False, young
        how = "not in the runtime" if live is None else "in neither the pod list nor the runtime"
        return True, Reason(ReasonCode.POD_DELETED, {"how": f"{how}, last changed {format_duration(age_s)} ago"})


def _count_remaining(snapshot: NodeSnapshot, removed: frozenset[str]) -> Counter[str]:
    """Return pod UID to the number of its containers and sandboxes that are kept."""
    sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
    remaining = Counter(sandbox.uid for sandbox in snapshot.sandboxes if sandbox.id not in removed)
    remaining.update(pod_uid_of(each, sandboxes) for each in snapshot.containers if each.id not in removed)
    return remaining


def _judge_link(
    link: ContainerLogLink, containers: _ContainersById, snapshot: NodeSnapshot, policy: PodLogPolicy
) -> _Judgement:
    """Judge a link without a target; during a rotation the target is missing for a moment.

    Source: kubelet ``evictPodLogsDirectories``.
    """
    found = containers.find(link.container_id)
    for container in found:
        if container.state is not ContainerState.EXITED:
            return False, Reason(ReasonCode.CONTAINER_PRESENT, {"state": container.state.value})
    if not found:
        _, young = _too_young(link.modified_at, snapshot, policy)
        if young is not None:
            return False, young
    return True, Reason(ReasonCode.LINK_TARGET_MISSING, {"target": link.target})


class _ContainersById:
    """Finds containers by an id that may be truncated, since link names are truncated to 255 characters."""

    def __init__(self, containers: Sequence[Container]) -> None:
        self._sorted = sorted(containers, key=lambda each: each.id)
        self._ids = [each.id for each in self._sorted]

    def find(self, container_id: str) -> Sequence[Container]:
        """Return all containers whose id starts with ``container_id``; none for an empty one."""
        if not container_id:
            return ()
        start = end = bisect_left(self._ids, container_id)
        while end < len(self._ids) and self._ids[end].startswith(container_id):
            end += 1
        return self._sorted[start:end]


def _too_young(modified_at: datetime, snapshot: NodeSnapshot, policy: PodLogPolicy) -> tuple[float, Reason | None]:
    """Return the time since the last change, at least 0, and the reason to keep if that is too short or uncertain."""
    age_s = max(0.0, (snapshot.observed_at - modified_at).total_seconds())
    if age_s >= policy.minimum_age_s:
        return age_s, clock_untrusted(snapshot.clock) if policy.minimum_age_s > 0 else None
    details = {"age_s": age_s, "minimum_s": policy.minimum_age_s}
    return age_s, Reason(ReasonCode.MODIFIED_RECENTLY, details)


def _not_a_pod_log(detail: str) -> _Judgement:
    return False, Reason(ReasonCode.NOT_A_POD_LOG_DIRECTORY, {"detail": detail})


def _present(how: str) -> _Judgement:
    return False, Reason(ReasonCode.POD_PRESENT, {"note": f" ({how})"})


def _decision(
    kind: ItemKind, entry: PodLogDirectory | ContainerLogLink, judgement: _Judgement, failed: str | None
) -> Decision:
    is_removed, reason = judgement
    verdict = Verdict.REMOVE if is_removed else Verdict.KEEP
    if is_removed and failed is not None:
        verdict, reason = Verdict.FAILED, Reason(ReasonCode.FAILED_EARLIER, {"detail": failed})
    size_bytes = entry.size_bytes if isinstance(entry, PodLogDirectory) else None
    return Decision(kind, entry.name, entry.name, verdict, reason, size_bytes)
