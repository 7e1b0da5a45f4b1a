"""Pod status that the agent publishes on a node without a kubelet: pods that it evicted or stopped, or that ended.

Only the phase, its reason and the conditions are written, and only once: container statuses are those of the last
kubelet, since their list can only be replaced as a whole. A pod is published on three proofs: the API server lists it
with this UID as bound to this node, its phase is not final, and its containers in the runtime have exited and were
created before its end. Without an answer of either server it waits.

Source: kubelet ``evictPod``, shutdown manager and ``status.PatchPodStatus``; recorded requests of a kubelet 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from nodeagent.model.pods import ENDED, PodList, PodSpec
from nodeagent.model.reason_codes import ReasonCode
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.model.stops import NodeStop, StopEnd, StopKind
from nodeagent.pods.plan.facts import ANNOTATION_MIRROR
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import Node

EVICTED: Final = "Evicted"
TERMINATED: Final = "Terminated"
NODE_STOPPED: Final = "NodeStopped"
"""Reason of pods whose containers ended with an unclean stop of the node; the kubelet has no reason for them."""
TERMINATED_MESSAGE: Final = "Pod was terminated in response to imminent node shutdown."
"""Source: kubelet ``nodeShutdownMessage``."""
NODE_STOPPED_MESSAGE: Final = "The containers of the pod ended with an unclean stop of the node."
DISRUPTION_REASON: Final = "TerminationByNodeagent"
"""Reason of the condition ``DisruptionTarget``; that of the kubelet is ``TerminationByKubelet``."""
OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
"""Taint of an operator: the control plane deletes the pods of the node and detaches their volumes."""
STORAGE_LIMITS: Final = frozenset(
    {
        ReasonCode.EMPTY_DIR_OVER_LIMIT.value,
        ReasonCode.POD_OVER_STORAGE_LIMIT.value,
        ReasonCode.CONTAINER_OVER_STORAGE_LIMIT.value,
    }
)
"""Reasons of evictions that are not a disruption, so that a Job counts the failure. Source: kubelet
``localStorageEviction``, which sets no condition."""
RUNNING_S: Final = 120.0
"""Seconds after its end from which a running container means that the pod has not ended: the runtime may report the
exit of a killed process seconds later."""


class EndedPod(Record):
    """A pod that has ended on this node, for its status.

    Attributes:
        at: time of the end, by the wall clock of this node; containers of the pod that were created later are not part
            of it.
        is_disruption: whether the pod ended by a shortage or a stop of the node, rather than by a storage limit of its
            own.
    """

    uid: str
    namespace: str
    name: str
    reason: str
    message: str
    at: datetime
    is_disruption: bool = True


def pods_of_stops(stops: Sequence[NodeStop], boot_id: str, booted_at: datetime) -> tuple[EndedPod, ...]:
    """Return the pods that ended with stops of the node.

    With the last boot before this one every container has ended, also if it was created after the record of the stop,
    or still running at the end of the shutdown.

    Args:
        stops: recorded stops of the node, newest first.
        boot_id: id of the current start of the userspace.
        booted_at: start of the current boot.
    """
    last_boot = next((each.boot_id for each in stops if each.boot_id != boot_id), "")
    found = []
    for stop in stops:
        is_earlier = stop.boot_id != boot_id
        at = booted_at if stop.boot_id == last_boot else stop.started_at
        is_unclean = stop.kind is StopKind.UNCLEAN
        reason, message = (NODE_STOPPED, NODE_STOPPED_MESSAGE) if is_unclean else (TERMINATED, TERMINATED_MESSAGE)
        for pod in stop.pods:
            has_ended = pod.outcome is not None and pod.outcome.ended
            if has_ended or (is_earlier and stop.end is not StopEnd.CANCELLED):
                found.append(EndedPod(pod.uid, pod.namespace, pod.name, reason, message, at))
    return tuple(found)


class RuntimePod(Record):
    """Sandboxes and containers of one pod in the runtime, in any state."""

    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[Container, ...] = ()


class StatusVerdict(StrEnum):
    """Decision on a pod status. The values are part of logs."""

    PUBLISH = "publish"
    WAIT = "wait"
    DROP = "drop"
    DONE = "done"


class StatusDecision(Record):
    """Decision on the status of one pod.

    Attributes:
        because: reason for waiting or dropping, for display; empty otherwise.
    """

    verdict: StatusVerdict
    because: str = ""


def decide(
    pod: EndedPod,
    watched: Mapping[str, PodSpec],
    listed: PodList | None,
    found: RuntimePod | None,
    now: datetime,
) -> StatusDecision:
    """Return whether the status of a pod is published now.

    Args:
        pod: the pod with its end.
        watched: pods of this node at the API server by UID.
        listed: the list of these pods as proof of deletion; ``None`` while the watch is not current.
        found: the pod in the runtime; ``None`` without an answer of the runtime.
        now: wall-clock time.
    """
    if listed is None:
        return StatusDecision(StatusVerdict.WAIT, "the pods of the API server are not current")
    spec = watched.get(pod.uid)
    if spec is None:
        return _decide_absent(pod, listed)
    if spec.phase in ENDED:
        return StatusDecision(StatusVerdict.DONE)
    because = spec.malformed
    if ANNOTATION_MIRROR in spec.annotations:
        because = "it is the mirror of a static pod"
    elif (spec.namespace, spec.name) != (pod.namespace, pod.name):
        because = "the pod with this UID has another name"
    return StatusDecision(StatusVerdict.DROP, because) if because else _decide_by_runtime(pod, found, now)


def _decide_absent(pod: EndedPod, listed: PodList) -> StatusDecision:
    """Return the decision on a pod that is not in the list; a list that may be older proves no deletion."""
    if pod.uid in listed.uids:
        return StatusDecision(StatusVerdict.DROP, "it is a static pod")
    if listed.lacks(pod.uid, pod.at):
        return StatusDecision(StatusVerdict.DROP, "the API server lists no pod with this UID on this node")
    return StatusDecision(StatusVerdict.WAIT, "the list of the API server may be older than the pod")


def _decide_by_runtime(pod: EndedPod, found: RuntimePod | None, now: datetime) -> StatusDecision:
    if found is None:
        return StatusDecision(StatusVerdict.WAIT, "the container runtime does not answer")
    created = [*(each.created_at for each in found.sandboxes), *(each.created_at for each in found.containers)]
    if any(each is None or each > pod.at for each in created):
        because = "a sandbox or container of it was created later, or at an unknown time"
        return StatusDecision(StatusVerdict.DROP, because)
    if all(each.state is ContainerState.EXITED for each in found.containers):
        return StatusDecision(StatusVerdict.PUBLISH)
    if now - pod.at > timedelta(seconds=RUNNING_S):
        return StatusDecision(StatusVerdict.DROP, "a container of it has not exited")
    return StatusDecision(StatusVerdict.WAIT, "a container of it has not exited yet")


def is_out_of_service(node: Node) -> bool:
    """Return whether an operator has put the node out of service."""
    return any(each.key == OUT_OF_SERVICE_TAINT for each in node.spec.taints)


def status_patch(pod: EndedPod, now: datetime) -> dict[str, Any]:
    """Return the strategic merge patch of a pod status; the API server refuses it for a pod with another UID.

    Source: recorded request of a kubelet 1.36 for an evicted pod.
    """
    at = now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    conditions = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}
        for kind, status, reason, message in (
            *([("DisruptionTarget", "True", DISRUPTION_REASON, pod.message)] if pod.is_disruption else []),
            ("Ready", "False", "PodFailed", None),
            ("ContainersReady", "False", "PodFailed", None),
        )
    ]
    return {
        "metadata": {"uid": pod.uid},
        "status": {"phase": "Failed", "reason": pod.reason, "message": pod.message, "conditions": conditions},
    }
