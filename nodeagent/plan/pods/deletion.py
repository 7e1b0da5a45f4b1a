"""Whether a pod is gone, decided so that doubt keeps it.

The kubelet asks its own list of pods. Where there is such a list it decides here too; where there is only the
runtime, a pod counts as gone when nothing of it runs and nothing has stirred for a grace period. That period is also
what protects every pod after a reboot, when all of them look dead until something starts them again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nodeagent.model import ContainerState, Role
from nodeagent.model.workload import LABEL_POD_UID
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from nodeagent.model import Container, NodeSnapshot, Sandbox

BESIDE_KUBELET_WITHOUT_LIST: Final = "a kubelet manages this node and its pod list is not available"


@dataclass(frozen=True, slots=True)
class PodDeletionStatus:
    """Where a pod stands.

    Attributes:
        gone: whether the pod is gone, so that whatever is left of it may go.
        finished: whether nothing of it runs any more, though it may still exist; a gone pod is finished too.
        how: why it counts as gone, or why not, in words.
    """

    gone: bool
    finished: bool
    how: str


# Members are looked up once; in their class that takes ten times as long.
_RUNNING, _UNKNOWN, _EXITED = ContainerState.RUNNING, ContainerState.UNKNOWN, ContainerState.EXITED

_READY: Final = PodDeletionStatus(gone=False, finished=False, how="its sandbox is ready")
_EVICTED: Final = PodDeletionStatus(gone=True, finished=True, how="evicted by nodeagent, nothing running")
_UNLISTED: Final = PodDeletionStatus(gone=False, finished=False, how=BESIDE_KUBELET_WITHOUT_LIST)
_FROM_API_SERVER: Final = PodDeletionStatus(
    gone=False,
    finished=False,
    how="it came from an API server (kubernetes.io/config.source=api), and no pod list shows that it was deleted",
)


class _Pod:
    """What the runtime lists under one UID."""

    __slots__ = ("containers", "contradictions", "sandboxes")

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.sandboxes: list[Sandbox] = []
        self.contradictions: tuple[str, ...] = ()


def check_pods(
    snapshot: NodeSnapshot, grace_s: float, evicted: AbstractSet[str] = frozenset()
) -> Mapping[str, PodDeletionStatus]:
    """Return the standing of every pod UID that a container or a sandbox of the runtime carries.

    A container belongs to the pod its label names and to the pod of its sandbox; if these differ, neither counts
    as gone. With a pod list a pod is gone when it is not in the list; without one, if a kubelet manages the node,
    never; else when it has no ready sandbox, no running container and none of unknown state, and its last sign of
    life is at least ``grace_s`` ago. Signs of life are the creation and end of its containers, the creation of its
    sandboxes, and, without a list, the boot of the node. Nothing running and the grace are asked for with a list
    too. A time that is missing where it is needed keeps the pod. Only what is still listed counts: once limits have
    removed the last container of a quiet pod, its grace counts from its sandbox alone.

    A pod evicted by this agent, its UID in ``evicted``, counts as gone without grace once it has no running container
    and no ready sandbox.

    Without a list, a pod with a sandbox annotated ``kubernetes.io/config.source=api`` never counts as gone: a kubelet
    made that sandbox, although none is found now, and only the API server knows whether the pod was deleted. The
    annotation is no trace of a kubelet for the role, as whoever makes a sandbox can set it; it keeps that pod alone.

    Source: kubelet ``ShouldPodContentBeRemoved`` and ``ShouldPodRuntimeBeRemoved``, approximated.
    """
    ready = {sandbox.uid for sandbox in snapshot.sandboxes if sandbox.ready and sandbox.uid}
    statuses = dict.fromkeys(ready, _READY)
    pods = _gather(snapshot, ready)
    statuses.update((uid, _judge(uid, pod, snapshot, grace_s, evicted=uid in evicted)) for uid, pod in pods.items())
    return statuses


def pod_uid_of(container: Container, sandboxes: Mapping[str, Sandbox]) -> str:
    """Return the UID of a container's pod, from its label, else from its sandbox; empty if neither tells."""
    uid = container.pod_uid
    if uid:
        return uid
    sandbox = sandboxes.get(container.sandbox_id)
    return sandbox.uid if sandbox is not None else ""


def contradiction(container: Container, sandboxes: Mapping[str, Sandbox]) -> str:
    """Return how a container's label contradicts its sandbox about the pod; empty if it does not."""
    sandbox = sandboxes.get(container.sandbox_id)
    if sandbox is None or not sandbox.uid or not container.pod_uid or container.pod_uid == sandbox.uid:
        return ""
    return f"its label says pod {container.pod_uid}, its sandbox belongs to pod {sandbox.uid}"


def _gather(snapshot: NodeSnapshot, ready: AbstractSet[str]) -> dict[str, _Pod]:
    """Return what the runtime lists of each pod, but for those that a ready sandbox settles."""
    pods: defaultdict[str, _Pod] = defaultdict(_Pod)
    by_id = {sandbox.id: sandbox for sandbox in snapshot.sandboxes}
    for sandbox in snapshot.sandboxes:
        if sandbox.uid and sandbox.uid not in ready:
            pods[sandbox.uid].sandboxes.append(sandbox)
    for container in snapshot.containers:
        home = by_id.get(container.sandbox_id)
        home_uid = home.uid if home is not None else ""
        uid = container.labels.get(LABEL_POD_UID) or home_uid
        if uid and uid not in ready:
            pods[uid].containers.append(container)
        if home_uid and home_uid != uid:
            why = f"container {container.name} is contradictory: {contradiction(container, by_id)}"
            for each in {uid, home_uid} - ready:
                pods[each].contradictions += (why,)
    return pods


def _judge(uid: str, pod: _Pod, snapshot: NodeSnapshot, grace_s: float, *, evicted: bool) -> PodDeletionStatus:
    if snapshot.live_pod_uids is None and snapshot.role is Role.BESIDE_KUBELET:
        return _UNLISTED
    alive = min(pod.contradictions) if pod.contradictions else _why_alive(pod)
    if alive:
        return _stands(alive)
    if evicted:
        return _EVICTED
    if snapshot.live_pod_uids is None and any(sandbox.from_api_server for sandbox in pod.sandboxes):
        return _FROM_API_SERVER
    return _judge_quiet(uid, pod, snapshot, grace_s)


def _judge_quiet(uid: str, pod: _Pod, snapshot: NodeSnapshot, grace_s: float) -> PodDeletionStatus:
    """Judge a pod of which nothing runs, by when it last stirred and, if there is one, by the pod list."""
    live = snapshot.live_pod_uids
    if live is None and snapshot.booted_at is None:
        return _stands("it is not known when the node was booted")
    latest, missing = _last_sign_of_life(pod, snapshot.booted_at if live is None else None)
    if missing or latest is None:
        return _stands(missing)
    quiet_s = max(0.0, (snapshot.observed_at - latest).total_seconds())
    ago = f"last sign of life {format_duration(quiet_s)} ago"
    if quiet_s < grace_s:
        return _stands(f"{ago}, less than the grace period {format_duration(grace_s)}")
    if live is None:
        how = f"no ready sandbox, nothing running, {ago}; judged from the runtime alone"
        return PodDeletionStatus(gone=True, finished=True, how=how)
    listed = uid in live
    how = f"{'in' if listed else 'not in'} the pod list, no ready sandbox, nothing running, {ago}"
    return PodDeletionStatus(gone=not listed, finished=True, how=how)


def _stands(how: str) -> PodDeletionStatus:
    return PodDeletionStatus(gone=False, finished=False, how=how)


def _why_alive(pod: _Pod) -> str:
    states = {container.state for container in pod.containers}
    if _RUNNING in states:
        return "a container of it is running"
    if _UNKNOWN in states:
        return "a container of it may be running: the runtime does not know its state"
    return ""


def _last_sign_of_life(pod: _Pod, booted_at: datetime | None) -> tuple[datetime | None, str]:
    """Return the latest time anything of the pod stirred, or which time is missing."""
    signs = [booted_at, *[sandbox.created_at for sandbox in pod.sandboxes]]
    if None in signs[1:]:
        return None, "it is not known when its sandbox was created"
    for container in pod.containers:
        exited = container.state is _EXITED
        if (container.finished_at if exited else container.created_at) is None:
            return None, _first_missing(pod)
        signs += (container.created_at, container.finished_at)
    return max([at for at in signs if at is not None], default=None), ""


def _first_missing(pod: _Pod) -> str:
    """Return which time is missing, of the first container by id that lacks one."""
    for container in sorted(pod.containers, key=attrgetter("id")):
        if container.state is _EXITED and container.finished_at is None:
            return f"it is not known when its container {container.name} ended"
        if container.state is not _EXITED and container.created_at is None:
            return f"it is not known when its container {container.name} was created"
    return ""
