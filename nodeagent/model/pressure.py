"""Pressure on the node: the signals, one reading of each, and what is known of the pods that could be evicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from datetime import datetime

T_co = TypeVar("T_co", covariant=True)


class Signal(StrEnum):
    """What is watched, spelt as the kubelet spells it; the order is the order in which equals are acted on.

    The stall signals (``.psi.``) are percent of time over ten seconds; they and ``swap.free`` are ours.

    Source: kubelet eviction API signals; the kernel's pressure files, ``avg10``.
    """

    MEMORY_AVAILABLE = "memory.available"
    ALLOCATABLE_MEMORY_AVAILABLE = "allocatableMemory.available"
    MEMORY_PSI_FULL = "memory.psi.full"
    MEMORY_PSI_SOME = "memory.psi.some"
    SWAP_FREE = "swap.free"
    NODEFS_AVAILABLE = "nodefs.available"
    NODEFS_INODES_FREE = "nodefs.inodesFree"
    IMAGEFS_AVAILABLE = "imagefs.available"
    IMAGEFS_INODES_FREE = "imagefs.inodesFree"
    CONTAINERFS_AVAILABLE = "containerfs.available"
    CONTAINERFS_INODES_FREE = "containerfs.inodesFree"
    PID_AVAILABLE = "pid.available"
    IO_PSI_FULL = "io.psi.full"
    IO_PSI_SOME = "io.psi.some"


class MemorySource(StrEnum):
    """How ``memory.available`` is computed: capacity minus working set, or ``MemAvailable`` of /proc/meminfo."""

    WORKING_SET = "working-set"
    MEM_AVAILABLE = "mem-available"


class Resource(StrEnum):
    """What a pod gives back when it is evicted, spelt as in the kubelet's messages."""

    MEMORY = "memory"
    EPHEMERAL_STORAGE = "ephemeral-storage"
    INODES = "inodes"
    PIDS = "pids"


class NodeCondition(StrEnum):
    """What is said of a node under pressure. Source: Kubernetes node conditions."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


class FilesystemRole(StrEnum):
    """A filesystem by what lies on it; several roles may share one device."""

    NODEFS = "nodefs"
    IMAGEFS = "imagefs"
    CONTAINERFS = "containerfs"


class FilesystemLayout(StrEnum):
    """Which of nodefs, imagefs and containerfs are one device.

    ``SINGLE``: all are one. ``DEDICATED_IMAGEFS``: images and writable layers lie together, apart from nodefs.
    ``SPLIT``: images lie apart, writable layers on nodefs.

    Source: kubelet ``HasDedicatedImageFs``, ``HasSplitContainerImageFs``.
    """

    SINGLE = "single"
    DEDICATED_IMAGEFS = "dedicated-imagefs"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks.

    Attributes:
        at: wall time, aware UTC, for people and records.
        monotonic_s: seconds that never go back, suspend included. Every age and period is a difference of these,
            so a jump of the wall clock neither ends nor prolongs one.
    """

    at: datetime
    monotonic_s: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One reading of one signal, not yet judged.

    Attributes:
        available: what is left, in bytes, inodes or PIDs; for stall signals the percent of time stalled.
        capacity: the whole that ``available`` is a part of, in the same unit; 100 for stall signals.
        observed_at: when it was read, not when it was handed on.
    """

    signal: Signal
    available: float
    capacity: float
    observed_at: Moment


class FactSource(StrEnum):
    """Where a fact about a pod comes from, best first. ``MISSING`` goes with the value ``None``."""

    API_SERVER = "api-server"
    KUBELET = "kubelet"
    MANIFEST = "manifest"
    CRI = "cri"
    CGROUP = "cgroup"
    INFERRED = "inferred"
    ASSUMED = "assumed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Fact(Generic[T_co]):
    """A value and where it comes from."""

    value: T_co
    source: FactSource


UNKNOWN: Fact[None] = Fact(None, FactSource.MISSING)
"""Nothing is known; for a fact that matters this keeps the pod."""


class QosClass(StrEnum):
    """Source: Kubernetes pod quality of service."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class PodLifecycle(StrEnum):
    """How far a pod has come. ``ENDING``: it is being terminated. ``FINISHED``: nothing of it runs for good."""

    ACTIVE = "active"
    ENDING = "ending"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What something occupies on a filesystem; ``None`` where it could not be read."""

    used_bytes: int | None = None
    used_inodes: int | None = None


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What a pod uses now; ``None`` where it could not be read.

    Attributes:
        memory_bytes: working set of the pod's cgroup, usage less inactive file pages, not below 0.
        swap_bytes: what of it is swapped out.
        pids: tasks in the pod's cgroup.
        writable: all containers' writable layers.
        logs: all containers' logs.
        volumes: volumes on the node's own filesystem: emptyDir on disk, hostPath, configMap.
        ephemeral_bytes: what counts against the pod's storage limit: writable layers, logs, ephemeral volumes, the
            pod's log directory and hosts file.

    Source: cgroup v2 ``memory.current`` and ``memory.stat``, ``memory.swap.current``, ``pids.current``; CRI
    ``ContainerStats``; kubelet ``podDiskUsage``, ``podLocalEphemeralStorageUsage``.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    writable: Footprint = Footprint()
    logs: Footprint = Footprint()
    volumes: Footprint = Footprint()
    ephemeral_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What is known of one running container.

    Attributes:
        memory_request_bytes: 0 where it has none, ``None`` where that is not known; likewise for ephemeral storage.
        ephemeral_limit_bytes: ``None`` or 0 where it has none or none is known.
    """

    name: str
    memory_bytes: int | None = None
    memory_request_bytes: int | None = None
    writable_bytes: int | None = None
    logs_bytes: int | None = None
    ephemeral_request_bytes: int | None = None
    ephemeral_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EmptyDirFacts:
    """What is known of one emptyDir volume; a limit of ``None`` or 0 is none."""

    name: str
    used_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of one pod, each fact that decides over it with its source.

    A fact left at ``UNKNOWN`` protects the pod wherever it matters; whoever gathers facts writes down an assumption
    as a value with the source ``ASSUMED``.

    Attributes:
        priority: 0 where the pod is known to have none.
        priority_class: name of its priority class, empty where not known.
        static: whether a file or URL of the node's own defines it, not the API server.
        mirror: whether it is the API server's mirror of such a pod.
        critical: whether it is critical by any other sign than its priority.
        memory_request_bytes: of the whole pod, 0 where it has none; likewise for ephemeral storage.
        ephemeral_limit_bytes: sum of the containers' storage limits; ``None`` where none is set or known.
        termination_grace_s: what the pod itself asks for.
        usage: ``None`` where nothing could be read.
        contradictions: what sources disagree on, in words.
    """

    uid: str
    namespace: str
    name: str
    priority: Fact[int | None] = UNKNOWN
    priority_class: str = ""
    qos: Fact[QosClass | None] = UNKNOWN
    static: Fact[bool | None] = UNKNOWN
    mirror: Fact[bool | None] = UNKNOWN
    critical: Fact[bool | None] = UNKNOWN
    memory_request_bytes: Fact[int | None] = UNKNOWN
    ephemeral_request_bytes: Fact[int | None] = UNKNOWN
    ephemeral_limit_bytes: int | None = None
    termination_grace_s: Fact[float | None] = UNKNOWN
    usage: PodUsage | None = None
    containers: tuple[ContainerFacts, ...] = ()
    empty_dirs: tuple[EmptyDirFacts, ...] = ()
    lifecycle: PodLifecycle = PodLifecycle.ACTIVE
    contradictions: tuple[str, ...] = field(default=())
