"""What removing images really frees, given what else holds the pieces they consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.plan.decision import Accounting

if TYPE_CHECKING:
    from nodeagent.model import Image, NodeSnapshot, StorageGraph

Gain = tuple[int | None, int | None]
"""Bytes and inodes; ``None`` where nothing is known."""


class Ledger(Protocol):
    """Tells what the next removal frees, given those already taken."""

    accounting: Accounting

    def gain(self, image: Image) -> Gain:
        """Return what removing ``image`` now would free."""

    def take(self, image: Image) -> None:
        """Count ``image`` as removed from here on."""


def ledger_for(snapshot: NodeSnapshot) -> Ledger:
    """Return exact accounting where the storage is known, else one of upper bounds."""
    return LayerLedger(snapshot.storage) if snapshot.storage is not None else SizeLedger()


class SizeLedger:
    """Counts the sizes that the runtime reports.

    They are called upper bounds because layers that images share are counted in each of them. Being sizes of
    compressed content they can be below the truth as well; only a measurement tells. Source: CRI ``Image.size``.
    """

    accounting = Accounting.UPPER_BOUND

    def gain(self, image: Image) -> Gain:
        """Return the reported size; inodes are not known."""
        return image.size_bytes, None

    def take(self, image: Image) -> None:
        """Sizes do not depend on one another."""


class LayerLedger:
    """Counts the pieces whose last holder goes.

    A piece is freed with the last image that holds it, and never while anybody else holds it: a container, a lease,
    a snapshot of no listed image. Images that the graph lists but the runtime does not go on holding their pieces.
    """

    accounting = Accounting.LAYERS

    def __init__(self, graph: StorageGraph) -> None:
        """Count how many images hold each piece."""
        self._by_image = graph.by_image
        self._sizes = [0 if piece.holders else piece.size_bytes for piece in graph.pieces]
        self._inodes = [0 if piece.holders else piece.inodes for piece in graph.pieces]
        self._holders = holders = [0] * len(graph.pieces)
        for indexes in graph.by_image.values():
            for index in indexes:
                holders[index] += 1

    def gain(self, image: Image) -> Gain:
        """Return the sum of the pieces that ``image`` alone still holds."""
        indexes = self._by_image.get(image.id)
        if indexes is None:
            return None, None
        holders = self._holders
        alone = [index for index in indexes if holders[index] == 1]
        sizes, inodes = self._sizes, self._inodes
        return sum([sizes[index] for index in alone]), sum([inodes[index] for index in alone])

    def take(self, image: Image) -> None:
        """Let go of the pieces that ``image`` holds."""
        for index in self._by_image.get(image.id, ()):
            self._holders[index] -= 1
