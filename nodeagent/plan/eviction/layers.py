"""Writable layers of pods on nodes with several image filesystems: what a pod has on each, and which pods have nothing.

The kubelet watches the first image filesystem only and counts all writable layers for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Footprint
from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.eviction.signals import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodeagent.model.pressure import LayerUsage, OtherImageFilesystem, PodFacts, PodUsage
    from nodeagent.plan.eviction.thresholds import Threshold


def is_on(layer: LayerUsage, other: OtherImageFilesystem) -> bool | None:
    """Return whether a writable layer is on an image filesystem; ``None`` if unknown or contradictory.

    Its mount and its snapshotter each suffice; if both are known, they must agree.
    """
    by_device = None if layer.device_id is None else layer.device_id == other.device_id
    by_store = layer.snapshotter in other.stores if layer.snapshotter else None
    if by_device is None or by_store is None:
        return by_store if by_device is None else by_device
    return by_device if by_device is by_store else None


def on_first(usage: PodUsage, others: Collection[OtherImageFilesystem]) -> Footprint:
    """Return the writable layers of a pod without those known to be on other image filesystems than the first."""
    first = [each for each in usage.layers if not any(is_on(each, other) for other in others)]
    return usage.writable if len(first) == len(usage.layers) else _sum(each.used for each in first)


def on_filesystem(usage: PodUsage, other: OtherImageFilesystem) -> Footprint | None:
    """Return the writable layers of a pod on an image filesystem; ``None`` if none is known to be there."""
    found = [each.used for each in usage.layers if is_on(each, other)]
    return _sum(found) if found else None


def not_there_reason(
    pod: PodFacts, threshold: Threshold, layout: FilesystemLayout, others: Collection[OtherImageFilesystem]
) -> Reason | None:
    """Return the reason that a pod is no candidate for the filesystem of a threshold; ``None`` for a candidate.

    Candidates for another image filesystem than the first have a writable layer there. Candidates for a dedicated first
    one are all pods except those whose layers are all known to be on others.
    """
    usage, other = pod.usage, threshold.filesystem
    layers = () if usage is None else usage.layers
    if other is not None:
        there = [is_on(each, other) for each in layers]
        if any(there):
            return None
        if not there or None in there:
            return Reason(ReasonCode.LAYERS_UNKNOWN, {"filesystem": other.path})
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": other.path})
    role = MEANINGS[threshold.signal].filesystem
    if role in {None, FilesystemRole.NODEFS} or layout is not FilesystemLayout.DEDICATED_IMAGEFS:
        return None
    if layers and all(any(is_on(each, one) for one in others) for each in layers):
        return Reason(ReasonCode.LAYERS_ELSEWHERE, {"filesystem": str(role)})
    return None


def _sum(parts: Iterable[Footprint]) -> Footprint:
    """Return the total; an unknown part makes it unknown, a lower bound makes it one."""
    listed = tuple(parts)
    sizes = [each.used_bytes for each in listed if each.used_bytes is not None]
    inodes = [each.used_inodes for each in listed if each.used_inodes is not None]
    return Footprint(
        sum(sizes) if len(sizes) == len(listed) else None,
        sum(inodes) if len(inodes) == len(listed) else None,
        any(each.is_lower_bound for each in listed),
    )
