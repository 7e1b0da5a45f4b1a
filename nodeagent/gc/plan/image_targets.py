"""Bytes to free by image removal, from the thresholds and usage of each filesystem, and the bytes of each image."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.last_result import keep_last_result
from nodeagent.model.decision import Accounting, Detail, Reason, ReasonCode
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import FsObservation, Image, ImageFilesystem, StorageGraph

Gain = tuple[int | None, int | None]
"""Bytes and inodes freed by a removal; ``None`` if unknown."""

_ELSEWHERE = -1


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

    def ended_by(self, size_bytes: int, inodes: int) -> bool:
        """Return whether removals that free this space end the shortage, so that its growth does not consume it."""
        return self.met_by(size_bytes - self.growing_bytes, inodes - self.growing_inodes)


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
    """

    kept: Reason | None
    removed: Reason
    enough: SpaceNeeded | None = None
    pending_bytes: int = 0
    ends_undo: bool = False
    number: int | None = None
    at_once: bool = False

    def reached_by(self, size_bytes: int, inodes: int) -> bool:
        """Return whether removals that free this space reach the target; false if all unused images are removed."""
        return self.enough is not None and self.enough.met_by(size_bytes, inodes)


class CollectedFilesystem(Record):
    """An image filesystem, with the bytes that are freed on it without an image removal.

    Attributes:
        observed: usage reading of the filesystem; ``None`` if reading failed, with the cause in ``error``.
        pending_bytes: size of unreferenced content, which the runtime's next garbage collection frees.
        undo_bytes: size of content that only undo windows of removed images keep.
        number: index of the image filesystem in the snapshot; ``None`` on a node with one image filesystem.
        details: details to add to reasons: the path, on a node with several image filesystems.
    """

    observed: FsObservation | None
    error: str
    pending_bytes: int
    undo_bytes: int
    number: int | None
    details: Mapping[str, Detail]

    @property
    def used_percent(self) -> int:
        """Usage of the filesystem in percent; 0 if it could not be read."""
        return 0 if self.observed is None else self.observed.used_percent

    def everything(self, *, ends_undo: bool) -> Target:
        """Return the target that removes all unused images, and ends undo windows if ``ends_undo``."""
        pending_bytes = self.undo_bytes if ends_undo else 0
        return Target(
            None, _ALL_UNUSED, pending_bytes=pending_bytes, ends_undo=ends_undo, number=self.number, at_once=True
        )

    def needed_at_once(self, needed: SpaceNeeded) -> Target:
        """Return the target that frees the space for a met eviction threshold, before pods are evicted for it.

        Content that the runtime collects without a removal is freed first, then the content of undo windows. The number
        of its inodes is unknown: if inodes are needed, it is collected before images are chosen.
        """
        target = Target(None, _FOR_EVICTION, number=self.number, at_once=True)
        pending_bytes, all_bytes = self.pending_bytes, self.pending_bytes + self.undo_bytes
        if pending_bytes and needed.met_by(pending_bytes, 0):
            return replace(target, kept=_pending(pending_bytes), pending_bytes=pending_bytes)
        target = replace(target, pending_bytes=all_bytes, ends_undo=True)
        if all_bytes and (needed.inodes or needed.met_by(all_bytes, 0)):
            return replace(target, kept=_pending(all_bytes))
        return replace(target, enough=needed._replace(size_bytes=max(0, needed.size_bytes - all_bytes)))

    def target(self, high: int, low: int, freed_bytes: int) -> Target:
        """Return the target by the thresholds ``high`` and ``low``, after removals that free ``freed_bytes``.

        Percentages are truncated to integers. Usage equal to the high threshold starts a collection.

        Source: kubelet ``GarbageCollect``.
        """
        if high >= 100:
            return Target(_THRESHOLD_OFF, _ALL_UNUSED, number=self.number)
        observed = self.observed
        if observed is None:
            detail = self.error or "no reading"
            kept = Reason(ReasonCode.FILESYSTEM_UNREADABLE, {"detail": detail, **self.details})
            return Target(kept, _ALL_UNUSED, number=self.number)
        capacity_bytes = observed.capacity_bytes
        if self.number is not None and observed.used_percent < high:
            freed_bytes = 0  # the reported usage excludes removals for other filesystems
        available_bytes = min(capacity_bytes, observed.available_bytes + freed_bytes)
        used_percent = 100 - available_bytes * 100 // capacity_bytes
        details: dict[str, Detail] = {"used_percent": used_percent, "low_percent": low, **self.details}
        reason = Reason(ReasonCode.LEAST_RECENTLY_USED, details)
        if used_percent < high:
            below: dict[str, Detail] = {"used_percent": used_percent, "high_percent": high, **self.details}
            return Target(Reason(ReasonCode.BELOW_HIGH_THRESHOLD, below), reason, number=self.number)
        wanted_bytes = capacity_bytes * (100 - low) // 100 - available_bytes
        if wanted_bytes <= 0:
            return Target(_ENOUGH, reason, number=self.number)
        return self._after_pending(wanted_bytes, freed_bytes, reason)

    def _after_pending(self, wanted_bytes: int, freed_bytes: int, reason: Reason) -> Target:
        """Return the target reduced by bytes freed without an image removal: pending content and undo windows."""
        pending_bytes, undo_bytes = self.pending_bytes, self.undo_bytes
        if pending_bytes >= wanted_bytes:
            return Target(_pending(pending_bytes), reason, pending_bytes=pending_bytes, number=self.number)
        if pending_bytes + undo_bytes >= wanted_bytes:
            kept = Reason(ReasonCode.UNDO_WINDOW_OPEN, {"undo_bytes": undo_bytes})
            return Target(kept, reason, pending_bytes=pending_bytes, number=self.number)
        pending_bytes += undo_bytes
        enough = SpaceNeeded(wanted_bytes - pending_bytes + freed_bytes)
        return Target(None, reason, enough, pending_bytes, ends_undo=True, number=self.number)


def _pending(pending_bytes: int) -> Reason:
    return Reason(ReasonCode.COLLECTION_PENDING, {"pending_bytes": pending_bytes})


def collected_filesystems(snapshot: NodeSnapshot) -> tuple[CollectedFilesystem, ...]:
    """Return the image filesystems, fullest first; ``number`` is ``None`` if the node has only one."""
    storage = snapshot.storage
    if not snapshot.image_filesystems:
        pending_bytes = storage.pending_bytes if storage is not None else 0
        undo_bytes = storage.undo_bytes if storage is not None else 0
        observed, error = snapshot.image_filesystem, snapshot.image_filesystem_error
        return (CollectedFilesystem(observed, error, pending_bytes, undo_bytes, None, {}),)
    found = [_one_of_several(number, each, storage) for number, each in enumerate(snapshot.image_filesystems)]
    return tuple(sorted(found, key=lambda each: (-each.used_percent, each.number)))


def _one_of_several(number: int, each: ImageFilesystem, storage: StorageGraph | None) -> CollectedFilesystem:
    pending: Mapping[str, int] = storage.pending_by_store if storage is not None else {}
    undo: Mapping[str, int] = storage.undo_by_store if storage is not None else {}
    return CollectedFilesystem(
        each.observed,
        each.error,
        sum(pending.get(store, 0) for store in each.stores),
        sum(undo.get(store, 0) for store in each.stores),
        number,
        {"filesystem": each.path},
    )
