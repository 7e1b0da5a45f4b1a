"""Pods as reported by each source, before the merge into pod facts, and handles for stopping pods.

Source of the reserved priorities: Kubernetes ``pkg/apis/scheduling/types.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model import runtime
from nodeagent.model.pressure import QosClass  # noqa: TC001 - stored pods are decoded by this type
from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    from nodeagent.model.pressure import Footprint, LayerUsage, Moment, PodFacts
    from nodeagent.model.stops import ShutdownPod


class PodListSource(StrEnum):
    """Source of a pod list."""

    API_SERVER = "API server"
    KUBELET = "kubelet"


class PodList(Record):
    """A list of the pods bound to this node.

    A listed pod exists. A missing pod counts as deleted only if the list proves the deletion (``proves_absence``). A
    kubelet that has just started answers with an empty list, then with static pods only until the API server answers.
    These incomplete lists are not distinguishable from a complete list.

    Attributes:
        uids: UIDs of the pods, and the configuration hashes of mirror pods, which are the UIDs of static pods.
        synced: whether the source has all pods and is connected: the initial list of an API server watch is complete,
            and the watch is not interrupted.
        deleted: UIDs of pods whose deletion the source has reported.
        listed_at: request time, by the wall clock of this node, of a list that includes all earlier writes; ``None``
            without such a list.
    """

    source: PodListSource
    uids: frozenset[str]
    synced: bool = False
    deleted: frozenset[str] = frozenset()
    listed_at: datetime | None = None

    @property
    def proves_absence(self) -> bool:
        """Whether a pod of the API server that is missing in this list is deleted."""
        return self.source is PodListSource.API_SERVER and self.synced

    def lacks(self, uid: str, active_at: datetime | None) -> bool:
        """Return whether a pod of the API server is proven to be deleted.

        The proof is either a reported deletion, or the absence of the pod from a list that was requested after the
        binding of the pod to this node. A newer pod may not have reached the watch yet.

        Args:
            uid: UID of the pod.
            active_at: latest trace of the pod on this node, such as the creation of its sandbox; ``None`` if unknown.
        """
        if not self.proves_absence or uid in self.uids:
            return False
        listed_before = self.listed_at is None or active_at is None or active_at >= self.listed_at
        return uid in self.deleted or not listed_before


class Completeness(StrEnum):
    """Evidence on the completeness of a pod list; part of the JSON output. Only ``SYNCED`` can prove a deletion.

    Attributes:
        UNKNOWN: no list has been read.
        SOURCE_LISTED: the list has pods of the API server, which the kubelet adds all together.
        UNCONFIRMED: neither the list nor the runtime has pods of the API server.
        PARTIAL: the list has no pods of the API server, but the runtime has, or could not be compared.
        SYNCED: a watch of the API server has all pods, and is connected.
        OUTDATED: a watch of the API server may lack pods; the listed pods remain valid.
    """

    UNKNOWN = "unknown"
    SOURCE_LISTED = "source-listed"
    UNCONFIRMED = "unconfirmed"
    PARTIAL = "partial"
    SYNCED = "synced"
    OUTDATED = "outdated"


class PodListReading(Record):
    """State of a pod list.

    Attributes:
        address: address of the list; empty if unknown.
        observed_at: time of the last successful reading; ``None`` before the first.
        pods: number of listed pods.
        detail: evidence against completeness, for display; empty without evidence.
        error: cause of the last failure; empty after a success.
    """

    source: PodListSource
    address: str = ""
    observed_at: datetime | None = None
    pods: int = 0
    completeness: Completeness = Completeness.UNKNOWN
    error: str = ""
    detail: str = ""

    def with_error(self, error: str) -> PodListReading:
        """Return the state after a failed reading; the previous list remains in use."""
        return replace(self, error=error)


_OWN_LABELS = frozenset({runtime.LABEL_POD_NAME, runtime.LABEL_POD_NAMESPACE, runtime.LABEL_POD_UID})


class ContainerSpec(Record):
    """One container in a pod's definition; 0 means no request or no limit.

    Attributes:
        memory_request_text: memory request as written, for display; empty without a request; likewise the other texts.
        init: whether the container is an init container.
        sidecar: whether the container is a restartable init container, which runs beside the main containers.
    """

    name: str
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    ephemeral_request_bytes: int = 0
    ephemeral_limit_bytes: int = 0
    memory_request_text: str = ""
    ephemeral_request_text: str = ""
    ephemeral_limit_text: str = ""
    init: bool = False
    sidecar: bool = False


class EmptyDirSpec(Record):
    """One emptyDir in a pod's definition; a limit of ``None`` or 0 means unlimited."""

    name: str
    limit_bytes: int | None = None
    limit_text: str = ""


ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers are not started again."""


class PodSpec(Record):
    """A pod's definition, from the API server, the kubelet's list or a manifest.

    Attributes:
        uid: empty in a manifest without UID, which the kubelet then generates.
        priority: ``None`` if not set.
        memory_request_bytes: memory request of the whole pod, as counted by the scheduler.
        ephemeral_request_bytes: ephemeral storage request of the whole pod, as counted by the scheduler.
        ephemeral_limit_bytes: ephemeral storage limit of the whole pod, counted like a request; ``None`` if no
            container has a limit.
        ephemeral_limit_text: a limit as written that is part of the limit of the pod; its form is that of the sum.
        qos: ``None`` if unknown.
        termination_grace_s: ``None`` if not set.
        deleting: whether the pod has a deletion timestamp.
        phase: the Kubernetes phase; empty in a manifest.
        images: image references of init, main and ephemeral containers and of image volumes, without duplicates.
        claims: names of the persistent volume claims, including those of generic ephemeral volumes.
        is_verified: whether the source is authenticated: the API server, a manifest, or a kubelet with a verified
            certificate. Priority, static and mirror marks of an unverified source are ignored.
        malformed: error of a malformed definition, of which only the readable fields are set; empty normally.
        listed_by: source of the list that contains the pod; unused for a manifest.
        resource_version: version of the object at the API server; empty in other lists.

    Source: Kubernetes ``Pod``.
    """

    uid: str
    namespace: str
    name: str
    priority: int | None = None
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerSpec, ...] = ()
    empty_dirs: tuple[EmptyDirSpec, ...] = ()
    memory_request_bytes: int = 0
    ephemeral_request_bytes: int = 0
    ephemeral_limit_bytes: int | None = None
    ephemeral_limit_text: str = ""
    qos: QosClass | None = None
    termination_grace_s: float | None = None
    deleting: bool = False
    phase: str = ""
    images: tuple[str, ...] = ()
    is_verified: bool = True
    malformed: str = ""
    listed_by: PodListSource = PodListSource.KUBELET
    resource_version: str = ""
    claims: tuple[str, ...] = ()


class ContainerTraits(Record):
    """Properties of a running container from its verbose status, constant until a resize; ``None`` if not reported.

    Attributes:
        memory_limit_bytes: memory limit; 0 for no limit.
        cgroups_path: cgroup path in the OCI runtime specification; empty if not reported.
        pid: PID of the container's first process.
        snapshotter: snapshotter of the writable layer; empty if not reported.
        sandbox_files: paths of the sandbox files that the runtime mounts into the container, such as ``/etc/hostname``;
            a container without a read-only root filesystem can write to these files.
        image_volumes: directories of the volumes declared by the image, which are not part of any layer.
        is_oversized: whether the verbose status exceeds the runtime's maximum message size, for example because of a
            huge environment. The other attributes are then from the plain status.
    """

    oom_score_adj: int | None = None
    memory_limit_bytes: int | None = None
    cgroups_path: str = ""
    pid: int | None = None
    snapshotter: str = ""
    sandbox_files: tuple[str, ...] = ()
    image_volumes: tuple[str, ...] = ()
    is_oversized: bool = False


class RuntimePod(Record):
    """An active pod in the runtime: with a ready sandbox or a container that may be running.

    Attributes:
        uid: UID of the pod; the sandbox id if the runtime has no UID, with an entry in ``contradictions``.
        sandbox: the newest ready sandbox, else the newest sandbox.
        sandbox_ids: ids of the ready sandboxes, newest first.
        containers: containers of all sandboxes of the pod, in any state, newest first.
        cgroup_parent: cgroup of the pod as set by the kubelet; empty if not reported.
        traits: container traits by container id; no entry if the status could not be read.
        memory_min_bytes: ``memory.min`` of the pod's cgroup, which is the memory request if set by the kubelet; 0 if
            not set, ``None`` if not read.
        contradictions: differences between the runtime's lists, for display.
        status_read: whether the status of the sandbox was read.
    """

    uid: str
    sandbox: runtime.Sandbox
    sandbox_ids: tuple[str, ...]
    containers: tuple[runtime.Container, ...] = ()
    cgroup_parent: str = ""
    traits: Mapping[str, ContainerTraits] = field(default_factory=dict)
    memory_min_bytes: int | None = None
    contradictions: tuple[str, ...] = ()
    status_read: bool = True

    @property
    def running(self) -> tuple[runtime.Container, ...]:
        """The running containers of the pod, newest first."""
        return tuple(each for each in self.containers if each.state is runtime.ContainerState.RUNNING)

    @property
    def sandbox_files(self) -> tuple[str, ...]:
        """Paths of the files of ready sandboxes that running or exited containers can write to."""
        known = (self.traits.get(each.id) for each in self.containers if each.sandbox_id in self.sandbox_ids)
        return tuple(dict.fromkeys(path for each in known if each is not None for path in each.sandbox_files))

    @property
    def image_volumes(self) -> tuple[str, ...]:
        """Directories of the volumes declared by the images of all listed containers, including exited containers."""
        known = (self.traits.get(each.id) for each in self.containers)
        return tuple(dict.fromkeys(path for each in known if each is not None for path in each.image_volumes))

    @property
    def has_oversized_status(self) -> bool:
        """Whether the status of a container is too large to read, so that some directories of the pod are unknown."""
        return any(each.id in self.traits and self.traits[each.id].is_oversized for each in self.containers)

    @property
    def labels(self) -> dict[str, str]:
        """The pod's own labels at the creation of the sandbox."""
        return {key: value for key, value in self.sandbox.labels.items() if key not in _OWN_LABELS}


class PodReading(Record):
    """Measurements of one pod; ``None`` or no entry for a value that was not read.

    Attributes:
        container_memory_bytes: working set by container id.
        writable: usage of the writable layers of all containers.
        container_writable_bytes: size of the writable layer by id of a running container, for layers without a copy of
            the image.
        logs: usage of the logs of all containers.
        container_logs_bytes: size of the logs by container name.
        volumes: usage of emptyDirs on disk and of other volumes on the node's own filesystem.
        empty_dir_bytes: usage of emptyDirs by volume name, in-memory volumes included.
        ephemeral_bytes: usage that counts against the pod's storage limit, without parts that were not read.
        layers: the writable layers of all running and reported containers.
        memory_volumes_bytes: part of ``memory_bytes`` in memory volumes.
        memory_cache_bytes: part of ``memory_bytes`` in active page cache and reclaimable slab.
        stalled_some_percent: time in which a process waited for memory, over ten seconds.
        stalled_full_percent: time in which all processes waited for memory, over ten seconds.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    container_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    writable: Footprint | None = None
    container_writable_bytes: Mapping[str, int] = field(default_factory=dict)
    logs: Footprint | None = None
    container_logs_bytes: Mapping[str, int] = field(default_factory=dict)
    volumes: Footprint | None = None
    empty_dir_bytes: Mapping[str, int] = field(default_factory=dict)
    ephemeral_bytes: int | None = None
    layers: tuple[LayerUsage, ...] = ()
    memory_volumes_bytes: int = 0
    memory_cache_bytes: int = 0
    stalled_some_percent: float | None = None
    stalled_full_percent: float | None = None


class ContainerHandle(Record):
    """Handle of a running container.

    Attributes:
        cgroup: directory of the container's cgroup; ``None`` if not found.
        pid: PID of the container's first process; ``None`` if not reported.
        image_ref: image reference in the runtime's container list.
    """

    id: str
    name: str
    cgroup: str | None = None
    pid: int | None = None
    image_ref: str = ""


class PodHandle(Record):
    """Handle for stopping a pod and for verifying that all its processes have ended.

    Attributes:
        sandbox_ids: ids of the ready sandboxes, newest first.
        containers: running containers of the pod, newest first.
        cgroup: directory of the pod's cgroup; ``None`` if the pod has no separate cgroup, or the cgroup was not found.
        sandbox_files: see :class:`RuntimePod`.
    """

    uid: str
    sandbox_ids: tuple[str, ...]
    containers: tuple[ContainerHandle, ...] = ()
    cgroup: str | None = None
    sandbox_files: tuple[str, ...] = ()

    @property
    def container_ids(self) -> tuple[str, ...]:
        """Ids of the running containers, newest first."""
        return tuple(each.id for each in self.containers)

    @property
    def cgroups(self) -> tuple[str, ...]:
        """Cgroup directories of the pod's processes: the pod's cgroup, else the cgroups of the running containers."""
        if self.cgroup is not None:
            return (self.cgroup,)
        return tuple(each.cgroup for each in self.containers if each.cgroup is not None)


class PodInventory(Record):
    """All active pods of the node, from one observation.

    Attributes:
        facts: facts of each pod for evictions, ordered by UID.
        shutdown: facts of the same pods for a graceful shutdown, ordered by UID.
        handles: handle of each pod in ``facts``, by UID.
        observed_at: time at which the runtime's lists were requested.
        warnings: failed readings and their consequence, as sentences.
    """

    facts: tuple[PodFacts, ...]
    shutdown: tuple[ShutdownPod, ...]
    handles: Mapping[str, PodHandle]
    observed_at: Moment
    warnings: tuple[str, ...] = ()


CRITICAL_PRIORITY: Final = 2_000_000_000
"""Lowest priority of a critical pod. Source: ``SystemCriticalPriority``."""

NODE_CRITICAL_PRIORITY: Final = CRITICAL_PRIORITY + 1000
"""Priority of ``system-node-critical``. Source: ``SystemCriticalPriority`` plus 1000."""

CRITICAL_CLASS_PRIORITIES: Final[Mapping[str, int]] = MappingProxyType(
    {"system-node-critical": NODE_CRITICAL_PRIORITY, "system-cluster-critical": CRITICAL_PRIORITY}
)
"""Priority of each critical priority class, for manifests that name only the class."""
