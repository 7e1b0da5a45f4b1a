"""Update of the image usage by one detection."""

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
    """Return the usage of every listed image after a detection at ``now``; other images are dropped.

    A new image is first detected at its pull, a known image at its latest pull, neither later than now. Times in the
    future, as after the clock was set back, become now, so that ages restart at 0.

    Args:
        known: usage after the previous detection.
        listed: image ids with the time of the last pull, which is the creation of the newest name in the runtime;
            ``None`` if the runtime does not report it.
        in_use: ids of the images in use.
        now: time of this detection.
        previous_at: time of the previous detection; ``None`` if use was not observed since then. An image in use at
            that time and not now may have been used until just before now. An image pulled before that time but not
            listed then is first detected now: a clock may have been wrong, or a listing incomplete.

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
                used = now - _RESOLUTION  # a use exactly now would count as use in the next detection
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used)
    return merged
