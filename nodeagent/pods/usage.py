"""Usage of pods: cgroups, and logs, volumes and writable layers by a queue of walks, merged into the readings of pods.

The runtime measures the writable layers that the walks cannot: neither containerd's statistics nor the mounts include
the layers of exited containers. A pod could otherwise hide usage in an exited container, because container garbage
collection keeps the newest instance of each container, also under pressure. containerd 2.1 also reports no layer usage
for a snapshotter that is configured only for a runtime handler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.guarded_call import call_kernel
from nodeagent.host import cgroups
from nodeagent.host.filesystems import read_mounts
from nodeagent.host.kubelet_traces import KUBELET_ROOT
from nodeagent.host.meminfo import read_totals
from nodeagent.host.pod_disk import (
    PodDisk,
    PodDiskWalk,
    find_layer_devices,
    find_upper_directories,
    memory_volumes_bytes,
)
from nodeagent.model.pods import ContainerHandle, ContainerTraits, PodHandle, PodReading, RuntimePod
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.model.runtime import Container, ContainerState, Space
from nodeagent.pods.plan.facts import qos_of_cgroup
from nodeagent.record import Record, field, replace
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.cri import ContainerUsage

if TYPE_CHECKING:
    from nodeagent.host.disk_usage import Tree

_WITHIN_S: Final = 5.0
_SHARED_BYTES: Final = 1 << 20
"""Shared memory in bytes from which the memory volumes of a pod are measured."""
_ROUNDING_BYTES: Final = 64 << 10
"""Largest page size in bytes; the kernel rounds memory limits down to whole pages."""


class PodCgroups:
    """Reader of the usage of pods from their cgroups."""

    def __init__(self, root: Path, kubelet_root: Path = KUBELET_ROOT, *, with_stalls: bool = False) -> None:
        """Create a reader without reading cgroups.

        Args:
            root: parent of ``proc`` and ``sys``.
            kubelet_root: the kubelet's root directory, which contains the volumes of pods.
            with_stalls: whether the memory stalls of pods are read.
        """
        self._root = root
        self._kubelet_root = kubelet_root
        self._with_stalls = with_stalls
        self._cgroups = cgroups.Cgroups(root)
        self._directories: dict[str, str] = {}
        self._memory_min: dict[str, int] = {}
        self._memory_max: dict[str, int] = {}
        self._capacity_bytes: int | None = None

    @property
    def has_memory(self) -> bool:
        """Whether the kernel reports memory usage of cgroups."""
        return self._cgroups.has_memory

    @property
    def memory_min_bytes(self) -> Mapping[str, int]:
        """``memory.min`` of pod cgroups read so far, by sandbox id."""
        return self._memory_min

    def memory_capacity_bytes(self, warnings: list[str]) -> int | None:
        """Return the memory of the machine in bytes; ``None``, with a warning added, after a failed reading.

        The kubelet computes OOM scores from the memory of the machine, also in a container with a limit, so that no
        limit of a cgroup bounds it. Source: kubelet ``GetContainerOOMScoreAdjust``, ``MachineInfo``.
        """
        if self._capacity_bytes is None:
            try:
                self._capacity_bytes = read_totals().memory
            except ObservationError as error:
                warnings.append(f"memory requests cannot be inferred: {error}")
        return self._capacity_bytes

    def drop_removed(self, listed: set[str]) -> None:
        """Drop the entries of sandboxes and containers that are no longer listed."""
        known: dict[str, Any]
        for known in (self._memory_min, self._memory_max, self._directories):
            for removed in known.keys() - listed:
                del known[removed]

    async def find_resized(self, traits: Mapping[str, ContainerTraits]) -> frozenset[str]:
        """Return the ids of containers with a changed memory limit, and read ``memory.min`` of pod cgroups again.

        A resize changes the limit in place, without a restart. After a timeout no container counts as resized.

        Args:
            traits: container traits by container id, as read from the runtime.

        Source: Kubernetes in-place pod resize; CRI ``UpdateContainerResources``.
        """
        try:
            async with asyncio.timeout(_WITHIN_S):
                return await call_kernel(self._find_resized, dict(traits))
        except TimeoutError:
            return frozenset()

    def find_handles(self, pods: Sequence[RuntimePod]) -> dict[str, PodHandle]:
        """Return the handle of each pod by UID, with sandboxes, containers and existing cgroups."""
        shared = Counter(cgroups.expand_parent(pod.cgroup_parent) for pod in pods)
        return {pod.uid: self._handle(pod, shared) for pod in pods}

    async def read(
        self, pods: Sequence[RuntimePod], handles: Mapping[str, PodHandle], warnings: list[str]
    ) -> dict[str, PodReading]:
        """Return memory, swap and PIDs of each pod, by UID; empty, with a warning added, after a timeout."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                return await call_kernel(self._read_all, pods, handles)
        except TimeoutError:
            warnings.append(f"cannot read the cgroups of pods: no answer within {_WITHIN_S:g} s")
            return {}

    def _handle(self, pod: RuntimePod, shared: Mapping[str, int]) -> PodHandle:
        pod_cgroup = None
        # A parent shared by several pods, or outside of pods, would include the usage of other processes.
        if shared[cgroups.expand_parent(pod.cgroup_parent)] == 1 and _is_of_pod(pod):
            pod_cgroup = self._directory(pod.sandbox.id, partial(self._cgroups.find, pod.cgroup_parent))
        containers = []
        for each in pod.running:
            traits = pod.traits.get(each.id)
            cgroups_path = traits.cgroups_path if traits else ""
            find = partial(self._cgroups.find_container, cgroups_path, each.id, pod_cgroup)
            directory = self._directory(each.id, find)
            pid = traits.pid if traits else None
            containers.append(ContainerHandle(each.id, each.name, directory, pid, each.image_ref))
        return PodHandle(pod.uid, pod.sandbox_ids, tuple(containers), pod_cgroup, pod.sandbox_files)

    def _directory(self, key: str, find: Callable[[], str | None]) -> str | None:
        """Return the cgroup directory of a sandbox or container; ``None`` until found."""
        directory = self._directories.get(key)
        if directory is None:
            directory = find()
            if directory is not None:
                self._directories[key] = directory
        return directory

    def _find_resized(self, traits: Mapping[str, ContainerTraits]) -> frozenset[str]:
        for sandbox_id in list(self._memory_min):  # a copy, since the thread of a timed out reading may add entries
            directory = self._directories.get(sandbox_id)
            if directory is not None:
                self._memory_min[sandbox_id] = cgroups.read_memory_min(directory) or 0
        resized = set()
        for container_id, known in traits.items():
            directory = self._directories.get(container_id)
            limit_bytes = None if directory is None else cgroups.read_memory_max(directory)
            if limit_bytes is None:
                continue
            before = self._memory_max.get(container_id)
            self._memory_max[container_id] = limit_bytes
            if before is None:  # the first reading, which may be later than a resize
                expected = known.memory_limit_bytes
                if expected is not None and abs(expected - limit_bytes) >= _ROUNDING_BYTES:
                    resized.add(container_id)
            elif before != limit_bytes:
                resized.add(container_id)
        return frozenset(resized)

    def _read_all(self, pods: Sequence[RuntimePod], handles: Mapping[str, PodHandle]) -> dict[str, PodReading]:
        found = {pod.uid: self._read_pod(pod, handles[pod.uid]) for pod in pods}
        shared = {uid: each.memory_volumes_bytes for uid, each in found.items()}
        if any(shared.values()):
            mounts = read_mounts(str(self._root / "proc/self/mountinfo"))
            kubelet_root = os.path.realpath(self._kubelet_root)
            for uid, most_bytes in shared.items():
                used_bytes = memory_volumes_bytes(uid, kubelet_root, mounts) if most_bytes else 0
                found[uid] = replace(found[uid], memory_volumes_bytes=min(most_bytes, used_bytes))
        return found

    def _read_pod(self, pod: RuntimePod, handle: PodHandle) -> PodReading:
        """Return the reading of a pod, with all its shared memory as an upper bound of its memory volumes."""
        directories = {each.id: each.cgroup for each in handle.containers if each.cgroup is not None}
        memory = cgroups.read_working_sets(directories)
        if handle.cgroup is not None:
            usage = cgroups.read_usage(handle.cgroup)
            if pod.memory_min_bytes is None and usage is not None:
                self._memory_min[pod.sandbox.id] = cgroups.read_memory_min(handle.cgroup) or 0
        else:
            usage = _total_usage(directories, len(handle.containers))
        if usage is None:
            return PodReading(container_memory_bytes=memory)
        stalls: tuple[float | None, float | None] = (None, None)
        if self._with_stalls and handle.cgroup is not None:
            stalls = cgroups.read_memory_stalls(handle.cgroup)
        return PodReading(
            usage.memory_bytes,
            usage.swap_bytes,
            usage.pids,
            memory,
            memory_volumes_bytes=usage.shared_bytes if usage.shared_bytes >= _SHARED_BYTES else 0,
            memory_cache_bytes=usage.cache_bytes,
            stalled_some_percent=stalls[0],
            stalled_full_percent=stalls[1],
        )


def _is_of_pod(pod: RuntimePod) -> bool:
    """Return whether the name of a pod's cgroup parent identifies a cgroup of that pod alone."""
    last = pod.cgroup_parent.rstrip("/").rpartition("/")[2]
    return qos_of_cgroup(pod.cgroup_parent)[0] is not None or pod.uid in last or pod.uid.replace("-", "_") in last


def _total_usage(directories: Mapping[str, str], count: int) -> cgroups.CgroupUsage | None:
    """Return the total usage of ``count`` containers; ``None`` if the cgroup of a container is unreadable."""
    usages = [usage for each in directories.values() if (usage := cgroups.read_usage(each)) is not None]
    if not usages or len(usages) < count:
        return None
    return cgroups.CgroupUsage(
        total(each.memory_bytes for each in usages),
        total(each.swap_bytes for each in usages),
        total(each.pids for each in usages),
        sum(each.shared_bytes for each in usages),
        sum(each.cache_bytes for each in usages),
    )


def total(parts: Iterable[int | None]) -> int | None:
    """Return the sum of the parts; ``None`` if a part is ``None``."""
    result = 0
    for part in parts:
        if part is None:
            return None
        result += part
    return result


MeasureLayer = Callable[[str, str], Awaitable[Space | None]]


SLICE_S: Final = 0.02
"""Time slice of one walk in seconds, before the next walk continues."""

HANGS_S: Final = 1.5
"""Seconds without the end of a time slice after which a walk counts as hanging: a directory does not answer."""

MOST_HANGING: Final = 4
"""Maximum number of hanging walks for which another worker thread is started."""

LONGEST_S: Final = 120.0
"""Seconds after which a walk is abandoned."""


class Walk(Protocol):
    """A directory walk that advances in steps."""

    def advance(self, until_s: float) -> bool:
        """Continue by at least one step, until ``until_s`` of ``time.monotonic``; return whether the walk ended."""

    def close(self) -> None:
        """Release the resources of a walk before its end."""


@dataclasses.dataclass(slots=True, eq=False)
class QueuedWalk:
    """A walk and its state.

    Attributes:
        started_s: creation time of the walk, on the clock of ``time.monotonic``.
        turn_s: start of the current time slice; ``None`` between time slices.
        ended_s: time of the end, the error or the cancellation of the walk; ``None`` before its end.
        cancelled: whether the walk is to end before its next time slice.
        error: the exception that ended the walk.
    """

    walk: Walk
    started_s: float = dataclasses.field(default_factory=time.monotonic)
    turn_s: float | None = None
    ended_s: float | None = None
    cancelled: bool = False
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether the walk ended, with or without an error."""
        return self.ended_s is not None

    @property
    def hangs(self) -> bool:
        """Whether a step of the walk does not return."""
        turn_s = self.turn_s
        return not self.ended and turn_s is not None and time.monotonic() - turn_s > HANGS_S


class WalkQueue:
    """Queue that advances walks in turn, so that a large walk does not delay other walks.

    One worker thread serves all walks until the queue is empty. While a walk hangs, another worker thread is started,
    for at most ``MOST_HANGING`` hanging walks: a stat on a dead mount never returns. The threads do not delay the exit
    of the process.
    """

    def __init__(self) -> None:
        """Create a queue without walks and threads."""
        self._lock = threading.Lock()
        self._waiting: deque[QueuedWalk] = deque()
        self._in_turn: list[QueuedWalk] = []
        self._on_end: Callable[[], None] = lambda: None

    def add(self, walks: Iterable[Walk], on_end: Callable[[], None]) -> list[QueuedWalk]:
        """Start walks and return their states; ``on_end`` is called in a worker thread at the end of each walk.

        The callback of the last call applies to all walks.
        """
        added = [QueuedWalk(each) for each in walks]
        with self._lock:
            self._on_end = on_end
            self._waiting += added
            self._start_worker()
        return added

    def replace_hanging_workers(self) -> None:
        """Start another worker thread if hanging walks occupy all worker threads."""
        with self._lock:
            self._start_worker()

    def _start_worker(self) -> None:
        working = [each for each in self._in_turn if not each.hangs]
        if self._waiting and not working and len(self._in_turn) <= MOST_HANGING:
            first = self._take()
            if first is not None:
                threading.Thread(target=self._run, args=(first,), name="disk-walk", daemon=True).start()

    def _take(self) -> QueuedWalk | None:
        """Return the next walk, after ending cancelled and overdue walks; ``None`` if no walk is waiting."""
        while self._waiting:
            taken = self._waiting.popleft()
            if not (taken.cancelled or time.monotonic() - taken.started_s > LONGEST_S):
                taken.turn_s = time.monotonic()
                self._in_turn.append(taken)
                return taken
            self._end(taken)
        return None

    def _run(self, current: QueuedWalk) -> None:
        taken: QueuedWalk | None = current
        while taken is not None:
            ended = True
            try:
                ended = taken.walk.advance(time.monotonic() + SLICE_S)
            except Exception as error:  # noqa: BLE001 - a failed walk must not end the other walks
                taken.error = error
            with self._lock:
                taken.turn_s = None
                self._in_turn.remove(taken)
                if ended:
                    self._end(taken)
                else:
                    self._waiting.append(taken)
                is_needed = not any(not each.hangs for each in self._in_turn)
                taken = self._take() if is_needed else None

    def _end(self, walk: QueuedWalk) -> None:
        walk.walk.close()
        walk.ended_s = time.monotonic()
        self._on_end()


WAIT_S: Final = 10.0
"""Maximum time in seconds for which a reading waits for directory walks."""

FRESH_S: Final = 120.0
"""Maximum age in seconds of the result of a walk longer than ``WAIT_S``."""

_NAMED: Final = 3


class DiskUsage(Record):
    """Disk usage measured by directory walks.

    Attributes:
        pods: logs and volumes by pod UID.
        layers: writable layers of running containers by container id, where known.
        devices: device ids of writable layers by container id, including layers that were not measured.
    """

    pods: Mapping[str, PodDisk] = field(default_factory=dict)
    layers: Mapping[str, Tree] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)

    def image_volumes(self, uid: str) -> tuple[LayerUsage, ...]:
        """Return the usage of the volumes declared by the images of a pod; empty without such volumes."""
        disk = self.pods.get(uid)
        return () if disk is None or disk.image_volumes is None else (disk.image_volumes,)


@dataclass(slots=True)
class _PodWalk:
    """The current walk of one pod.

    Attributes:
        is_slow: whether readings do not wait for the walk, since a wait for this walk or for the previous walk of the
            pod timed out.
    """

    disk: PodDiskWalk
    queued: QueuedWalk
    is_slow: bool


class _SlowResult(Record):
    """Complete result of a walk that took longer than the wait of a reading."""

    started_s: float
    disk: PodDisk


class PodDiskReader:
    """Reader of the disk usage of pods.

    The walks of all pods advance in turn. A walk longer than the wait of a reading continues in the background. Later
    readings use the result of that walk for ``FRESH_S`` seconds after the start of the walk, unless a newer walk
    measures growth. Otherwise the pod's usage is a lower bound.
    """

    def __init__(self, pod_log_root: Path, kubelet_root: Path, root: Path, *, wait_s: float = WAIT_S) -> None:
        """Create a reader without walking directories.

        Args:
            pod_log_root: parent of the log directories of pods without a configured log directory.
            kubelet_root: the kubelet's root directory, which contains the volumes of pods.
            root: parent of ``proc``.
            wait_s: time in seconds for which a reading waits for walks.
        """
        self._wait_s = wait_s
        self._pod_log_root = pod_log_root
        self._kubelet_root = kubelet_root
        self._mountinfo = str(root / "proc/self/mountinfo")
        self._queue = WalkQueue()
        self._walks: dict[str, _PodWalk] = {}
        self._slow: dict[str, _SlowResult] = {}
        self._devices: asyncio.Future[dict[str, int]] | None = None

    async def read(
        self, pods: Sequence[RuntimePod], log_directories: Mapping[str, str | None], warnings: list[str]
    ) -> DiskUsage:
        """Return the disk usage of pods.

        Args:
            pods: the pods to measure.
            log_directories: log directory by sandbox id; ``None`` or no entry for the default directory in the pod log
                root.
            warnings: receives a sentence for failed and for incomplete measurements.
        """
        self._drop_removed({pod.uid for pod in pods})
        new = await asyncio.to_thread(self._prepare, pods, log_directories)
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        queued = self._queue.add(new.values(), _notifier(loop, changed))
        for (uid, walk), one in zip(new.items(), queued, strict=True):
            self._walks[uid] = _PodWalk(walk, one, is_slow=uid in self._slow)
        await self._wait(changed)
        names = {pod.uid: f"{pod.sandbox.namespace}/{pod.sandbox.name}" for pod in pods}
        disks = {uid: self._result(uid) for uid in names}
        warnings += self._warnings(disks, names)
        devices = await self._find_devices([each.id for pod in pods for each in pod.running])
        return DiskUsage(disks, {key: tree for disk in disks.values() for key, tree in disk.layers.items()}, devices)

    async def _find_devices(self, container_ids: list[str]) -> Mapping[str, int]:
        """Return the device ids of writable layers by container id; empty while a filesystem does not answer."""
        if self._devices is not None and not self._devices.done():
            return {}
        self._devices = asyncio.ensure_future(asyncio.to_thread(find_layer_devices, container_ids, self._mountinfo))
        done, _ = await asyncio.wait({self._devices}, timeout=HANGS_S)
        return self._devices.result() if done else {}

    def close(self) -> None:
        """Cancel the walks in progress."""
        self._drop_removed(())

    def _drop_removed(self, uids: Collection[str]) -> None:
        """Remove ended walks, and cancel the walks of removed pods and of interrupted readings."""
        for uid, each in list(self._walks.items()):
            ended_s = each.queued.ended_s
            if ended_s is not None:
                took_s, disk = ended_s - each.queued.started_s, each.disk.reading()
                self._slow.pop(uid, None)
                if took_s > self._wait_s and disk.complete:
                    self._slow[uid] = _SlowResult(each.queued.started_s, disk)
            if ended_s is not None or uid not in uids or not each.is_slow:
                each.queued.cancelled = True
                if not each.queued.hangs:
                    del self._walks[uid]
        now_s = time.monotonic()
        self._slow = {
            uid: each for uid, each in self._slow.items() if uid in uids and now_s - each.started_s <= FRESH_S
        }

    def _prepare(self, pods: Sequence[RuntimePod], log_directories: Mapping[str, str | None]) -> dict[str, PodDiskWalk]:
        """Return a new walk for each pod without one in progress."""
        mounts = read_mounts(self._mountinfo)
        uppers = find_upper_directories([each.id for pod in pods for each in pod.running], self._mountinfo)
        found = {}
        for pod in pods:
            if pod.uid in self._walks:
                continue
            sandbox = pod.sandbox
            directory = log_directories.get(sandbox.id)
            name = f"{sandbox.namespace}_{sandbox.name}_{pod.uid}".replace("/", "_")
            found[pod.uid] = PodDiskWalk(
                pod.uid,
                Path(directory) if directory else self._pod_log_root / name,
                self._kubelet_root,
                upper_directories={each.id: uppers[each.id] for each in pod.running if each.id in uppers},
                sandbox_files=pod.sandbox_files,
                image_volumes=pod.image_volumes,
                mounts=mounts,
            )
        return found

    async def _wait(self, changed: asyncio.Event) -> None:
        """Wait for all walks except hanging ones, up to the time limit."""
        ends_s = time.monotonic() + self._wait_s
        while any(not (each.queued.ended or each.queued.hangs or each.is_slow) for each in self._walks.values()):
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                break
            changed.clear()
            try:
                async with asyncio.timeout(min(left_s, HANGS_S)):
                    await changed.wait()
            except TimeoutError:
                self._queue.replace_hanging_workers()
        for each in self._walks.values():
            each.is_slow = True

    def _result(self, uid: str) -> PodDisk:
        """Return the result of a pod's walk; before its end, a recent complete result unless the usage has grown."""
        reading, known = self._walks[uid].disk.reading(), self._slow.get(uid)
        return reading if reading.complete or known is None or _exceeds(reading, known.disk) else known.disk

    def _warnings(self, disks: Mapping[str, PodDisk], names: Mapping[str, str]) -> list[str]:
        found = []
        for uid, each in self._walks.items():
            if each.queued.error is not None and uid in names:
                found.append(f"cannot measure the disk usage of {names[uid]}: {each.queued.error!r}")
        hanging = [names[uid] for uid, each in self._walks.items() if each.queued.hangs and uid in names]
        if hanging:
            found.append(f"pod disk usage is incomplete for {_enumerate(hanging)}: a directory does not answer")
        slow = [names[uid] for uid, each in disks.items() if not each.complete and names[uid] not in hanging]
        if slow:
            found.append(f"pod disk usage is incomplete for {_enumerate(slow)}; at least the shown bytes")
        return found


def _notifier(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> Callable[[], None]:
    def notify() -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(changed.set)

    return notify


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _exceeds(reading: PodDisk, known: PodDisk) -> bool:
    """Return whether an incomplete reading shows growth since a complete reading."""
    pairs = [(reading.log_tree, known.log_tree), (reading.volumes, known.volumes)]
    if reading.image_volumes is not None and known.image_volumes is not None:
        pairs.append((reading.image_volumes.used, known.image_volumes.used))
    if any((new.used_bytes or 0) > (old.used_bytes or 0) for new, old in pairs if new is not None and old is not None):
        return True
    return any(
        tree.size_bytes > (known.layers[key].size_bytes if key in known.layers else 0)
        for key, tree in reading.layers.items()
    )


def replace_layers(
    stats: Mapping[str, ContainerUsage], layers: Mapping[str, Tree]
) -> tuple[dict[str, ContainerUsage], frozenset[str]]:
    """Return the runtime's statistics with measured writable layers, and the ids of containers with a lower bound.

    The runtime's sizes are up to ten seconds old. The size of an incomplete walk is used only if larger than the
    runtime's size.
    """
    found, lower_bounds = dict(stats), set[str]()
    for container_id, tree in layers.items():
        reported = found.get(container_id, ContainerUsage(container_id))
        if tree.complete or reported.writable_bytes is None or tree.size_bytes > reported.writable_bytes:
            found[container_id] = replace(reported, writable_bytes=tree.size_bytes, writable_inodes=tree.inodes)
            lower_bounds |= set() if tree.complete else {container_id}
    return found, frozenset(lower_bounds)


_COPIES: Final = frozenset({"native", "blockfile"})
"""Snapshotters whose writable layers contain a copy of the image. Source: containerd."""


def with_stats(
    reading: PodReading,
    pod: RuntimePod,
    stats: Mapping[str, ContainerUsage],
    *,
    fill_memory: bool,
    lower_bounds: Collection[str] = (),
) -> PodReading:
    """Return a reading with the writable layers of ``stats``; ``fill_memory`` adds the runtime's memory usage.

    Where the kernel reports memory, an unreadable cgroup makes a pod's usage unknown even if the runtime reports
    memory statistics: otherwise a dry run, which reads statistics, would select a pod that the daemon does not evict.

    The layer of an exited container counts if the runtime reports the layer. The bytes that a container wrote to a
    layer with a copy of the image are unknown: its limits must not count the image.
    """
    reported = {each.id: stats[each.id] for each in pod.containers if each.id in stats}
    layers = {key: each.writable_bytes for key, each in reported.items() if each.writable_bytes is not None}
    complete = all(each.id in layers for each in pod.running)
    inodes = [each.writable_inodes or 0 for each in reported.values()]
    is_lower_bound = not reported.keys().isdisjoint(lower_bounds)
    memory, memory_bytes = dict(reading.container_memory_bytes), reading.memory_bytes
    if fill_memory:
        memory = {
            key: each.working_set_bytes for key, each in reported.items() if each.working_set_bytes is not None
        } | memory
        if memory_bytes is None and pod.running:
            memory_bytes = total(memory.get(each.id) for each in pod.running)
    return replace(
        reading,
        memory_bytes=memory_bytes,
        container_memory_bytes=memory,
        writable=Footprint(sum(layers.values()), sum(inodes), is_lower_bound) if complete else None,
        container_writable_bytes={
            each.id: layers[each.id]
            for each in pod.running
            if each.id in layers and (each.id not in pod.traits or pod.traits[each.id].snapshotter not in _COPIES)
        },
    )


def with_layers(
    reading: PodReading,
    pod: RuntimePod,
    stats: Mapping[str, ContainerUsage],
    devices: Mapping[str, int],
    lower_bounds: Collection[str],
) -> PodReading:
    """Return a reading with the writable layers of all running and reported containers, each with its filesystem."""
    layers, running = [], frozenset(each.id for each in pod.running)
    for container in pod.containers:
        key, reported = container.id, stats.get(container.id)
        if reported is None and key not in running:
            continue
        used = Footprint()
        if reported is not None and reported.writable_bytes is not None:
            used = Footprint(reported.writable_bytes, reported.writable_inodes or 0, key in lower_bounds)
        traits = pod.traits.get(key)
        layers.append(LayerUsage(used, devices.get(key), "" if traits is None else traits.snapshotter))
    return replace(reading, layers=tuple(layers))


def with_disk_usage(reading: PodReading, disk: PodDisk | None) -> PodReading:
    """Return a reading with logs, volumes and the total for the comparison with the pod's storage limit.

    Large files of sandboxes count like a writable layer, since they are on the runtime's filesystem.
    """
    if disk is None:
        return reading
    files, writable = disk.sandbox_files, reading.writable
    if files is not None and writable is not None:
        both = Footprint(
            (writable.used_bytes or 0) + (files.used.used_bytes or 0),
            (writable.used_inodes or 0) + (files.used.used_inodes or 0),
            writable.is_lower_bound,
        )
        reading = replace(reading, writable=both, layers=(*reading.layers, files))
    parts = [each.used_bytes for each in (disk.log_tree, disk.volumes, files and files.used) if each is not None]
    parts += reading.container_writable_bytes.values()
    return replace(
        reading,
        logs=disk.logs,
        container_logs_bytes=disk.container_logs_bytes,
        volumes=disk.volumes,
        empty_dir_bytes=disk.empty_dir_bytes,
        ephemeral_bytes=sum(part or 0 for part in parts) if parts else None,
    )


WITHIN_S: Final = 10.0


async def measure_missing(
    pods: Sequence[RuntimePod], stats: Mapping[str, ContainerUsage], measure: MeasureLayer
) -> dict[str, ContainerUsage]:
    """Return statistics with a measured layer size for running containers without a layer size in ``stats``.

    Each measurement has a time limit of ten seconds; a container without a result is omitted.
    """
    missing = {
        each.id: store
        for pod in pods
        for each, store in with_snapshotters(pod, pod.running)
        if not is_measured(each.id, stats)
    }

    async def read(container_id: str) -> Space | None:
        try:
            async with asyncio.timeout(WITHIN_S):
                return await measure(missing[container_id], container_id)
        except (NodeAgentError, TimeoutError):
            return None

    found = await run_bounded(read, list(missing))
    return {
        key: replace(stats.get(key, ContainerUsage(key)), writable_bytes=used.size_bytes, writable_inodes=used.inodes)
        for key, used in zip(missing, found, strict=True)
        if used is not None
    }


def with_snapshotters(pod: RuntimePod, containers: Iterable[Container]) -> list[tuple[Container, str]]:
    """Return the containers of a pod with a known snapshotter, each with its snapshotter."""
    return [
        (each, traits.snapshotter)
        for each in containers
        if (traits := pod.traits.get(each.id)) is not None and traits.snapshotter
    ]


def is_measured(container_id: str, stats: Mapping[str, ContainerUsage]) -> bool:
    """Return whether the statistics include the size of a container's writable layer."""
    return container_id in stats and stats[container_id].writable_bytes is not None


_SLOW_FOR_S: Final = 120.0
"""Seconds after a timeout during which the layer is not measured again, so that slow layers delay few readings."""

AT_LEAST_ZERO: Final = Footprint(0, 0, is_lower_bound=True)


class ExitedLayers:
    """Reader of the writable layers of exited containers; a layer is measured once, since exited layers do not change.

    Attributes:
        measure: returns the usage of a layer by snapshotter and container id.
    """

    def __init__(self, measure: MeasureLayer, *, within_s: float = WITHIN_S) -> None:
        """Create a reader.

        Args:
            measure: returns the usage of a layer by snapshotter and container id.
            within_s: timeout of each measurement in seconds, and time in a reading after which no measurement starts.
        """
        self.measure = measure
        self._within_s = within_s
        self._known: dict[str, Footprint] = {}
        self._slow_until_s: dict[str, float] = {}

    async def read(
        self, pods: Sequence[RuntimePod], stats: Mapping[str, ContainerUsage]
    ) -> dict[str, tuple[LayerUsage, ...]]:
        """Return the layers of exited containers by pod UID, except the layers with a size in ``stats``.

        A layer counts as a lower bound of 0 after a timeout. A layer is omitted if the runtime cannot measure the
        layer, or if the measurements of other layers delayed the start of its measurement too long.
        """
        stores = {each.id: store for pod in pods for each, store in _exited(pod) if not is_measured(each.id, stats)}
        self._known = {key: each for key, each in self._known.items() if key in stores}
        now_s = asyncio.get_running_loop().time()
        self._slow_until_s = {key: at for key, at in self._slow_until_s.items() if key in stores and at > now_s}
        missing = [each for each in stores if each not in self._known and each not in self._slow_until_s]

        async def read(container_id: str) -> Footprint | None:
            began_s = asyncio.get_running_loop().time()
            if began_s > now_s + self._within_s:
                return None
            try:
                async with asyncio.timeout(self._within_s):
                    used = await self.measure(stores[container_id], container_id)
            except TimeoutError:
                self._slow_until_s[container_id] = began_s + _SLOW_FOR_S
                return AT_LEAST_ZERO
            except NodeAgentError:
                return None
            if used is None:
                return None
            self._known[container_id] = Footprint(used.size_bytes, used.inodes)
            return self._known[container_id]

        measured: dict[str, Footprint | None] = {
            **dict.fromkeys(self._slow_until_s, AT_LEAST_ZERO),
            **self._known,
            **dict(zip(missing, await run_bounded(read, missing), strict=True)),
        }
        return {
            pod.uid: tuple(
                LayerUsage(used, None, store)
                for each, store in _exited(pod)
                if (used := measured.get(each.id)) is not None
            )
            for pod in pods
        }


def with_further_layers(reading: PodReading, layers: Iterable[LayerUsage]) -> PodReading:
    """Return a reading with further layers in its usage, but not in the usage compared with the pod's storage limit.

    Further layers are the layers of exited containers and the volumes declared by images. The kubelet compares only the
    layers of running containers with the limit, so that restarts of a container do not accumulate usage.
    """
    writable, found = reading.writable, tuple(layers)
    if writable is None or not found:
        return reading
    parts = (writable, *(each.used for each in found))
    total = Footprint(
        sum(each.used_bytes or 0 for each in parts),
        sum(each.used_inodes or 0 for each in parts),
        any(each.is_lower_bound for each in parts),
    )
    return replace(reading, writable=total, layers=(*reading.layers, *found))


def _exited(pod: RuntimePod) -> list[tuple[Container, str]]:
    """Return the exited containers in ready sandboxes with their snapshotters, where known."""
    exited = (each for each in pod.containers if each.state is ContainerState.EXITED)
    return with_snapshotters(pod, (each for each in exited if each.sandbox_id in pod.sandbox_ids))
