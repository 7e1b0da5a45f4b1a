"""Order of image removals: least recently used first."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.model import Image, ImageUsage, NodeSnapshot

NEVER: Final = datetime.min.replace(tzinfo=UTC)


class ImageCandidate(NamedTuple):
    """An image with its times of use; candidates sort in removal order.

    The class is a tuple, since tuples sort without a key function.

    Attributes:
        last_used: time of the last use; ``NEVER`` for an image without observed use, which sorts first.
        first_detected: time of the first detection; at most the time of observation.
        pulled_at: time of the pull; ``NEVER`` if not reported. The time orders images that were first detected in one
            pass.
        present_since: time from which the minimum age counts; at most the time of observation.
        position: index in the snapshot; makes candidates with the same id distinct.
    """

    last_used: datetime
    first_detected: datetime
    pulled_at: datetime
    id: str
    position: int
    image: Image
    present_since: datetime


_AS_CANDIDATE: Final = cast("Callable[[tuple[object, ...]], ImageCandidate]", partial(tuple.__new__, ImageCandidate))
"""Convert a row to a candidate, in a quarter of the time that the constructor takes."""


def in_order_of_use(snapshot: NodeSnapshot) -> list[ImageCandidate]:
    """Return the images in removal order: images without observed use first, then least recently used first.

    Ties are broken by first detection, then by pull, then by id. An image without a usage record, or with a first
    detection in the future, counts as first detected now.
    """
    now, usage_of = snapshot.observed_at, snapshot.image_usage
    rows: list[tuple[datetime, datetime, datetime, str, int, Image, datetime]] = []
    for position, image in enumerate(snapshot.images):
        usage = usage_of.get(image.id)
        if usage is None:
            rows.append((NEVER, now, NEVER, image.id, position, image, now))
            continue
        first = min(usage.first_detected, now)  # inline, to avoid a call for each image
        present = usage.present_since or first
        used, pulled = usage.last_used or NEVER, usage.pulled_at or NEVER
        rows.append((used, first, pulled, image.id, position, image, min(present, now)))
    rows.sort()  # plain tuples sort in half the time of named tuples
    return list(map(_AS_CANDIDATE, rows))


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return the time since which an image is known to be unused.

    A pull counts as use. An image counts as used until the start of the observation, since earlier use is unknown.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)
