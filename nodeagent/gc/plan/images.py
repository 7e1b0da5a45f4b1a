"""Image garbage collection plan: the images to remove, in order, and the reason to keep every other image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nodeagent.gc.plan.consistency import withheld
from nodeagent.gc.plan.image_protection import (
    DIGEST,
    Irreplaceable,
    KeepContext,
    first_keep_reasons,
    irreplaceable_images,
    keep_context,
    origin_warning,
    removal_reason,
    use_unknown,
    with_last_reasons,
)
from nodeagent.gc.plan.image_targets import (
    CollectedFilesystem,
    Gain,
    SpaceNeeded,
    Target,
    collected_filesystems,
    ledger_for,
)
from nodeagent.gc.plan.image_users import ImageUsers, find_users
from nodeagent.gc.plan.policy import LIMITS, ImageGCPolicy, PassLimits, Spent
from nodeagent.model.clock import clock_untrusted, earlier
from nodeagent.model.decision import (
    NO_FAILURES,
    Accounting,
    Decision,
    Detail,
    FilesystemTarget,
    ItemKind,
    Plan,
    Reason,
    ReasonCode,
    Verdict,
)
from nodeagent.model.runtime import Space
from nodeagent.record import replace
from nodeagent.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Image, ImageUsage

# Enum members used for every image are module constants: a lookup in the enum class takes ten times as long.
_IMAGE, _FAILED = ItemKind.IMAGE, ReasonCode.FAILED_EARLIER
_BY_SIZE = Accounting.UPPER_BOUND
_REMOVE, _KEEP, _REMOVAL_FAILED = Verdict.REMOVE, Verdict.KEEP, Verdict.FAILED

_ENOUGH = Reason(ReasonCode.ENOUGH_FREED)


class Selection:
    """Removals selected for one plan so far, and the reasons to keep the other images.

    Attributes:
        kept: reason to keep an image, by image id.
        removals: decisions to remove images, in order of execution.
        ledger: accounting of freed bytes, after these removals.
    """

    def __init__(
        self,
        snapshot: NodeSnapshot,
        limits: PassLimits,
        minimum_gain_bytes: int,
        last: Mapping[str, str],
        untagged: frozenset[str],
    ) -> None:
        """Create a selection without removals.

        Args:
            snapshot: snapshot of the node.
            limits: limits of removals per pass.
            minimum_gain_bytes: minimum bytes that a removal for a target must free.
            last: cause by image id, for irreplaceable images, which are removed after all others.
            untagged: ids of the images that are removed before others because they have no tag.
        """
        self._snapshot = snapshot
        self._limits = limits
        self._minimum_bytes = minimum_gain_bytes
        self._last = last
        self._untagged = untagged
        self.ledger = ledger_for(snapshot)
        self.removals: list[Decision] = []
        self.kept: dict[str, Reason] = {}
        self._freed = Space()
        self._freed_on = [Space()] * len(snapshot.image_filesystems)
        self._images: dict[str, Image] = {}

    def freed(self, number: int | None) -> Space:
        """Return the bytes and inodes that the removals free: on one filesystem, or on all filesystems for ``None``."""
        return self._freed if number is None else self._freed_on[number]

    def remove(self, image: Image, reason: Reason) -> bool:
        """Select an image for removal regardless of its gain; return false if a limit of the pass prevents it."""
        gain = self.ledger.gain(image)
        exceeded = self._limits.exceeded_by(gain[0])
        if exceeded is not None:
            self.kept[image.id] = exceeded
            return False
        self._remove(image, gain, reason)
        return True

    def remove_in_groups(self, candidates: Sequence[ImageCandidate], target: Target) -> None:
        """Select candidates until the target is reached: images that can be pulled again, then irreplaceable images.

        Irreplaceable images are not removed for space that other images will free in a later pass: images below the
        minimum age, and images whose removal failed in this pass. They are kept if their loss would not end the
        shortage: the target is not reached with them, or the growth of the shortage consumes their space.
        """
        before = len(self.removals)
        last = [each for each in candidates if each.id in self._last]
        rest = self._remove_until_enough([each for each in candidates if each.id not in self._last], target)
        if last:
            wanted = target.enough
            if wanted is not None and not target.at_once:
                codes = {ReasonCode.TOO_YOUNG, _FAILED}
                waiting = [
                    image
                    for image in self._snapshot.images
                    if image.id in self.kept and self.kept[image.id].code in codes and image.id not in self._last
                ]
                later = Space()
                for image in waiting:
                    later = _plus(later, self._gain_for(image, target))
                target = replace(target, enough=wanted.beyond(later))
            if target.kept is None and not self.is_ended_with(last, target):
                self.kept |= {
                    each.id: Reason(ReasonCode.IRREPLACEABLE_INSUFFICIENT, {"how": self._last[each.id]})
                    for each in last
                }
                last = []
            self._remove_until_enough([*rest, *last], target)
        if target.number is not None:
            self._withdraw_without_effect(target.number, before)

    def kept_decisions(self, images: Sequence[ImageCandidate]) -> list[Decision]:
        """Return the decision for each kept image, with the bytes that its removal would free."""
        kept, gain_of, gains_of = self.kept, self.ledger.gain, self.ledger.gains if self._freed_on else None
        decisions = []
        for used, _, _, image_id, _, image, _ in images:
            reason = kept.get(image_id)
            if reason is None:
                continue
            verdict = _REMOVAL_FAILED if reason.code is _FAILED else _KEEP
            frees_bytes, frees_inodes = gain_of(image)
            frees_on = () if gains_of is None else gains_of(image)
            decisions.append(
                Decision(
                    *(_IMAGE, image_id, image.name, verdict, reason, frees_bytes, frees_inodes, frees_on),
                    None if used is NEVER else used,
                )
            )
        return decisions

    def _gain_for(self, image: Image, target: Target) -> Gain:
        """Return the space that the removal of an image frees on the filesystem of a target; ``None`` if unknown."""
        return self.ledger.gain(image) if target.number is None else self.ledger.gain_on(image, target.number)

    def _minimum_for(self, target: Target) -> int:
        """Return the minimum bytes that a removal must free; 0 while inodes are needed, since small files use many."""
        return 0 if target.enough is not None and target.enough.inodes else self._minimum_bytes

    def is_ended_with(self, candidates: Sequence[ImageCandidate], target: Target) -> bool:
        """Return whether the removals so far and these images end the shortage, without the limits per pass."""
        if target.enough is None:
            return True
        ledger, freed = ledger_for(self._snapshot), Space()
        for image in (*self._images.values(), *(each.image for each in candidates)):
            gain = ledger.gain(image) if target.number is None else ledger.gain_on(image, target.number)
            if image.id in self._images or (gain[0] or 0) >= self._minimum_for(target):
                ledger.take(image)
                freed = _plus(freed, gain)
        return target.enough.ended_by(*freed)

    def _remove_until_enough(self, candidates: Sequence[ImageCandidate], target: Target) -> list[ImageCandidate]:
        """Select candidates in order until the target is reached; return the candidates that free too few bytes.

        Candidates that free too few bytes are evaluated again after other removals, since an image frees more once
        images with common layers are removed.
        """
        if target.kept is not None:
            self.kept.update(dict.fromkeys([each.id for each in candidates], target.kept))
            return []
        skipped, progress = list(candidates), True
        while skipped and progress:
            before = len(self.removals)
            skipped = self._remove_once(skipped, target)
            progress = len(self.removals) > before
        return skipped

    def _remove_once(self, candidates: Sequence[ImageCandidate], target: Target) -> list[ImageCandidate]:
        """Run one round of :meth:`_remove_until_enough`; return the candidates that free too few bytes."""
        minimum_bytes, number = self._minimum_for(target), target.number
        skipped = []
        for index, candidate in enumerate(candidates):
            image = candidate.image
            if not minimum_bytes and target.reached_by(*self.freed(number)):
                self.kept.update(dict.fromkeys([each.id for each in candidates[index:]], _ENOUGH))
                break
            gain = self.ledger.gain(image)
            useful_bytes = gain[0] if number is None else self.ledger.gain_on(image, number)[0]
            if useful_bytes is not None and useful_bytes < minimum_bytes:
                details = {"gain_bytes": useful_bytes, "minimum_bytes": minimum_bytes}
                self.kept[image.id] = Reason(ReasonCode.GAIN_TOO_SMALL, details)
                skipped.append(candidate)
                continue
            if target.reached_by(*self.freed(number)):
                self.kept[image.id] = _ENOUGH
                continue
            exceeded = self._limits.exceeded_by(gain[0])
            if exceeded is not None:
                self.kept[image.id] = exceeded
                continue
            self.kept.pop(image.id, None)
            how = self._last.get(image.id)
            reason = target.removed
            if reason.code is ReasonCode.LEAST_RECENTLY_USED and image.id in self._untagged:
                reason = Reason(ReasonCode.UNTAGGED_FIRST, reason.details)
            if how is not None:
                reason = removal_reason(how, all_unused=target.enough is None)
            self._remove(image, gain, reason)
        return skipped

    def _remove(self, image: Image, gain: Gain, reason: Reason) -> None:
        self._limits.count(gain[0])
        self._images[image.id] = image
        usage = self._snapshot.image_usage.get(image.id)
        used = None if usage is None else usage.last_used
        self._count(Decision(_IMAGE, image.id, image.name, _REMOVE, reason, *gain, last_used=used), image)

    def _count(self, decision: Decision, image: Image) -> None:
        """Add a removal to the plan; ``decision`` has the bytes freed on all filesystems together."""
        if self._freed_on:
            decision = replace(decision, frees_on=self.ledger.gains(image))
            self._freed_on = [
                _plus(freed, self.ledger.gain_on(image, number)) for number, freed in enumerate(self._freed_on)
            ]
        self._freed = _plus(self._freed, (decision.frees_bytes, decision.frees_inodes))
        self.ledger.take(image)
        self.removals.append(decision)

    def _withdraw_without_effect(self, number: int, first: int) -> None:
        """Keep the images whose removal for the filesystem ``number`` frees no bytes on this filesystem.

        The layers of these images on the filesystem are shared with an image that was to be removed later, but is kept.
        """
        own = self.removals[first:]
        useless = {each.id for each in own if not self.ledger.frees_any(self._images[each.id], number)}
        if not useless:
            return
        removals, self.removals = self.removals, []
        self.ledger, self._freed, self._freed_on = ledger_for(self._snapshot), Space(), [Space()] * len(self._freed_on)
        for each in removals:
            if each.id in useless:
                self.kept[each.id] = _ENOUGH
                del self._images[each.id]
                continue
            image = self._images[each.id]
            gain = self.ledger.gain(image)
            self._count(replace(each, frees_bytes=gain[0], frees_inodes=gain[1]), image)


def _plus(freed: Space, gain: Gain) -> Space:
    """Return the sum of freed space and a gain; an unknown gain counts as 0."""
    return Space(freed.size_bytes + (gain[0] or 0), freed.inodes + (gain[1] or 0))


NEVER: Final = datetime.min.replace(tzinfo=UTC)


class ImageCandidate(NamedTuple):
    """An image with its times of use; candidates sort in removal order.

    The class is a tuple, since tuples sort without a key function.

    Attributes:
        last_used: time of the last use; ``NEVER`` for an image without observed use, which sorts first.
        first_detected: time of the first detection; at most the time of observation.
        pulled_at: time of the pull; ``NEVER`` if not reported. The time orders images that were first detected in one
            pass.
        present_since: time from which the minimum age counts; at most the time of observation.
        position: index in the snapshot; makes candidates with the same id distinct.
    """

    last_used: datetime
    first_detected: datetime
    pulled_at: datetime
    id: str
    position: int
    image: Image
    present_since: datetime


_AS_CANDIDATE: Final = cast("Callable[[tuple[object, ...]], ImageCandidate]", partial(tuple.__new__, ImageCandidate))
"""Convert a row to a candidate, in a quarter of the time that the constructor takes."""


def in_order_of_use(snapshot: NodeSnapshot) -> list[ImageCandidate]:
    """Return the images in removal order: images without observed use first, then least recently used first.

    Ties are broken by first detection, then by pull, then by id. An image without a usage record, or with a first
    detection in the future, counts as first detected now.
    """
    now, usage_of = snapshot.observed_at, snapshot.image_usage
    rows: list[tuple[datetime, datetime, datetime, str, int, Image, datetime]] = []
    for position, image in enumerate(snapshot.images):
        usage = usage_of.get(image.id)
        if usage is None:
            rows.append((NEVER, now, NEVER, image.id, position, image, now))
            continue
        first = min(usage.first_detected, now)  # inline, to avoid a call for each image
        present = usage.present_since or first
        used, pulled = usage.last_used or NEVER, usage.pulled_at or NEVER
        rows.append((used, first, pulled, image.id, position, image, min(present, now)))
    rows.sort()  # plain tuples sort in half the time of named tuples
    return list(map(_AS_CANDIDATE, rows))


def untagged_images(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the ids of the images without a tag: each of their names is an image id, or a reference with a digest.

    Such an image lost its tag to another image, or was pulled by digest: the runtime lists both in the same form.
    Source: CRI ``Image.repo_tags``; containerd stores the id of an image as a further name.
    """
    records = snapshot.storage.records if snapshot.storage is not None else {}
    return frozenset(
        image.id
        for image in snapshot.images
        if not image.repo_tags
        and all(
            "@" in name or DIGEST.fullmatch(name) for name in (records[image.id].names if image.id in records else ())
        )
    )


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return the time since which an image is known to be unused.

    A pull counts as use. An image counts as used until the start of the observation, since earlier use is unknown.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)


def use_expected(usage: ImageUsage | None, observed_since: datetime | None, now: datetime, ahead_s: float) -> str:
    """Return why an image may be used within the next ``ahead_s`` seconds, by its record of use; empty if unexpected.

    It may be if it was used or pulled, or if use was not observed, at any time in the last ``ahead_s`` seconds; and if
    it was used again before after a pause as long as the current one, give or take ``ahead_s``.
    """
    if usage is None or observed_since is None:
        return "its use is not observed"
    unused_s = (now - unused_since(usage, observed_since)).total_seconds()
    if unused_s < ahead_s:
        return f"no use observed for {format_duration(max(0.0, unused_s))}, less than collect_ahead"
    if usage.last_used is None:
        return ""
    pause_s = (now - usage.last_used).total_seconds()
    before_s = next((each for each in usage.pauses_s if abs(each - pause_s) <= ahead_s), None)
    if before_s is None:
        return ""
    return f"used again after a pause of {format_duration(before_s)} before, last used {format_duration(pause_s)} ago"


_NOTHING_SPENT: Final = Spent()


def plan_image_gc(  # noqa: PLR0913 - one argument for each input of a round
    snapshot: NodeSnapshot,
    policy: ImageGCPolicy,
    *,
    failed: Mapping[str, str] = NO_FAILURES,
    spent: Spent = _NOTHING_SPENT,
    remove_all_unused: bool = False,
    needed: SpaceNeeded | None = None,
    users: ImageUsers | None = None,
    only: frozenset[str] | None = None,
    only_on: str = "",
) -> Plan:
    """Return the plan that removes images until the usage of the image filesystem is at the low threshold.

    Images kept by a keep rule (see ``image_protection``) are never removed. Other images are removed in the order of
    :func:`in_order_of_use`: images without observed use, then least recently used images. Images unused for longer than
    the maximum age are removed first, and with ``untagged_first`` images without a tag precede images with a tag. If
    the remaining usage is at or above the high threshold, further images are removed until the low threshold is
    reached. Images that cannot be pulled again are removed last and only for space, unless configured otherwise (see
    ``image_protection``). The decisions are the removals in order of execution, then the kept images in the order in
    which they would be removed.

    Differences from the kubelet:

    - The maximum age counts from the latest of last use, first detection and start of the observation of image use (see
      ``unused_since``). The kubelet treats an image without observed use as unused since the epoch.
    - Without observation of image use, no image is removed by age.
    - A high threshold of 100 disables the threshold; the kubelet collects at 100%.
    - Failed removals do not end the plan.
    - A last use after the observation (the clock was set back) keeps an image. A first detection in the future counts
      as now.

    Args:
        snapshot: snapshot of the node; without an image filesystem, images are removed only by maximum age.
        policy: thresholds, ages, limits and protection.
        failed: cause of the failure by image id, for removals that failed earlier in this pass.
        spent: removals in earlier rounds of this pass, which count against the limits per pass.
        remove_all_unused: remove every unused image above the minimum age, at any filesystem usage; the maximum age is
            ignored, the limits per pass apply. Undo windows end, unless ``only`` limits the images: the content of
            other images is not part of such a plan.
        needed: space needed at any filesystem usage, for a met eviction threshold, under the rules of
            ``remove_all_unused``: images are removed only until this space is freed.
        only: ids of the images that may be removed; ``None`` for all images.
        only_on: path of the image filesystem to collect, on a node with several; empty for all.
        users: users of the images of this snapshot, if already computed.

    Source: kubelet image manager, ``GarbageCollect``, ``freeSpace``, ``DeleteUnusedImages``.
    """
    context = keep_context(snapshot, policy.protection, users or find_users(snapshot), failed=failed, only=only)
    plan = _ImagePlanner(snapshot, policy, context, spent).plan(
        remove_all_unused=remove_all_unused, needed=needed, only_on=only_on
    )
    return withheld(plan, snapshot.contradictions, by_images=True)


class _ImagePlanner:
    """Planner of one image plan: removals by maximum age, then by threshold, both in removal order."""

    def __init__(self, snapshot: NodeSnapshot, policy: ImageGCPolicy, context: KeepContext, spent: Spent) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._now = snapshot.observed_at
        self._context = context
        self._unobserved: dict[str, Reason] = {}
        self._not_ahead: SpaceNeeded | None = None
        protection, self._last = policy.protection, dict[str, str]()
        if protection.irreplaceable is Irreplaceable.LAST:
            self._last = irreplaceable_images(snapshot, protection.unreachable_registries)
        limits = PassLimits(policy.max_images_per_pass, policy.max_bytes_per_pass, spent)
        self._untagged = untagged_images(snapshot) if policy.untagged_first else frozenset[str]()
        self._selection = Selection(snapshot, limits, policy.minimum_gain_bytes, self._last, self._untagged)
        self._kept = self._selection.kept

    def plan(self, *, remove_all_unused: bool, needed: SpaceNeeded | None, only_on: str) -> Plan:
        """Return the image plan; see ``plan_image_gc`` for the arguments."""
        images = in_order_of_use(self._snapshot)
        if self._last or self._untagged:  # stable: by use within each group
            images.sort(key=lambda each: (each.id in self._last, each.id not in self._untagged))
        self._kept.update(first_keep_reasons(self._context))
        candidates = [each for each in images if each.id not in self._kept]
        by_age = self._policy.maximum_unused_age_s > 0 and self._policy.wanted_available_bytes is None
        if by_age and not remove_all_unused and needed is None:
            candidates = self._remove_unused_too_long(candidates)
        old_enough, selection = self._old_enough(candidates), self._selection
        targets = self._remove_for_space(old_enough, needed, remove_all_unused=remove_all_unused, only_on=only_on)
        with_target = [each for each in targets if not each.at_once and each.ahead_available_bytes is None]
        wanted = [each.enough for each in with_target if each.enough is not None]
        self._kept.update(with_last_reasons(self._kept, self._last))
        for image_id, reason in self._unobserved.items():
            if image_id in self._kept and self._kept[image_id].code not in LIMITS:
                self._kept[image_id] = reason
        return Plan(
            "images",
            self._now,
            (*selection.removals, *selection.kept_decisions(images)),
            accounting=selection.ledger.accounting,
            wanted_bytes=sum(each.size_bytes for each in wanted),
            wanted_inodes=sum(each.inodes for each in wanted),
            pending_bytes=sum(each.pending_bytes for each in targets),
            warnings=tuple(self._warnings(targets)),
            ahead_available_bytes=next((each.ahead_available_bytes for each in targets), None),
            ends_undo=any(each.ends_undo for each in targets),
            targets=tuple(
                FilesystemTarget(
                    self._snapshot.image_filesystems[each.number].path,
                    each.enough.size_bytes,
                    each.pending_bytes,
                    each.enough.inodes,
                )
                for each in targets
                if each.number is not None and each.kept is None and each.enough is not None and not each.at_once
            ),
        )

    def _remove_for_space(
        self,
        candidates: Sequence[ImageCandidate],
        needed: SpaceNeeded | None,
        *,
        remove_all_unused: bool,
        only_on: str,
    ) -> list[Target]:
        """Select candidates until the target of each image filesystem is reached; return the targets."""
        targets = []
        for each in self._collected(only_on):
            if needed is not None:
                target = each.needed_at_once(needed)
            else:
                every = each.everything(ends_undo=self._context.only is None)
                target = every if remove_all_unused else self._target(each)
                if target.kept is not None and target.kept.code is ReasonCode.BELOW_HIGH_THRESHOLD:
                    candidates, target = self._ahead(each, candidates, target)
            targets.append(target)
            if each.number is None:
                self._selection.remove_in_groups(candidates, target)
                return targets
            remaining = self._remaining(candidates)
            able = self._selection.ledger.able_to_free([candidate.image for candidate in remaining], each.number)
            own = [candidate for candidate in remaining if candidate.id in able]
            if target.kept is None:
                self._selection.remove_in_groups(own, target)
            else:  # a reason from an earlier filesystem has precedence
                for candidate in own:
                    self._kept.setdefault(candidate.id, target.kept)
        without_reason = [each for each in self._remaining(candidates) if each.id not in self._kept]
        self._kept.update((each.id, self._no_space(each.image, only_on)) for each in without_reason)
        return targets

    def _target(self, filesystem: CollectedFilesystem) -> Target:
        selection = self._selection
        counts_inodes = selection.ledger.accounting is Accounting.LAYERS
        return filesystem.target(self._policy, selection.freed(filesystem.number), counts_inodes=counts_inodes)

    def _ahead(
        self, filesystem: CollectedFilesystem, candidates: Sequence[ImageCandidate], below: Target
    ) -> tuple[Sequence[ImageCandidate], Target]:
        """Return the candidates and the target of a collection ahead of the forecast, otherwise both arguments.

        Irreplaceable images, and images whose use is expected within the time, are no candidates. Nothing is removed
        if the candidates do not keep the usage below the threshold, or while ages by the wall clock are unknown.
        """
        policy, forecast = self._policy, self._snapshot.collection_forecast
        if not policy.collect_ahead_s or forecast is None or clock_untrusted(self._snapshot.clock) is not None:
            return candidates, below
        target = filesystem.ahead(policy, forecast, self._now, self._selection.freed(None))
        if target is None:
            return candidates, below
        usage, observed_since = self._snapshot.image_usage, self._snapshot.image_use_observed_since
        expected = {
            each.id: Reason(ReasonCode.USE_EXPECTED, {"detail": detail})
            for each in candidates
            if (detail := use_expected(usage.get(each.id), observed_since, self._now, policy.collect_ahead_s))
        }
        removable = [each for each in candidates if each.id not in self._last and each.id not in expected]
        if not self._selection.is_ended_with(removable, target):
            self._not_ahead = target.enough
            return candidates, below
        self._kept.update(expected)
        last = [each.id for each in candidates if each.id in self._last]
        self._kept.update(dict.fromkeys(last, cast("Reason", below.kept)))
        return removable, target

    def _collected(self, only_on: str) -> list[CollectedFilesystem]:
        found, paths = collected_filesystems(self._snapshot), [each.path for each in self._snapshot.image_filesystems]
        return [each for each in found if not only_on or each.number is None or paths[each.number] == only_on]

    def _remaining(self, candidates: Sequence[ImageCandidate]) -> list[ImageCandidate]:
        removed = {each.id for each in self._selection.removals}
        return [each for each in candidates if each.id not in removed]

    def _no_space(self, image: Image, only_on: str) -> Reason:
        """Return the reason to keep an image whose removal frees no space on the collected image filesystems."""
        storage, several = self._snapshot.storage, self._snapshot.image_filesystems
        if storage is None or image.id not in storage.by_image:
            return Reason(ReasonCode.FILESYSTEM_UNKNOWN, {"count": len(several)})
        return Reason(ReasonCode.FREES_NO_SPACE, {"where": only_on or "any image filesystem"})

    def _remove_unused_too_long(self, candidates: Sequence[ImageCandidate]) -> list[ImageCandidate]:
        """Select images unused for longer than the maximum age, at any filesystem usage; return the other candidates.

        The reason is recorded for images that are kept only because image use has not been observed for the maximum
        age, or because the wall clock is untrusted.
        """
        maximum_s = self._policy.maximum_unused_age_s
        oldest, observed_since = earlier(self._now, maximum_s), self._snapshot.image_use_observed_since
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
            unused_s = (self._now - since).total_seconds()
            details: dict[str, Detail] = {"unused_s": unused_s, "maximum_s": maximum_s}
            details["observed_since_at"] = observed_since
            self._selection.remove(each.image, Reason(ReasonCode.UNUSED_TOO_LONG, details))
        return rest

    def _not_observed(self, unused_since: datetime) -> Reason:
        """Return the reason to keep an image whose use has not been observed for the maximum unused age."""
        maximum_s, since = self._policy.maximum_unused_age_s, self._snapshot.image_use_observed_since
        details: dict[str, Detail] = {"maximum_s": maximum_s}
        if since is None:
            details["detail"] = "image use is not observed: state database unavailable"
        else:
            observed_s, eligible_at = (self._now - since).total_seconds(), _later(since, maximum_s)
            unused_s = (self._now - max(unused_since, since)).total_seconds()
            details |= {"unused_s": unused_s, "observed_s": observed_s, "observed_since_at": since}
            unused = f"no use observed for {format_duration(unused_s)}, observed since {format_time(since)}"
            details |= {"eligible_at": eligible_at, "detail": unused}
        return Reason(ReasonCode.AGE_NOT_OBSERVED, details)

    def _old_enough(self, candidates: Sequence[ImageCandidate]) -> list[ImageCandidate]:
        """Return the candidates above the minimum age; younger candidates are recorded as kept."""
        minimum_s = self._policy.minimum_age_s
        newest = earlier(self._now, minimum_s)
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

    def _warnings(self, targets: Sequence[Target]) -> Iterator[str]:
        protection = self._policy.protection
        origin = origin_warning(self._snapshot, protection.irreplaceable, removes=bool(self._selection.removals))
        if origin:
            yield origin
        unknown = use_unknown(self._context)
        if unknown is not None:
            yield f"no image is removed: {unknown.details['detail']}"
        yield from self._space_warnings(targets)
        if self._not_ahead is not None:
            yield (
                f"by the forecast imagefs meets its threshold within {format_duration(self._policy.collect_ahead_s)}, "
                f"but images without expected use do not free {format_bytes(self._not_ahead.size_bytes)}; none is "
                "removed before the threshold"
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
        unsized = sum(decision.frees_bytes is None for decision in self._selection.removals)
        if unsized:
            yield f"size of {unsized} image(s) to remove unknown; counted as 0"

    def _space_warnings(self, targets: Sequence[Target]) -> Iterator[str]:
        for target in targets:
            if target.kept is not None and target.kept.code is ReasonCode.FILESYSTEM_UNREADABLE:
                yield f"no image is removed by threshold: {target.kept.sentence}"
        if self._snapshot.image_filesystems and self._snapshot.storage is None:
            yield (
                f"no image is removed for space: unknown which of {len(self._snapshot.image_filesystems)} image "
                "filesystems a removal frees; runtime.imagefs_path limits collection to one"
            )
        high = self._policy.high_threshold_inodes_percent
        for each in collected_filesystems(self._snapshot) if self._selection.ledger.accounting is _BY_SIZE else ():
            if high < 100 and each.observed is not None and each.observed.inodes_used_percent >= high:
                yield (
                    f"imagefs uses {each.observed.inodes_used_percent}% of its inodes, but no image is removed for "
                    "inodes: CRI alone reports no inodes of images"
                )
        pending_bytes = sum(each.pending_bytes for each in targets)
        if pending_bytes:
            storage = self._snapshot.storage
            size = format_bytes(pending_bytes)
            ends_undo = storage is not None and storage.undo and any(each.ends_undo for each in targets)
            undo = ", or in its undo window" if ends_undo else ""
            yield (
                f"{size} of unreferenced content is not collected yet{undo}; the runtime collects it before any removal"
            )


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
