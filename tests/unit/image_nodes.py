"""Nodes with images of given ages, for the tests of image GC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.gc.plan.policy import ImageGCPolicy
from tests.unit.builders import DAY_S, image, snapshot, used

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Image

POLICY = ImageGCPolicy()


def aged(image_id: str, last_s: float | None, *, size_mib: int = 100, seen_s: float = DAY_S) -> tuple[Image, object]:
    return image(image_id, size_mib=size_mib), used(last_s, seen_s=seen_s)


def node(*images: object, **fields: object) -> NodeSnapshot:
    return snapshot(*images, **fields)  # type: ignore[arg-type]
