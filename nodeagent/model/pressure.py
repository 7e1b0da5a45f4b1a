"""Node pressure: eviction signals and their readings, memory by its parts, and the facts of eviction candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from nodeagent.model.runtime import FsObservation

T_co = TypeVar("T_co", covariant=True)


class Signal(StrEnum):
    """Eviction signals in the kubelet's spelling; their order decides between equally urgent thresholds.

    PSI signals (``.psi.``) are the percentage of time stalled over ten seconds. The kubelet has neither PSI signals nor
    ``swap.free``.

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
    """Formula of ``memory.available``: capacity minus working set, or ``MemAvailable`` of /proc/meminfo."""

    WORKING_SET = "working-set"
    MEM_AVAILABLE = "mem-available"


class Resource(StrEnum):
    """Resource freed by an eviction, spelt as in the kubelet's messages."""

    MEMORY = "memory"
    EPHEMERAL_STORAGE = "ephemeral-storage"
    INODES = "inodes"
    PIDS = "pids"


class NodeCondition(StrEnum):
    """Condition of a node under pressure. Source: Kubernetes node conditions."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


class FilesystemRole(StrEnum):
    """Role of a filesystem; several roles may share one device. The first three have eviction signals.

    The values are part of the JSON output and of metrics; existing values never change.

    Attributes:
        POD_LOGS: log directories of the pods.
        POD_VOLUMES: volumes of the pods, below the root directory of the kubelet.
        RUNTIME_STATE: state of running sandboxes and containers, such as ``/run/containerd``.
        AGENT_STATE: databases of the agent.
    """

    NODEFS = "nodefs"
    IMAGEFS = "imagefs"
    CONTAINERFS = "containerfs"
    POD_LOGS = "pod-logs"
    POD_VOLUMES = "pod-volumes"
    RUNTIME_STATE = "runtime-state"
    AGENT_STATE = "agent-state"


NEARLY_FULL_PERCENT: Final = 5
"""Available share of bytes or inodes below which a filesystem is reported as nearly full."""
_EFFECTS: Final[Mapping[FilesystemRole, str]] = MappingProxyType(
    {
        FilesystemRole.IMAGEFS: "image pulls fail",
        FilesystemRole.NODEFS: "no pod starts",
        FilesystemRole.CONTAINERFS: "writes of containers fail",
        FilesystemRole.POD_LOGS: "container logs are lost",
        FilesystemRole.POD_VOLUMES: "no pod starts",
        FilesystemRole.RUNTIME_STATE: "no pod starts",
        FilesystemRole.AGENT_STATE: "the agent records nothing",
    }
)


class NodeFilesystem(Record):
    """A filesystem that the runtime, the pods or the agent need.

    Attributes:
        name: name for display, such as ``imagefs = nodefs``.
        path: path of the first role.
        observed: reading of the filesystem; ``None`` after a failed reading.
        problem: cause of the failed reading; empty after a successful reading.
    """

    name: str
    path: str
    roles: tuple[FilesystemRole, ...]
    observed: FsObservation | None = None
    problem: str = ""

    @property
    def nearly_full(self) -> str:
        """Sentence on the available share and the consequences, if a share is below 5 %; otherwise empty."""
        if self.observed is None:
            return ""
        shares = (
            ("bytes", self.observed.available_bytes, self.observed.capacity_bytes),
            ("inodes", self.observed.inodes_free, self.observed.inodes),
        )
        little = " and ".join(
            f"{100 * available / total:.1f}% of {unit}"
            for unit, available, total in shares
            if total and 100 * available < NEARLY_FULL_PERCENT * total
        )
        effects = ", ".join(dict.fromkeys(_EFFECTS[each] for each in self.roles))
        return f"{self.path} ({', '.join(self.roles)}): {little} available; if it is full: {effects}" if little else ""


class FilesystemLayout(StrEnum):
    """Devices of nodefs, imagefs and containerfs.

    ``SINGLE``: one device. ``DEDICATED_IMAGEFS``: images and writable layers on one device, nodefs on another.
    ``SPLIT``: images on one device, writable layers on nodefs.

    Source: kubelet ``HasDedicatedImageFs``, ``HasSplitContainerImageFs``.
    """

    SINGLE = "single"
    DEDICATED_IMAGEFS = "dedicated-imagefs"
    SPLIT = "split"


class OtherFilesystem(NamedTuple):
    """A filesystem with eviction thresholds besides nodefs, imagefs and containerfs.

    It is either an image filesystem other than the first, such as for the snapshotter of another runtime handler, or
    the filesystem of the pod logs, if these are on a filesystem of their own.

    Attributes:
        path: a path on the filesystem, for display and readings.
        device_id: device id at the discovery of the filesystem; a changed device id means another filesystem.
        stores: names of the snapshotters on an image filesystem, at least one; empty for the filesystem of the logs.
        on_nodefs: whether the filesystem is also nodefs.
    """

    path: str
    device_id: int
    stores: frozenset[str]
    on_nodefs: bool = False

    @property
    def has_logs(self) -> bool:
        """Whether this is the filesystem of the pod logs."""
        return not self.stores


def has_separate_logs(others: Iterable[OtherFilesystem]) -> bool:
    """Return whether the pod logs are on one of these filesystems, rather than on nodefs."""
    return any(each.has_logs for each in others)


class Measurand(NamedTuple):
    """A signal and its filesystem; ``path`` is set only for filesystems besides the first ones."""

    signal: Signal
    path: str = ""


class Moment(Record):
    """One instant on both clocks.

    Attributes:
        at: wall time, aware UTC, for display and records.
        monotonic_s: monotonic seconds, including suspend. Ages and periods are computed from monotonic seconds, so that
            a step of the wall clock has no effect on ages and periods.
    """

    at: datetime
    monotonic_s: float


class SignalReading(Record):
    """One reading of one signal, before validation.

    Attributes:
        available: available amount in bytes, inodes or PIDs; for PSI signals the percentage of time stalled.
        capacity: capacity in the unit of ``available``; 100 for PSI signals.
        observed_at: time of the reading.
        memory: the estimates and parts of the node's memory, from which ``available`` is decided; ``None`` for other
            signals.
        path: path of an :class:`OtherFilesystem`; empty otherwise.
        limited_by: limit of a cgroup above the pods that bounds ``available`` or ``capacity``, such as
            ``memory.max 4.00 GiB of /sys/fs/cgroup``; empty if only the machine does.
    """

    signal: Signal
    available: float
    capacity: float
    observed_at: Moment
    memory: NodeMemory | None = None
    path: str = ""
    limited_by: str = ""

    @property
    def kernel_available(self) -> float | None:
        """``MemAvailable``, the kernel's estimate of available memory; ``None`` without this estimate."""
        return None if self.memory is None else self.memory.kernel_available

    @property
    def measurand(self) -> Measurand:
        """The signal with its filesystem."""
        return Measurand(self.signal, self.path)


class FactSource(StrEnum):
    """Source of a pod fact, most reliable first. ``MISSING`` is the source of the value ``None``."""

    API_SERVER = "api-server"
    KUBELET = "kubelet"
    MANIFEST = "manifest"
    CRI = "cri"
    CGROUP = "cgroup"
    INFERRED = "inferred"
    ASSUMED = "assumed"
    MISSING = "missing"


class Fact(Record, Generic[T_co]):
    """A value with its source."""

    value: T_co
    source: FactSource


UNKNOWN: Fact[None] = Fact(None, FactSource.MISSING)
"""An unknown fact; a pod with an unknown required fact is not evicted."""


class QosClass(StrEnum):
    """Quality of service class of a pod. Source: Kubernetes pod quality of service."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class PodLifecycle(StrEnum):
    """Lifecycle of a pod. ``ENDING``: being terminated. ``FINISHED``: no container will run again."""

    ACTIVE = "active"
    ENDING = "ending"
    FINISHED = "finished"


class Footprint(Record):
    """Disk usage in bytes and inodes; ``None`` where unknown.

    Attributes:
        is_lower_bound: whether the measurement is incomplete, so that the usage may be higher.
    """

    used_bytes: int | None = None
    used_inodes: int | None = None
    is_lower_bound: bool = False


class LayerUsage(NamedTuple):
    """One writable layer of a pod.

    Attributes:
        used: disk usage of the layer.
        device_id: device id of the layer's filesystem, from the mounts of the agent's process; ``None`` if unknown.
        snapshotter: snapshotter of the layer, as reported by the runtime; empty if unknown.
    """

    used: Footprint
    device_id: int | None = None
    snapshotter: str = ""


class PodUsage(Record):
    """Current usage of a pod; ``None`` where unknown.

    Attributes:
        memory_bytes: working set of the pod's cgroup: usage minus inactive file pages, at least 0.
        swap_bytes: swapped-out memory.
        pids: tasks in the pod's cgroup.
        writable: all containers' writable layers.
        logs: all containers' logs.
        volumes: volumes on the node's own filesystem: emptyDir on disk, hostPath, configMap.
        ephemeral_bytes: usage counted against the pod's storage limit: writable layers, logs, ephemeral volumes, the
            pod's log directory and hosts file.
        layers: the layers of ``writable``; empty if not measured.
        memory_volumes_bytes: part of ``memory_bytes`` in memory volumes, which outlive the processes of the pod.
        memory_cache_bytes: part of ``memory_bytes`` in active page cache and reclaimable slab, which remain cached.
        stalled_some_percent: percentage of time in which a process of the pod waited for memory, over ten seconds.
        stalled_full_percent: percentage of time in which all its processes waited for memory, over ten seconds.

    Source: cgroup v2 ``memory.current`` and ``memory.stat``, ``memory.swap.current``, ``pids.current``,
    ``memory.pressure``; CRI ``ContainerStats``; kubelet ``podDiskUsage``, ``podLocalEphemeralStorageUsage``.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    writable: Footprint = Footprint()
    logs: Footprint = Footprint()
    volumes: Footprint = Footprint()
    ephemeral_bytes: int | None = None
    layers: tuple[LayerUsage, ...] = ()
    memory_volumes_bytes: int = 0
    memory_cache_bytes: int = 0
    stalled_some_percent: float | None = None
    stalled_full_percent: float | None = None


class ContainerFacts(Record):
    """Facts of one running container.

    Attributes:
        writable_bytes: size of the writable layer; ``None`` if unknown, or if the layer has a copy of the image.
        memory_request_bytes: memory request; 0 for no request, ``None`` if unknown.
        ephemeral_request_bytes: ephemeral storage request; 0 for no request, ``None`` if unknown.
        ephemeral_limit_bytes: ephemeral storage limit; ``None`` or 0 for no limit or an unknown limit.
        memory_request_text: memory request as written in the definition, for display; likewise the other texts.
        memory_request_inferred: whether the memory request is not from a definition of the pod.
    """

    name: str
    memory_bytes: int | None = None
    memory_request_bytes: int | None = None
    writable_bytes: int | None = None
    logs_bytes: int | None = None
    ephemeral_request_bytes: int | None = None
    ephemeral_limit_bytes: int | None = None
    memory_request_text: str = ""
    ephemeral_request_text: str = ""
    ephemeral_limit_text: str = ""
    memory_request_inferred: bool = False


class EmptyDirFacts(Record):
    """Facts of one emptyDir volume; a limit of ``None`` or 0 means unlimited."""

    name: str
    used_bytes: int | None = None
    limit_bytes: int | None = None
    limit_text: str = ""


class PodFacts(Record):  # one attribute per fact
    """Facts of one pod; each fact that decides on its eviction has a source.

    A required fact that is ``UNKNOWN`` protects the pod; an assumption is a value with the source ``ASSUMED``.

    Attributes:
        priority: 0 for a pod without priority.
        priority_class: name of its priority class; empty if unknown.
        static: whether the pod is defined by a file or URL of the node, not by the API server.
        mirror: whether the pod is the API server's mirror of a static pod.
        critical: whether the pod is critical by its priority class or priority.
        memory_request_bytes: memory request of the whole pod; 0 for no request.
        ephemeral_request_bytes: ephemeral storage request of the whole pod; 0 for no request.
        ephemeral_limit_bytes: storage limit of the whole pod; ``None`` for no limit or an unknown limit.
        ephemeral_limit_text: a limit as written that is part of it, for display.
        termination_grace_s: configured termination grace period in seconds.
        usage: current usage of the pod; ``None`` if unknown.
        contradictions: contradictions between the sources, as sentences.
        ignored: ignored marks of the pod (malformed, or not from a trusted source), as sentences.
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
    ephemeral_limit_text: str = ""
    termination_grace_s: Fact[float | None] = UNKNOWN
    usage: PodUsage | None = None
    containers: tuple[ContainerFacts, ...] = ()
    empty_dirs: tuple[EmptyDirFacts, ...] = ()
    lifecycle: PodLifecycle = PodLifecycle.ACTIVE
    contradictions: tuple[str, ...] = field(default=())
    ignored: tuple[str, ...] = field(default=())


class MemoryPart(StrEnum):
    """Part of the node's memory; every page belongs to exactly one part.

    The values are part of the JSON output; existing values never change.

    Attributes:
        PAGE_CACHE_OTHER: swap cache and file pages that are locked or isolated.
        SHARED: tmpfs files, shared memory and memfd.
        RECLAIMABLE_SLAB: slab and other kernel memory with a shrinker, such as dentries and inodes.
        VMALLOC: vmalloc areas without kernel stacks.
        COMPRESSED_SWAP: pages of zram and zswap.
        OTHER_OF_PODS: memory charged to pods that no counter of the node contains, such as pipe and socket buffers.
        UNEXPLAINED: the remainder without a reading, such as pages of drivers and network buffers.
    """

    FREE = "free"
    ANONYMOUS_OF_PODS = "anonymous-of-pods"
    ANONYMOUS = "anonymous"
    PAGE_CACHE_ACTIVE = "page-cache-active"
    PAGE_CACHE_INACTIVE = "page-cache-inactive"
    PAGE_CACHE_OTHER = "page-cache-other"
    SHARED = "shared-and-tmpfs"
    RECLAIMABLE_SLAB = "reclaimable-slab"
    UNRECLAIMABLE_SLAB = "unreclaimable-slab"
    KERNEL_STACKS = "kernel-stacks"
    PAGE_TABLES = "page-tables"
    PER_CPU = "per-cpu"
    VMALLOC = "vmalloc"
    HUGE_PAGES = "huge-pages"
    BALLOON = "balloon"
    COMPRESSED_SWAP = "compressed-swap"
    ARC_SHRINKABLE = "zfs-arc-shrinkable"
    ARC_KEPT = "zfs-arc-kept"
    OTHER_OF_PODS = "other-of-pods"
    UNEXPLAINED = "unexplained"


class PodsMemory(Record):
    """Memory charged to the cgroup of all pods, in bytes.

    Attributes:
        shared: tmpfs files and shared memory; includes files of pods that have ended, until their volumes are removed.
        kernel: slab that is not reclaimable, kernel stacks, page tables, per-CPU and vmalloc memory.
        other: the charged memory without a counter of its own, such as pipe and socket buffers.

    Source: kernel cgroup-v2.rst, ``memory.current`` and ``memory.stat``.
    """

    anonymous: int
    shared: int
    kernel: int = 0
    other: int = 0


class ArcSize(Record):
    """Size of the ZFS cache (ARC), in bytes.

    Attributes:
        data: part of ``size`` in pages that the kernel counts nowhere; the rest is in slab.
        minimum: size to which memory pressure can shrink the cache.
        evictable: clean buffers without users; ``None`` if not reported.

    Source: OpenZFS ``arcstats``.
    """

    size: int
    data: int
    minimum: int
    evictable: int | None = None

    @property
    def shrinkable(self) -> int:
        """Bytes that the cache frees under memory pressure. Source: OpenZFS ``arc_evictable_memory``."""
        above_minimum = max(0, self.size - self.minimum)
        return above_minimum if self.evictable is None else min(above_minimum, self.evictable)


class MemoryCounters(Record):
    """Readings of the kernel's memory statistics; the amounts in bytes, the counters since boot.

    Attributes:
        total: memory of the node.
        page_cache: all file pages, with buffers, swap cache, tmpfs and shared memory.
        active_file: file pages on the active list; with ``inactive_file`` without locked pages.
        slab_reclaimable: slab and other kernel memory with a shrinker.
        vmalloc: vmalloc areas, including kernel stacks.
        unevictable: pages that cannot be reclaimed, such as locked pages; contained in other amounts.
        locked: the part of ``unevictable`` locked by mlock.
        zswapped: memory of the pages that are stored in zswap, before compression.
        compressed_swap: pages of zram and zswap; ``None`` if not read.
        pods: memory of all pods; ``None`` without a cgroup of pods, or if not read.
        arc: the ZFS cache; ``None`` without ZFS, or if not read.
        minimum_free: free memory below which allocations wait for reclaim, in all zones; ``None`` if not read.
        reserve_free: free memory below which the kernel reclaims in the background; ``MemAvailable`` excludes it;
            ``None`` if not read.

    Source: proc(5), ``meminfo``; kernel ``calculate_totalreserve_pages``.
    """

    total: int
    free: int
    anonymous: int
    page_cache: int
    active_file: int
    inactive_file: int
    shared: int
    slab_reclaimable: int
    slab_unreclaimable: int
    kernel_stacks: int = 0
    page_tables: int = 0
    per_cpu: int = 0
    vmalloc: int = 0
    huge_pages: int = 0
    balloon: int = 0
    swap_cached: int = 0
    unevictable: int = 0
    locked: int = 0
    zswapped: int = 0
    compressed_swap: int | None = None
    pods: PodsMemory | None = None
    arc: ArcSize | None = None
    minimum_free: int | None = None
    reserve_free: int | None = None


class ReclaimActivity(Record):
    """Changes of the kernel's counters between two readings.

    Attributes:
        scanned: pages scanned by the node's reclaim, in the background and directly; not for limits of cgroups.
        direct: allocations that waited for the node's reclaim.
        refaulted: reclaimed pages that were read again soon.
        available_fell: decrease of ``MemAvailable`` in bytes; negative for an increase.
        unexplained_grew: increase of the memory without a reading in bytes, with the ZFS cache.

    Source: kernel ``/proc/vmstat``: ``pgscan_kswapd``, ``pgscan_direct``, ``allocstall``, ``workingset_refault``.
    """

    scanned: int
    direct: int
    refaulted: int
    available_fell: int
    unexplained_grew: int


class NodeMemory(Record):
    """The estimates of available memory of one reading, with the readings that decide between them.

    They are of the machine, or of a cgroup above the pods with a limit of memory, in place of which they have the same
    meaning: the limit is the memory, ``free`` the part of the limit without a charge. Only charges at this limit count
    as reclaim.

    Attributes:
        formula: capacity minus working set, as in the kubelet; ``None`` if the setting excludes this estimate.
        kernel_available: ``MemAvailable``, for a cgroup free memory, page cache and reclaimable slab; ``None`` if
            unknown or if the setting excludes this estimate.
        counters: the parts of the memory; ``None`` if unknown.
        activity: reclaim since an earlier reading; ``None`` without an earlier reading.
        stall_percent: share of time in which tasks waited for memory, over ten seconds; ``None`` without PSI.
        limited_by: the limit with its cgroup, for display; empty for the memory of the machine.
    """

    formula: float | None = None
    kernel_available: float | None = None
    counters: MemoryCounters | None = None
    activity: ReclaimActivity | None = None
    stall_percent: float | None = None
    limited_by: str = ""
