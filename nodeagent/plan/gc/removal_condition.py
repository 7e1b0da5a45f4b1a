"""Texts of the conditions under which kept items would be removed, derived from the reasons to keep them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.plan.decision import ReasonCode
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.plan.decision import Reason
    from nodeagent.plan.gc.policy import ImageGCPolicy

_NEVER: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.PINNED: "pinned in the runtime",
    ReasonCode.SANDBOX_IMAGE: "the sandbox image",
    ReasonCode.PROTECTED: "matched by protect.images",
    ReasonCode.IRREPLACEABLE: 'irreplaceable and image_gc.irreplaceable = "never"',
}
_ONCE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.IN_USE_BY_CONTAINER: "it is unreferenced",
    ReasonCode.IN_USE_BY_SANDBOX: "it is unreferenced",
    ReasonCode.NAMED_BY_POD: "no pod of this node names it",
    ReasonCode.NEWEST_TAGS: "its repository has newer images",
    ReasonCode.HELD: "the hold has ended",
    ReasonCode.TOO_YOUNG: "it is old enough",
    ReasonCode.USED_THIS_PASS: "its last use is in the past",
    ReasonCode.USE_UNKNOWN: "image use is known",
    ReasonCode.ORIGIN_UNKNOWN: "its origin is known",
    ReasonCode.FILESYSTEM_UNREADABLE: "the image filesystem can be read",
    ReasonCode.FILESYSTEM_UNKNOWN: "the image filesystem on which it frees space is known",
}
_AT: Final[Mapping[ReasonCode, str]] = {ReasonCode.HELD: "until_at", ReasonCode.TOO_YOUNG: "eligible_at"}
_OF_IMAGE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.IRREPLACEABLE_INSUFFICIENT: "when removals including this image free enough space",
    ReasonCode.LIMIT_IMAGES_PER_PASS: "in a later pass; this pass has reached its limit",
    ReasonCode.LIMIT_BYTES_PER_PASS: "in a later pass; this pass has reached its limit",
    ReasonCode.COLLECTION_PENDING: "if imagefs is still above its threshold after the runtime's garbage collection",
    ReasonCode.UNDO_WINDOW_OPEN: "if imagefs is still above its threshold after the undo window of removed images",
    ReasonCode.FREES_NO_SPACE: "once its removal frees space on an image filesystem",
    ReasonCode.GAIN_TOO_SMALL: "once its gain is larger (images with common layers removed), or minimum_gain is lower",
    ReasonCode.CLOCK_UNTRUSTED: "once the wall clock has not jumped for the grace period",
    ReasonCode.RUNTIME_INCONSISTENT: "once the lists of the runtime agree",
    ReasonCode.FAILED_EARLIER: "in a later pass",
    ReasonCode.NOT_IN_PLAN: "by a saved plan that lists the item",
}
_OF_OTHERS: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.RUNNING: "once it has exited, and its pod is deleted or the limits on dead containers are exceeded",
    ReasonCode.STATE_UNKNOWN: "once reported as exited",
    ReasonCode.NOT_KUBELET_MANAGED: "never unless container_gc.include_unlabelled is set",
    ReasonCode.WITHIN_LIMITS: "once newer instances of it have exited, or its pod is deleted",
    ReasonCode.NEWEST_DEAD_CONTAINER: "once a newer instance of it has exited, or its pod is deleted",
    ReasonCode.SANDBOX_UNKNOWN: "once its label and its sandbox have the same pod",
    ReasonCode.RUNTIME_INCONSISTENT: "once the lists of the runtime agree",
    ReasonCode.AGE_UNKNOWN: "once its creation time is known",
    ReasonCode.CREATED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.SANDBOX_READY: "once it is not ready and has no containers",
    ReasonCode.SANDBOX_HAS_CONTAINERS: "once its containers are removed",
    ReasonCode.NEWEST_OF_POD: "once its pod is deleted, or has a newer sandbox",
    ReasonCode.POD_PRESENT: "once its pod is deleted",
    ReasonCode.POD_ITEMS_KEPT: "once the containers and sandboxes of its pod are removed",
    ReasonCode.MODIFIED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.BOOTED_RECENTLY: "once it is old enough, unless another rule keeps it",
    ReasonCode.LOG_NOT_READ: "once it can be read completely",
    ReasonCode.LOG_OPEN: "once no process has it open",
    ReasonCode.LOG_OPENERS_UNKNOWN: "once two readings one interval of container GC apart are equal",
    ReasonCode.NOT_A_POD_LOG_DIRECTORY: "never: not a pod log directory",
    ReasonCode.CONTAINER_PRESENT: "once its container is removed",
    ReasonCode.CLOCK_UNTRUSTED: "once the wall clock has not jumped for the grace period",
    ReasonCode.FAILED_EARLIER: "in a later pass",
    ReasonCode.NOT_IN_PLAN: "by a saved plan that lists the item",
}


def condition_of(reason: Reason) -> str:
    """Return the removal condition of a container, sandbox or log kept for this reason; empty if undefined."""
    return _OF_OTHERS.get(reason.code, "")


def condition_of_image(reason: Reason) -> str:
    """Return the removal condition of an image kept for this reason, without the other rules; empty if undefined."""
    return _OF_IMAGE.get(reason.code, "")


def image_condition(
    reasons: Sequence[Reason], policy: ImageGCPolicy, *, by_use: str, users_removed: bool, is_last: bool
) -> str:
    """Return the text of the condition under which a kept image would be removed.

    Args:
        reasons: all reasons to keep the image; the reason of the decision is first.
        policy: policy of the plan.
        by_use: text of the imagefs usage at which the image is removed by threshold.
        users_removed: whether the next container GC pass removes all users of the image.
        is_last: whether the image is removed after all others, and not by age.
    """
    codes = [each.code for each in reasons]
    never = [_NEVER[code] for code in codes if code in _NEVER]
    if never:
        return f"never while it is {' and '.join(never)}"
    once = [_ONCE[code] for code in codes if code in _ONCE]
    if users_removed:
        once = [
            "container GC has removed its dead containers" if each == "it is unreferenced" else each for each in once
        ]
    if once:
        return f"once {' and '.join(dict.fromkeys(once))}; then {_by_threshold(policy, is_last=is_last)}"
    code = codes[0]
    unused = f"once unused for {format_duration(policy.maximum_unused_age_s)}" if policy.maximum_unused_age_s else ""
    if code in (ReasonCode.BELOW_HIGH_THRESHOLD, ReasonCode.ENOUGH_FREED):
        return f"{by_use}; or {unused}" if unused else by_use
    if code is ReasonCode.THRESHOLD_DISABLED:
        return unused or "never while image GC by threshold and by age are disabled"
    if code is ReasonCode.AGE_NOT_OBSERVED:
        maximum = format_duration(policy.maximum_unused_age_s)
        observed = f"once image use has been observed for {maximum} without a gap, if unused until then"
        return observed if policy.high_threshold_percent >= 100 else f"{observed}; or {by_use}"
    is_later = code is ReasonCode.IRREPLACEABLE_LATER
    return _by_threshold(policy, is_last=True) if is_later else condition_of_image(reasons[0])


def eligible_at(reasons: Sequence[Reason]) -> datetime | None:
    """Return the time at which the last reason to keep an image ends; ``None`` if it depends on more than time."""
    if any(each.code in _NEVER or (each.code in _ONCE and each.code not in _AT) for each in reasons):
        return None
    times = [each.details.get(_AT.get(each.code, "eligible_at")) for each in reasons]
    return max((each for each in times if isinstance(each, datetime)), default=None)


def _by_threshold(policy: ImageGCPolicy, *, is_last: bool) -> str:
    unused_s = 0.0 if is_last else policy.maximum_unused_age_s
    unused = f"once unused for {format_duration(unused_s)}" if unused_s else ""
    if policy.high_threshold_percent >= 100:
        return unused or "not removed by usage: threshold collection disabled"
    order = "if no other image frees enough" if is_last else "in order of use"
    threshold = f"when imagefs is {policy.high_threshold_percent}% full, {order}"
    return f"{threshold}; or {unused}" if unused else threshold
