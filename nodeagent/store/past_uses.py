"""Past uses of images: recent pauses between two uses, by which a next use is expected.

The use record of an image ends with its removal. The last use and the pauses of a removed image are therefore kept
here, so that the use after its next pull is known to be a repeated one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import datetime
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nodeagent.parsing import parse_json
from nodeagent.store.sqlite import micros, moment

if TYPE_CHECKING:
    from nodeagent.model.runtime import ImageUsage

KEPT_IMAGES: Final = 1_000
KEPT_PAUSES: Final = 4
_SHORTEST_S: Final = 600.0
"""Shorter pauses are less than any time ahead."""


class PastUse(NamedTuple):
    """Past use of an image that was used again after a pause, or was removed after its use.

    Attributes:
        last_used: last use before the removal, or before the last pause ended.
        pauses_s: pauses between two uses, newest first; at most ``KEPT_PAUSES``.
    """

    last_used: datetime
    pauses_s: tuple[float, ...] = ()


def note_uses(
    past: Mapping[str, PastUse],
    known: Mapping[str, ImageUsage],
    usage: Mapping[str, ImageUsage],
    in_use: Collection[str],
    previous_at: datetime | None,
) -> dict[str, PastUse]:
    """Return the past uses after a detection; of the latest ``KEPT_IMAGES``.

    Args:
        past: past uses after the previous detection.
        known: usage after the previous detection.
        usage: usage after this detection.
        in_use: ids of the images in use at this detection.
        previous_at: time of the previous detection; ``None`` if use was not observed since then, so that no pause of
            that time is known.
    """
    found = dict(past)
    for image_id in known.keys() - usage.keys():
        last = known[image_id].last_used
        if last is not None:
            found[image_id] = PastUse(last, past[image_id].pauses_s if image_id in past else ())
    for image_id in in_use if previous_at is not None else ():
        now = usage[image_id].last_used if image_id in usage else None
        before = past.get(image_id)
        last = known[image_id].last_used if image_id in known else None
        last = last or (before.last_used if before is not None else None)
        if now is None or last is None or previous_at is None or last >= previous_at:
            continue
        pause_s = (now - last).total_seconds()
        if pause_s >= _SHORTEST_S:
            earlier = before.pauses_s if before is not None else ()
            found[image_id] = PastUse(now, (pause_s, *earlier)[:KEPT_PAUSES])
    if len(found) <= KEPT_IMAGES:
        return found
    latest = nlargest(KEPT_IMAGES, found, key=lambda image_id: (found[image_id].last_used, image_id))
    return {image_id: found[image_id] for image_id in latest}


def encoded(past: Mapping[str, PastUse]) -> str:
    """Return past uses as text."""
    return json.dumps({image_id: [micros(each.last_used), each.pauses_s] for image_id, each in past.items()})


def decoded(text: str) -> dict[str, PastUse] | None:
    """Return past uses from their text; ``None`` if it is not such a text."""
    try:
        values: Mapping[str, Any] = parse_json(text)
        found = {
            image_id: PastUse(moment(int(last_us)), tuple(map(float, pauses)))
            for image_id, (last_us, pauses) in values.items()
        }
    except (ValueError, OverflowError, TypeError, AttributeError):
        return None
    return found if all(math.isfinite(each) for past in found.values() for each in past.pauses_s) else None
