"""Bytes and inodes freed by image removals, given the references to each piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.plan.decision import Accounting

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodeagent.model import Image, ImageFilesystem, NodeSnapshot, StorageGraph

Gain = tuple[int | None, int | None]
"""Bytes and inodes; ``None`` if unknown."""

_ELSEWHERE = -1


class Ledger(Protocol):
    """Computes the gain of the next removal, given the removals already counted.

    On a node with several image filesystems, each has a number: its index in the snapshot.
    """

    accounting: Accounting

    def gain(self, image: Image) -> Gain:
        """Return the gain of removing ``image`` next, on all filesystems."""

    def gain_on(self, image: Image, number: int) -> int | None:
        """Return the bytes that the removal of ``image`` frees next on one filesystem; ``None`` if unknown."""

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:
        """Return the bytes that it frees next on each of several filesystems, by path; none for a single one."""

    def take(self, image: Image) -> None:
        """Count ``image`` as removed."""

    def frees_any(self, image: Image, number: int) -> bool:
        """Return whether the removals so far free a piece of ``image`` on one filesystem."""

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:
        """Return the ids of the images whose removal frees space on one filesystem.

        They have a piece there that only images of ``removable`` reference; several that share it count all.
        """


def ledger_for(snapshot: NodeSnapshot) -> Ledger:
    """Return exact accounting with a storage graph, else accounting by upper bounds."""
    if snapshot.storage is None:
        return SizeLedger()
    return LayerLedger(snapshot.storage, snapshot.image_filesystems)


class SizeLedger:
    """Counts the sizes reported by the runtime.

    They are upper bounds in that shared layers count for every image. As sizes of compressed content they can also be
    too small; only a measurement shows the freed bytes. The filesystem of an image is unknown. Source: CRI
    ``Image.size``.
    """

    accounting = Accounting.UPPER_BOUND

    def gain(self, image: Image) -> Gain:
        """Return the reported size; the inodes are unknown."""
        return image.size_bytes, None

    def gain_on(self, image: Image, number: int) -> int | None:  # noqa: ARG002 - the interface of ledgers
        """Return ``None``."""
        return None

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:  # noqa: ARG002 - the interface of ledgers
        """Return an empty tuple."""
        return ()

    def take(self, image: Image) -> None:
        """Ignore the removal, since reported sizes are independent of each other."""

    def frees_any(self, image: Image, number: int) -> bool:  # noqa: ARG002 - the interface of ledgers
        """Return false."""
        return False

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:  # noqa: ARG002 - as above
        """Return an empty set."""
        return frozenset()


class LayerLedger:
    """Counts the pieces whose last reference is removed.

    A piece is freed with the last image that references it, and never while it has another reference: a container, a
    lease, a snapshot of an unlisted image. An image in the graph that CRI no longer lists keeps its references.
    """

    accounting = Accounting.LAYERS

    def __init__(self, graph: StorageGraph, filesystems: Sequence[ImageFilesystem] = ()) -> None:
        """Count the images that reference each piece.

        A piece of a snapshotter on none of several filesystems, or on an unknown one, frees nothing on any of them.
        """
        self._by_image = graph.by_image
        self._sizes = [0 if piece.references else piece.size_bytes for piece in graph.pieces]
        self._inodes = [0 if piece.references else piece.inodes for piece in graph.pieces]
        self._image_counts = counts = [0] * len(graph.pieces)
        for indexes in graph.by_image.values():
            for index in indexes:
                counts[index] += 1
        self._paths = tuple(each.path for each in filesystems)
        self._numbers: list[int] = []
        if filesystems:
            number_of = {store: number for number, each in enumerate(filesystems) for store in each.stores}
            self._numbers = [number_of.get(piece.snapshotter, _ELSEWHERE) for piece in graph.pieces]

    def gain(self, image: Image) -> Gain:
        """Return the sum of the pieces that only ``image`` still references."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None, None
        counts = self._image_counts
        unique = [index for index in indexes if counts[index] == 1]
        sizes, inodes = self._sizes, self._inodes
        return sum([sizes[index] for index in unique]), sum([inodes[index] for index in unique])

    def gain_on(self, image: Image, number: int) -> int | None:
        """Return the sum of the pieces on one filesystem that only ``image`` still references."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None
        counts, numbers = self._image_counts, self._numbers
        return sum(self._sizes[index] for index in indexes if counts[index] == 1 and numbers[index] == number)

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:
        """Return the bytes that the removal of an image frees on each of several filesystems, without those with 0."""
        found = ((path, self.gain_on(image, number)) for number, path in enumerate(self._paths))
        return tuple((path, size) for path, size in found if size)

    def take(self, image: Image) -> None:
        """Remove the references of ``image``."""
        for index in self._by_image.get(image.id, ()):
            self._image_counts[index] -= 1

    def frees_any(self, image: Image, number: int) -> bool:
        """Return whether a piece of ``image`` on one filesystem has no remaining reference."""
        return any(
            self._sizes[index] and not self._image_counts[index] and self._numbers[index] == number
            for index in self._by_image.get(image.id, ())
        )

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:
        """Return the ids of the images with a piece on one filesystem that only ``removable`` references."""
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
