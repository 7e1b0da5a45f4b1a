"""Which images are built on which, by the layers they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.model import PieceKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model import Image, StorageGraph


@dataclass(slots=True)
class Stack:
    """Layers that lie on one another, and what lies on them.

    Attributes:
        images: those that consist of exactly the layers from the bottom up to here.
        layers: how many layers this stack adds to what it lies on.
        size_bytes: what these occupy, unpacked.
        derived: what lies on it.
    """

    images: list[Image] = field(default_factory=list)
    layers: int = 0
    size_bytes: int = 0
    derived: list[Stack] = field(default_factory=list)

    @property
    def image_count(self) -> int:
        """How many images consist of these layers, with or without more on top."""
        return len(self.images) + sum(stack.image_count for stack in self.derived)


@dataclass(slots=True)
class _Layer:
    above: dict[int, _Layer] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)


def sharing_tree(images: Iterable[Image], storage: StorageGraph) -> tuple[tuple[Stack, ...], tuple[Image, ...]]:
    """Return the stacks at the bottom, with all that lies on them, and the images of which no layers are known.

    Layers that only one image, or the same images, consist of are one stack. Stacks are ordered by how many images
    they carry, then by size, then by name.
    """
    ground, unknown = _Layer(), []
    for image in images:
        indexes = storage.by_image.get(image.id, ())
        chain = [index for index in reversed(indexes) if storage.pieces[index].kind is PieceKind.SNAPSHOT]
        if not chain:
            unknown.append(image)
            continue
        layer = ground
        for index in chain:
            layer = layer.above.setdefault(index, _Layer())
        layer.images.append(image)
    return _stacks(ground, storage), tuple(unknown)


def _stacks(ground: _Layer, storage: StorageGraph) -> tuple[Stack, ...]:
    made = []
    for first, start in ground.above.items():
        stack, layer, index = Stack(), start, first
        while True:
            stack.layers += 1
            stack.size_bytes += storage.pieces[index].size_bytes
            if layer.images or len(layer.above) != 1:
                break
            ((index, layer),) = layer.above.items()
        stack.images = sorted(layer.images, key=lambda image: image.name)
        stack.derived = list(_stacks(layer, storage))
        made.append(stack)
    return tuple(sorted(made, key=lambda each: (-each.image_count, -each.size_bytes, _first_name(each))))


def _first_name(stack: Stack) -> str:
    return stack.images[0].name if stack.images else ""
