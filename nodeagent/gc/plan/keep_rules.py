"""Keep rules for images, which apply regardless of the age of an image and the usage of the filesystem.

:data:`KEEP_RULES` lists the rules in order of precedence; the first matching rule determines the reason of the
decision. A new rule needs an entry in ``KEEP_RULES``, a reason code with its sentence in ``model/reason_codes.py``, and
a test. Rules that depend on age, usage or the limits of a pass are part of the plan itself (``images``).

Each rule returns all images that it keeps. Rejected alternative: a predicate per rule and image, which needs more than
ten calls for each of 100,000 images, although few images match a rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_protection import (
    DIGEST_PREFIXES,
    Matcher,
    ProtectionPolicy,
    ProtectionRule,
    RuleKind,
    origin_keep_reasons,
    parse_rule,
)
from nodeagent.gc.plan.image_users import ImageIndex, ImageUsers, find_users, in_use_reason, is_named_like_pause
from nodeagent.last_result import keep_last_result
from nodeagent.model.decision import NO_FAILURES, Reason, ReasonCode
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model import ClockTrust, Hold, Image, NodeSnapshot


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


_PINNED = Reason(ReasonCode.PINNED)
_CONFIGURED = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "configured in the runtime"})
_NAMED_LIKE_PAUSE = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "named like a pause image"})
_NOT_IN_PLAN = Reason(ReasonCode.NOT_IN_PLAN)


class KeepContext(Record):
    """Inputs of the keep rules for one plan.

    Attributes:
        users: containers and sandboxes that use each image of the snapshot.
        protection: the protection rules.
        failed: cause of the failure by image id, for removals that failed earlier in this pass.
        only: ids of the images that the applied plan permits to remove; ``None`` without an applied plan.
        pause_images: ids of the images named like a pause image.
    """

    snapshot: NodeSnapshot
    users: ImageUsers
    protection: ProtectionPolicy
    failed: Mapping[str, str]
    only: frozenset[str] | None
    pause_images: frozenset[str]


class KeepRule(Record):
    """A rule that keeps images.

    Attributes:
        codes: reason codes that the rule returns.
        find: function that returns the reason for every image that the rule keeps, by image id.
    """

    codes: tuple[ReasonCode, ...]
    find: Callable[[KeepContext], Mapping[str, Reason]]


def _in_use(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images referenced by a container, in any state, or by a sandbox."""
    return _in_use_reasons(context.users)


@keep_last_result
def _in_use_reasons(users: ImageUsers) -> Mapping[str, Reason]:
    return {image_id: in_use_reason(image_id, users) for image_id in users.images}


def _pinned(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images pinned in the runtime."""
    return {image.id: _PINNED for image in context.snapshot.images if image.pinned}


def _sandbox_images(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep sandbox images: the configured image, and images named like a pause image.

    The name is needed because containerd 2 does not report the configured sandbox image.
    """
    configured = context.users.index.resolve_all(context.snapshot.sandbox_images)
    return dict.fromkeys(context.pause_images, _NAMED_LIKE_PAUSE) | dict.fromkeys(configured, _CONFIGURED)


def _named_by_pods(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images named by static manifests and by pods bound to this node.

    A container of the pod may need the image next.
    """
    pods: defaultdict[str, set[str]] = defaultdict(set)
    for reference, named_by in context.snapshot.pod_images.named.items():
        for image_id in context.users.index.resolve_named(reference):
            pods[image_id].update(named_by)
    return {
        image_id: Reason(ReasonCode.NAMED_BY_POD, {"count": len(named_by), "pods": tuple(sorted(named_by))})
        for image_id, named_by in pods.items()
    }


def _protected(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images matched by a protection rule, and the newest images of each repository."""
    return context.protection.reasons(context.snapshot.images, context.snapshot.image_usage)


def _irreplaceable(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images of unknown origin and, if configured, images that cannot be pulled again."""
    protection = context.protection
    return origin_keep_reasons(context.snapshot, protection.irreplaceable, protection.unreachable_registries)


def _held(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images matched by a hold that has not expired."""
    return held_images(context.snapshot, context.users.index)


def _not_in_plan(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images that the applied plan does not remove."""
    if context.only is None:
        return {}
    return {image.id: _NOT_IN_PLAN for image in context.snapshot.images if image.id not in context.only}


def _failed(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to exclude images whose removal failed earlier in this pass."""
    return {
        image_id: Reason(ReasonCode.FAILED_EARLIER, {"detail": detail}) for image_id, detail in context.failed.items()
    }


def _used_since(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images with a recorded use after this observation: the clock was set back."""
    now = context.snapshot.observed_at
    return {
        image_id: Reason(ReasonCode.USED_THIS_PASS, {"last_used_at": usage.last_used})
        for image_id, usage in context.snapshot.image_usage.items()
        if usage.last_used is not None and usage.last_used > now
    }


def _use_unknown(context: KeepContext) -> Mapping[str, Reason]:
    """Return a reason by id of all images if image use, the pods of this node or the holds are unknown, else empty."""
    reason = use_unknown(context)
    return {} if reason is None else {image.id: reason for image in context.snapshot.images}


def use_unknown(context: KeepContext) -> Reason | None:
    """Return the reason to keep every image because image use is unknown; ``None`` if image use is known.

    The reason is one of: holds cannot be read; the pods of this node have never been listed; a sandbox cannot be read
    and the sandbox image is unknown, so that any image could be the sandbox image.
    """
    snapshot = context.snapshot
    if snapshot.holds_error:
        return Reason(ReasonCode.USE_UNKNOWN, {"detail": snapshot.holds_error})
    if snapshot.pod_images.error:
        return Reason(ReasonCode.USE_UNKNOWN, {"detail": snapshot.pod_images.error})
    if not snapshot.sandboxes_unread or snapshot.sandbox_images or context.pause_images:
        return None
    if any(sandbox.image for sandbox in snapshot.sandboxes) or any(image.pinned for image in snapshot.images):
        return None
    count = len(snapshot.sandboxes_unread)
    detail = f"cannot read {count} sandbox(es), and the sandbox image is unknown"
    return Reason(ReasonCode.USE_UNKNOWN, {"detail": detail})


KEEP_RULES: Final[tuple[KeepRule, ...]] = (
    KeepRule((ReasonCode.IN_USE_BY_CONTAINER, ReasonCode.IN_USE_BY_SANDBOX), _in_use),
    KeepRule((ReasonCode.PINNED,), _pinned),
    KeepRule((ReasonCode.SANDBOX_IMAGE,), _sandbox_images),
    KeepRule((ReasonCode.NAMED_BY_POD,), _named_by_pods),
    KeepRule((ReasonCode.PROTECTED, ReasonCode.NEWEST_TAGS), _protected),
    KeepRule((ReasonCode.IRREPLACEABLE, ReasonCode.ORIGIN_UNKNOWN), _irreplaceable),
    KeepRule((ReasonCode.HELD,), _held),
    KeepRule((ReasonCode.NOT_IN_PLAN,), _not_in_plan),
    KeepRule((ReasonCode.FAILED_EARLIER,), _failed),
    KeepRule((ReasonCode.USED_THIS_PASS,), _used_since),
    KeepRule((ReasonCode.USE_UNKNOWN,), _use_unknown),
)
"""The keep rules in order of precedence."""


def keep_context(
    snapshot: NodeSnapshot,
    protection: ProtectionPolicy,
    users: ImageUsers,
    *,
    failed: Mapping[str, str],
    only: frozenset[str] | None,
) -> KeepContext:
    """Return the inputs of the keep rules; see :class:`KeepContext`."""
    return KeepContext(snapshot, users, protection, failed, only, _pause_images(tuple(snapshot.images)))


@keep_last_result
def _pause_images(images: tuple[Image, ...]) -> frozenset[str]:
    """Return the ids of the images named like a pause image."""
    return frozenset(
        image.id
        for image in images
        for reference in image.references
        if "pause" in reference and is_named_like_pause(reference)  # fast pre-check
    )


def first_keep_reasons(context: KeepContext) -> dict[str, Reason]:
    """Return the reason of the first matching keep rule for every kept image, by image id."""
    reasons: dict[str, Reason] = {}
    for rule in reversed(KEEP_RULES):
        reasons.update(rule.find(context))
    return reasons


def keep_reasons(
    snapshot: NodeSnapshot, protection: ProtectionPolicy, image_ids: Collection[str]
) -> dict[str, tuple[Reason, ...]]:
    """Return the reasons of all matching keep rules for each of these images, in order of precedence.

    A plan contains only the first reason.
    """
    context = keep_context(snapshot, protection, find_users(snapshot), failed=NO_FAILURES, only=None)
    found = [rule.find(context) for rule in KEEP_RULES]
    return {image_id: tuple(reasons[image_id] for reasons in found if image_id in reasons) for image_id in image_ids}
