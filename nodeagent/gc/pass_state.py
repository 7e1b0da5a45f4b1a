"""State of one pass: its preview, its progress, the measured image filesystems, and the undo window of its removals."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec.structs import force_setattr

from nodeagent.errors import ObservationError, UsageError
from nodeagent.gc.executor import (
    MeasuredFilesystem,
    Outcome,
    PassEnd,
    PassReport,
    PassTrigger,
    Result,
    bytes_in_undo_windows,
)
from nodeagent.gc.plan.image_protection import labels_named, select_images
from nodeagent.gc.plan.image_targets import SpaceNeeded, space_above_low, wanted_on
from nodeagent.gc.plan.image_users import find_users
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope, SpaceGoal, Spent
from nodeagent.guarded_call import GuardedCall, HangingCallError
from nodeagent.host.filesystems import start_commits
from nodeagent.model.decision import Accounting, Decision, ItemKind, Plan, ReasonCode
from nodeagent.model.runtime import FsObservation, Space, total_space
from nodeagent.record import Record, replace
from nodeagent.units import format_bytes, format_space

if TYPE_CHECKING:
    from nodeagent.gc.plan.saved_plan import Drift, SavedPlan
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Label
    from nodeagent.settings.settings import Settings


class SnapshotReader(Protocol):
    """Source of node snapshots."""

    async def observe(self, scope: Scope, labels: frozenset[Label] = frozenset()) -> NodeSnapshot:
        """Return the current state of the node, limited to ``scope``; ``labels`` of images are read in addition."""


class Preview(Record):
    """The plans of a pass, in order of execution, with their snapshot.

    Attributes:
        wanted_available_bytes: available bytes of the image filesystem that a user requested; ``None`` without a
            request.
        removals: every removal, in order of execution; computed from ``plans``.
    """

    scope: Scope
    snapshot: NodeSnapshot
    plans: tuple[Plan, ...]
    wanted_available_bytes: int | None = None
    removals: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        """Compute the removals once, as a pass reads them many times and plans of large nodes keep most items."""
        force_setattr(self, "removals", tuple(decision for plan in self.plans for decision in plan.removals))

    @property
    def pending_bytes(self) -> int:
        """Unreferenced bytes that the runtime collects before the first removal."""
        return sum(plan.pending_bytes for plan in self.plans)

    @property
    def ends_undo(self) -> bool:
        """Whether undo windows end before the first removal, because space is needed."""
        return any(plan.ends_undo for plan in self.plans)

    @property
    def ahead_available_bytes(self) -> int | None:
        """Available bytes at which a collection ahead of the forecast ends; ``None`` for any other pass."""
        return next((each.ahead_available_bytes for each in self.plans if each.kind == "images"), None)

    @property
    def acts(self) -> bool:
        """Whether a pass would collect garbage or remove an item."""
        return bool(self.pending_bytes) or bool(self.removals)

    @property
    def frees_bytes(self) -> int:
        """Bytes predicted to be freed by the removals and the runtime's garbage collection before them."""
        return self.pending_bytes + sum(plan.frees_bytes for plan in self.plans)

    @property
    def is_upper_bound(self) -> bool:
        """Whether ``frees_bytes`` is an upper bound: the runtime reports image sizes without shared layers."""
        return any(plan.accounting is Accounting.UPPER_BOUND for plan in self.plans if plan.removals)

    def filesystem_after(self, frees_bytes: int) -> FsObservation | None:
        """Return the image filesystem once bytes are freed, those of pod logs on another one included.

        ``None`` without a reading, or if several image filesystems exist.
        """
        observed = self.snapshot.image_filesystem
        if observed is None or self.snapshot.image_filesystems:
            return None
        logs = sum(each.frees_bytes or 0 for each in self.removals if each.kind is ItemKind.POD_LOG_DIRECTORY)
        available_bytes = observed.available_bytes + frees_bytes - logs
        return replace(observed, available_bytes=min(observed.capacity_bytes, available_bytes))

    @property
    def predicted_end(self) -> tuple[PassEnd, str]:
        """End of the pass and its detail if every removal succeeds and frees the predicted bytes.

        A dry run reports this end; the end of any other pass is measured.
        """
        blocked = [plan.blocked for plan in self.plans if plan.blocked]
        if blocked:
            return PassEnd.REFUSED, "; ".join(blocked)
        short_bytes = sum(plan.shortfall_bytes for plan in self.plans)
        short_inodes = sum(plan.shortfall_inodes for plan in self.plans)
        if short_bytes or short_inodes:
            return PassEnd.SHORTFALL, f"{format_space(short_bytes, short_inodes)} short of the target"
        return (PassEnd.COMPLETE if self.acts else PassEnd.NOTHING_TO_DO), ""


async def preview_pass(
    observer: SnapshotReader,
    policy: GCPolicy,
    scope: Scope,
    patterns: Sequence[str] = (),
    goal: SpaceGoal | None = None,
) -> Preview:
    """Observe and plan a pass without any change to the node.

    Plans are computed in a thread, since planning for a large node would delay the other tasks of the daemon.

    Args:
        observer: reads the snapshot.
        policy: policies of the planners.
        scope: kinds of items in the pass.
        patterns: select images as in :func:`plans_for`.
        goal: space that a user requests; ``None`` for the thresholds.

    Raises:
        UsageError: a goal on a node with several image filesystems, or an invalid pattern.
        NodeAgentError: the node could not be observed; with a goal, also its image filesystem.
    """
    snapshot = await observer.observe(scope, labels_named(patterns))
    wanted = None if goal is None else goal.available_bytes(_only_filesystem(snapshot))
    plans = await asyncio.to_thread(plans_for, scope, snapshot, reaching(policy, wanted), None, patterns)
    return Preview(scope, snapshot, plans, wanted)


def reaching(policy: GCPolicy, wanted_available_bytes: int | None) -> GCPolicy:
    """Return the policy of a pass for the available bytes that a user requested; ``None`` for the policy itself."""
    return replace(policy, images=replace(policy.images, wanted_available_bytes=wanted_available_bytes))


def _only_filesystem(snapshot: NodeSnapshot) -> FsObservation:
    if snapshot.image_filesystems:
        paths = ", ".join(each.path for each in snapshot.image_filesystems)
        raise UsageError(
            f"nothing was removed: --free and --to need one image filesystem, this node has several: {paths}; "
            "use gc images --high PERCENT --low PERCENT, which applies to each"
        )
    if snapshot.image_filesystem is None:
        raise ObservationError(f"nothing was removed: imagefs: {snapshot.image_filesystem_error or 'no reading'}")
    return snapshot.image_filesystem


def plans_for(
    scope: Scope,
    snapshot: NodeSnapshot,
    policy: GCPolicy,
    only: frozenset[str] | None = None,
    patterns: Sequence[str] = (),
) -> tuple[Plan, ...]:
    """Return the plans of a pass over ``scope``, in order of execution.

    Args:
        scope: kinds of items in the pass.
        snapshot: snapshot of the node.
        policy: policies of all planners.
        only: ids of the items that may be removed; ``None`` for all items.
        patterns: the images to remove, as in ``select_images``: unused images at any filesystem usage, regardless of
            the minimum gain, and no other item, regardless of ``only``; empty for a pass without a selection.

    Raises:
        UsageError: a pattern selects no image, or is invalid.
    """
    if patterns:
        selected = select_images(patterns, snapshot.images, find_users(snapshot).index)
        images = replace(policy.images, minimum_gain_bytes=0)  # the user selects for other reasons than space
        return (plan_image_gc(snapshot, images, remove_all_unused=True, only=selected),)
    if scope is Scope.IMAGES:
        return (plan_image_gc(snapshot, policy.images, only=only),)
    from nodeagent.gc.plan.planner import plan_all, plan_containers  # noqa: PLC0415 - not needed for a list of images

    if scope is Scope.CONTAINERS:
        return plan_containers(snapshot, policy, only=only).plans
    return plan_all(snapshot, policy, only=only).plans


def plans_by_loop(snapshot: NodeSnapshot, policy: GCPolicy) -> tuple[Plan, ...]:
    """Return the plans of the next container GC pass and of the next image GC pass, for the same snapshot.

    A plan of all items treats the containers planned for removal as removed. Here these containers still reference
    their images, as in the lists of images and containers.
    """
    return (*plans_for(Scope.CONTAINERS, snapshot, policy), *plans_for(Scope.IMAGES, snapshot, policy))


def plans_for_saved(
    saved: SavedPlan, snapshot: NodeSnapshot, policy: GCPolicy
) -> tuple[tuple[Plan, ...], tuple[Drift, ...]]:
    """Return the plans to carry out when a saved plan is applied, and its removals that are not carried out.

    The plans remove an item only if the saved plan and a new plan under the policy in force both remove the item, and
    if its digest is unchanged. The planners run again with these items alone, since an image can be in use by a
    container that only the new plan removes.
    """
    from nodeagent.gc.plan.saved_plan import find_drift, unchanged_removals  # noqa: PLC0415 - not needed for lists

    unchanged = unchanged_removals(saved, snapshot)
    fresh = plans_for(saved.scope, snapshot, policy)
    both = unchanged & {decision.id for plan in fresh for decision in plan.removals}
    plans = plans_for(saved.scope, snapshot, policy, both)
    return plans, find_drift(saved, (*fresh, *plans), unchanged)


def new_pass_id(started_at: datetime) -> str:
    """Return a new unique id of a pass or an eviction: its start time and six random hexadecimal digits."""
    return f"{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


_ENDED: Final = (Outcome.DONE, Outcome.GONE)


class PassProgress:
    """Plans, results and warnings of a pass so far."""

    def __init__(self, started_at: datetime, preview: Preview, trigger: str, policy: GCPolicy) -> None:
        self.id = new_pass_id(started_at)
        self.started_at = started_at
        self.preview = preview
        self.trigger = trigger
        self.policy = reaching(policy, preview.wanted_available_bytes)
        self.rounds = 0
        self.collected_bytes = 0
        self.settled_s = 0.0
        self.plans: list[Plan] = []
        self.results: list[Result] = []
        self.warnings: list[str] = []
        self.last_plan: Plan | None = None
        self.end: tuple[PassEnd, str] | None = None

    def failed_images(self) -> dict[str, str]:
        """Return the cause of each failed or skipped image removal of this pass, by image id."""
        return {
            result.decision.id: result.detail
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome in (Outcome.FAILED, Outcome.CHANGED)
        }

    @property
    def undo_bytes(self) -> int:
        """Predicted bytes of removed images in their undo window."""
        return bytes_in_undo_windows(self.results)

    def policy_of_round(self, snapshot: NodeSnapshot, missing: SpaceNeeded) -> ImageGCPolicy:
        """Return the image policy of a further round, on a snapshot after the removals so far.

        Usage between the thresholds starts the round. For requested space the round removes only what the removals so
        far were not to free, such as failed ones: data that others wrote in the meantime is not followed.
        """
        policy, wanted = self.policy.images, self.preview.wanted_available_bytes
        before, now = self.preview.snapshot.image_filesystem, snapshot.image_filesystem
        if wanted is not None and before is not None and now is not None:
            done = (each.decision.frees_bytes or 0 for each in self.results if each.outcome in _ENDED)
            left_bytes = wanted - before.available_bytes - self.collected_bytes - sum(done)
            return replace(policy, wanted_available_bytes=min(wanted, now.available_bytes + max(0, left_bytes)))
        if missing.size_bytes:
            return replace(policy, high_threshold_percent=min(99, policy.low_threshold_percent + 1))
        return replace(policy, high_threshold_inodes_percent=min(99, policy.low_threshold_inodes_percent + 1))

    def end_undo(self) -> int:
        """Mark the undo windows of this pass as ended; return the predicted bytes of their images."""
        size_bytes = self.undo_bytes
        self.results = [
            replace(each, undo_until=None, detail="undo window ended: more space is needed")
            if each.undo_until
            else each
            for each in self.results
        ]
        return size_bytes

    def removed_ids(self) -> frozenset[str]:
        """Return the ids of the removed items."""
        return frozenset(result.decision.id for result in self.results if result.outcome in _ENDED)

    def spent(self) -> Spent:
        """Return the number and the bytes of removed images, which count against the limits per pass."""
        done = [
            result.decision
            for result in self.results
            if result.decision.kind is ItemKind.IMAGE and result.outcome is Outcome.DONE
        ]
        return Spent(images=len(done), size_bytes=sum(decision.frees_bytes or 0 for decision in done))

    def report(
        self,
        end: tuple[PassEnd, str],
        *,
        duration_s: float,
        dry_run: bool,
        measured: Sequence[MeasuredFilesystem],
    ) -> PassReport:
        """Return the report of the pass; ``measured`` are the image filesystems after the last removal, if measured."""
        before = self.preview.snapshot.image_filesystem
        after = next((each.after for each in measured if before is not None and each.before.path == before.path), None)
        return PassReport(
            id=self.id,
            scope=self.preview.scope.value,
            trigger=self.trigger,
            started_at=self.started_at,
            duration_s=duration_s,
            dry_run=dry_run,
            plans=tuple(self.plans),
            results=tuple(self.results),
            end=end[0],
            end_detail=end[1],
            before=before,
            after=after,
            warnings=tuple(self.warnings),
            collected_bytes=self.collected_bytes,
            settled_s=self.settled_s,
            filesystems=tuple(measured) if self.preview.snapshot.image_filesystems else (),
        )


_COMMIT_WITHIN_S: Final = 2.0
_COMMITS: Final = GuardedCall[None]()


async def make_visible(paths: Iterable[str]) -> None:
    """Start a commit on the Btrfs filesystems of these paths; wait at most 2 s for the call to return.

    Without the commit, freed space would appear later and cause further removals or evictions.

    A hanging filesystem occupies one thread; no further commit is started until that call returns.
    """
    with suppress(HangingCallError):
        await _COMMITS.run(partial(start_commits, tuple(paths)), within_s=_COMMIT_WITHIN_S)


SETTLE_WITHIN_S: Final = 10.0
SETTLE_HURRIED_S: Final = 0.3
SETTLE_STEP_S: Final = 0.1
MEASUREMENT_SLACK_BYTES: Final = 1 << 20

_ON_IMAGEFS = frozenset({ItemKind.IMAGE, ItemKind.BLOB, ItemKind.SNAPSHOT, ItemKind.LEASE, ItemKind.IMAGE_NAME})


class Measurement(Record):
    """Measurement of all image filesystems of one pass.

    Attributes:
        stop: ends the waits when set.
        hurried: whether the wait for freed bytes is at most ``SETTLE_HURRIED_S`` seconds and ends when the available
            bytes decrease: the caller (the eviction loop) measures the effect itself.
    """

    progress: PassProgress
    read_filesystem: Callable[[str], FsObservation]
    stop: asyncio.Event
    hurried: bool = False

    async def read(self) -> tuple[MeasuredFilesystem, ...]:
        """Measure every image filesystem of the pass.

        Raises:
            NodeAgentError: a filesystem cannot be read.
        """
        before = readings_of(self.progress.preview.snapshot)
        return tuple([MeasuredFilesystem(each, await self._settled(each)) for each in before])

    async def shortage(self) -> tuple[str, SpaceNeeded] | None:
        """Measure the filesystems; return the path and the missing space of the one that is farthest from its target.

        The path is empty on a node with one image filesystem. Space that the end of undo windows will free counts as
        freed. The result is ``None`` if all targets are reached.

        Raises:
            NodeAgentError: a filesystem cannot be read.
        """
        found = max(self._shortfalls(await self.read()), key=lambda each: each[1], default=None)
        return None if found is None else (found[0].before.path if self._several else "", found[1])

    def shortfall_detail(self, measured: Sequence[MeasuredFilesystem]) -> str:
        """Return the shortfall and the number of kept images by reason code, as a sentence; empty for none."""
        found = max(self._shortfalls(measured), key=lambda each: each[1], default=None)
        return "" if found is None else self._detail(*found)

    def _shortfalls(self, measured: Sequence[MeasuredFilesystem]) -> list[tuple[MeasuredFilesystem, SpaceNeeded]]:
        """Return each measured filesystem that missed its target, with the missing space."""
        found = []
        for each in measured:
            path = each.before.path
            policy = self.progress.policy.images
            missing = space_above_low(each.after, policy, self._wanted(path)).beyond(self._in_undo_windows(path))
            if any(missing):
                found.append((each, missing))
        return found

    def _wanted(self, path: str) -> SpaceNeeded:
        return wanted_on(self.progress.plans, path if self._several else "")

    @property
    def _several(self) -> bool:
        return bool(self.progress.preview.snapshot.image_filesystems)

    def _in_undo_windows(self, path: str) -> Space:
        """Return the predicted space on a filesystem of the removed images in their undo window."""
        return self._predicted(path, [each.decision for each in self.progress.results if each.undo_until is not None])

    def _removed(self, path: str) -> Space:
        """Return the predicted space of the removals so far on a filesystem."""
        done = [
            result.decision
            for result in self.progress.results
            if result.outcome is Outcome.DONE and result.decision.kind in _ON_IMAGEFS and result.undo_until is None
        ]
        return self._predicted(path, done)

    def _predicted(self, path: str, decisions: Sequence[Decision]) -> Space:
        """Return the predicted space of removals; 0 inodes on one of several filesystems, as they are unknown."""
        if self._several:
            return Space(sum(each.bytes_on(path) for each in decisions))
        return total_space(Space(each.frees_bytes or 0, each.frees_inodes or 0) for each in decisions)

    async def _settled(self, before: FsObservation) -> FsObservation:
        """Measure a filesystem once the freed space is available, or after a bounded wait.

        Inodes are awaited only if the pass needs inodes.

        containerd sometimes collects garbage in the background, XFS frees inodes and blocks with a delay, and Btrfs
        frees space with the next commit; after an immediate measurement, a pass would remove more than needed. Without
        exact accounting the freed bytes are unknown, so the filesystem is measured immediately.
        """
        exact = any(plan.accounting is Accounting.LAYERS for plan in self.progress.plans)
        removed = self._removed(before.path)
        predicted_bytes = removed.size_bytes + (0 if self._several else self.progress.collected_bytes)
        certain_bytes = max(0, predicted_bytes * 98 // 100 - MEASUREMENT_SLACK_BYTES)
        certain_inodes = removed.inodes * 98 // 100 if before.inodes and self._wanted(before.path).inodes else 0
        target_bytes, target_inodes = before.available_bytes + certain_bytes, before.inodes_free + certain_inodes
        waited_s, last_bytes = 0.0, 0
        within_s = min(SETTLE_WITHIN_S, SETTLE_HURRIED_S) if self.hurried else SETTLE_WITHIN_S
        while True:
            measured = self.read_filesystem(before.path)
            settled = not exact or (
                (not certain_bytes or measured.available_bytes >= target_bytes)
                and (not certain_inodes or measured.inodes_free >= target_inodes)
            )
            consumed = self.hurried and measured.available_bytes < last_bytes
            if settled or consumed or waited_s >= within_s or self.stop.is_set():
                return measured
            last_bytes = measured.available_bytes
            if not waited_s:
                await make_visible([before.path])
            waited_s += SETTLE_STEP_S
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_STEP_S):
                    await self.stop.wait()

    def _detail(self, measured: MeasuredFilesystem, missing: SpaceNeeded) -> str:
        progress, after = self.progress, measured.after
        last = progress.last_plan or next((plan for plan in reversed(progress.plans) if plan.kind == "images"), None)
        removed = progress.removed_ids()
        codes = (each.reason.code.value for each in (last.decisions if last else ()) if each.id not in removed)
        kept = ", ".join(f"{count} {code}" for code, count in Counter(codes).most_common())
        name = f"imagefs {measured.before.path}" if self._several else "imagefs"
        policy, usages = progress.policy.images, []
        if missing.size_bytes:
            above = f"above the low threshold {policy.low_threshold_percent}%"
            if policy.wanted_available_bytes is not None:
                above = f"short of {format_bytes(policy.wanted_available_bytes)} available"
            usages.append(f"is {after.used_percent}% full, {format_bytes(missing.size_bytes)} {above}")
        if missing.inodes:
            above = f"{missing.inodes} above the low threshold {policy.low_threshold_inodes_percent}%"
            usages.append(f"uses {after.inodes_used_percent}% of its inodes, {above}")
        usage = f"{name} {' and '.join(usages)}"
        return f"{usage}; images kept: {kept}" if kept else f"{usage}; no images remain"


def readings_of(snapshot: NodeSnapshot) -> tuple[FsObservation, ...]:
    """Return the reading of each image filesystem that could be read."""
    if snapshot.image_filesystems:
        return tuple(each.observed for each in snapshot.image_filesystems if each.observed is not None)
    return () if snapshot.image_filesystem is None else (snapshot.image_filesystem,)


def is_relieved(observed: FsObservation, policy: ImageGCPolicy, wanted: SpaceNeeded, *, margin: int) -> bool:
    """Return whether the usage of the wanted resources is at most their low threshold minus ``margin`` percent.

    If a user requested available bytes, whether these are available.
    """
    if policy.wanted_available_bytes is not None:
        return observed.available_bytes >= policy.wanted_available_bytes
    size = not wanted.size_bytes or observed.used_percent <= policy.low_threshold_percent - margin
    inodes = not wanted.inodes or observed.inodes_used_percent <= policy.low_threshold_inodes_percent - margin
    return size and inodes


MANUAL_TRIGGERS: Final = frozenset({PassTrigger.COMMAND, PassTrigger.CONTROL, PassTrigger.APPLY})
"""Triggers of passes that a user requested."""


class UndoTerms(Record):
    """The undo window of the removals of a pass.

    Attributes:
        pass_id: id of the pass.
        window: time for which a removal can be undone.
        only_by_age: whether only removals by maximum age have the window; all others free space immediately.
    """

    pass_id: str
    window: timedelta
    only_by_age: bool

    def covers(self, decision: Decision) -> bool:
        """Return whether a removal has the window."""
        if decision.kind is not ItemKind.IMAGE:
            return False
        return not self.only_by_age or decision.reason.code is ReasonCode.UNUSED_TOO_LONG


def offered_window_s(settings: Settings, preview: Preview) -> float:
    """Return the undo window in seconds of the image removals of a preview that a user requests; 0 without a window.

    Removals for requested space, removals through CRI, and removals without containerd's records free space
    immediately.
    """
    if preview.wanted_available_bytes is not None:
        return 0.0
    by_name = settings.bulk_removal and preview.snapshot.storage is not None
    removes_images = any(each.kind is ItemKind.IMAGE for each in preview.removals)
    return settings.undo_window_s if by_name and removes_images else 0.0


def undo_terms(pass_id: str, trigger: str, window: timedelta, *, space_needed: bool) -> UndoTerms | None:
    """Return the undo window of a pass; ``None`` if its removals free space immediately.

    Args:
        pass_id: id of the pass.
        trigger: trigger of the pass.
        window: the configured window.
        space_needed: whether the filesystem is above its threshold. A pass of the daemon then frees space immediately;
            in a pass requested by a user, the window ends with the next pass that needs the space.
    """
    manual = trigger in MANUAL_TRIGGERS
    if window.total_seconds() <= 0 or (space_needed and not manual):
        return None
    return UndoTerms(pass_id, window, only_by_age=not manual)
