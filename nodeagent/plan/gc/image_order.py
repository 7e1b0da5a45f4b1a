"""Order of image removals: least recently used first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nodeagent.model import Image, ImageUsage, NodeSnapshot

NEVER: Final = datetime.min.replace(tzinfo=UTC)


class ImageCandidate(NamedTuple):
    """An image with its times of use. Candidates sort in the order of removal.

    A named tuple, since it sorts without a key function.

    Attributes:
        last_used: ``datetime.min`` if never used, so such images sort first.
        first_detected: at most the time of observation.
        position: index in the snapshot; makes candidates with the same id distinct.
    """

    last_used: datetime
    first_detected: datetime
    id: str
    position: int
    image: Image


def order_of_use(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """Return the ids of all images in the order of removal."""
    return tuple(each.id for each in in_order_of_use(snapshot))


def in_order_of_use(snapshot: NodeSnapshot) -> list[ImageCandidate]:
    """Return the images least recently used first, never used before all others; ties by first detection, then by id.

    An image without recorded use, or with a first detection in the future, counts as first detected now.
    """
    now, usage_of = snapshot.observed_at, snapshot.image_usage
    candidates = []
    for position, image in enumerate(snapshot.images):
        usage = usage_of.get(image.id)
        if usage is None:
            candidates.append(ImageCandidate(NEVER, now, image.id, position, image))
        else:
            first = min(usage.first_detected, now)
            candidates.append(ImageCandidate(usage.last_used or NEVER, first, image.id, position, image))
    candidates.sort()
    return candidates


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return the time since which an image is known to be unused.

    A pull counts as use, and so does the time before the start of the observation, in which an image may have been
    used.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)
