"""Image holds: images that operators keep until an expiry time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.gc.image_protection import DIGEST_PREFIXES, Matcher, ProtectionRule, RuleKind, parse_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from nodeagent.model import ClockTrust, Hold, Image, NodeSnapshot
    from nodeagent.plan.gc.image_references import ImageIndex


def held_images(snapshot: NodeSnapshot, index: ImageIndex) -> dict[str, Reason]:
    """Return the reason to keep each held image, by image id; the hold with the latest expiry if there are several."""
    holds = sorted(snapshot.holds, key=lambda each: (each.until, each.id), reverse=True)
    reasons = [
        Reason(ReasonCode.HELD, {"hold": each.id, "by": each.by, "until_at": each.until, "why": each.why})
        for each in holds
    ]
    first = images_named([each.image for each in holds], snapshot.images, index)
    return {image_id: reasons[place] for image_id, place in first.items()}


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


def images_named(texts: Sequence[str], images: Sequence[Image], index: ImageIndex) -> dict[str, int]:
    """Return the images matched by texts of holds, by id, each with the position of its first text.

    A text matches by reference, by id or as a protection rule. ``ALL_IMAGES``, and a rule that only an earlier version
    accepted, such as an expression with look-ahead or a longer pattern, match every image.
    """
    every, rules = len(texts), []
    for place, text in enumerate(texts):
        try:
            rule = parse_rule(text)
        except ValueError:
            rule = ProtectionRule(text, RuleKind.DIGEST, text)  # a shortened digest, which only the index resolves
            if not text.startswith(DIGEST_PREFIXES):
                every = min(every, place)
        rules.append(rule)
    first = Matcher.of(tuple(rules)).first
    found = [(every, image.id) for image in images if every < len(texts)]
    found += [(matched[0], image.id) for image in images if (matched := first(image)) is not None]
    found += [(place, image_id) for place, text in enumerate(texts) for image_id in index.resolve(text)]
    return {image_id: place for place, image_id in sorted(found, reverse=True)}
