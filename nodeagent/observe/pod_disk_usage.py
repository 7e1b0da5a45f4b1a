"""Disk usage of pods: logs, volumes and writable layers, and its merge into the readings of pods."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.pod_disk import deadline_in, read_pod_disk
from nodeagent.host.writable_layers import find_upper_directories, measure_writable_layer
from nodeagent.model.pressure import Footprint
from nodeagent.observe.pod_cgroups import total
from nodeagent.runtime.cri_messages import ContainerUsage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.host.disk_usage import Tree
    from nodeagent.host.pod_disk import PodDisk
    from nodeagent.model.pods import PodReading, RuntimePod

_WALK_S: Final = 10.0
_WALK_POD_S: Final = 2.0
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk usage measured by directory walks.

    Attributes:
        pods: logs and volumes by pod UID.
        layers: writable layers of running containers by container id, where known.
        incomplete: names of the pods whose walk hit its time limit; their usage is a lower bound.
    """

    pods: Mapping[str, PodDisk] = field(default_factory=dict)
    layers: Mapping[str, Tree] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()


class PodDiskReader:
    """Walks the directories of pods, in one thread at a time."""

    def __init__(self, pod_log_root: Path, kubelet_root: Path, root: Path) -> None:
        """Create a reader without walking directories.

        Args:
            pod_log_root: parent of the log directories of pods without a configured one.
            kubelet_root: the kubelet's root directory, which has the volumes of pods.
            root: parent of ``proc``.
        """
        self._pod_log_root = pod_log_root
        self._kubelet_root = kubelet_root
        self._root = root
        self._walk: asyncio.Future[DiskUsage] | None = None

    async def read(
        self, pods: Sequence[RuntimePod], log_directories: Mapping[str, str | None], warnings: list[str]
    ) -> DiskUsage:
        """Return the disk usage of pods; empty while a directory hangs.

        A stat on a dead mount never returns, so that a hanging walk is not started a second time. The result of a walk
        abandoned by an earlier call is discarded, since it may be hours old.

        Args:
            pods: the pods to measure.
            log_directories: by sandbox id; missing for the directory below the pod log root.
            warnings: receives a sentence for missing and for incomplete measurements.
        """
        walk = None
        if self._walk is None or await _finished(self._walk):
            walk = self._walk = asyncio.ensure_future(asyncio.to_thread(self._measure, pods, log_directories))
        if walk is None or not await _finished(walk):
            warnings.append("cannot measure pod disk usage: a directory does not answer")
            return DiskUsage()
        self._walk = None
        measured = await walk
        if names := measured.incomplete:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = ", ".join(names[:_NAMED])
            warnings.append(f"pod disk usage is incomplete for {shown}{more}: walk timed out; at least the shown bytes")
        return measured

    def _measure(self, pods: Sequence[RuntimePod], log_directories: Mapping[str, str | None]) -> DiskUsage:
        """Walk the directories of all pods, each within its share of the time; blocking.

        Logs and volumes have few files as a rule, so they are measured for all pods before the writable layers.
        """
        ends_s = deadline_in(_WALK_S)
        disks, incomplete = {}, []
        for pod in pods:
            sandbox = pod.sandbox
            directory = log_directories.get(sandbox.id)
            name = f"{sandbox.namespace}_{sandbox.name}_{pod.uid}".replace("/", "_")
            disk = read_pod_disk(
                pod.uid,
                Path(directory) if directory else self._pod_log_root / name,
                self._kubelet_root,
                deadline_s=min(ends_s, deadline_in(_WALK_POD_S)),
            )
            disks[pod.uid] = disk
            if not disk.complete:
                incomplete.append(f"{sandbox.namespace}/{sandbox.name}")
        uppers = find_upper_directories(
            [each.id for pod in pods for each in pod.running], str(self._root / "proc/self/mountinfo")
        )
        layers = {}
        for container_id, upper in uppers.items():
            tree = measure_writable_layer(upper, min(ends_s, deadline_in(_WALK_POD_S)))
            if tree is not None:
                layers[container_id] = tree
        return DiskUsage(disks, layers, tuple(incomplete))


async def _finished(walk: asyncio.Future[DiskUsage]) -> bool:
    """Wait for a walk up to its time limit; return whether it finished, with a result or an error."""
    done, _ = await asyncio.wait([walk], timeout=_WALK_S + _WALK_POD_S)
    return bool(done)


def replace_layers(stats: Mapping[str, ContainerUsage], layers: Mapping[str, Tree]) -> dict[str, ContainerUsage]:
    """Return the runtime's statistics with measured writable layers.

    The runtime's figures are up to ten seconds old. An incomplete walk counts only if it exceeds the runtime's figure.
    """
    found = dict(stats)
    for container_id, tree in layers.items():
        reported = found.get(container_id, ContainerUsage(container_id))
        if tree.complete or tree.size_bytes > (reported.writable_bytes or 0):
            found[container_id] = replace(reported, writable_bytes=tree.size_bytes, writable_inodes=tree.inodes)
    return found


def with_stats(
    reading: PodReading, pod: RuntimePod, stats: Mapping[str, ContainerUsage], *, fill_memory: bool
) -> PodReading:
    """Return a reading with the writable layers, and with ``fill_memory`` with the runtime's memory usage.

    Where the kernel reports memory, an unreadable cgroup makes a pod's usage unknown even if the runtime reports
    statistics: otherwise a dry run, which reads them, would select a pod kept by the daemon.

    An exited container counts if the runtime reports it.
    """
    reported = {each.id: stats[each.id] for each in pod.containers if each.id in stats}
    layers = {key: each.writable_bytes for key, each in reported.items() if each.writable_bytes is not None}
    complete = all(each.id in layers for each in pod.running)
    inodes = [each.writable_inodes or 0 for each in reported.values()]
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
        writable=Footprint(sum(layers.values()), sum(inodes)) if complete else None,
        container_writable_bytes=layers,
    )


def with_disk_usage(reading: PodReading, disk: PodDisk | None) -> PodReading:
    """Return a reading with logs, volumes and the total for the comparison with the pod's storage limit."""
    if disk is None:
        return reading
    parts = [each.used_bytes for each in (reading.writable, disk.log_tree, disk.volumes) if each is not None]
    return replace(
        reading,
        logs=disk.logs,
        container_logs_bytes=disk.container_logs_bytes,
        volumes=disk.volumes,
        empty_dir_bytes=disk.empty_dir_bytes,
        ephemeral_bytes=sum(part or 0 for part in parts) if parts else None,
    )
