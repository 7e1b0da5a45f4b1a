"""Bytes and inodes freed by image removals, given the references to each piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.plan.decision import Accounting

if TYPE_CHECKING:
    from nodeagent.model import Image, NodeSnapshot, StorageGraph

Gain = tuple[int | None, int | None]
"""Bytes and inodes; ``None`` if unknown."""


class Ledger(Protocol):
    """Computes the gain of the next removal, given the removals already counted."""

    accounting: Accounting

    def gain(self, image: Image) -> Gain:
        """Return the gain of removing ``image`` next."""

    def take(self, image: Image) -> None:
        """Count ``image`` as removed."""


def ledger_for(snapshot: NodeSnapshot) -> Ledger:
    """Return exact accounting with a storage graph, else accounting by upper bounds."""
    return LayerLedger(snapshot.storage) if snapshot.storage is not None else SizeLedger()


class SizeLedger:
    """Counts the sizes reported by the runtime.

    They are upper bounds in that shared layers count for every image. As sizes of compressed content they can also be
    too small; only a measurement shows the freed bytes. Source: CRI ``Image.size``.
    """

    accounting = Accounting.UPPER_BOUND

    def gain(self, image: Image) -> Gain:
        """Return the reported size; the inodes are unknown."""
        return image.size_bytes, None

    def take(self, image: Image) -> None:
        """Ignore the removal, since reported sizes are independent of each other."""


class LayerLedger:
    """Counts the pieces whose last reference is removed.

    A piece is freed with the last image that references it, and never while it has another reference: a container, a
    lease, a snapshot of an unlisted image. An image in the graph that CRI no longer lists keeps its references.
    """

    accounting = Accounting.LAYERS

    def __init__(self, graph: StorageGraph) -> None:
        """Count the images that reference each piece."""
        self._by_image = graph.by_image
        self._sizes = [0 if piece.references else piece.size_bytes for piece in graph.pieces]
        self._inodes = [0 if piece.references else piece.inodes for piece in graph.pieces]
        self._image_counts = counts = [0] * len(graph.pieces)
        for indexes in graph.by_image.values():
            for index in indexes:
                counts[index] += 1

    def gain(self, image: Image) -> Gain:
        """Return the sum of the pieces that only ``image`` still references."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None, None
        counts = self._image_counts
        unique = [index for index in indexes if counts[index] == 1]
        sizes, inodes = self._sizes, self._inodes
        return sum([sizes[index] for index in unique]), sum([inodes[index] for index in unique])

    def take(self, image: Image) -> None:
        """Remove the references of ``image``."""
        for index in self._by_image.get(image.id, ()):
            self._image_counts[index] -= 1
