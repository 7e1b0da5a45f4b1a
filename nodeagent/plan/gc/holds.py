"""Images kept by operators' holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import ALL_IMAGES
from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.gc.image_protection import parse_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model import Hold, Image, NodeSnapshot
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.gc.image_references import ImageIndex


def held_images(snapshot: NodeSnapshot, index: ImageIndex) -> dict[str, Reason]:
    """Return the id of every held image with the reason; of several holds that with the latest expiry."""
    active = [hold for hold in snapshot.holds if hold.until > snapshot.observed_at]
    held: dict[str, Reason] = {}
    for hold in sorted(active, key=lambda each: (each.until, each.id)):
        details: dict[str, Detail] = {"hold": hold.id, "by": hold.by, "until_at": hold.until, "why": hold.why}
        reason = Reason(ReasonCode.HELD, details)
        held.update(dict.fromkeys(images_of(hold, snapshot.images, index), reason))
    return held


def images_of(hold: Hold, images: Iterable[Image], index: ImageIndex) -> set[str]:
    """Return the ids of the images matched by a hold: by reference, by id or as a protection rule."""
    if hold.image == ALL_IMAGES:
        return {image.id for image in images}
    matched = set(index.resolve(hold.image))
    try:
        rule = parse_rule(hold.image)
    except ValueError:
        return matched
    return matched | {image.id for image in images if rule.matched_by(image)}
