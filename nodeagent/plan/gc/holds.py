"""Images kept by operators' holds."""

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
    """Return the id of every held image with the reason; of several holds that with the latest expiry."""
    held: dict[str, Reason] = {}
    for hold in sorted(snapshot.holds, key=lambda each: (each.until, each.id)):
        details: dict[str, Detail] = {"hold": hold.id, "by": hold.by, "until_at": hold.until, "why": hold.why}
        reason = Reason(ReasonCode.HELD, details)
        held.update(dict.fromkeys(images_of(hold, snapshot.images, index), reason))
    return held


def holds_in_force(holds: Iterable[Hold], clock: ClockTrust, now: datetime) -> tuple[Hold, ...]:
    """Return the holds that have not ended; ``now`` is the wall time of ``clock``."""
    return tuple(hold for hold in holds if not has_ended(hold, clock, now))


def has_ended(hold: Hold, clock: ClockTrust, now: datetime) -> bool:
    """Return whether a hold has ended.

    In the boot in which it was placed its duration is measured on the boot clock. In another boot its time of expiry
    is compared with the expiry time of ``clock``; while that is unknown, no hold ends.
    """
    left_s = left_in_boot_s(hold, clock)
    if left_s is not None:
        return left_s <= 0
    expiry_now = now if clock.boottime_s is None else clock.expiry_now
    return expiry_now is not None and hold.until <= expiry_now


def left_in_boot_s(hold: Hold, clock: ClockTrust) -> float | None:
    """Return the rest of a hold in the boot in which it was placed; ``None`` in another boot."""
    if hold.placed_s is None or clock.boottime_s is None or not hold.boot_id or hold.boot_id != clock.boot_id:
        return None
    return hold.duration_s - (clock.boottime_s - hold.placed_s)


def images_of(hold: Hold, images: Iterable[Image], index: ImageIndex) -> set[str]:
    """Return the ids of the images matched by a hold: by reference, by id or as a protection rule."""
    return {image.id for image in images} if hold.image == ALL_IMAGES else images_named(hold.image, images, index)


def images_named(text: str, images: Iterable[Image], index: ImageIndex) -> set[str]:
    """Return the ids of the images matched by the text of a hold: by reference, by id or as a protection rule.

    An invalid expression, such as one with a look-ahead that version 0.1 accepted, matches every image.
    """
    matched = set(index.resolve(text))
    try:
        rule = parse_rule(text)
    except ValueError:
        if text.startswith(EXPRESSION_PREFIX):
            return {image.id for image in images}  # an expression of an earlier version: its images are unknown
        return matched
    return matched | {image.id for image in images if rule.matched_by(image)}
