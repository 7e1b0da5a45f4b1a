"""Bytes to free by image removal, from the thresholds and the usage of each image filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.gc.accounting import SpaceNeeded
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import FsObservation, ImageFilesystem, NodeSnapshot, StorageGraph
    from nodeagent.plan.decision import Detail

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

    def everything(self) -> Target:
        """Return the target that removes all unused images and ends undo windows."""
        return Target(
            None, _ALL_UNUSED, pending_bytes=self.undo_bytes, ends_undo=True, number=self.number, at_once=True
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
