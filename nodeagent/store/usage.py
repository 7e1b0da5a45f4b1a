"""How one detection changes what is remembered of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime


def merge_usage(
    known: Mapping[str, ImageUsage],
    listed: Mapping[str, datetime | None],
    in_use: Collection[str],
    now: datetime,
) -> dict[str, ImageUsage]:
    """Return the usage of every listed image after a detection at ``now``; images not listed are forgotten.

    ``listed`` maps an image id to the time its newest name was made in the runtime, which is the time of the last
    pull, where the runtime tells. A new image is first detected then, not later than now; a known one that was
    pulled again counts from the new pull. Times in the future, left by a clock that went back, become now, so that
    ages start again at nothing.

    Source: kubelet image manager, ``detectImages``.
    """
    merged = {}
    for image_id, pulled_at in listed.items():
        before = known.get(image_id)
        pulled = min(pulled_at, now) if pulled_at is not None else None
        if before is None:
            first, used = pulled or now, None
        else:
            first = min(before.first_detected, now)
            first = max(first, pulled) if pulled is not None else first
            used = min(before.last_used, now) if before.last_used is not None else None
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used)
    return merged
