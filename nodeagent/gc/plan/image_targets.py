"""Space to free by image removal, from the thresholds and usage of each filesystem, and the space of each image."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.last_result import keep_last_result
from nodeagent.model.decision import Accounting, Detail, Reason, ReasonCode
from nodeagent.model.runtime import Space, total_space
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.decision import FilesystemTarget, Plan
    from nodeagent.model.node import CollectionForecast, NodeSnapshot
    from nodeagent.model.runtime import FsObservation, Image, ImageFilesystem, StorageGraph

Gain = tuple[int | None, int | None]
"""Bytes and inodes freed by a removal; ``None`` if unknown."""

_ELSEWHERE = -1
_FORECAST_KEPT_S: Final = 1800.0
"""Maximum age of the newest reading of a forecast: a forecast is computed every 15 minutes, or more often."""
_LEAST_SHARE: Final = 0.02
"""Least collection ahead, relative to the use. The forecast of the next one excludes the effect of a collection only if
the record shows it beside the growth between two passes; otherwise the growth would seem to have ended."""


class SpaceNeeded(NamedTuple):
    """Space that removals are to free: bytes and inodes of one filesystem.

    Attributes:
        growing_bytes: bytes that are consumed soon in addition, if the shortage grows at its measured rate.
        growing_inodes: inodes that are consumed soon in addition.
    """

    size_bytes: int = 0
    inodes: int = 0
    growing_bytes: int = 0
    growing_inodes: int = 0

    def met_by(self, size_bytes: int, inodes: int) -> bool:
        """Return whether removals that free this space suffice."""
        return size_bytes >= self.size_bytes and inodes >= self.inodes

    def beyond(self, freed: Space) -> SpaceNeeded:
        """Return the space still needed once other space is freed."""
        missing_bytes, missing_inodes = self.size_bytes - freed.size_bytes, self.inodes - freed.inodes
        return self._replace(size_bytes=max(0, missing_bytes), inodes=max(0, missing_inodes))

    def ended_by(self, size_bytes: int, inodes: int) -> bool:
        """Return whether removals that free this space end the shortage, so that its growth does not consume it."""
        return self.met_by(size_bytes - self.growing_bytes, inodes - self.growing_inodes)


def wanted_on(plans: Iterable[Plan], path: str) -> SpaceNeeded:
    """Return the largest targets of plans on the image filesystem with this path; an empty path is the only one."""
    targets: list[FilesystemTarget | Plan] = []
    for plan in plans:
        targets += [each for each in plan.targets if each.path == path] if path else [plan]
    return SpaceNeeded(
        max((each.wanted_bytes for each in targets), default=0),
        max((each.wanted_inodes for each in targets), default=0),
    )


class _Usage(NamedTuple):
    """Usage of one resource of a filesystem, bytes or inodes, with its thresholds in percent."""

    total: int
    available: int
    high: int
    low: int

    def after(self, freed: int) -> _Usage:
        """Return the usage after removals that free this amount."""
        return self._replace(available=min(self.total, self.available + freed))

    @property
    def used_percent(self) -> int:
        """Usage in whole percent, rounded up as ``FsObservation.used_percent``."""
        return 100 - self.available * 100 // self.total

    @property
    def is_high(self) -> bool:
        """Whether the usage is at or above the high threshold; false for a disabled threshold."""
        return self.high < 100 and bool(self.total) and self.used_percent >= self.high

    @property
    def above_low(self) -> int:
        """Amount to free to reach the low threshold; at least 0.

        The percentage is not used: it is rounded, so it can be one percent above the threshold although the target is
        met.
        """
        return max(0, self.total * (100 - self.low) // 100 - self.available)


def _usages(observed: FsObservation, policy: ImageGCPolicy) -> tuple[_Usage, _Usage]:
    """Return the usage of bytes and of inodes."""
    return (
        _Usage(
            observed.capacity_bytes,
            observed.available_bytes,
            policy.high_threshold_percent,
            policy.low_threshold_percent,
        ),
        _Usage(
            observed.inodes,
            observed.inodes_free,
            policy.high_threshold_inodes_percent,
            policy.low_threshold_inodes_percent,
        ),
    )


def space_above_low(observed: FsObservation, policy: ImageGCPolicy, wanted: SpaceNeeded) -> SpaceNeeded:
    """Return the space still to be freed to reach the policy's target, of the resources in ``wanted``.

    The target is the requested available bytes if a user requested them, otherwise the low thresholds.
    """
    if policy.wanted_available_bytes is not None:
        return SpaceNeeded(max(0, policy.wanted_available_bytes - observed.available_bytes))
    size, inodes = _usages(observed, policy)
    return SpaceNeeded(size.above_low if wanted.size_bytes else 0, inodes.above_low if wanted.inodes else 0)


def ledger_for(snapshot: NodeSnapshot) -> Ledger:
    """Return exact accounting if the snapshot has a storage graph, otherwise accounting by upper bounds."""
    if snapshot.storage is None:
        return Ledger()
    return LayerLedger(snapshot.storage, snapshot.image_filesystems)


class Ledger:
    """Accounting of the gain of the next image removal, given the removals counted so far.

    This class counts the image sizes that the runtime reports, as upper bounds: shared layers count for every image.
    The sizes of compressed content can also be below the freed bytes; only a measurement shows the freed bytes. The
    filesystem of an image is unknown.

    On a node with several image filesystems, ``number`` is the index of an image filesystem in the snapshot.

    Source: CRI ``Image.size``.
    """

    accounting = Accounting.UPPER_BOUND

    def gain(self, image: Image) -> Gain:
        """Return the bytes and inodes freed on all filesystems if ``image`` is removed next."""
        return image.size_bytes, None

    def gain_on(self, image: Image, number: int) -> Gain:  # noqa: ARG002 - used by the accounting of layers
        """Return the bytes and inodes freed on one filesystem if ``image`` is removed next; ``None`` if unknown."""
        return None, None

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:  # noqa: ARG002 - used by the accounting of layers
        """Return path and freed bytes of each filesystem if ``image`` is removed next; empty for one filesystem."""
        return ()

    def take(self, image: Image) -> None:
        """Count ``image`` as removed; reported sizes are independent of each other."""

    def frees_any(self, image: Image, number: int) -> bool:  # noqa: ARG002 - used by the accounting of layers
        """Return whether the removals counted so far free a piece of ``image`` on one filesystem."""
        return False

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:  # noqa: ARG002 - as above
        """Return the ids of the images in ``removable`` whose removal frees space on one filesystem.

        Each of these images has a piece on the filesystem that only images in ``removable`` reference, possibly
        several.
        """
        return frozenset()


class _Counts(NamedTuple):
    """Bytes and inodes of each piece that only images reference, number of images by piece, and gains by image."""

    sizes: list[int]
    inodes: list[int]
    images: list[int]
    gains: Mapping[str, Gain]


@keep_last_result
def _counts_of(graph: StorageGraph) -> _Counts:
    """Return the counts of a graph before any removal."""
    sizes = [0 if piece.references else piece.size_bytes for piece in graph.pieces]
    inodes = [0 if piece.references else piece.inodes for piece in graph.pieces]
    images = [0] * len(graph.pieces)
    for indexes in graph.by_image.values():
        for index in indexes:
            images[index] += 1
    gains = {image_id: _gain(indexes, sizes, inodes, images) for image_id, indexes in graph.by_image.items()}
    return _Counts(sizes, inodes, images, gains)


def _gain(indexes: Sequence[int], sizes: Sequence[int], inodes: Sequence[int], images: Sequence[int]) -> Gain:
    """Return the bytes and inodes of the pieces that only one image references."""
    unique = [index for index in indexes if images[index] == 1]
    return sum([sizes[index] for index in unique]), sum([inodes[index] for index in unique])


class LayerLedger(Ledger):
    """Exact accounting by the pieces (layers and blobs) that lose their last reference.

    A piece is freed with the last image that references it, unless a container, a lease or a snapshot of an unlisted
    image references it as well. An image in the graph that CRI does not list still counts as a reference.
    """

    accounting = Accounting.LAYERS

    def __init__(self, graph: StorageGraph, filesystems: Sequence[ImageFilesystem] = ()) -> None:
        """Count the images that reference each piece.

        On a node with several image filesystems, a piece of a snapshotter without a known filesystem frees 0 bytes on
        each.
        """
        counts = _counts_of(graph)
        self._by_image, self._sizes, self._inodes = graph.by_image, counts.sizes, counts.inodes
        self._image_counts = list(counts.images)
        self._gains = counts.gains
        self._paths = tuple(each.path for each in filesystems)
        self._numbers: list[int] = []
        if filesystems:
            number_of = {store: number for number, each in enumerate(filesystems) for store in each.stores}
            self._numbers = [number_of.get(piece.snapshotter, _ELSEWHERE) for piece in graph.pieces]

    def gain(self, image: Image) -> Gain:
        """Return the size and inodes of the pieces that only ``image`` references; unknown for an unlisted image."""
        known = self._gains.get(image.id)
        if known is not None:
            return known
        indexes = self._by_image.get(image.id)
        return (None, None) if indexes is None else _gain(indexes, self._sizes, self._inodes, self._image_counts)

    def gain_on(self, image: Image, number: int) -> Gain:
        """Return the bytes and inodes of the pieces on one filesystem that only ``image`` still references."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None, None
        counts, numbers = self._image_counts, self._numbers
        unique = [index for index in indexes if counts[index] == 1 and numbers[index] == number]
        return sum(self._sizes[index] for index in unique), sum(self._inodes[index] for index in unique)

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:
        """Return path and freed bytes of each filesystem if ``image`` is removed next; 0 bytes are omitted."""
        found = ((path, self.gain_on(image, number)[0]) for number, path in enumerate(self._paths))
        return tuple((path, size) for path, size in found if size)

    def take(self, image: Image) -> None:
        """Count ``image`` as removed: subtract its references from its pieces."""
        self._gains = {}
        for index in self._by_image.get(image.id, ()):
            self._image_counts[index] -= 1

    def frees_any(self, image: Image, number: int) -> bool:
        """Return whether a piece of ``image`` on one filesystem has no remaining reference."""
        return any(
            self._sizes[index] and not self._image_counts[index] and self._numbers[index] == number
            for index in self._by_image.get(image.id, ())
        )

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:
        """Return the ids of the images in ``removable`` whose removal frees a piece on one filesystem."""
        remaining = list(self._image_counts)
        for image in removable:
            for index in self._by_image.get(image.id, ()):
                remaining[index] -= 1
        freeable = {
            index
            for index, count in enumerate(remaining)
            if not count and self._sizes[index] and self._numbers[index] == number
        }
        return frozenset(image.id for image in removable if not freeable.isdisjoint(self._by_image.get(image.id, ())))


_ENOUGH = Reason(ReasonCode.ENOUGH_FREED)
_THRESHOLD_OFF = Reason(ReasonCode.THRESHOLD_DISABLED)
_ALL_UNUSED = Reason(ReasonCode.ALL_UNUSED)
_FOR_EVICTION = Reason(ReasonCode.EVICTION_THRESHOLD_MET)


class Target(Record):
    """Target of image removals on one filesystem, in addition to removals by maximum unused age.

    Attributes:
        kept: reason to keep all images; ``None`` if removals are required.
        removed: reason of the removals.
        enough: space that the whole plan is to free; ``None`` to remove all unused images.
        pending_bytes: bytes freed in addition by the runtime's own garbage collection.
        ends_undo: whether undo windows end before the removals; their bytes are included in ``pending_bytes``.
        number: index of the image filesystem in the snapshot; ``None`` on a node with one image filesystem.
        at_once: whether the space is needed now, so that removals do not wait for space that a later pass frees.
        ahead_available_bytes: available bytes that a collection ahead of the forecast reaches; ``None`` for any other.
    """

    kept: Reason | None
    removed: Reason
    enough: SpaceNeeded | None = None
    pending_bytes: int = 0
    ends_undo: bool = False
    number: int | None = None
    at_once: bool = False
    ahead_available_bytes: int | None = None

    def reached_by(self, size_bytes: int, inodes: int) -> bool:
        """Return whether removals that free this space reach the target; false if all unused images are removed."""
        return self.enough is not None and self.enough.met_by(size_bytes, inodes)


class CollectedFilesystem(Record):
    """An image filesystem, with the bytes that are freed on it without an image removal.

    Attributes:
        observed: usage reading of the filesystem; ``None`` if reading failed, with the cause in ``error``.
        pending: space of unreferenced content, which the runtime's next garbage collection frees.
        undo: space of content that only undo windows of removed images keep.
        number: index of the image filesystem in the snapshot; ``None`` on a node with one image filesystem.
        details: details to add to reasons: the path, on a node with several image filesystems.
    """

    observed: FsObservation | None
    error: str
    pending: Space
    undo: Space
    number: int | None
    details: Mapping[str, Detail]

    @property
    def used_percent(self) -> int:
        """Usage of the filesystem in percent; 0 if it could not be read."""
        return 0 if self.observed is None else self.observed.used_percent

    def everything(self, *, ends_undo: bool) -> Target:
        """Return the target that removes all unused images, and ends undo windows if ``ends_undo``."""
        pending_bytes = self.undo.size_bytes if ends_undo else 0
        return Target(
            None, _ALL_UNUSED, pending_bytes=pending_bytes, ends_undo=ends_undo, number=self.number, at_once=True
        )

    def needed_at_once(self, needed: SpaceNeeded) -> Target:
        """Return the target that frees the space for a met eviction threshold, before pods are evicted for it.

        Content that the runtime collects without a removal is freed first, then the content of undo windows.
        """
        return self._at_once(needed, Target(None, _FOR_EVICTION, number=self.number, at_once=True))

    def _at_once(self, needed: SpaceNeeded, target: Target) -> Target:
        """Return the target that frees the space, reduced by space freed without an image removal."""
        pending, unneeded = self.pending, total_space((self.pending, self.undo))
        if any(pending) and needed.met_by(*pending):
            return replace(target, kept=_pending(pending), pending_bytes=pending.size_bytes)
        target = replace(target, pending_bytes=unneeded.size_bytes, ends_undo=True)
        if any(unneeded) and needed.met_by(*unneeded):
            return replace(target, kept=_pending(unneeded))
        return replace(target, enough=needed.beyond(unneeded))

    def _requested(self, observed: FsObservation, available_bytes: int) -> Target:
        """Return the target that reaches the available bytes that a user requested."""
        missing = SpaceNeeded(max(0, available_bytes - observed.available_bytes))
        details: dict[str, Detail] = {"used_percent": observed.used_percent, "wanted_available_bytes": available_bytes}
        target = Target(None, Reason(ReasonCode.LEAST_RECENTLY_USED, details), number=self.number)
        return self._at_once(missing, target) if any(missing) else replace(target, kept=_ENOUGH)

    def target(self, policy: ImageGCPolicy, freed: Space, *, counts_inodes: bool) -> Target:
        """Return the target by the thresholds of a policy, after removals that free the space ``freed``.

        Percentages are truncated to integers. Usage equal to a high threshold starts a collection. The usage of inodes
        is ignored unless ``counts_inodes``, since removals would then not end, and while bytes are above their
        threshold: on a filesystem that allocates inodes on demand, such as XFS, free bytes are free inodes.

        Source: kubelet ``GarbageCollect``; the kubelet ignores inodes.
        """
        if policy.wanted_available_bytes is None and policy.high_threshold_percent >= 100:
            return Target(_THRESHOLD_OFF, _ALL_UNUSED, number=self.number)
        observed = self.observed
        if observed is None:
            detail = self.error or "no reading"
            kept = Reason(ReasonCode.FILESYSTEM_UNREADABLE, {"detail": detail, **self.details})
            return Target(kept, _ALL_UNUSED, number=self.number)
        if policy.wanted_available_bytes is not None:
            return self._requested(observed, policy.wanted_available_bytes)
        size, inodes = _usages(observed, policy)
        if self.number is not None:  # the reported usage excludes removals for other filesystems
            freed = Space(freed.size_bytes if size.is_high else 0, freed.inodes if inodes.is_high else 0)
        size, inodes = size.after(freed.size_bytes), inodes.after(freed.inodes)
        needs_inodes = counts_inodes and inodes.is_high and not size.is_high
        details: dict[str, Detail] = {"used_percent": size.used_percent, "low_percent": policy.low_threshold_percent}
        if needs_inodes:
            details = {
                "inodes_used_percent": inodes.used_percent,
                "low_inodes_percent": policy.low_threshold_inodes_percent,
            }
        reason = Reason(ReasonCode.LEAST_RECENTLY_USED, {**details, **self.details})
        if not (size.is_high or needs_inodes):
            below: dict[str, Detail] = {"used_percent": size.used_percent, "high_percent": size.high, **self.details}
            return Target(Reason(ReasonCode.BELOW_HIGH_THRESHOLD, below), reason, number=self.number)
        wanted = SpaceNeeded(size.above_low if size.is_high else 0, inodes.above_low if needs_inodes else 0)
        if not any(wanted):
            return Target(_ENOUGH, reason, number=self.number)
        return self._after_pending(wanted, freed, reason)

    def ahead(self, policy: ImageGCPolicy, forecast: CollectionForecast, now: datetime, freed: Space) -> Target | None:
        """Return the target that keeps the usage below the high threshold for the policy's time ahead, by a forecast.

        ``None`` if nothing is needed for this: the threshold is not met within this time at the expected rate; the
        forecast is too old; the usage is close to the low threshold; or space freed without an image removal is
        enough. The amount is at least ``_LEAST_SHARE`` of the use. The latest time of the forecast would be too late:
        with irregular pulls it has no end, or one after the threshold was met.
        """
        observed = self.observed
        if observed is None or self.number is not None or abs((now - forecast.at).total_seconds()) > _FORECAST_KEPT_S:
            return None
        size = _usages(observed, policy)[0].after(freed.size_bytes)
        left_bytes = replace(observed, available_bytes=size.available).bytes_until(size.high)
        least = int(_LEAST_SHARE * (size.total - size.available))
        is_met = left_bytes < forecast.rate * policy.collect_ahead_s
        wanted = min(size.above_low, max(least, math.ceil(forecast.rate * policy.collect_ahead_s) - left_bytes))
        needed = SpaceNeeded(wanted).beyond(total_space((self.pending, self.undo)))
        if not is_met or wanted < least or not any(needed):
            return None
        details: dict[str, Detail] = {
            "used_percent": size.used_percent,
            "high_percent": size.high,
            "expected_s": left_bytes / forecast.rate,
            "ahead_s": policy.collect_ahead_s,
        }
        return Target(
            None,
            Reason(ReasonCode.COLLECT_AHEAD, details),
            SpaceNeeded(needed.size_bytes + freed.size_bytes),
            ahead_available_bytes=size.available + needed.size_bytes,
        )

    def _after_pending(self, wanted: SpaceNeeded, freed: Space, reason: Reason) -> Target:
        """Return the target reduced by space freed without an image removal: pending content and undo windows."""
        pending, unneeded = self.pending, total_space((self.pending, self.undo))
        pending_bytes = pending.size_bytes
        if wanted.met_by(*pending):
            return Target(_pending(pending), reason, pending_bytes=pending_bytes, number=self.number)
        if wanted.met_by(*unneeded):
            kept = Reason(ReasonCode.UNDO_WINDOW_OPEN, {"undo_bytes": self.undo.size_bytes})
            return Target(kept, reason, pending_bytes=pending_bytes, number=self.number)
        rest = wanted.beyond(unneeded)
        enough = SpaceNeeded(
            rest.size_bytes + freed.size_bytes if rest.size_bytes else 0,
            rest.inodes + freed.inodes if rest.inodes else 0,
        )
        return Target(None, reason, enough, unneeded.size_bytes, ends_undo=True, number=self.number)


def _pending(space: Space) -> Reason:
    return Reason(ReasonCode.COLLECTION_PENDING, {"pending_bytes": space.size_bytes})


def collected_filesystems(snapshot: NodeSnapshot) -> tuple[CollectedFilesystem, ...]:
    """Return the image filesystems, fullest first; ``number`` is ``None`` if the node has only one."""
    storage = snapshot.storage
    if not snapshot.image_filesystems:
        pending = total_space(storage.pending.values()) if storage is not None else Space()
        undo = total_space(storage.undo.values()) if storage is not None else Space()
        observed, error = snapshot.image_filesystem, snapshot.image_filesystem_error
        return (CollectedFilesystem(observed, error, pending, undo, None, {}),)
    found = [_one_of_several(number, each, storage) for number, each in enumerate(snapshot.image_filesystems)]
    return tuple(sorted(found, key=lambda each: (-each.used_percent, each.number)))


def _one_of_several(number: int, each: ImageFilesystem, storage: StorageGraph | None) -> CollectedFilesystem:
    pending: Mapping[str, Space] = storage.pending if storage is not None else {}
    undo: Mapping[str, Space] = storage.undo if storage is not None else {}
    return CollectedFilesystem(
        each.observed,
        each.error,
        total_space(pending[store] for store in each.stores if store in pending),
        total_space(undo[store] for store in each.stores if store in undo),
        number,
        {"filesystem": each.path},
    )
