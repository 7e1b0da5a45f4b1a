"""Update of the image usage by one detection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.model import ImageUsage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RESOLUTION: Final = timedelta(microseconds=1)
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


def merge_usage(  # noqa: PLR0913 - the arguments are the facts of one detection
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

    The first detection of a new image is ``now``, never its pull time, since use was not observed between the two
    times. The pull time is only the start of the minimum age, unless it is in the future, or the image was missing in
    the previous detection although that detection was after the pull. A known image with another pull time than in the
    previous detection was pulled again and has a new first detection. Times in the future are set to ``now``, so that
    ages restart at zero.

    Args:
        known: usage after the previous detection.
        listed: ids of the listed images with the time of the last pull, which is the creation time of the newest name
            in the runtime; ``None`` if the runtime does not report that time. Pull times may be by another clock than
            ``now``.
        in_use: ids of the images in use.
        now: time of this detection.
        previous_at: time of the previous detection; ``None`` if use was not observed since then. An image in use at
            ``previous_at`` and unused at ``now`` may have been used until a moment before ``now``.
        ahead: difference of two clocks: that of the pull times minus that of all other times.
        pulls_valid_since: start of the current setting of the pull clock; earlier pull times are ignored.

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
                used = now - _RESOLUTION  # a last use equal to ``now`` would count as use in the next detection
        merged[image_id] = ImageUsage(first, now if image_id in in_use else used, pulled_at, present)
    return merged
