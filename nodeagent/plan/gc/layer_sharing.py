"""Tree of the layer stacks that images share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.model import PieceKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model import Image, StorageGraph


@dataclass(slots=True)
class Stack:
    """A sequence of layers contained in the same images, with the stacks on top of the sequence.

    Attributes:
        images: images whose top layer is the last layer of this stack.
        layers: number of layers in this stack.
        size_bytes: unpacked size of the layers in this stack.
        derived: stacks on top of this stack.
    """

    images: list[Image] = field(default_factory=list)
    layers: int = 0
    size_bytes: int = 0
    derived: list[Stack] = field(default_factory=list)

    @property
    def image_count(self) -> int:
        """Number of images that contain the layers of this stack."""
        return len(self.images) + sum(stack.image_count for stack in self.derived)


@dataclass(slots=True)
class _Layer:
    children: dict[int, _Layer] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)


def sharing_tree(images: Iterable[Image], storage: StorageGraph) -> tuple[tuple[Stack, ...], tuple[Image, ...]]:
    """Return the bottom stacks of the tree, and the images without known layers.

    Adjacent layers contained in the same images form one stack. Stacks are ordered by number of images, then by size,
    both descending, then by name.
    """
    root, unknown = _Layer(), []
    for image in images:
        indexes = storage.by_image.get(image.id, ())
        chain = [index for index in reversed(indexes) if storage.pieces[index].kind is PieceKind.SNAPSHOT]
        if not chain:
            unknown.append(image)
            continue
        layer = root
        for index in chain:
            layer = layer.children.setdefault(index, _Layer())
        layer.images.append(image)
    return _stacks(root, storage), tuple(unknown)


def _stacks(root: _Layer, storage: StorageGraph) -> tuple[Stack, ...]:
    stacks = []
    for first, start in root.children.items():
        stack, layer, index = Stack(), start, first
        while True:
            stack.layers += 1
            stack.size_bytes += storage.pieces[index].size_bytes
            if layer.images or len(layer.children) != 1:
                break
            ((index, layer),) = layer.children.items()
        stack.images = sorted(layer.images, key=lambda image: image.name)
        stack.derived = list(_stacks(layer, storage))
        stacks.append(stack)
    return tuple(sorted(stacks, key=lambda each: (-each.image_count, -each.size_bytes, _first_name(each))))


def _first_name(stack: Stack) -> str:
    return stack.images[0].name if stack.images else ""
