"""Cgroups of pods and containers: directories, which are cached, and usage."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from nodeagent.errors import ObservationError
from nodeagent.guarded_call import call_kernel
from nodeagent.host import cgroups
from nodeagent.host.filesystems import read_mounts
from nodeagent.host.kubelet_traces import KUBELET_ROOT
from nodeagent.host.meminfo import read_totals
from nodeagent.host.pod_disk import memory_volumes_bytes
from nodeagent.model.pods import ContainerHandle, ContainerTraits, PodHandle, PodReading, RuntimePod
from nodeagent.pods.plan.inference import qos_of_cgroup
from nodeagent.record import replace

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
        """Return the memory of the node in bytes; ``None``, with a warning added, after a failed reading."""
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
