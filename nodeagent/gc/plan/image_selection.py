"""Order of removal of images, and their selection until the target bytes are freed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nodeagent.gc.plan.image_protection import removal_reason
from nodeagent.gc.plan.image_targets import ledger_for
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.gc.plan.image_targets import Gain, Target
    from nodeagent.gc.plan.policy import PassLimits
    from nodeagent.model import Image, ImageUsage, NodeSnapshot

# Enum members used for every image are module constants: a lookup in the enum class takes ten times as long.
_IMAGE, _FAILED = ItemKind.IMAGE, ReasonCode.FAILED_EARLIER
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
        self, snapshot: NodeSnapshot, limits: PassLimits, minimum_gain_bytes: int, last: Mapping[str, str]
    ) -> None:
        """Create a selection without removals.

        Args:
            snapshot: snapshot of the node.
            limits: limits of removals per pass.
            minimum_gain_bytes: minimum bytes that a removal for a target must free.
            last: cause by image id, for irreplaceable images, which are removed after all others.
        """
        self._snapshot = snapshot
        self._limits = limits
        self._minimum_bytes = minimum_gain_bytes
        self._last = last
        self.ledger = ledger_for(snapshot)
        self.removals: list[Decision] = []
        self.kept: dict[str, Reason] = {}
        self._freed = 0, 0
        self._freed_on = [(0, 0)] * len(snapshot.image_filesystems)
        self._images: dict[str, Image] = {}

    def freed(self, number: int | None) -> tuple[int, int]:
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

        Irreplaceable images are not removed for bytes that other images will free in a later pass: images below the
        minimum age, and images whose removal failed in this pass. They are kept if their loss would not end the
        shortage: the target is not reached with them, or the growth of the shortage consumes their space.
        """
        before = len(self.removals)
        last = [each for each in candidates if each.id in self._last]
        rest = self._remove_until_enough([each for each in candidates if each.id not in self._last], target)
        if last:
            wanted = target.enough
            if wanted is not None and not target.at_once:
                later = {ReasonCode.TOO_YOUNG, _FAILED}
                waiting = [
                    image
                    for image in self._snapshot.images
                    if image.id in self.kept and self.kept[image.id].code in later and image.id not in self._last
                ]
                later_bytes = sum(self._gain_for(image, target)[0] or 0 for image in waiting)
                target = replace(target, enough=wanted._replace(size_bytes=wanted.size_bytes - later_bytes))
            if target.kept is None and not self._is_ended_with(last, target):
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
        for _, _, _, image_id, _, image, _ in images:
            reason = kept.get(image_id)
            if reason is None:
                continue
            verdict = _REMOVAL_FAILED if reason.code is _FAILED else _KEEP
            frees_bytes, frees_inodes = gain_of(image)
            frees_on = () if gains_of is None else gains_of(image)
            decisions.append(
                Decision(_IMAGE, image_id, image.name, verdict, reason, frees_bytes, frees_inodes, frees_on)
            )
        return decisions

    def _gain_for(self, image: Image, target: Target) -> Gain:
        """Return the space that the removal of an image frees on the filesystem of a target; ``None`` if unknown."""
        return self.ledger.gain(image) if target.number is None else self.ledger.gain_on(image, target.number)

    def _is_ended_with(self, irreplaceable: Sequence[ImageCandidate], target: Target) -> bool:
        """Return whether the removals so far and these images end the shortage, without the limits per pass."""
        if target.enough is None:
            return True
        ledger, freed = ledger_for(self._snapshot), (0, 0)
        for image in (*self._images.values(), *(each.image for each in irreplaceable)):
            gain = ledger.gain(image) if target.number is None else ledger.gain_on(image, target.number)
            if image.id in self._images or (gain[0] or 0) >= self._minimum_bytes:
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
        minimum_bytes, number = self._minimum_bytes, target.number
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
            if how is not None:
                reason = removal_reason(how, all_unused=target.enough is None)
            self._remove(image, gain, reason)
        return skipped

    def _remove(self, image: Image, gain: Gain, reason: Reason) -> None:
        self._limits.count(gain[0])
        self._images[image.id] = image
        self._count(Decision(_IMAGE, image.id, image.name, _REMOVE, reason, *gain), image)

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
        self.ledger, self._freed, self._freed_on = ledger_for(self._snapshot), (0, 0), [(0, 0)] * len(self._freed_on)
        for each in removals:
            if each.id in useless:
                self.kept[each.id] = _ENOUGH
                del self._images[each.id]
                continue
            image = self._images[each.id]
            gain = self.ledger.gain(image)
            self._count(replace(each, frees_bytes=gain[0], frees_inodes=gain[1]), image)


def _plus(freed: tuple[int, int], gain: Gain) -> tuple[int, int]:
    """Return the sum of freed space and a gain; an unknown gain counts as 0."""
    return freed[0] + (gain[0] or 0), freed[1] + (gain[1] or 0)


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


def unused_since(usage: ImageUsage, observed_since: datetime) -> datetime:
    """Return the time since which an image is known to be unused.

    A pull counts as use. An image counts as used until the start of the observation, since earlier use is unknown.
    """
    return max(usage.last_used or usage.first_detected, usage.first_detected, observed_since)
