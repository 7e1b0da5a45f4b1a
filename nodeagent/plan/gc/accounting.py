"""Accounting of image removals: bytes and inodes freed, from the references to each layer or blob ("piece")."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from nodeagent.plan.decision import Accounting

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodeagent.model import Image, ImageFilesystem, NodeSnapshot, StorageGraph

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


class Ledger(Protocol):
    """Interface of accounting: the gain of the next image removal, given the removals counted so far.

    On a node with several image filesystems, ``number`` is the index of an image filesystem in the snapshot.
    """

    accounting: Accounting

    def gain(self, image: Image) -> Gain:
        """Return the bytes and inodes freed on all filesystems if ``image`` is removed next."""

    def gain_on(self, image: Image, number: int) -> Gain:
        """Return the bytes and inodes freed on one filesystem if ``image`` is removed next; ``None`` if unknown."""

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:
        """Return path and freed bytes of each filesystem if ``image`` is removed next; empty for one filesystem."""

    def take(self, image: Image) -> None:
        """Count ``image`` as removed."""

    def frees_any(self, image: Image, number: int) -> bool:
        """Return whether the removals counted so far free a piece of ``image`` on one filesystem."""

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:
        """Return the ids of the images in ``removable`` whose removal frees space on one filesystem.

        Each of these images has a piece on the filesystem that only images in ``removable`` reference, possibly
        several.
        """


def ledger_for(snapshot: NodeSnapshot) -> Ledger:
    """Return exact accounting if the snapshot has a storage graph, otherwise accounting by upper bounds."""
    if snapshot.storage is None:
        return SizeLedger()
    return LayerLedger(snapshot.storage, snapshot.image_filesystems)


class SizeLedger:
    """Accounting by the image sizes that the runtime reports, as upper bounds.

    Shared layers count for every image. The sizes of compressed content can also be below the freed bytes; only a
    measurement shows the freed bytes. The filesystem of an image is unknown.

    Source: CRI ``Image.size``.
    """

    accounting = Accounting.UPPER_BOUND

    def gain(self, image: Image) -> Gain:
        """Return the reported size; the inodes are unknown."""
        return image.size_bytes, None

    def gain_on(self, image: Image, number: int) -> Gain:  # noqa: ARG002 - required by the protocol
        """Return an unknown gain: the filesystem of an image is unknown."""
        return None, None

    def gains(self, image: Image) -> tuple[tuple[str, int], ...]:  # noqa: ARG002 - required by the protocol
        """Return an empty tuple: the filesystem of an image is unknown."""
        return ()

    def take(self, image: Image) -> None:
        """Ignore the removal, since reported sizes are independent of each other."""

    def frees_any(self, image: Image, number: int) -> bool:  # noqa: ARG002 - required by the protocol
        """Return false: the filesystem of an image is unknown."""
        return False

    def able_to_free(self, removable: Collection[Image], number: int) -> frozenset[str]:  # noqa: ARG002 - protocol
        """Return an empty set: the filesystem of an image is unknown."""
        return frozenset()


class LayerLedger:
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
        """Return the size and inodes of the pieces that only ``image`` references; unknown for an unlisted image."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None, None
        counts = self._image_counts
        unique = [index for index in indexes if counts[index] == 1]
        sizes, inodes = self._sizes, self._inodes
        return sum([sizes[index] for index in unique]), sum([inodes[index] for index in unique])

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
