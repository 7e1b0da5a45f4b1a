"""Pod deletion status; in case of doubt a pod counts as existing.

A pod in a pod list of the kubelet or the API server exists. A missing pod is deleted only if the list is a synced list
of the API server and the pod was created from the API server: the kubelet's list is incomplete after its start and
while the API server is unavailable, and the API server does not list every static pod. Beside a kubelet, only such a
list proves a deletion.

On a node without a kubelet and without a pod list, a pod counts as deleted if it has no running container and no
activity for a grace period. The grace period also protects all pods after a reboot, when all containers are dead until
they are started again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set as AbstractSet
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nodeagent.last_result import keep_last_result
from nodeagent.model.node import NodeSnapshot, Role
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.record import Record, replace
from nodeagent.units import format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.model.pods import PodList

BESIDE_KUBELET_UNPROVEN: Final = "a kubelet manages this node; only a synced list of the API server proves a deletion"


class PodDeletionStatus(Record):
    """Deletion status of a pod with its evidence.

    Attributes:
        deleted: whether the pod is deleted, so that its containers, sandboxes and logs may be removed.
        finished: whether no container of the pod is running; the pod may still exist. A deleted pod is also finished.
        how: evidence of the status, for display.
        evicted: whether nodeagent evicted the pod, so that the minimum ages of its items do not apply.
    """

    deleted: bool
    finished: bool
    how: str
    evicted: bool = False


# Enum members used for every container are module constants: a lookup in the enum class takes ten times as long.
_RUNNING, _UNKNOWN, _EXITED = ContainerState.RUNNING, ContainerState.UNKNOWN, ContainerState.EXITED

_API_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""UID format of the API server; the UID of a static pod is a hash without dashes. Source: kubelet ``applyDefaults``."""

_READY: Final = PodDeletionStatus(deleted=False, finished=False, how="sandbox ready")
_EVICTED: Final = PodDeletionStatus(
    deleted=True, finished=True, how="evicted by nodeagent, nothing running", evicted=True
)
_UNPROVEN: Final = PodDeletionStatus(deleted=False, finished=False, how=BESIDE_KUBELET_UNPROVEN)
_FROM_API_SERVER: Final = PodDeletionStatus(
    deleted=False,
    finished=False,
    how="created from an API server (kubernetes.io/config.source=api); no pod list confirms its deletion",
)


class _Pod:
    """Containers and sandboxes of one pod UID."""

    __slots__ = ("containers", "contradictions", "sandboxes")

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.sandboxes: list[Sandbox] = []
        self.contradictions: tuple[str, ...] = ()


def check_pods(
    snapshot: NodeSnapshot, grace_s: float, evicted: AbstractSet[str] = frozenset()
) -> Mapping[str, PodDeletionStatus]:
    """Return the deletion status of every pod with a listed container or sandbox, by pod UID.

    A container is assigned to the pod in its label and to the pod of its sandbox; if the two differ, both pods count as
    existing. A pod in the pod list exists. A pod from the API server is deleted if it is missing in a synced list of
    the API server. If the list is not conclusive, a pod beside a kubelet counts as existing. Otherwise a pod counts as
    deleted without a ready sandbox, without a container that is running or of unknown state, and without activity for
    ``grace_s``. Activity is the creation and exit of containers, the creation of sandboxes and, if the list is not
    conclusive, the boot of the node. Exited containers and the grace period are also required with a conclusive list. A
    pod with an unknown time counts as existing. Only listed containers and sandboxes count as activity: after the
    removal of the last container of an inactive pod, the grace period counts only from its sandboxes.

    While the wall clock is untrusted after a jump, no pod counts as deleted by inactivity.

    A pod evicted by nodeagent, with its UID in ``evicted``, is deleted without a grace period once it has no running
    container and no ready sandbox.

    If the list is not conclusive, a pod with a sandbox annotated ``kubernetes.io/config.source=api`` counts as
    existing: a kubelet created this sandbox, and only the API server can report the deletion of the pod. The annotation
    keeps only this pod; it does not affect the role of the agent, since every client of the runtime can set it.

    Source: kubelet ``ShouldPodContentBeRemoved`` and ``ShouldPodRuntimeBeRemoved``, approximated.
    """
    ready, pods = _gather(tuple(snapshot.containers), tuple(snapshot.sandboxes))
    statuses = dict.fromkeys(ready, _READY)
    statuses.update((uid, _check_pod(uid, pod, snapshot, grace_s, evicted=uid in evicted)) for uid, pod in pods.items())
    return statuses


def pod_uid_of(container: Container, sandboxes: Mapping[str, Sandbox]) -> str:
    """Return the pod UID of a container from its label, otherwise from its sandbox; empty if unknown."""
    uid = container.pod_uid
    if uid:
        return uid
    sandbox = sandboxes.get(container.sandbox_id)
    return sandbox.uid if sandbox is not None else ""


def checked_pod_list(pods: PodList | None, sandboxes: Iterable[Sandbox]) -> PodList | None:
    """Return the pod list; marked as not synced if it contains none of the API server's pods that run on this node.

    Such a list is of another node or another cluster, and must not prove deletions.
    """
    if pods is None:
        return None
    running = {each.uid for each in sandboxes if each.ready and each.uid and each.from_api_server}
    if not running or not running.isdisjoint(pods.uids):
        return pods
    return replace(pods, synced=False)


def is_in_pod_list(
    uid: str, sandboxes: Iterable[Sandbox], pods: PodList | None, active_at: datetime | None
) -> bool | None:
    """Return whether a pod exists according to the pod list; ``None`` if the list is not conclusive.

    Args:
        uid: UID of the pod.
        sandboxes: sandboxes of the pod; without sandboxes, only a UID assigned by the API server is conclusive.
        pods: the pod list; ``None`` without a list.
        active_at: time of the last activity of the pod on this node; ``None`` if unknown.
    """
    if pods is None:
        return None
    if uid in pods.uids:
        return True
    own = tuple(sandboxes)
    from_api_server = all(each.from_api_server for each in own) if own else _API_UID.fullmatch(uid) is not None
    return False if from_api_server and pods.lacks(uid, active_at) else None


def contradiction(container: Container, sandboxes: Mapping[str, Sandbox]) -> str:
    """Return the contradiction between the pod in a container's label and the pod of its sandbox; empty if equal."""
    sandbox = sandboxes.get(container.sandbox_id)
    if sandbox is None or not sandbox.uid or not container.pod_uid or container.pod_uid == sandbox.uid:
        return ""
    return f"label has pod {container.pod_uid}, sandbox has pod {sandbox.uid}"


@keep_last_result
def _gather(
    containers: tuple[Container, ...], sandboxes: tuple[Sandbox, ...]
) -> tuple[AbstractSet[str], Mapping[str, _Pod]]:
    """Return the UIDs of pods with a ready sandbox, and the containers and sandboxes of every other pod by UID."""
    ready = frozenset([sandbox.uid for sandbox in sandboxes if sandbox.ready and sandbox.uid])
    pods: defaultdict[str, _Pod] = defaultdict(_Pod)
    by_id = {sandbox.id: sandbox for sandbox in sandboxes}
    for sandbox in sandboxes:
        if sandbox.uid and sandbox.uid not in ready:
            pods[sandbox.uid].sandboxes.append(sandbox)
    uid_of = {sandbox.id: sandbox.uid for sandbox in sandboxes}
    for container in containers:
        sandbox_uid = uid_of.get(container.sandbox_id, "")
        uid = container.pod_uid or sandbox_uid
        if uid == sandbox_uid and uid in ready:  # the usual case
            continue
        if uid and uid not in ready:
            pods[uid].containers.append(container)
        if sandbox_uid and sandbox_uid != uid:
            detail = f"container {container.name} is contradictory: {contradiction(container, by_id)}"
            for each in {uid, sandbox_uid} - ready:
                pods[each].contradictions += (detail,)
    return ready, dict(pods)


def _check_pod(uid: str, pod: _Pod, snapshot: NodeSnapshot, grace_s: float, *, evicted: bool) -> PodDeletionStatus:
    exists = None
    if snapshot.pod_list is not None:
        exists = is_in_pod_list(uid, pod.sandboxes, snapshot.pod_list, _last_activity(pod, None)[0])
    if exists is None and snapshot.role is Role.BESIDE_KUBELET:
        return _UNPROVEN
    active = min(pod.contradictions) if pod.contradictions else _activity(pod)
    if active:
        return _kept(active)
    if evicted:
        return _EVICTED
    if exists is None and any(sandbox.from_api_server for sandbox in pod.sandboxes):
        return _FROM_API_SERVER
    return _check_inactive_pod(pod, snapshot, grace_s, exists=exists)


def _check_inactive_pod(pod: _Pod, snapshot: NodeSnapshot, grace_s: float, *, exists: bool | None) -> PodDeletionStatus:
    """Return the status of a pod without running containers by its last activity and, if conclusive, the pod list."""
    if exists is None and snapshot.booted_at is None:
        return _kept("boot time of the node unknown")
    latest, missing = _last_activity(pod, snapshot.booted_at if exists is None else None)
    if missing or latest is None:
        return _kept(missing)
    inactive_s = max(0.0, (snapshot.observed_at - latest).total_seconds())
    ago = f"last activity {format_duration(inactive_s)} ago"
    if inactive_s < grace_s:
        return _kept(f"{ago}, grace period {format_duration(grace_s)}")
    if grace_s > 0 and snapshot.clock.untrusted_until is not None:
        until = format_time(snapshot.clock.untrusted_until)
        return _kept(f"{ago}, but no deletion is inferred before {until}: {snapshot.clock.jump_text}")
    if exists is None or snapshot.pod_list is None:
        how = f"no ready sandbox, nothing running, {ago} (inferred from CRI)"
        return PodDeletionStatus(deleted=True, finished=True, how=how)
    listed = f"{'in' if exists else 'not in'} the pod list of the {snapshot.pod_list.source}"
    return PodDeletionStatus(
        deleted=not exists, finished=True, how=f"{listed}, no ready sandbox, nothing running, {ago}"
    )


def _kept(how: str) -> PodDeletionStatus:
    return PodDeletionStatus(deleted=False, finished=False, how=how)


def _activity(pod: _Pod) -> str:
    states = {container.state for container in pod.containers}
    if _RUNNING in states:
        return "a container is running"
    if _UNKNOWN in states:
        return "a container may be running: state unknown to the runtime"
    return ""


def _last_activity(pod: _Pod, booted_at: datetime | None) -> tuple[datetime | None, str]:
    """Return the time of the last activity of a pod; ``None`` and a description if a required time is unknown."""
    times = [booted_at, *[sandbox.created_at for sandbox in pod.sandboxes]]
    if None in times[1:]:
        return None, "creation time of a sandbox unknown"
    for container in pod.containers:
        exited = container.state is _EXITED
        if (container.finished_at if exited else container.created_at) is None:
            return None, _first_missing(pod)
        times += (container.created_at, container.finished_at)
    return max([at for at in times if at is not None], default=None), ""


def _first_missing(pod: _Pod) -> str:
    """Return a description of the missing time, for the first container by id that lacks a required time."""
    for container in sorted(pod.containers, key=attrgetter("id")):
        if container.state is _EXITED and container.finished_at is None:
            return f"finish time of container {container.name} unknown"
        if container.state is not _EXITED and container.created_at is None:
            return f"creation time of container {container.name} unknown"
    return ""
