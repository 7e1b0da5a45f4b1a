"""Writable layers of pods by image filesystem, and the pods without a writable layer on the filesystem of a threshold.

The kubelet monitors only the first image filesystem and attributes all writable layers to it.
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
    """Return whether a writable layer is on this image filesystem; ``None`` if unknown or contradictory.

    The device of the layer or its snapshotter identifies the filesystem; if both are known, they must agree.
    """
    by_device = None if layer.device_id is None else layer.device_id == other.device_id
    by_store = layer.snapshotter in other.stores if layer.snapshotter else None
    if by_device is None or by_store is None:
        return by_store if by_device is None else by_device
    return by_device if by_device is by_store else None


def on_first(usage: PodUsage, others: Collection[OtherImageFilesystem]) -> Footprint:
    """Return the usage of a pod's writable layers, except the layers known to be on the filesystems ``others``."""
    first = [each for each in usage.layers if not any(is_on(each, other) for other in others)]
    return usage.writable if len(first) == len(usage.layers) else total_footprint(each.used for each in first)


def on_filesystem(usage: PodUsage, other: OtherImageFilesystem) -> Footprint | None:
    """Return the usage of a pod's writable layers on this filesystem; ``None`` if no layer is known to be on it."""
    found = [each.used for each in usage.layers if is_on(each, other)]
    return total_footprint(found) if found else None


def not_there_reason(
    pod: PodFacts, threshold: Threshold, layout: FilesystemLayout, others: Collection[OtherImageFilesystem]
) -> Reason | None:
    """Return the reason why a pod is no eviction candidate for the threshold's filesystem; ``None`` for a candidate.

    For an image filesystem besides the first, a candidate has a writable layer on this filesystem. For a dedicated
    first image filesystem, every pod is a candidate unless all its layers are known to be on other image filesystems.
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


def total_footprint(parts: Iterable[Footprint]) -> Footprint:
    """Return the sum of the parts: unknown if a part is unknown, a lower bound if a part is a lower bound."""
    listed = tuple(parts)
    sizes = [each.used_bytes for each in listed if each.used_bytes is not None]
    inodes = [each.used_inodes for each in listed if each.used_inodes is not None]
    return Footprint(
        sum(sizes) if len(sizes) == len(listed) else None,
        sum(inodes) if len(inodes) == len(listed) else None,
        any(each.is_lower_bound for each in listed),
    )
