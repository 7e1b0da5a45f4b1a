"""Deletion of failed pods: the objects that evictions and shutdowns of this node left at the API server.

Neither the kubelet nor a ReplicaSet deletes such an object; the control plane does only beyond
``--terminated-pod-gc-threshold`` (12,500). A pod is kept if any of its facts is unknown.

Source: kubelet eviction manager and shutdown manager; recorded pods of a kubelet 1.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nodeagent.record import Record, field
from nodeagent.units import format_duration

MAX_DELETIONS: Final = 20
"""Maximum deletions per pod list; the remaining pods are deleted after a later list."""
FAILED: Final = "Failed"
_REASONS: Final = {
    "Evicted": "evicted",
    "Terminated": "terminated by a shutdown of the node",
    "NodeShutdown": "rejected during a shutdown of the node",
}
"""Reasons in the status. Source: kubelet ``eviction.Reason``, ``nodeshutdown.NodeShutdownReason`` and
``NodeShutdownNotAdmittedReason``."""
_JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"


class PodVerdict(StrEnum):
    """Verdict on a failed pod. The values are part of logs."""

    DELETE = "delete"
    NOT_FAILED = "not-failed"
    OTHER_NODE = "other-node"
    OTHER_CAUSE = "other-cause"
    STATIC = "static"
    NO_CONTROLLER = "no-controller"
    COUNTED = "counted-by-its-job"
    FINALIZER = "finalizer"
    DELETING = "being-deleted"
    RUNNING = "running-container"
    UNKNOWN = "unknown-fact"
    RECENT = "recent"


class FailedPod(Record):
    """Facts of a pod at the API server.

    Attributes:
        node: the node to which it is bound.
        reason: reason in the status; empty for none.
        controller: kind of the owner that controls it; empty for none.
        is_static: whether it is a static pod or the mirror of one.
        finalizers: names of components that the deletion would wait for.
        deleting: whether it has a deletion timestamp.
        has_running_container: whether a container is not reported as ended.
        written_at: time by the API server of the last write of the status; ``None`` if unknown.
        ended_at: latest time in the status, by the clock of the kubelet; ``None`` for none.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    node: str
    phase: str
    reason: str = ""
    controller: str = ""
    is_static: bool = False
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    has_running_container: bool = False
    written_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def full_name(self) -> str:
        """Namespace and name, for display."""
        return f"{self.namespace}/{self.name}"


class Deletion(Record):
    """Decision on a pod.

    Attributes:
        sentence: its reason, for display.
    """

    pod: FailedPod
    verdict: PodVerdict
    sentence: str


class DeletionPlan(Record):
    """Decisions on all listed pods.

    Attributes:
        deletions: pods to be deleted now, in this order.
        postponed: number of further ones, for the next list.
        kept: decisions on the others.
    """

    deletions: tuple[Deletion, ...] = ()
    postponed: int = 0
    kept: tuple[Deletion, ...] = field(default=())


def plan_deletions(
    pods: Iterable[FailedPod],
    node: str,
    now: datetime | None,
    after_s: float,
    refused: Collection[str] = frozenset(),
) -> DeletionPlan:
    """Return the pods to be deleted, those that failed first at the beginning.

    Args:
        pods: the pods of a list.
        node: name of this node.
        now: time of the list by the API server; ``None`` if it stated none, by which every pod is kept.
        after_s: seconds since the last change of the status, at least.
        refused: UIDs of pods with a failed deletion before: they are deleted after all others.
    """
    decided = [decide(each, node, now, after_s) for each in pods]
    found = [each for each in decided if each.verdict is PodVerdict.DELETE]
    found.sort(key=lambda each: (each.pod.uid in refused, each.pod.written_at, each.pod.uid))
    kept = tuple(each for each in decided if each.verdict is not PodVerdict.DELETE)
    return DeletionPlan(tuple(found[:MAX_DELETIONS]), max(0, len(found) - MAX_DELETIONS), kept)


def decide(pod: FailedPod, node: str, now: datetime | None, after_s: float) -> Deletion:
    """Return the decision on one pod."""
    kept = _kept_for_its_kind(pod, node) or _kept_for_its_age(pod, now, after_s)
    if kept is not None:
        return Deletion(pod, *kept)
    age_s = 0.0 if now is None or pod.written_at is None else (now - pod.written_at).total_seconds()
    return Deletion(pod, PodVerdict.DELETE, f"{_REASONS[pod.reason]} {format_duration(age_s)} ago or earlier")


def _kept_for_its_kind(pod: FailedPod, node: str) -> tuple[PodVerdict, str] | None:
    """Return why a pod is kept, regardless of its age; ``None`` if it is not kept."""
    causes = (
        (pod.node != node, PodVerdict.OTHER_NODE, "it is not bound to this node"),
        (pod.phase != FAILED, PodVerdict.NOT_FAILED, f"its phase is {pod.phase or 'unknown'}"),
        (pod.is_static, PodVerdict.STATIC, "it is static, or the mirror of a static pod"),
        (pod.deleting, PodVerdict.DELETING, "it is being deleted"),
        (pod.reason not in _REASONS, PodVerdict.OTHER_CAUSE, "neither an eviction nor a shutdown is its reason"),
        (_JOB_TRACKING in pod.finalizers, PodVerdict.COUNTED, "its Job has not counted it yet"),
        (bool(pod.finalizers), PodVerdict.FINALIZER, f"it has the finalizer {', '.join(pod.finalizers)}"),
        (not pod.controller, PodVerdict.NO_CONTROLLER, "no controller owns it: the object is the only one of this pod"),
        (pod.has_running_container, PodVerdict.RUNNING, "a container is not reported as ended"),
    )
    return next(((verdict, sentence) for holds, verdict, sentence in causes if holds), None)


def _kept_for_its_age(pod: FailedPod, now: datetime | None, after_s: float) -> tuple[PodVerdict, str] | None:
    """Return why a pod is kept by times and identity; ``None`` if it is not.

    Both times have to be old enough: the time of the write, and those that the kubelet wrote by its own clock.
    """
    if now is None or pod.written_at is None:
        return PodVerdict.UNKNOWN, "the time of its last status is unknown"
    if not (pod.uid and pod.resource_version and pod.namespace and pod.name):
        return PodVerdict.UNKNOWN, "its UID or version is unknown"
    latest = max(pod.written_at, pod.ended_at or pod.written_at)
    if now - latest < timedelta(seconds=after_s):
        return PodVerdict.RECENT, f"its status changed less than {format_duration(after_s)} ago"
    return None
