"""Image garbage collection: the images to remove and the reason to keep each of the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.plan.clock import clock_untrusted
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
from nodeagent.plan.gc.consistency import withheld
from nodeagent.plan.gc.image_keep_rules import first_keep_reasons, keep_context, use_unknown
from nodeagent.plan.gc.image_order import NEVER, in_order_of_use
from nodeagent.plan.gc.image_origin import (
    Irreplaceable,
    irreplaceable_images,
    origin_warning,
    removal_reason,
    with_last_reasons,
)
from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.plan.gc.image_users import find_users
from nodeagent.plan.gc.pass_limits import LIMITS, PassLimits, Spent
from nodeagent.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodeagent.model import Image, NodeSnapshot
    from nodeagent.plan.decision import Detail
    from nodeagent.plan.gc.accounting import Gain
    from nodeagent.plan.gc.image_keep_rules import KeepContext
    from nodeagent.plan.gc.image_order import ImageCandidate
    from nodeagent.plan.gc.image_users import ImageUsers

# Enum members used for every image are module constants: a lookup in the class takes ten times as long.
_IMAGE, _FAILED = ItemKind.IMAGE, ReasonCode.FAILED_EARLIER
_REMOVE, _KEEP, _REMOVAL_FAILED = Verdict.REMOVE, Verdict.KEEP, Verdict.FAILED

_ENOUGH = Reason(ReasonCode.ENOUGH_FREED)
_THRESHOLD_OFF = Reason(ReasonCode.THRESHOLD_DISABLED)
_ALL_UNUSED = Reason(ReasonCode.ALL_UNUSED)


@dataclass(frozen=True, slots=True)
class ImageGCPolicy:
    """Thresholds, ages, limits and protection of image garbage collection.

    Attributes:
        high_threshold_percent: usage of the image filesystem that starts a collection; 100 disables the threshold.
        low_threshold_percent: usage at which a collection stops.
        minimum_age_s: counted from first detection or an earlier pull; an image of exactly this age is old enough.
        maximum_unused_age_s: an image unused for longer is removed at any usage, once use has been observed for
            longer than that; 0 disables this.
        minimum_gain_bytes: images known to free less are skipped by the threshold; 0 disables this.
        max_images_per_pass: 0 for no limit.
        max_bytes_per_pass: 0 for no limit. A single larger image is removed if it is the first of the pass, and is
            then the only one; otherwise it would always block collection.
        protection: images kept at any age.

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


_NOTHING_SPENT: Final = Spent()


def plan_image_gc(  # noqa: PLR0913 - inputs of one round of a pass
    snapshot: NodeSnapshot,
    policy: ImageGCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    spent: Spent = _NOTHING_SPENT,
    remove_all_unused: bool = False,
    users: ImageUsers | None = None,
    only: frozenset[str] | None = None,
) -> Plan:
    """Choose the images to remove so that the image filesystem falls to the low threshold.

    Images kept by a keep rule (see ``image_keep_rules``) are never chosen. The others are removed least recently
    used first (never used before all others), ties by first detection, then by id: first images unused for longer than
    the maximum age; then, if the remaining usage is at the high threshold, until enough is freed. Images that cannot be
    pulled again are removed after all others and for space only, unless configured otherwise (see ``image_origin``).
    The decisions are the removals in that order, then the kept images in order of use.

    Differences from the kubelet, each of which keeps more images: the maximum age counts from the latest of last use,
    first detection and begin of the observation of image use (see ``unused_since``), where the kubelet treats an image
    that was never used as unused since the epoch; without observation no image is removed by age; a high threshold of
    100 disables the threshold, where the kubelet acts at 100%; failed removals do not end the plan. A last use at
    the time of observation does not keep an image, since the snapshot has the images in use; a later one, after the
    clock was set back, does. A first detection in the future counts as now.

    Args:
        snapshot: the node; without an image filesystem, images are removed by maximum age only.
        policy: thresholds, ages, limits, protection.
        failed: image id to the cause of a failure earlier in this pass.
        spent: removals of earlier rounds of this pass.
        remove_all_unused: remove every unused image of the minimum age at any usage; the maximum age is ignored, the
            limits per pass apply.
        only: ids of the images that may be removed; ``None`` for any.
        users: the users of this snapshot's images, if already computed.

    Source: kubelet image manager, ``GarbageCollect``, ``freeSpace``, ``DeleteUnusedImages``.
    """
    context = keep_context(snapshot, policy.protection, users or find_users(snapshot), failed=failed, only=only)
    plan = _ImagePlanner(snapshot, policy, context, spent).plan(remove_all_unused=remove_all_unused)
    return withheld(plan, snapshot.contradictions, by_images=True)


@dataclass(frozen=True, slots=True)
class _Target:
    """Removals required in addition to removals by maximum age.

    Attributes:
        kept: reason that no removal is required; ``None`` if removals are required.
        removed: the reason of the removals.
        enough_bytes: bytes to be freed by the whole plan; ``None`` for as many as possible.
        pending_bytes: bytes freed in addition by the runtime's own garbage collection.
        ends_undo: whether undo windows end first; their bytes are in ``pending_bytes``.
    """

    kept: Reason | None
    removed: Reason
    enough_bytes: int | None = None
    pending_bytes: int = 0
    ends_undo: bool = False


class _ImagePlanner:
    """Creates one plan: removals by maximum age, then by threshold, each in order of use."""

    def __init__(self, snapshot: NodeSnapshot, policy: ImageGCPolicy, context: KeepContext, spent: Spent) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = snapshot.observed_at
        self._ledger = ledger_for(snapshot)
        self._limits = PassLimits(policy.max_images_per_pass, policy.max_bytes_per_pass, spent)
        self._context = context
        self._removals: list[Decision] = []
        self._freed_bytes = 0
        self._kept: dict[str, Reason] = {}
        self._unobserved: dict[str, Reason] = {}
        protection, self._last = policy.protection, dict[str, str]()
        if protection.irreplaceable is Irreplaceable.LAST:
            self._last = irreplaceable_images(snapshot, protection.unreachable_registries)

    def plan(self, *, remove_all_unused: bool) -> Plan:
        """Return the plan."""
        images = in_order_of_use(self._snapshot)
        self._kept = first_keep_reasons(self._context)
        candidates = [each for each in images if each.id not in self._kept]
        if self._policy.maximum_unused_age_s > 0 and not remove_all_unused:
            candidates = self._remove_unused_too_long(candidates)
        target = self._everything() if remove_all_unused else self._target()
        self._remove_in_groups(self._old_enough(candidates), target)
        self._kept = with_last_reasons(self._kept, self._last)
        for image_id, reason in self._unobserved.items():
            if image_id in self._kept and self._kept[image_id].code not in LIMITS:
                self._kept[image_id] = reason
        return Plan(
            "images",
            self._now,
            (*self._removals, *self._kept_decisions(images)),
            accounting=self._ledger.accounting,
            wanted_bytes=target.enough_bytes or 0,
            pending_bytes=target.pending_bytes,
            warnings=tuple(self._warnings(target)),
            ends_undo=target.ends_undo,
        )

    def _remove_unused_too_long(self, candidates: Sequence[ImageCandidate]) -> list[ImageCandidate]:
        """Remove the images unused for longer than the maximum age, at any age and usage; return the rest.

        Images that are kept only because their use has not been observed for as long, or because the wall clock is not
        trusted, are recorded with that reason.
        """
        maximum_s = self._policy.maximum_unused_age_s
        oldest, observed_since = _earlier(self._now, maximum_s), self._snapshot.image_use_observed_since
        untrusted = clock_untrusted(self._snapshot.clock)
        rest = []
        for each in candidates:
            since = max(each.first_detected, each.last_used)
            if since >= oldest or each.id in self._last:
                rest.append(each)
                continue
            if observed_since is None or observed_since >= oldest:
                self._unobserved[each.id] = self._not_observed(since)
                rest.append(each)
                continue
            if untrusted is not None:
                self._unobserved[each.id] = untrusted
                rest.append(each)
                continue
            since = max(since, observed_since)
            gain = self._ledger.gain(each.image)
            exceeded = self._limits.exceeded_by(gain[0])
            if exceeded is not None:
                self._kept[each.id] = exceeded
                continue
            unused_s = (self._now - since).total_seconds()
            details: dict[str, Detail] = {"unused_s": unused_s, "maximum_s": maximum_s}
            details["observed_since_at"] = observed_since
            self._remove(each.image, gain, Reason(ReasonCode.UNUSED_TOO_LONG, details))
        return rest

    def _not_observed(self, unused_since: datetime) -> Reason:
        """Return the reason to keep an image; only the observed part of its unused time counts."""
        maximum_s, since = self._policy.maximum_unused_age_s, self._snapshot.image_use_observed_since
        details: dict[str, Detail] = {"maximum_s": maximum_s}
        if since is None:
            details["detail"] = "image use is not observed: state database unavailable"
        else:
            observed_s, eligible_at = (self._now - since).total_seconds(), _later(since, maximum_s)
            unused_s = (self._now - max(unused_since, since)).total_seconds()
            details |= {"unused_s": unused_s, "observed_s": observed_s, "observed_since_at": since}
            unused = f"not seen in use for {format_duration(unused_s)}, observed since {format_time(since)}"
            details |= {"eligible_at": eligible_at, "detail": unused}
        return Reason(ReasonCode.AGE_NOT_OBSERVED, details)

    def _old_enough(self, candidates: Sequence[ImageCandidate]) -> list[ImageCandidate]:
        """Return the candidates of the minimum age; the others are kept."""
        minimum_s = self._policy.minimum_age_s
        newest = _earlier(self._now, minimum_s)
        reasons: dict[datetime, Reason] = {}
        old_enough = []
        for each in candidates:
            first = each.present_since
            if first <= newest:
                old_enough.append(each)
                continue
            if first not in reasons:
                age_s = (self._now - first).total_seconds()
                eligible_at = _later(first, minimum_s)
                reasons[first] = Reason(
                    ReasonCode.TOO_YOUNG, {"age_s": age_s, "minimum_s": minimum_s, "eligible_at": eligible_at}
                )
            self._kept[each.id] = reasons[first]
        return old_enough

    def _everything(self) -> _Target:
        """Return the target without limit, as below an eviction threshold; it includes images in their undo window."""
        return _Target(None, _ALL_UNUSED, pending_bytes=self._undo_bytes(), ends_undo=True)

    def _undo_bytes(self) -> int:
        storage = self._snapshot.storage
        return storage.undo_bytes if storage is not None else 0

    def _target(self) -> _Target:
        """Return the removals required by the thresholds after the removals by maximum age.

        Source: kubelet ``GarbageCollect``: whole percent; usage at the high threshold starts a collection.
        """
        high, low = self._policy.high_threshold_percent, self._policy.low_threshold_percent
        observed = self._snapshot.image_filesystem
        if high >= 100:
            return _Target(_THRESHOLD_OFF, _ALL_UNUSED)
        if observed is None:
            detail = self._snapshot.image_filesystem_error or "no reading"
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
        return self._after_pending(wanted_bytes, reason)

    def _after_pending(self, wanted_bytes: int, reason: Reason) -> _Target:
        """Return the removals required in addition to content that is freed without one."""
        storage = self._snapshot.storage
        pending_bytes, undo_bytes = storage.pending_bytes if storage is not None else 0, self._undo_bytes()
        if pending_bytes >= wanted_bytes:
            kept = Reason(ReasonCode.COLLECTION_PENDING, {"pending_bytes": pending_bytes})
            return _Target(kept, reason, pending_bytes=pending_bytes)
        if pending_bytes + undo_bytes >= wanted_bytes:  # the shortage ends with the undo windows
            kept = Reason(ReasonCode.UNDO_WINDOW_OPEN, {"undo_bytes": undo_bytes})
            return _Target(kept, reason, pending_bytes=pending_bytes)
        pending_bytes += undo_bytes
        enough_bytes = wanted_bytes - pending_bytes + self._freed_bytes
        return _Target(None, reason, enough_bytes, pending_bytes, ends_undo=True)

    def _remove_in_groups(self, candidates: Sequence[ImageCandidate], target: _Target) -> None:
        """Remove candidates until enough is freed: first the images that can be pulled again, then the others.

        The others are not removed for bytes that images of the first group free in a later pass, once they have the
        minimum age or their removal succeeds.
        """
        last = [each for each in candidates if each.id in self._last]
        rest = self._remove_until_enough([each for each in candidates if each.id not in self._last], target)
        if not last:
            return
        if target.enough_bytes is not None:
            later = {ReasonCode.TOO_YOUNG, _FAILED}
            waiting = [
                image
                for image in self._snapshot.images
                if image.id in self._kept and self._kept[image.id].code in later and image.id not in self._last
            ]
            later_bytes = sum(self._ledger.gain(image)[0] or 0 for image in waiting)
            target = replace(target, enough_bytes=target.enough_bytes - later_bytes)
        self._remove_until_enough([*rest, *last], target)

    def _remove_until_enough(self, candidates: Sequence[ImageCandidate], target: _Target) -> list[ImageCandidate]:
        """Remove candidates in order until enough is freed; return the candidates with too small a gain.

        Candidates with too small a gain are evaluated again after other removals, since the gain of an image grows when
        images with common layers are removed.
        """
        if target.kept is not None:
            self._kept.update((each.id, target.kept) for each in candidates)
            return []
        skipped, progress = list(candidates), True
        while skipped and progress:
            before = len(self._removals)
            skipped = self._remove_once(skipped, target)
            progress = len(self._removals) > before
        return skipped

    def _remove_once(self, candidates: Sequence[ImageCandidate], target: _Target) -> list[ImageCandidate]:
        """Remove candidates in order until enough is freed; return the candidates with too small a gain."""
        enough_bytes, minimum_bytes = target.enough_bytes, self._policy.minimum_gain_bytes
        skipped = []
        for index, candidate in enumerate(candidates):
            image = candidate.image
            if not minimum_bytes and enough_bytes is not None and self._freed_bytes >= enough_bytes:
                self._kept.update((each.id, _ENOUGH) for each in candidates[index:])
                break
            gain = self._ledger.gain(image)
            if gain[0] is not None and gain[0] < minimum_bytes:
                details = {"gain_bytes": gain[0], "minimum_bytes": minimum_bytes}
                self._kept[image.id] = Reason(ReasonCode.GAIN_TOO_SMALL, details)
                skipped.append(candidate)
                continue
            if enough_bytes is not None and self._freed_bytes >= enough_bytes:
                self._kept[image.id] = _ENOUGH
                continue
            exceeded = self._limits.exceeded_by(gain[0])
            if exceeded is not None:
                self._kept[image.id] = exceeded
                continue
            self._kept.pop(image.id, None)
            how = self._last.get(image.id)
            reason = target.removed
            if how is not None:
                reason = removal_reason(how, all_unused=target.enough_bytes is None)
            self._remove(image, gain, reason)
        return skipped

    def _remove(self, image: Image, gain: Gain, reason: Reason) -> None:
        self._ledger.take(image)
        self._limits.count(gain[0])
        self._freed_bytes += gain[0] or 0
        self._removals.append(Decision(_IMAGE, image.id, image.name, _REMOVE, reason, *gain))

    def _kept_decisions(self, images: Sequence[ImageCandidate]) -> list[Decision]:
        """Return the decision for each kept image, with its gain after the removals."""
        kept, gain = self._kept, self._ledger.gain
        decisions = []
        for _, _, _, image_id, _, image, _ in images:
            reason = kept.get(image_id)
            if reason is None:
                continue
            verdict = _REMOVAL_FAILED if reason.code is _FAILED else _KEEP
            decisions.append(Decision(_IMAGE, image_id, image.name, verdict, reason, *gain(image)))
        return decisions

    def _warnings(self, target: _Target) -> Iterator[str]:
        protection = self._policy.protection
        origin = origin_warning(self._snapshot, protection.irreplaceable, removes=bool(self._removals))
        if origin:
            yield origin
        unknown = use_unknown(self._context)
        if unknown is not None:
            yield f"no image is removed: {unknown.details['detail']}"
        if target.kept is not None and target.kept.code is ReasonCode.FILESYSTEM_UNREADABLE:
            yield f"no image is removed by threshold: {target.kept.sentence}"
        if target.pending_bytes:
            size = format_bytes(target.pending_bytes)
            undo = ", or in its undo window" if target.ends_undo and self._undo_bytes() else ""
            yield (
                f"{size} of unreferenced content is not collected yet{undo}; the runtime collects it before any removal"
            )
        if self._unobserved:
            reason = next(iter(self._unobserved.values()))
            maximum = format_duration(self._policy.maximum_unused_age_s)
            if reason.code is ReasonCode.CLOCK_UNTRUSTED:
                yield f"images: {reason.sentence}"
            elif self._snapshot.image_use_observed_since is None:
                yield "no image is removed by age: image use is not observed: state database unavailable"
            else:
                yield f"no image is removed by age before image use has been observed for {maximum} without a gap"
        unsized = sum(decision.frees_bytes is None for decision in self._removals)
        if unsized:
            yield f"size of {unsized} image(s) to remove unknown; counted as 0"


def _earlier(moment: datetime, seconds: float) -> datetime:
    try:
        return moment - timedelta(seconds=seconds)
    except OverflowError:
        return NEVER


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
