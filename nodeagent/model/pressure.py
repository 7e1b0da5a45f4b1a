"""What a node has left of the resources that eviction watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class Signal(StrEnum):
    """A figure that thresholds are set on. The first nine are the kubelet's; the others are ours."""

    MEMORY_AVAILABLE = "memory.available"
    ALLOCATABLE_MEMORY_AVAILABLE = "allocatableMemory.available"
    NODEFS_AVAILABLE = "nodefs.available"
    NODEFS_INODES_FREE = "nodefs.inodesFree"
    IMAGEFS_AVAILABLE = "imagefs.available"
    IMAGEFS_INODES_FREE = "imagefs.inodesFree"
    CONTAINERFS_AVAILABLE = "containerfs.available"
    CONTAINERFS_INODES_FREE = "containerfs.inodesFree"
    PID_AVAILABLE = "pid.available"
    SWAP_FREE = "swap.free"
    MEMORY_PSI_SOME = "memory.psi.some"
    MEMORY_PSI_FULL = "memory.psi.full"
    IO_PSI_SOME = "io.psi.some"
    IO_PSI_FULL = "io.psi.full"

    @property
    def is_stall(self) -> bool:
        """Whether it is a share of time stalled, in percent, where more is worse."""
        return ".psi." in self.value


class Resource(StrEnum):
    """What a signal is short of."""

    MEMORY = "memory"
    EPHEMERAL_STORAGE = "ephemeral-storage"
    INODES = "inodes"
    PIDS = "pids"


class NodeCondition(StrEnum):
    """What a node reports of itself. Source: Kubernetes ``NodeConditionType``."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


@dataclass(frozen=True, slots=True)
class Observation:
    """One reading of a signal.

    Attributes:
        signal: which.
        available: bytes, inodes or process ids left; for stalls the ten-second average in percent.
        capacity: of the same kind; 100 for stalls.
        observed_at: when it was read, aware UTC.
    """

    signal: Signal
    available: float
    capacity: float
    observed_at: datetime


class QosClass(StrEnum):
    """How a pod's requests stand to its limits. Source: Kubernetes ``PodQOSClass``."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class PodUse:
    """What a pod uses; ``None`` where it is not known.

    Attributes:
        memory_bytes: its working set.
        pids: its processes.
        writable_bytes: its containers' writable layers.
        log_bytes: its containers' logs.
        volume_bytes: its local volumes.
        writable_inodes: inodes of the writable layers.
        log_inodes: inodes of the logs.
        volume_inodes: inodes of the local volumes.
    """

    memory_bytes: int | None = None
    pids: int | None = None
    writable_bytes: int | None = None
    log_bytes: int | None = None
    volume_bytes: int | None = None
    writable_inodes: int | None = None
    log_inodes: int | None = None
    volume_inodes: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What one container uses, asks for and may use at most; limits of 0 are none, requests of ``None`` unknown."""

    name: str
    memory_bytes: int | None = None
    memory_request_bytes: int | None = None
    writable_bytes: int | None = None
    log_bytes: int | None = None
    storage_request_bytes: int = 0
    storage_limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EmptyDir:
    """A pod's emptyDir volume with its limit; a limit of 0 is none."""

    name: str
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What ranking needs of a pod that is not terminated.

    Attributes:
        priority: ``None`` where nothing tells; counts as 0.
        priority_source: where the priority is from, such as ``kubelet`` or ``annotation``.
        static: whether it comes from a manifest on the node; ``None`` where it cannot be told.
        mirror: whether it mirrors such a pod in the API.
        critical_because: why it counts as critical whatever its priority; empty if it does not.
        contradiction: how sources disagree about it; empty if they do not.
        memory_request_bytes: 0 for none; ``None`` where nothing tells.
        storage_request_bytes: ephemeral storage, 0 for none.
        grace_s: the pod's own termination grace period.
        use: what it uses; ``None`` without any statistics.
        started_at: when it started, which settles ties: the youngest goes first.
    """

    uid: str
    namespace: str
    name: str
    priority: int | None = None
    priority_source: str = ""
    qos: QosClass | None = None
    static: bool | None = False
    mirror: bool = False
    critical_because: str = ""
    contradiction: str = ""
    memory_request_bytes: int | None = 0
    storage_request_bytes: int = 0
    grace_s: float = 30.0
    use: PodUse | None = None
    started_at: datetime | None = None
    containers: tuple[ContainerUse, ...] = ()
    empty_dirs: tuple[EmptyDir, ...] = ()

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"
