"""The outlook of each resource: its thresholds, when they will be met, and what grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.eviction.plan.thresholds import Unit, unit_of
from nodeagent.model.outlook import ThresholdKind
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.record import Record
from nodeagent.trend.plan.forecast import Forecast, Growth, ResourceForecast, Sample, Threshold, forecast
from nodeagent.trend.plan.readings import recorded_as

if TYPE_CHECKING:
    from nodeagent.eviction.plan.thresholds import Threshold as EvictionThreshold
    from nodeagent.gc.plan.policy import ImageGCPolicy

HOURS: Final = 24


class TrendPolicy(Record):
    """What happens to the resources of a node at which use.

    Attributes:
        eviction: eviction thresholds; empty if eviction is disabled.
        images: thresholds of image GC; ``None`` if image GC is disabled.
        layout: decides on which filesystem images are collected.
    """

    eviction: tuple[EvictionThreshold, ...]
    images: ImageGCPolicy | None
    layout: FilesystemLayout


class ResourceOutlook(Record):
    """Outlook of one resource.

    Attributes:
        hours: highest used share of each of the last 24 hours, oldest first; ``None`` without a sample.
        growth: growing parts, largest share first.
    """

    resource: str
    used: float
    capacity: float
    observed_at: datetime
    forecasts: tuple[Forecast, ...]
    growth: tuple[Growth, ...]
    hours: tuple[float | None, ...]


def outlook_of(
    resource: str, capacity: float, samples: Sequence[Sample], policy: TrendPolicy, now: datetime
) -> ResourceOutlook | None:
    """Return the outlook of a resource; ``None`` without samples or capacity."""
    if not samples or capacity <= 0:
        return None
    thresholds = thresholds_of(resource, capacity, policy)
    found = forecast(samples, thresholds, now) if thresholds else ResourceForecast(())
    return ResourceOutlook(
        resource,
        samples[-1].used,
        capacity,
        samples[-1].at,
        found.thresholds,
        found.growth,
        used_by_hour(samples, capacity, now),
    )


def thresholds_of(resource: str, capacity: float, policy: TrendPolicy) -> tuple[Threshold, ...]:
    """Return the thresholds of a resource by increasing use; none for a stall signal.

    Image GC starts by the use itself. Pods are evicted, and a filesystem is full, only once images no longer free
    enough. Full swap is no shortage by itself: the kernel keeps idle pages there for as long as they are not read.
    """
    if unit_of(resource) is Unit.STALL_PERCENT:
        return ()
    collects = policy.images is not None and resource in _collected(policy.layout)
    found = []
    if policy.images is not None and collects:
        inodes = resource.endswith("inodesFree")
        percent = policy.images.high_threshold_inodes_percent if inodes else policy.images.high_threshold_percent
        if percent < 100:
            found.append(Threshold(ThresholdKind.COLLECTION, capacity * percent / 100, after_collection=False))
    for each in policy.eviction:
        if recorded_as(each.signal, policy.layout, each.measurand.path) == resource:
            kind = ThresholdKind.HARD if each.hard else ThresholdKind.SOFT
            found.append(Threshold(kind, capacity - each.limit(capacity), after_collection=collects))
    if resource != Signal.SWAP_FREE:
        found.append(Threshold(ThresholdKind.FULL, capacity, after_collection=collects))
    return tuple(sorted(set(found), key=lambda each: (each.used, each.name)))


def _collected(layout: FilesystemLayout) -> frozenset[str]:
    """Return the resources of the filesystem of the images."""
    if layout is FilesystemLayout.SINGLE:
        return frozenset({Signal.NODEFS_AVAILABLE.value, Signal.NODEFS_INODES_FREE.value})
    return frozenset({Signal.IMAGEFS_AVAILABLE.value, Signal.IMAGEFS_INODES_FREE.value})


def used_by_hour(samples: Iterable[Sample], capacity: float, now: datetime) -> tuple[float | None, ...]:
    """Return the highest used share, from 0 to 1, of each of the last 24 hours, oldest first."""
    found: list[float | None] = [None] * HOURS
    since = now - timedelta(hours=HOURS)
    for each in samples:
        if since < each.at <= now:
            index = HOURS - 1 - (now - each.at) // timedelta(hours=1)
            found[index] = max(found[index] or 0.0, min(1.0, each.used / capacity))
    return tuple(found)
