"""Update of the image usage by one detection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RESOLUTION: Final = timedelta(microseconds=1)
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


def merge_usage(  # noqa: PLR0913 - facts of one detection
    known: Mapping[str, ImageUsage],
    listed: Mapping[str, datetime | None],
    in_use: Collection[str],
    now: datetime,
    *,
    previous_at: datetime | None = None,
    ahead: timedelta = timedelta(0),
    pulls_valid_since: datetime = _ALWAYS,
) -> dict[str, ImageUsage]:
    """Return the usage of every listed image after a detection at ``now``; other images are dropped.

    A new image is first detected now: a pull time is never a first detection, since use was not observed since then.
    It only starts the minimum age, unless it is in the future, or the image was not listed in the previous
    detection although pulled before it. A known image whose pull time differs from that of the previous detection was
    pulled again and is detected again. Times in the future become now, so that ages restart at zero.

    Args:
        known: usage after the previous detection.
        listed: image ids with the time of the last pull, which is the creation of the newest name in the runtime;
            ``None`` if the runtime does not report it. It may be by another clock than ``now``.
        in_use: ids of the images in use.
        now: time of this detection.
        previous_at: time of the previous detection; ``None`` if use was not observed since then. An image in use at
            that time and not now may have been used until just before now.
        ahead: the clock of the pulls minus the clock of all other times.
        pulls_valid_since: earlier pull times were written under another clock.

    Source: kubelet image manager, ``detectImages``.
    """
    merged = {}
    for image_id, reported_at in listed.items():
        pulled_at = reported_at
        before = known.get(image_id)
        if before is None:
            first, used = now, None
            present = now
            if pulled_at is not None and pulls_valid_since <= pulled_at <= now + ahead:
                present = pulled_at - ahead
            if previous_at is not None and present < previous_at:
                present = now
        else:
            first = min(now, before.first_detected)
            present = before.present_since or first
            present = min(now, present)
            if pulled_at is None:
                pulled_at = before.pulled_at
            elif before.pulled_at is not None and pulled_at != before.pulled_at:
                first = present = now
            used = min(before.last_used, now) if before.last_used is not None else None
            if used is not None and previous_at is not None and used >= previous_at:
                used = now - _RESOLUTION  # exactly now would count as use in the next detection
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used, pulled_at, present)
    return merged
