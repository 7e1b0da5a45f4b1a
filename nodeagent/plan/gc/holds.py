"""Image holds: images that operators keep until an expiry time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import ALL_IMAGES
from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.gc.image_protection import EXPRESSION_PREFIX, parse_rule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from nodeagent.model import ClockTrust, Hold, Image, NodeSnapshot
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.gc.image_references import ImageIndex


def held_images(snapshot: NodeSnapshot, index: ImageIndex) -> dict[str, Reason]:
    """Return the reason to keep each held image, by image id; the hold with the latest expiry if there are several."""
    held: dict[str, Reason] = {}
    for hold in sorted(snapshot.holds, key=lambda each: (each.until, each.id)):
        details: dict[str, Detail] = {"hold": hold.id, "by": hold.by, "until_at": hold.until, "why": hold.why}
        reason = Reason(ReasonCode.HELD, details)
        held.update(dict.fromkeys(images_of(hold, snapshot.images, index), reason))
    return held


def holds_in_force(holds: Iterable[Hold], clock: ClockTrust, now: datetime) -> tuple[Hold, ...]:
    """Return the holds that have not expired; ``now`` is the wall-clock time of the reading ``clock``."""
    return tuple(hold for hold in holds if not has_ended(hold, clock, now))


def has_ended(hold: Hold, clock: ClockTrust, now: datetime) -> bool:
    """Return whether a hold has expired.

    In the boot in which the hold was placed, its duration is measured by the boot clock. In later boots, its expiry is
    compared with ``clock.expiry_now``; while this time is unknown, no hold expires.
    """
    left_s = left_in_boot_s(hold, clock)
    if left_s is not None:
        return left_s <= 0
    expiry_now = now if clock.boottime_s is None else clock.expiry_now
    return expiry_now is not None and hold.until <= expiry_now


def left_in_boot_s(hold: Hold, clock: ClockTrust) -> float | None:
    """Return the remaining seconds of a hold in the boot in which it was placed; ``None`` in another boot."""
    if hold.placed_s is None or clock.boottime_s is None or not hold.boot_id or hold.boot_id != clock.boot_id:
        return None
    return hold.duration_s - (clock.boottime_s - hold.placed_s)


def images_of(hold: Hold, images: Iterable[Image], index: ImageIndex) -> set[str]:
    """Return the ids of the images that a hold matches: all images, or a match of ``images_named``."""
    return {image.id for image in images} if hold.image == ALL_IMAGES else images_named(hold.image, images, index)


def images_named(text: str, images: Iterable[Image], index: ImageIndex) -> set[str]:
    """Return the ids of the images matched by the text of a hold: by reference, by id or as a protection rule.

    An invalid regular expression, such as an expression with look-ahead that version 0.1 accepted, matches every image.
    """
    matched = set(index.resolve(text))
    try:
        rule = parse_rule(text)
    except ValueError:
        if text.startswith(EXPRESSION_PREFIX):
            return {image.id for image in images}  # expression of an earlier version, images unknown
        return matched
    return matched | {image.id for image in images if rule.matched_by(image)}
