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
        pulled_at: ``datetime.min`` if not reported. Images detected together, such as by a new agent, differ in it.
        present_since: start of the minimum age, at most the time of observation.
        position: index in the snapshot; makes candidates with the same id distinct.
    """

    last_used: datetime
    first_detected: datetime
    pulled_at: datetime
    id: str
    position: int
    image: Image
    present_since: datetime


def order_of_use(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """Return the ids of all images in the order of removal."""
    return tuple(each.id for each in in_order_of_use(snapshot))


def in_order_of_use(snapshot: NodeSnapshot) -> list[ImageCandidate]:
    """Return the images least recently used first, never used before all others.

    Ties are in the order of first detection, then of pull, then of id. An image without recorded use, or with a first
    detection in the future, counts as first detected now.
    """
    now, usage_of = snapshot.observed_at, snapshot.image_usage
    candidates = []
    for position, image in enumerate(snapshot.images):
        usage = usage_of.get(image.id)
        if usage is None:
            candidates.append(ImageCandidate(NEVER, now, NEVER, image.id, position, image, now))
        else:
            first = min(usage.first_detected, now)
            present, pulled = min(usage.present_since or first, now), usage.pulled_at or NEVER
            used = usage.last_used or NEVER
            candidates.append(ImageCandidate(used, first, pulled, image.id, position, image, present))
    candidates.sort()
    return candidates


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return the time since which an image is known to be unused.

    A pull counts as use, and so does the time before the start of the observation, in which an image may have been
    used.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)
