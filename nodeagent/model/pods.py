"""Pods by source, before they are merged into facts, and handles for acting on them."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - stored pods are decoded by these types
from typing import TYPE_CHECKING

from nodeagent.model.pod_list import PodListSource
from nodeagent.model.pressure import QosClass  # noqa: TC001 - as above
from nodeagent.model.workload import LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID, ContainerState
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from nodeagent.model.pressure import Footprint, LayerUsage, Moment, PodFacts
    from nodeagent.model.shutdown import ShutdownPod
    from nodeagent.model.workload import Container, Sandbox

_OWN_LABELS = frozenset({LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID})


class ContainerSpec(Record):
    """One container in a pod's definition; 0 means no request or no limit.

    Attributes:
        init: whether it is an init container.
        sidecar: whether it is an init container that continues beside the others.
    """

    name: str
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    ephemeral_request_bytes: int = 0
    ephemeral_limit_bytes: int = 0
    init: bool = False
    sidecar: bool = False


class EmptyDirSpec(Record):
    """One emptyDir in a pod's definition; a limit of ``None`` or 0 means unlimited."""

    name: str
    limit_bytes: int | None = None


class PodSpec(Record):
    """A pod's definition, from the kubelet's list or from a manifest.

    Attributes:
        uid: empty in a manifest without UID, which the kubelet then generates.
        priority: ``None`` if not set.
        memory_request_bytes: of the whole pod, as counted by the scheduler; same for ``ephemeral_request_bytes``.
        ephemeral_limit_bytes: of the whole pod, counted like a request; ``None`` if no container has one.
        qos: ``None`` if unknown.
        termination_grace_s: ``None`` if not set.
        deleting: whether it has a deletion timestamp.
        phase: the Kubernetes phase; empty in a manifest.
        images: references of all images: of init, main and ephemeral containers and of image volumes; each once.
        is_verified: whether its source is authentic: a manifest, or a kubelet with a verified certificate. Priority,
            static and mirror are not taken from another one.
        malformed: error of a malformed definition, whose other fields are its readable ones; empty normally.
        listed_by: the list that has it; without meaning for a manifest.
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
    qos: QosClass | None = None
    termination_grace_s: float | None = None
    deleting: bool = False
    phase: str = ""
    images: tuple[str, ...] = ()
    is_verified: bool = True
    malformed: str = ""
    listed_by: PodListSource = PodListSource.KUBELET
    resource_version: str = ""


class ContainerTraits(Record):
    """Properties of a running container from its verbose status, constant until a resize; ``None`` if not reported.

    Attributes:
        memory_limit_bytes: 0 for none.
        cgroups_path: in the runtime specification; empty if not reported.
        pid: of its first process.
        snapshotter: of its writable layer; empty if not reported.
        sandbox_files: paths of the files of its sandbox that the runtime mounts into it, such as ``/etc/hostname``; a
            container without a read-only root filesystem can write to them.
        image_volumes: directories of the volumes that its image declares, which belong to no layer.
        is_oversized: whether its verbose status exceeds the largest message of the runtime, by a huge environment for
            example. Its other properties are then those of the plain status.
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
        uid: the pod's; the sandbox's id if the runtime has no UID, with an entry in ``contradictions``.
        sandbox: the newest ready one, else the newest.
        sandbox_ids: ids of the ready sandboxes, newest first.
        containers: containers of all its sandboxes, in any state, newest first.
        cgroup_parent: as set by the kubelet; empty if not reported.
        traits: by container id; without an entry if the status could not be read.
        memory_min_bytes: ``memory.min`` of its cgroup, its request if set by the kubelet; 0 or ``None`` if not.
        contradictions: differences between the runtime's lists, for display.
        status_read: whether the status of the sandbox was read.
    """

    uid: str
    sandbox: Sandbox
    sandbox_ids: tuple[str, ...]
    containers: tuple[Container, ...] = ()
    cgroup_parent: str = ""
    traits: Mapping[str, ContainerTraits] = field(default_factory=dict)
    memory_min_bytes: int | None = None
    contradictions: tuple[str, ...] = ()
    status_read: bool = True

    @property
    def running(self) -> tuple[Container, ...]:
        """Its running containers, newest first."""
        return tuple(each for each in self.containers if each.state is ContainerState.RUNNING)

    @property
    def sandbox_files(self) -> tuple[str, ...]:
        """Files of its ready sandboxes that containers, also exited ones, could write to."""
        known = (self.traits.get(each.id) for each in self.containers if each.sandbox_id in self.sandbox_ids)
        return tuple(dict.fromkeys(path for each in known if each is not None for path in each.sandbox_files))

    @property
    def image_volumes(self) -> tuple[str, ...]:
        """Directories of the volumes declared by the images of its listed containers, also of exited ones."""
        known = (self.traits.get(each.id) for each in self.containers)
        return tuple(dict.fromkeys(path for each in known if each is not None for path in each.image_volumes))

    @property
    def has_oversized_status(self) -> bool:
        """Whether some places of its files are unknown, since the status of a container is too large."""
        return any(each.id in self.traits and self.traits[each.id].is_oversized for each in self.containers)

    @property
    def labels(self) -> dict[str, str]:
        """The pod's own labels at the creation of the sandbox."""
        return {key: value for key, value in self.sandbox.labels.items() if key not in _OWN_LABELS}


class PodReading(Record):
    """Measurements of one pod; ``None`` or without entry if not read.

    Attributes:
        container_memory_bytes: working set by container id.
        writable: of all containers; ``container_writable_bytes`` by container id.
        logs: of all containers; ``container_logs_bytes`` by container name.
        volumes: emptyDirs on disk and other volumes on the node's own filesystem.
        empty_dir_bytes: by volume name, in-memory volumes included.
        ephemeral_bytes: usage that counts against the pod's storage limit.
        layers: the writable layers of all running and reported containers.
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


class ContainerHandle(Record):
    """A running container.

    Attributes:
        cgroup: directory of its cgroup; ``None`` if not found.
        pid: of its first process; ``None`` if not reported.
        image_ref: reference of its image as listed.
    """

    id: str
    name: str
    cgroup: str | None = None
    pid: int | None = None
    image_ref: str = ""


class PodHandle(Record):
    """Handle for stopping a pod and for verifying its end.

    Attributes:
        sandbox_ids: its ready sandboxes, newest first.
        containers: its running containers, newest first.
        cgroup: directory of its cgroup; ``None`` if it has none of its own or it was not found.
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
        """The cgroup directories of its processes: the pod's own, else its containers' own."""
        if self.cgroup is not None:
            return (self.cgroup,)
        return tuple(each.cgroup for each in self.containers if each.cgroup is not None)


class PodInventory(Record):
    """All active pods of the node, from one observation.

    Attributes:
        facts: ordered by UID, for evictions.
        shutdown: ordered by UID, for a graceful shutdown; the pods of ``facts``.
        handles: by the UID of ``facts``.
        observed_at: time at which the runtime's lists were requested.
        warnings: failed readings and their consequence, as sentences.
    """

    facts: tuple[PodFacts, ...]
    shutdown: tuple[ShutdownPod, ...]
    handles: Mapping[str, PodHandle]
    observed_at: Moment
    warnings: tuple[str, ...] = ()
