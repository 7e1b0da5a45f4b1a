"""Images and containerd records for tests of the storage graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.runtime import Image

if TYPE_CHECKING:
    from nodeagent.model.runtime import ReferenceKind, StorageGraph

A = Image("sha256:a", ("a:1",))

B = Image("sha256:b", ("b:1",))


def keys(graph: StorageGraph, image: Image) -> set[str]:
    return {graph.pieces[index].key for index in graph.by_image[image.id]}


def records_with_references(graph: StorageGraph) -> dict[str, tuple[ReferenceKind, ...]]:
    return {piece.key: piece.references for piece in graph.pieces if piece.references}
