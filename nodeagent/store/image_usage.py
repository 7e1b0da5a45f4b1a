"""How one detection changes what is remembered of images."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

_RESOLUTION: Final = timedelta(microseconds=1)


def merge_usage(
    known: Mapping[str, ImageUsage],
    listed: Mapping[str, datetime | None],
    in_use: Collection[str],
    now: datetime,
    *,
    previous_at: datetime | None = None,
) -> dict[str, ImageUsage]:
    """Return the usage of every listed image after a detection at ``now``; images not listed are forgotten.

    ``listed`` maps an image id to the time its newest name was made in the runtime, which is the time of the last
    pull, where the runtime tells. A new image is first detected then, not later than now; a known one that was
    pulled again counts from the new pull. Times in the future, left by a clock that went back, become now, so that
    ages start again at nothing.

    ``previous_at`` is the time of the detection before, ``None`` if use was not observed since then. An image that was
    in use then and is not now may have been used until just before now. An image that was not listed then, although
    pulled before, is first detected now: a clock may have been wrong, or a listing incomplete.

    Source: kubelet image manager, ``detectImages``.
    """
    merged = {}
    for image_id, pulled_at in listed.items():
        before = known.get(image_id)
        pulled = min(pulled_at, now) if pulled_at is not None else None
        if before is None:
            first, used = pulled or now, None
            if previous_at is not None and first < previous_at:
                first = now
        else:
            first = min(before.first_detected, now)
            first = max(first, pulled) if pulled is not None else first
            used = min(before.last_used, now) if before.last_used is not None else None
            if used is not None and previous_at is not None and used >= previous_at:
                used = now - _RESOLUTION  # exactly now would look like use to the next detection
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used)
    return merged
