"""Reclaim before an eviction: the steps on the node, the removals of a step that are needed, and active page cache.

The kubelet's formula counts active page cache as used, so a pod that reads a file twice can cause a memory threshold to
be met although the kernel could free this cache. If the kernel's estimate (MemAvailable) shows no shortage, active page
cache of pods is reclaimed first. Cold cache is not read again. Hot cache returns within seconds; if the threshold is
met again by then, a pod is evicted. The formula does not count inactive cache as used, so reclaiming only inactive
cache changes no signal; the kernel reclaims inactive cache first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.eviction.plan.thresholds import MEANINGS, Operator, Threshold, ThresholdStatus, Unit
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.model.decision import Decision, ItemKind, Plan, Verdict
from nodeagent.model.pressure import (
    FilesystemLayout,
    FilesystemRole,
    OtherFilesystem,
    Resource,
    Signal,
    SignalReading,
)
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.model.node import LogSpace, NodeSnapshot
    from nodeagent.model.runtime import Container

GROWTH_S: Final = 30.0
"""Seconds of growth that a removal outlasts to end a shortage; the eviction of a pod may take as long."""


class ReclaimAction(StrEnum):
    """Kind of node-level reclaim.

    ``DEAD_CONTAINERS``: dead containers and sandboxes, including those of finished pods, and on nodefs the logs of
    deleted pods. ``LOGS``: logs of deleted pods, with their containers and sandboxes. ``UNUSED_IMAGES``: unused images
    that are above the minimum age and can be pulled again. ``IRREPLACEABLE_IMAGES``: unused images that cannot be
    pulled again, unless the configuration keeps them or the shortage would remain.
    """

    DEAD_CONTAINERS = "dead-containers"
    LOGS = "logs"
    UNUSED_IMAGES = "unused-images"
    IRREPLACEABLE_IMAGES = "irreplaceable-images"


class ReclaimStep(NamedTuple):
    """Node-level reclaim of one kind on one filesystem.

    A filesystem with several roles is named by the first of nodefs and imagefs, so that no step runs twice on one
    device.

    Attributes:
        other: the additional filesystem; ``None`` for that of the role.
    """

    action: ReclaimAction
    filesystem: FilesystemRole
    other: OtherFilesystem | None = None

    @property
    def text(self) -> str:
        """The step as text, such as ``unused-images on imagefs``; with the path of ``other`` if set."""
        return f"{self.action} on {self.filesystem if self.other is None else self.other.path}"


_NODEFS, _IMAGEFS, _CONTAINERFS = FilesystemRole.NODEFS, FilesystemRole.IMAGEFS, FilesystemRole.CONTAINERFS

_DEVICES: Final[Mapping[FilesystemLayout, Mapping[FilesystemRole, FilesystemRole]]] = MappingProxyType(
    {
        FilesystemLayout.SINGLE: {_NODEFS: _NODEFS, _IMAGEFS: _NODEFS, _CONTAINERFS: _NODEFS},
        FilesystemLayout.DEDICATED_IMAGEFS: {_NODEFS: _NODEFS, _IMAGEFS: _IMAGEFS, _CONTAINERFS: _IMAGEFS},
        FilesystemLayout.SPLIT: {_NODEFS: _NODEFS, _IMAGEFS: _IMAGEFS, _CONTAINERFS: _NODEFS},
    }
)
_CONTAINERS, _LOGS = ReclaimAction.DEAD_CONTAINERS, ReclaimAction.LOGS
_IMAGES = (ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES)
_ACTIONS: Final[Mapping[tuple[FilesystemLayout, FilesystemRole], tuple[ReclaimAction, ...]]] = MappingProxyType(
    {
        (FilesystemLayout.SINGLE, _NODEFS): (_CONTAINERS, *_IMAGES),
        (FilesystemLayout.DEDICATED_IMAGEFS, _NODEFS): (_LOGS,),
        (FilesystemLayout.DEDICATED_IMAGEFS, _IMAGEFS): (_CONTAINERS, *_IMAGES),
        (FilesystemLayout.SPLIT, _NODEFS): (_CONTAINERS,),
        (FilesystemLayout.SPLIT, _IMAGEFS): _IMAGES,
    }
)


def reclaim_steps(
    signal: Signal, layout: FilesystemLayout, other: OtherFilesystem | None = None, *, separate_logs: bool = False
) -> tuple[ReclaimStep, ...]:
    """Return the reclaim steps for a signal, in order; empty for memory, PIDs and stall signals.

    The steps are the kubelet's: containers and logs are one step, since the logs of a pod whose sandbox is removed
    would be unlisted for a later step. Images that cannot be pulled again are removed in the last step. With a
    dedicated imagefs the kubelet has no step for nodefs; nodeagent removes the logs of deleted pods. The steps for an
    image filesystem other than the first remove only dead containers and images of its snapshotters. The step for a
    filesystem of the pod logs removes the logs of deleted pods; with ``separate_logs`` nodefs has no such step.

    Source: kubelet ``buildSignalToNodeReclaimFuncs``.
    """
    filesystem = MEANINGS[signal].filesystem
    if filesystem is None:
        return ()
    if other is not None and other.has_logs:
        return (ReclaimStep(_LOGS, _NODEFS, other),)
    if other is not None:
        return tuple(ReclaimStep(action, FilesystemRole.IMAGEFS, other) for action in (_CONTAINERS, *_IMAGES))
    device = device_role(filesystem, layout)
    actions = _ACTIONS[layout, device]
    return tuple(ReclaimStep(action, device) for action in actions if not (separate_logs and action is _LOGS))


def device_role(filesystem: FilesystemRole, layout: FilesystemLayout) -> FilesystemRole:
    """Return the role that identifies the device of a filesystem: the first of nodefs and imagefs on this device."""
    return _DEVICES[layout][filesystem]


def space_needed(status: ThresholdStatus, rate: float | None = 0.0) -> SpaceNeeded:
    """Return the space that node-level reclaim is to free for a filesystem threshold: its shortfall.

    ``rate`` is the measured consumption per second, in the unit of the signal; ``None`` if unknown: no freed space is
    then known to end the shortage. The growth of the shortage in ``GROWTH_S`` does not increase the shortfall, but an
    image that cannot be pulled again is not removed if it consumes the freed space.
    """
    if rate is None:
        rate = 0.0 if status.observation is None else status.observation.capacity
    amount, growth = math.ceil(status.shortfall or 0.0), math.ceil(rate * GROWTH_S)
    if MEANINGS[status.threshold.signal].unit is Unit.INODES:
        return SpaceNeeded(inodes=amount, growing_inodes=growth)
    return SpaceNeeded(amount, growing_bytes=growth)


def on_device(plans: Sequence[Plan], snapshot: NodeSnapshot, *, layers: bool, logs: bool) -> tuple[Plan, ...]:
    """Return plans of containers, sandboxes and logs with the amounts that their removals free on one filesystem.

    The removal of a container includes its logs, so they are not counted again for the directory of its pod.

    Args:
        plans: plans for this snapshot.
        snapshot: snapshot of the node.
        layers: whether writable layers are on the filesystem.
        logs: whether logs are on the filesystem.
    """
    containers = {each.id: each for each in snapshot.containers}
    trees = {each.uid: each.tree for each in snapshot.pod_log_directories if each.tree is not None}
    directories = {each.name: each for each in snapshot.pod_log_directories}
    counted: dict[str, LogSpace] = {}

    def of_container(decision: Decision) -> Decision:
        container = containers[decision.id]
        size_bytes = snapshot.writable_bytes.get(decision.id) if layers else 0
        inodes = snapshot.writable_inodes.get(decision.id) if layers else 0
        tree = trees.get(container.pod_uid)
        own = tree.container_logs.get(_log_of(container)) if logs and tree is not None else None
        if own is not None:
            counted[container.pod_uid] = own.plus(counted[container.pod_uid]) if container.pod_uid in counted else own
            size_bytes = own.size_bytes + (size_bytes or 0)
            inodes = own.inodes + (inodes or 0)
        return replace(decision, frees_bytes=size_bytes, frees_inodes=inodes)

    def of_directory(decision: Decision) -> Decision:
        directory = directories[decision.id]
        if not logs:
            return replace(decision, frees_bytes=0, frees_inodes=0)
        if directory.tree is None or directory.tree.problem:
            return replace(decision, frees_bytes=None, frees_inodes=None)
        size, before = directory.tree.size, counted.get(directory.uid)
        size_bytes, inodes = (
            size if before is None else (size.size_bytes - before.size_bytes, size.inodes - before.inodes)
        )
        return replace(decision, frees_bytes=size_bytes, frees_inodes=inodes)

    measured = {ItemKind.CONTAINER: of_container, ItemKind.POD_LOG_DIRECTORY: of_directory}
    found = []
    for plan in plans:
        decisions = tuple(
            measured[each.kind](each) if each.verdict is Verdict.REMOVE and each.kind in measured else each
            for each in plan.decisions
        )
        found.append(replace(plan, decisions=decisions))
    return tuple(found)


def _log_of(container: Container) -> str:
    """Return the path of a container's current log in the log directory of its pod. Source: kubelet log layout."""
    return "/".join((container.log_path or f"{container.name}/{container.attempt}.log").split("/")[-2:])


class Shortage(StrEnum):
    """Resource in shortage that one action can relieve. Bytes and inodes of one device are one shortage.

    A device is named by the first of nodefs and imagefs, as in :class:`ReclaimStep`; an image filesystem other than the
    first is ``OTHER_IMAGEFS`` with its path, unless it is nodefs. ``POD_LOGS`` is a filesystem of the pod logs only.
    """

    MEMORY = "memory"
    MEMORY_STALL = "memory-stall"
    PIDS = "pids"
    NODEFS = "nodefs"
    IMAGEFS = "imagefs"
    OTHER_IMAGEFS = "other-imagefs"
    POD_LOGS = "pod-logs"


DEVICES: Final = {FilesystemRole.NODEFS: Shortage.NODEFS, FilesystemRole.IMAGEFS: Shortage.IMAGEFS}
DISKS: Final[Mapping[Shortage, Signal]] = MappingProxyType(
    {
        Shortage.NODEFS: Signal.NODEFS_AVAILABLE,
        Shortage.IMAGEFS: Signal.IMAGEFS_AVAILABLE,
        Shortage.OTHER_IMAGEFS: Signal.IMAGEFS_AVAILABLE,
        Shortage.POD_LOGS: Signal.NODEFS_AVAILABLE,
    }
)
"""Shortages of filesystems, with the signal that measures the available bytes of each."""


def shortage_of(signal: Signal, layout: FilesystemLayout, other: OtherFilesystem | None = None) -> Shortage | None:
    """Return the resource in shortage when a threshold on this signal is met; ``None`` for a signal without a resource.

    ``other`` is the filesystem of a threshold on an additional filesystem.
    """
    meaning = MEANINGS[signal]
    if other is not None and other.has_logs:
        return Shortage.POD_LOGS
    if other is not None:
        return Shortage.NODEFS if other.on_nodefs else Shortage.OTHER_IMAGEFS
    if meaning.filesystem is not None:
        return DEVICES[device_role(meaning.filesystem, layout)]
    if meaning.resource is Resource.MEMORY:
        return Shortage.MEMORY_STALL if meaning.operator is Operator.GREATER_THAN else Shortage.MEMORY
    return Shortage.PIDS if meaning.resource is Resource.PIDS else None


REPEATED_AFTER_S: Final = 30.0
"""Seconds after a cache reclaim in which a met threshold evicts a pod instead: the reclaimed cache was in use."""
MAX_STEP_BYTES: Final = 128 << 20
"""Largest predicted effect of one reclaim step; measured duration of such a step: 0.2 to 0.9 s."""
_MAX_INACTIVE_BYTES: Final = 512 << 20
_MIN_POD_BYTES: Final = 4 << 20
_MARGIN: Final = 1.1
_YIELD: Final = 0.5
_STALL_SHARE: Final = 0.1
_STALL_S: Final = 0.02


class PodPageCache(NamedTuple):
    """Page cache of one pod.

    Attributes:
        active_bytes: active file pages of the pod's cgroup.
        inactive_bytes: inactive file pages of the pod's cgroup.
        working_set_bytes: memory usage without inactive file pages; includes the active page cache.
        protected_bytes: the larger of the pod's memory request and ``memory.low``; not reclaimed.
    """

    uid: str
    active_bytes: int
    inactive_bytes: int
    working_set_bytes: int
    protected_bytes: int


class CacheStep(NamedTuple):
    """One request to reclaim page cache from the cgroup of one pod.

    Attributes:
        effect_bytes: predicted decrease of the pod's working set.
        size_bytes: bytes to request from the kernel: ``effect_bytes`` plus the inactive cache, which the kernel
            reclaims first.
    """

    uid: str
    effect_bytes: int
    size_bytes: int


class StepReading(NamedTuple):
    """Memory readings of a pod before or after a reclaim step.

    Attributes:
        stall_us: memory stall time (PSI ``total``) of the pod's cgroup since its creation, in microseconds.
        at_s: monotonic time of the reading in seconds.
    """

    working_set_bytes: int
    stall_us: int
    at_s: float


def missing_bytes(threshold: Threshold, reading: SignalReading, *, since_last_s: float | None) -> float:
    """Return the bytes of page cache to reclaim for a met threshold, with a margin of 10%.

    The result is 0 for signals other than ``memory.available``, without the kernel's estimate, if this estimate shows a
    shortage, and within ``REPEATED_AFTER_S`` of the last reclaim.
    """
    if threshold.signal is not Signal.MEMORY_AVAILABLE or reading.kernel_available is None:
        return 0
    limit = threshold.limit(reading.capacity, with_reclaim=True)
    hot = since_last_s is not None and since_last_s < REPEATED_AFTER_S
    return 0 if hot or reading.kernel_available < limit else max(0.0, limit - reading.available) * _MARGIN


def plan_cache_reclaim(
    threshold: Threshold, reading: SignalReading, caches: Iterable[PodPageCache], *, since_last_s: float | None
) -> tuple[CacheStep, ...]:
    """Return the reclaim steps that clear a threshold, largest active cache first; empty if the cache does not suffice.

    The result is empty as well if ``missing_bytes`` is 0. A pod keeps half of its active cache; its working set is not
    reduced below its memory request or ``memory.low``.

    Args:
        threshold: the met threshold.
        reading: the latest reading of its signal.
        caches: page cache of each pod.
        since_last_s: seconds since the last cache reclaim; ``None`` if no reclaim was run.
    """
    steps: list[CacheStep] = []
    left = missing_bytes(threshold, reading, since_last_s=since_last_s)
    if left <= 0:
        return ()
    for pod in sorted(caches, key=lambda each: (-each.active_bytes, each.uid)):
        room = min(pod.active_bytes // 2, pod.working_set_bytes - pod.protected_bytes, int(left) + 1)
        if room < min(_MIN_POD_BYTES, left) or pod.inactive_bytes > _MAX_INACTIVE_BYTES:
            continue
        inactive = pod.inactive_bytes
        left -= room
        while room > 0:
            effect = min(room, MAX_STEP_BYTES)
            steps.append(CacheStep(pod.uid, effect, effect + inactive))
            room, inactive = room - effect, 0
        if left <= 0:
            return tuple(steps)
    return ()


def fault_of_step(step: CacheStep, before: StepReading, after: StepReading) -> str:
    """Return the reason to stop the cache reclaim after a step; empty to continue.

    The reclaim stops if the step freed less than half of its predicted bytes, or if processes of the pod stalled on
    memory for more than a tenth of the step, at least 20 ms: such a stall shows that the pod reads the reclaimed cache
    again.

    Source: kernel psi.rst, ``total``.
    """
    fall = before.working_set_bytes - after.working_set_bytes
    if fall < step.effect_bytes * _YIELD:
        return f"working set fell by {max(0, fall)} of {step.effect_bytes} bytes"
    stalled_s = (after.stall_us - before.stall_us) / 1e6
    if stalled_s > max(_STALL_S, (after.at_s - before.at_s) * _STALL_SHARE):
        return f"the pod waited {stalled_s:.2f} s for memory"
    return ""
