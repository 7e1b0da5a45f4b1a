"""Which images go."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.plan.decision import (
    NO_FAILURES,
    Decision,
    ItemKind,
    Plan,
    Reason,
    ReasonCode,
    Verdict,
)
from nodeagent.plan.gc.accounting import ledger_for
from nodeagent.plan.gc.holds import held_images
from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.plan.gc.image_references import is_named_like_pause
from nodeagent.plan.gc.image_users import find_users, images_in_use, in_use_reason
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from nodeagent.model import Image, ImageUsage, NodeSnapshot
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.gc.accounting import Gain
    from nodeagent.plan.gc.image_users import ImageUsers

__all__ = [
    "ImageGCPolicy",
    "Spent",
    "images_in_use",
    "order_of_use",
    "plan_image_gc",
    "unused_since",
    "why_images_stay",
]

# Members used for every image are looked up once; in their class that takes ten times as long.
_IMAGE, _FAILED = ItemKind.IMAGE, ReasonCode.FAILED_EARLIER
_REMOVE, _KEEP, _COULD_NOT = Verdict.REMOVE, Verdict.KEEP, Verdict.FAILED

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_PINNED = Reason(ReasonCode.PINNED)
_CONFIGURED = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "configured in the runtime"})
_NAMED_PAUSE = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "named like a pause image"})
_ENOUGH = Reason(ReasonCode.ENOUGH_FREED)
_THRESHOLD_OFF = Reason(ReasonCode.THRESHOLD_DISABLED)
_NOT_IN_PLAN = Reason(ReasonCode.NOT_IN_PLAN)
_ALL_UNUSED = Reason(ReasonCode.ALL_UNUSED)
_LIMITS: Final = frozenset({ReasonCode.LIMIT_IMAGES_PER_PASS, ReasonCode.LIMIT_BYTES_PER_PASS})


@dataclass(frozen=True, slots=True)
class ImageGCPolicy:
    """When images are collected, and which are not.

    Attributes:
        high_threshold_percent: collection starts at this usage of the image filesystem; 100 turns it off.
        low_threshold_percent: collection aims at this usage.
        minimum_age_s: counted from first detection; exactly that old is old enough.
        maximum_unused_age_s: what is unused for longer is removed whatever the usage, once use has been observed for
            longer; 0 disables this.
        minimum_gain_bytes: images known to free less are passed over by the threshold; 0 for none.
        max_images_per_pass: 0 for no limit.
        max_bytes_per_pass: 0 for no limit. A single image larger than that may go if it is the pass's first, and
            is then its only one, since otherwise it would block collection for ever.
        protection: what is kept whatever its age.

    Source: kubelet ``imageGCHighThresholdPercent``, ``imageGCLowThresholdPercent``, ``imageMinimumGCAge``,
    ``imageMaximumGCAge``.
    """

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    minimum_age_s: float = 120.0
    maximum_unused_age_s: float = 0.0
    minimum_gain_bytes: int = 0
    max_images_per_pass: int = 0
    max_bytes_per_pass: int = 0
    protection: ProtectionPolicy = field(default_factory=ProtectionPolicy)


@dataclass(frozen=True, slots=True)
class Spent:
    """What this pass already removed; it counts against the limits per pass."""

    images: int = 0
    size_bytes: int = 0


_NOTHING_SPENT: Final = Spent()


def plan_image_gc(  # noqa: PLR0913 - what one pass carries from round to round
    snapshot: NodeSnapshot,
    policy: ImageGCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    spent: Spent = _NOTHING_SPENT,
    remove_all_unused: bool = False,
    users: ImageUsers | None = None,
    only: frozenset[str] | None = None,
) -> Plan:
    """Choose which images to remove so that the image filesystem comes down to the low threshold.

    Never chosen is what any container or sandbox refers to, the sandbox image, and what is pinned or protected.
    The rest is taken least recently used first (never used before all others), ties by first detection, then by id:
    first what is unused for longer than the maximum, then, if the usage that leaves has reached the high threshold,
    until enough is freed. Removals come in that order, then what is kept, in the same order.

    Departures from the kubelet, all on the side of keeping: the maximum age counts from the last use, the first
    detection and the begin of the observation of image use, whichever is the latest (see ``unused_since``), where the
    kubelet's "never used" is infinitely long ago; without observation nothing is removed by age; a high
    threshold of 100 turns the threshold off, where the kubelet still acts at exactly 100%; failed removals do not
    end the plan. A last use at this very instant does not keep an image by itself, as the snapshot tells exactly
    what is in use; one recorded after it, when the clock went back, does. A first detection in the future is now.

    Args:
        snapshot: the node; without image filesystem only the maximum age removes anything.
        policy: thresholds, ages, limits, protection.
        failed: image id to why it could not be removed earlier in this pass.
        spent: what earlier rounds of this pass removed.
        remove_all_unused: remove every unused image that is old enough, whatever the thresholds; the maximum age
            plays no part. The limits per pass hold.
        only: ids of the images that may go, all others stay; ``None`` for any.
        users: who uses the images of this snapshot, if that is known already.

    Source: kubelet image manager, ``GarbageCollect``, ``freeSpace``, ``DeleteUnusedImages``.
    """
    keepers = _Keepers(snapshot, policy.protection, failed, users or find_users(snapshot), only)
    return _ImagePlanner(snapshot, policy, keepers, spent).plan(remove_all_unused=remove_all_unused)


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return since when an image is known to be unused.

    A pull counts as use, and no time before the begin of the observation counts: an image may have been used then.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)


def why_images_stay(
    snapshot: NodeSnapshot, policy: ImageGCPolicy, image_ids: Collection[str]
) -> dict[str, tuple[Reason, ...]]:
    """Return every fixed rule that keeps each of these images, where a plan tells only the first."""
    keepers = _Keepers(snapshot, policy.protection, NO_FAILURES, find_users(snapshot), None)
    entries = [entry for entry in _in_order_of_use(snapshot) if entry[2] in image_ids]
    return {entry[2]: tuple(keepers.reasons(entry)) for entry in entries}


_Entry = tuple[datetime, datetime, str, int, "Image"]
"""Last use, first detection, id, position and image; a plain tuple, as it sorts itself in the order of use.

The position settles that no two are equal.
"""


@dataclass(frozen=True, slots=True)
class _Target:
    """What is asked for.

    Attributes:
        kept: why nothing is to be freed, if so.
        removed: why what goes does.
        enough_bytes: how much the plan is to free in all; ``None`` for as much as it can.
        pending_bytes: how much the runtime's own garbage collection brings besides.
    """

    kept: Reason | None
    removed: Reason
    enough_bytes: int | None = None
    pending_bytes: int = 0


class _ImagePlanner:
    """One plan in the making; it walks the images in order of use, once for each of the two rules."""

    def __init__(self, snapshot: NodeSnapshot, policy: ImageGCPolicy, keepers: _Keepers, spent: Spent) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = snapshot.observed_at
        self._ledger = ledger_for(snapshot)
        self._budget = _Budget(policy, spent)
        self._keepers = keepers
        self._removals: list[Decision] = []
        self._freed_bytes = 0
        self._kept: dict[str, Reason] = {}
        self._unobserved: dict[str, Reason] = {}

    def plan(self, *, remove_all_unused: bool) -> Plan:
        """Make the plan."""
        entries = _in_order_of_use(self._snapshot)
        candidates = self._without_kept(entries)
        if self._policy.maximum_unused_age_s > 0 and not remove_all_unused:
            candidates = self._take_unused_too_long(candidates)
        target = _Target(None, _ALL_UNUSED) if remove_all_unused else self._target()
        self._take_until_enough(self._old_enough(candidates), target)
        for image_id, reason in self._unobserved.items():
            if image_id in self._kept and self._kept[image_id].code not in _LIMITS:
                self._kept[image_id] = reason
        return Plan(
            "images",
            self._now,
            (*self._removals, *self._kept_decisions(entries)),
            accounting=self._ledger.accounting,
            wanted_bytes=target.enough_bytes or 0,
            pending_bytes=target.pending_bytes,
            warnings=tuple(self._warnings(target)),
        )

    def _without_kept(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Return the images that no fixed rule keeps."""
        candidates = []
        for entry in entries:
            reason = self._keepers.why_kept(entry)
            if reason is None:
                candidates.append(entry)
            else:
                self._kept[entry[2]] = reason
        return candidates

    def _take_unused_too_long(self, candidates: Sequence[_Entry]) -> list[_Entry]:
        """Take what is unused for strictly longer than the maximum; return the rest. No minimum age, no threshold.

        What would be taken, had use been observed for as long, is noted.
        """
        maximum_s = self._policy.maximum_unused_age_s
        oldest, observed_since = _earlier(self._now, maximum_s), self._snapshot.image_use_observed_since
        rest = []
        for entry in candidates:
            last_used, first_detected, image_id, _, image = entry
            since = max(first_detected, last_used)
            if since >= oldest:
                rest.append(entry)
                continue
            if observed_since is None or observed_since >= oldest:
                self._unobserved[image_id] = self._not_observed((self._now - since).total_seconds())
                rest.append(entry)
                continue
            since = max(since, observed_since)
            gain = self._ledger.gain(image)
            refused = self._budget.refuses(gain[0])
            if refused is not None:
                self._kept[image_id] = refused
                continue
            unused_s = (self._now - since).total_seconds()
            details = {"unused_s": unused_s, "maximum_s": maximum_s}
            self._take(image, gain, Reason(ReasonCode.UNUSED_TOO_LONG, details))
        return rest

    def _not_observed(self, unused_s: float) -> Reason:
        maximum_s, since = self._policy.maximum_unused_age_s, self._snapshot.image_use_observed_since
        details: dict[str, Detail] = {"unused_s": unused_s, "maximum_s": maximum_s}
        if since is None:
            details["detail"] = "image use is not observed: state database unavailable"
        else:
            observed_s, eligible_at = (self._now - since).total_seconds(), _later(since, maximum_s)
            details |= {"observed_s": observed_s, "observed_since_at": since, "eligible_at": eligible_at}
            details["detail"] = f"image use has been observed only for {format_duration(observed_s)}"
        return Reason(ReasonCode.AGE_NOT_OBSERVED, details)

    def _old_enough(self, candidates: Sequence[_Entry]) -> list[_Entry]:
        minimum_s = self._policy.minimum_age_s
        newest = _earlier(self._now, minimum_s)
        reasons: dict[datetime, Reason] = {}
        old_enough = []
        for entry in candidates:
            first = entry[1]
            if first <= newest:
                old_enough.append(entry)
                continue
            if first not in reasons:
                age_s = (self._now - first).total_seconds()
                eligible_at = _later(first, minimum_s)
                reasons[first] = Reason(
                    ReasonCode.TOO_YOUNG, {"age_s": age_s, "minimum_s": minimum_s, "eligible_at": eligible_at}
                )
            self._kept[entry[2]] = reasons[first]
        return old_enough

    def _target(self) -> _Target:
        """Return what the thresholds ask for, on the filesystem as the maximum age leaves it.

        Source: kubelet ``GarbageCollect``: whole percent, usage at the high threshold is enough to act.
        """
        high, low = self._policy.high_threshold_percent, self._policy.low_threshold_percent
        observed = self._snapshot.image_filesystem
        if high >= 100:
            return _Target(_THRESHOLD_OFF, _ALL_UNUSED)
        if observed is None:
            detail = self._snapshot.image_filesystem_error or "there is no reading"
            return _Target(Reason(ReasonCode.FILESYSTEM_UNREADABLE, {"detail": detail}), _ALL_UNUSED)
        capacity_bytes = observed.capacity_bytes
        available_bytes = min(capacity_bytes, observed.available_bytes + self._freed_bytes)
        used_percent = 100 - available_bytes * 100 // capacity_bytes
        reason = Reason(ReasonCode.LEAST_RECENTLY_USED, {"used_percent": used_percent, "low_percent": low})
        if used_percent < high:
            details = {"used_percent": used_percent, "high_percent": high}
            return _Target(Reason(ReasonCode.BELOW_HIGH_THRESHOLD, details), reason)
        wanted_bytes = capacity_bytes * (100 - low) // 100 - available_bytes
        if wanted_bytes <= 0:
            return _Target(_ENOUGH, reason)
        storage = self._snapshot.storage
        pending_bytes = storage.pending_bytes if storage is not None else 0
        if pending_bytes >= wanted_bytes:
            kept = Reason(ReasonCode.COLLECTION_PENDING, {"pending_bytes": pending_bytes})
            return _Target(kept, reason, pending_bytes=pending_bytes)
        return _Target(None, reason, wanted_bytes - pending_bytes + self._freed_bytes, pending_bytes)

    def _take_until_enough(self, candidates: Sequence[_Entry], target: _Target) -> None:
        """Take candidates in order until enough is freed.

        Those that free too little are looked at again once others are taken, since what an image frees grows when
        images that share with it go.
        """
        if target.kept is not None:
            self._kept.update((entry[2], target.kept) for entry in candidates)
            return
        left, taken = candidates, True
        while left and taken:
            before = len(self._removals)
            left = self._take_once(left, target)
            taken = len(self._removals) > before

    def _take_once(self, candidates: Sequence[_Entry], target: _Target) -> list[_Entry]:
        """Walk the candidates once; return those that free too little so far."""
        enough_bytes, minimum_bytes = target.enough_bytes, self._policy.minimum_gain_bytes
        passed_over = []
        for position, entry in enumerate(candidates):
            image = entry[4]
            if not minimum_bytes and enough_bytes is not None and self._freed_bytes >= enough_bytes:
                self._kept.update((each[2], _ENOUGH) for each in candidates[position:])
                break
            gain = self._ledger.gain(image)
            if gain[0] is not None and gain[0] < minimum_bytes:
                details = {"gain_bytes": gain[0], "minimum_bytes": minimum_bytes}
                self._kept[image.id] = Reason(ReasonCode.GAIN_TOO_SMALL, details)
                passed_over.append(entry)
                continue
            if enough_bytes is not None and self._freed_bytes >= enough_bytes:
                self._kept[image.id] = _ENOUGH
                continue
            refused = self._budget.refuses(gain[0])
            if refused is not None:
                self._kept[image.id] = refused
                continue
            self._kept.pop(image.id, None)
            self._take(image, gain, target.removed)
        return passed_over

    def _take(self, image: Image, gain: Gain, reason: Reason) -> None:
        self._ledger.take(image)
        self._budget.count(gain[0])
        self._freed_bytes += gain[0] or 0
        self._removals.append(Decision(_IMAGE, image.id, image.name, _REMOVE, reason, *gain))

    def _kept_decisions(self, entries: Sequence[_Entry]) -> list[Decision]:
        """Return a decision for each image that stays, with what it would free once the removals are made."""
        kept, gain = self._kept, self._ledger.gain
        decisions = []
        for _, _, image_id, _, image in entries:
            reason = kept.get(image_id)
            if reason is None:
                continue
            verdict = _COULD_NOT if reason.code is _FAILED else _KEEP
            decisions.append(Decision(_IMAGE, image_id, image.name, verdict, reason, *gain(image)))
        return decisions

    def _warnings(self, target: _Target) -> Iterator[str]:
        if self._keepers.use_unknown is not None:
            yield f"no image is removed, as {self._keepers.use_unknown.details['detail']}"
        if target.kept is not None and target.kept.code is ReasonCode.FILESYSTEM_UNREADABLE:
            yield f"nothing is removed by threshold: {target.kept.sentence}"
        if target.pending_bytes:
            size = format_bytes(target.pending_bytes)
            yield f"nothing holds {size} that the runtime has not collected yet; it is asked to before anything goes"
        if self._unobserved:
            maximum = format_duration(self._policy.maximum_unused_age_s)
            yield (
                "no image is removed by age: image use is not observed, as the state database is unavailable"
                if self._snapshot.image_use_observed_since is None
                else f"no image is removed by age before image use has been observed for {maximum} without a gap"
            )
        unknown = sum(decision.frees_bytes is None for decision in self._removals)
        if unknown:
            yield f"it is not known what {unknown} of the images to remove free; they are counted as freeing nothing"


class _Keepers:
    """The rules that keep an image whatever its age and the usage."""

    def __init__(
        self,
        snapshot: NodeSnapshot,
        protection: ProtectionPolicy,
        failed: Mapping[str, str],
        users: ImageUsers,
        only: frozenset[str] | None,
    ) -> None:
        self._only = only
        self._now = snapshot.observed_at
        self._users = users
        self._used = users.images
        self._configured = users.index.resolve_all(snapshot.sandbox_images)
        self._protected = protection.reasons(snapshot.images, snapshot.image_usage)
        self._held = held_images(snapshot, users.index)
        self._failed = failed
        self._named_pause = {
            image.id
            for image in snapshot.images
            for reference in image.references
            if "pause" in reference and is_named_like_pause(reference)
        }
        self.use_unknown = self._why_use_unknown(snapshot)

    def why_kept(self, entry: _Entry) -> Reason | None:
        """Return the first rule that keeps an image, the most telling first; ``None`` if none does."""
        return next(self.reasons(entry), None)

    def reasons(self, entry: _Entry) -> Iterator[Reason]:  # noqa: C901 - a line for each rule
        """Yield every rule that keeps an image, the most telling first."""
        last_used, _, image_id, _, image = entry
        if image_id in self._used:
            yield in_use_reason(image_id, self._users)
        if image.pinned:
            yield _PINNED
        if image_id in self._configured:
            yield _CONFIGURED
        elif image_id in self._named_pause:
            yield _NAMED_PAUSE
        if image_id in self._protected:
            yield self._protected[image_id]
        if image_id in self._held:
            yield self._held[image_id]
        if self._only is not None and image_id not in self._only:
            yield _NOT_IN_PLAN
        if image_id in self._failed:
            yield Reason(ReasonCode.FAILED_EARLIER, {"detail": self._failed[image_id]})
        if last_used > self._now:
            yield Reason(ReasonCode.USED_THIS_PASS, {"last_used_at": last_used})
        if self.use_unknown is not None:
            yield self.use_unknown

    def _why_use_unknown(self, snapshot: NodeSnapshot) -> Reason | None:
        """Return why any image may have to stay.

        Holds cannot be read; or any may be a sandbox's own, as some sandboxes could not be read and nothing else
        tells their image.
        """
        if snapshot.holds_error:
            return Reason(ReasonCode.USE_UNKNOWN, {"detail": snapshot.holds_error})
        if not snapshot.sandboxes_unread or snapshot.sandbox_images or self._named_pause:
            return None
        if any(sandbox.image for sandbox in snapshot.sandboxes) or any(image.pinned for image in snapshot.images):
            return None
        count = len(snapshot.sandboxes_unread)
        detail = f"{count} sandbox(es) could not be read and nothing tells which image sandboxes are made from"
        return Reason(ReasonCode.USE_UNKNOWN, {"detail": detail})


class _Budget:
    """The limits per pass. Once one is reached the pass is over: nothing smaller goes instead."""

    def __init__(self, policy: ImageGCPolicy, spent: Spent) -> None:
        self._max_images = policy.max_images_per_pass
        self._max_bytes = policy.max_bytes_per_pass
        self._images = spent.images
        self._bytes = spent.size_bytes
        self._over: Reason | None = None

    def refuses(self, size_bytes: int | None) -> Reason | None:
        """Return which limit one more image of that size would exceed; ``None`` if it may go."""
        if self._over is None:
            if 0 < self._max_images <= self._images:
                self._over = Reason(ReasonCode.LIMIT_IMAGES_PER_PASS, {"limit": self._max_images})
            elif 0 < self._max_bytes < self._bytes + (size_bytes or 0) and self._images:
                self._over = Reason(ReasonCode.LIMIT_BYTES_PER_PASS, {"limit_bytes": self._max_bytes})
        return self._over

    def count(self, size_bytes: int | None) -> None:
        """Count one more image."""
        self._images += 1
        self._bytes += size_bytes or 0


def order_of_use(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """Return the ids of all images, least recently used first, as plans take them."""
    return tuple(entry[2] for entry in _in_order_of_use(snapshot))


def _in_order_of_use(snapshot: NodeSnapshot) -> list[_Entry]:
    """Return the images least recently used first, never used before all; ties by first detection, then by id.

    An image without memory counts as first detected now, as does one detected in the future.
    """
    now, usage_of = snapshot.observed_at, snapshot.image_usage
    entries = []
    for position, image in enumerate(snapshot.images):
        usage = usage_of.get(image.id)
        if usage is None:
            entries.append((_NEVER, now, image.id, position, image))
        else:
            first = min(usage.first_detected, now)
            entries.append((usage.last_used or _NEVER, first, image.id, position, image))
    entries.sort()
    return entries


def _earlier(moment: datetime, seconds: float) -> datetime:
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:
        return _NEVER


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
