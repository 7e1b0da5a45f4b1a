"""Pods as their sources describe them, before they are merged into facts, and what acting on a pod takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.model.workload import LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID, ContainerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pressure import Footprint, Moment, PodFacts, QosClass
    from nodeagent.model.shutdown import ShutdownPod
    from nodeagent.model.workload import Container, Sandbox

_OWN_LABELS = frozenset({LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID})


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a pod's definition says of one container; a request or limit of 0 is none.

    Attributes:
        init: whether it runs before the others; ``sidecar`` if it then goes on beside them.
    """

    name: str
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    ephemeral_request_bytes: int = 0
    ephemeral_limit_bytes: int = 0
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class EmptyDirSpec:
    """What a pod's definition says of one emptyDir; a limit of ``None`` or 0 is none."""

    name: str
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod as its definition has it, from the kubelet's list or from a manifest.

    Attributes:
        uid: empty in a manifest that leaves it to the kubelet.
        priority: ``None`` where it has none.
        memory_request_bytes: of the whole pod, as the scheduler counts it; likewise for ephemeral storage.
        ephemeral_limit_bytes: sum of the containers' limits; ``None`` where none has one.
        qos: ``None`` where it cannot be told.
        termination_grace_s: ``None`` where it says nothing.
        deleting: whether it was asked to go.
        phase: how far it has come, in Kubernetes' word; empty in a manifest.

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


@dataclass(frozen=True, slots=True)
class ContainerTraits:
    """What only a container's status tells and what does not change while it runs; ``None`` where it is not told.

    Attributes:
        memory_limit_bytes: 0 for none.
        cgroups_path: as the runtime gave it to the kernel's side; empty where not told.
        pid: of its first process.
    """

    oom_score_adj: int | None = None
    memory_limit_bytes: int | None = None
    cgroups_path: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """A pod as the runtime has it, with something of it up.

    Attributes:
        uid: the pod's; the sandbox's id where the runtime knows no UID, which ``contradictions`` then tells.
        sandbox: the newest that is ready, else the newest.
        sandbox_ids: all that are ready, newest first.
        containers: those of all its sandboxes, in any state, newest first.
        cgroup_parent: as the kubelet gave it; empty where not told.
        traits: by container id; a container missing here could not be read.
        memory_min_bytes: what its cgroup is guaranteed, which is its request where the kubelet sets it; 0 or
            ``None`` where it does not.
        contradictions: what the runtime's lists disagree on, in words.
    """

    uid: str
    sandbox: Sandbox
    sandbox_ids: tuple[str, ...]
    containers: tuple[Container, ...] = ()
    cgroup_parent: str = ""
    traits: Mapping[str, ContainerTraits] = field(default_factory=dict)
    memory_min_bytes: int | None = None
    contradictions: tuple[str, ...] = ()

    @property
    def running(self) -> tuple[Container, ...]:
        """Its containers that run, newest first."""
        return tuple(each for each in self.containers if each.state is ContainerState.RUNNING)

    @property
    def labels(self) -> dict[str, str]:
        """The pod's own labels, as they were when the sandbox was made."""
        return {key: value for key, value in self.sandbox.labels.items() if key not in _OWN_LABELS}


@dataclass(frozen=True, slots=True)
class PodReading:
    """What was measured of one pod; ``None`` and missing entries where nothing could be read.

    Attributes:
        container_memory_bytes: working set by container id.
        writable: of all containers; ``container_writable_bytes`` by container id.
        logs: of all containers; ``container_logs_bytes`` by container name.
        volumes: emptyDirs on disk and other volumes on the node's own filesystem.
        empty_dir_bytes: by volume name, those in memory too.
        ephemeral_bytes: what counts against the pod's storage limit.
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


@dataclass(frozen=True, slots=True)
class ContainerHandle:
    """A running container.

    Attributes:
        cgroup: directory of its cgroup; ``None`` where it was not found.
        pid: of its first process, ``None`` where not told.
    """

    id: str
    name: str
    cgroup: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class PodHandle:
    """What ending a pod and seeing that it is gone takes.

    Attributes:
        sandbox_ids: its ready sandboxes, newest first.
        containers: those that run, newest first.
        cgroup: directory of its cgroup; ``None`` where it has none of its own or it was not found.
    """

    uid: str
    sandbox_ids: tuple[str, ...]
    containers: tuple[ContainerHandle, ...] = ()
    cgroup: str | None = None

    @property
    def container_ids(self) -> tuple[str, ...]:
        """Ids of the running containers, newest first."""
        return tuple(each.id for each in self.containers)

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The directories its processes are below: the pod's own, else those of its containers."""
        if self.cgroup is not None:
            return (self.cgroup,)
        return tuple(each.cgroup for each in self.containers if each.cgroup is not None)


@dataclass(frozen=True, slots=True)
class PodInventory:
    """All pods of the node that have something up, at one time.

    Attributes:
        facts: by UID, for evictions.
        shutdown: by UID, for a graceful shutdown; exactly the pods of ``facts``.
        handles: by the UID of ``facts``.
        observed_at: when the runtime's lists were asked for.
        warnings: what could not be read and what that means, in sentences.
    """

    facts: tuple[PodFacts, ...]
    shutdown: tuple[ShutdownPod, ...]
    handles: Mapping[str, PodHandle]
    observed_at: Moment
    warnings: tuple[str, ...] = ()
