"""Which pod log directories and dead container log links go."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.model import ContainerState, PodLogDirectory, Role
from nodeagent.plan.decision import NO_FAILURES, Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.plan.pods.deletion import BESIDE_KUBELET_WITHOUT_LIST, pod_uid_of
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from nodeagent.model import Container, ContainerLogLink, NodeSnapshot
    from nodeagent.plan.pods.deletion import PodDeletionStatus

_Judged = tuple[bool, Reason]
"""Whether it goes, and why or why not."""


@dataclass(frozen=True, slots=True)
class PodLogPolicy:
    """What logs are kept.

    Attributes:
        minimum_age_s: how long an entry must not have changed when nothing in the runtime is known of it.
    """

    minimum_age_s: float = 300.0


def plan_pod_logs(  # noqa: PLR0913 - what the plans before it leave
    snapshot: NodeSnapshot,
    policy: PodLogPolicy,
    *,
    statuses: Mapping[str, PodDeletionStatus],
    removed_containers: frozenset[str] = frozenset(),
    removed_sandboxes: frozenset[str] = frozenset(),
    failed: Mapping[str, str] = NO_FAILURES,
) -> Plan:
    """Choose the log directories of gone pods, and the links to logs that are gone.

    A directory goes when its pod is gone and all containers and sandboxes of the pod go before it. If the runtime
    knows nothing of the pod, it goes once unchanged for the minimum age, provided that the pod list lacks the pod
    or, without a list, that no kubelet manages the node. What is no directory, or has no pod's name, is never
    touched. A link without a target goes when its container has exited; if the container is not known it goes once
    it has the minimum age (the kubelet waits for neither). Directories come before links, each by name; decisions
    carry the entry's name as id.

    Args:
        snapshot: the node.
        policy: what is kept.
        statuses: as ``check_pods`` answers for this snapshot.
        removed_containers: ids of containers that go before.
        removed_sandboxes: likewise of sandboxes.
        failed: entry name to why it could not be removed earlier in this pass.

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
    """Judges directories by the pods they belong to."""

    def __init__(
        self,
        snapshot: NodeSnapshot,
        policy: PodLogPolicy,
        statuses: Mapping[str, PodDeletionStatus],
        going: frozenset[str],
    ) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._standings = statuses
        self._staying = _count_staying(snapshot, going) if snapshot.pod_log_directories else Counter()

    def judge(self, directory: PodLogDirectory) -> _Judged:
        """Return whether a directory goes, and why or why not."""
        if not directory.is_directory:
            return _no_pod_log("it is no directory itself")
        if not directory.uid:
            return _no_pod_log("its name is neither NAMESPACE_NAME_UID nor a UID")
        status = self._standings.get(directory.uid)
        if status is None:
            return self._judge_unlisted(directory)
        if not status.gone:
            return _present(status.how)
        staying = self._staying[directory.uid]
        if staying:
            return _present(f"{staying} of its containers and sandboxes stay")
        return True, Reason(ReasonCode.POD_DELETED, {"how": status.how})

    def _judge_unlisted(self, directory: PodLogDirectory) -> _Judged:
        """Judge a directory whose pod the runtime knows nothing of."""
        live = self._snapshot.live_pod_uids
        if live is not None and directory.uid in live:
            return _present("it is in the pod list")
        if live is None and self._snapshot.role is Role.BESIDE_KUBELET:
            return _present(BESIDE_KUBELET_WITHOUT_LIST)
        age_s, young = _too_young(directory.modified_at, self._snapshot, self._policy)
        if young is not None:
            return False, young
        how = "the runtime knows nothing of it" if live is None else "in neither the pod list nor the runtime"
        return True, Reason(ReasonCode.POD_DELETED, {"how": f"{how}, last changed {format_duration(age_s)} ago"})


def _count_staying(snapshot: NodeSnapshot, going: frozenset[str]) -> Counter[str]:
    """Return pod UID to how many of its containers and sandboxes stay."""
    sandboxes = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
    staying = Counter(sandbox.uid for sandbox in snapshot.sandboxes if sandbox.id not in going)
    staying.update(pod_uid_of(each, sandboxes) for each in snapshot.containers if each.id not in going)
    return staying


def _judge_link(
    link: ContainerLogLink, containers: _ContainersById, snapshot: NodeSnapshot, policy: PodLogPolicy
) -> _Judged:
    """Judge a link without a target; a log being rotated has none for a moment. Source: kubelet, likewise."""
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
    """Finds containers by an id that may be cut off, as the names of links are cut to 255 characters."""

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
    """Return the time since the last change, none if that lies in the future, and the reason if it is too short."""
    age_s = max(0.0, (snapshot.observed_at - modified_at).total_seconds())
    if age_s >= policy.minimum_age_s:
        return age_s, None
    details = {"age_s": age_s, "minimum_s": policy.minimum_age_s}
    return age_s, Reason(ReasonCode.MODIFIED_RECENTLY, details)


def _no_pod_log(detail: str) -> _Judged:
    return False, Reason(ReasonCode.NOT_A_POD_LOG_DIRECTORY, {"detail": detail})


def _present(how: str) -> _Judged:
    return False, Reason(ReasonCode.POD_PRESENT, {"note": f" ({how})"})


def _decision(
    kind: ItemKind, entry: PodLogDirectory | ContainerLogLink, judged: _Judged, failed: str | None
) -> Decision:
    goes, reason = judged
    verdict = Verdict.REMOVE if goes else Verdict.KEEP
    if goes and failed is not None:
        verdict, reason = Verdict.FAILED, Reason(ReasonCode.FAILED_EARLIER, {"detail": failed})
    size_bytes = entry.size_bytes if isinstance(entry, PodLogDirectory) else None
    return Decision(kind, entry.name, entry.name, verdict, reason, size_bytes)
