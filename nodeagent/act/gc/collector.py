"""Garbage collection passes: observe, plan, remove, measure, and plan again on a shortfall.

A plan is fixed while it is carried out. If an item fails, or less is freed than predicted, a further round observes and
plans again without the failed items, within the limits of the pass. Otherwise one stuck image, counted as freed in
every plan, would prevent the removal of all others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nodeagent.act.gc.executor import DryRunRemover, Interrupted, carry_out
from nodeagent.act.gc.outcomes import Outcome, PassEnd, Result
from nodeagent.act.gc.pass_record import NoRecorder
from nodeagent.act.gc.preview import Preview, plans_for, plans_for_saved
from nodeagent.act.gc.progress import PassProgress
from nodeagent.act.gc.undo_terms import undo_terms
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.decision import Accounting, ItemKind, ReasonCode
from nodeagent.plan.gc.images import plan_image_gc
from nodeagent.plan.gc.saved_plan import find_drift
from nodeagent.plan.gc.scope import Scope
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import timedelta

    from nodeagent.act.gc.executor import BatchRemover, Remover
    from nodeagent.act.gc.outcomes import PassReport
    from nodeagent.act.gc.pass_record import PassRecorder
    from nodeagent.act.gc.undo_terms import UndoTerms
    from nodeagent.clock import Clock
    from nodeagent.model import FsObservation, NodeSnapshot
    from nodeagent.plan.decision import Decision
    from nodeagent.plan.gc.planner import GCPolicy
    from nodeagent.plan.gc.saved_plan import Drift, SavedPlan

MAX_ROUNDS = 5
EVICTION_TRIGGER = "eviction"
"""Trigger of passes below an eviction threshold, which wait less for container creations in progress."""

_ON_IMAGEFS = frozenset({ItemKind.IMAGE, ItemKind.BLOB, ItemKind.SNAPSHOT})
_FOR_SPACE = frozenset({ReasonCode.LEAST_RECENTLY_USED, ReasonCode.IRREPLACEABLE_LAST})
SETTLE_WITHIN_S = 10.0
SETTLE_STEP_S = 0.1
MEASUREMENT_SLACK_BYTES = 1 << 20
_NO_RECORDER = NoRecorder()


class Observer(Protocol):
    """Reads the node."""

    async def observe(self, scope: Scope) -> NodeSnapshot:
        """Return the current state of the node, limited to ``scope``."""


class UndoWindows(Protocol):
    """Undo windows of image removals."""

    @property
    def window(self) -> timedelta:
        """The configured undo window."""

    async def end_all(self) -> bool:
        """End all undo windows, without a garbage collection; return whether there were any."""


@runtime_checkable
class Settling(Protocol):
    """A remover that waits for container creations in progress."""

    @property
    def settled_s(self) -> float:
        """Duration of the waits so far, in seconds."""


class MakeRemovers(Protocol):
    """Creates the removers of a round."""

    def __call__(
        self, snapshot: NodeSnapshot, policy: GCPolicy, *, hurried: bool = False, undo: UndoTerms | None = None
    ) -> Mapping[ItemKind, Remover | BatchRemover]:
        """Return the remover of each kind of item, for a plan made from this snapshot and policy."""


def dry_run_removers(
    _snapshot: NodeSnapshot, _policy: GCPolicy, *, hurried: bool = False, undo: UndoTerms | None = None
) -> Mapping[ItemKind, Remover | BatchRemover]:
    """Return the dry-run remover for every kind of item."""
    del hurried, undo
    return dict.fromkeys(ItemKind, DryRunRemover())


@dataclass(frozen=True, slots=True)
class RemovalCompletion:
    """Steps that complete removals and free their space.

    Attributes:
        collect_garbage: runs the runtime's own garbage collection; called only for plans with pending bytes.
        recover: completes interrupted removals; called before each pass, except in a dry run.
        undo: undo windows of image removals; without it removals free their space at once.
    """

    collect_garbage: Callable[[], Awaitable[None]]
    recover: Callable[[], Awaitable[None]] | None = None
    undo: UndoWindows | None = None


class Collector:
    """Runs garbage collection passes."""

    def __init__(  # noqa: PLR0913 - the collaborators of a pass
        self,
        observer: Observer,
        make_removers: MakeRemovers,
        policy: GCPolicy,
        *,
        clock: Clock,
        read_filesystem: Callable[[str], FsObservation],
        completion: RemovalCompletion,
        dry_run: bool = False,
    ) -> None:
        """Create a collector; with ``dry_run`` its passes only report the planned removals."""
        self._completion = completion
        self._dry_run = dry_run
        self._observer = observer
        self._make_removers = dry_run_removers if dry_run else make_removers
        self._policy = policy
        self._clock = clock
        self._read_filesystem = read_filesystem

    async def prepare(self, scope: Scope) -> Preview:
        """Complete interrupted removals, then observe and plan a pass."""
        await self._recover()
        return await self.preview(scope)

    async def preview(self, scope: Scope, only: frozenset[str] | None = None) -> Preview:
        """Observe and plan without any change to the node; ``only`` restricts the removals, by id.

        Interrupted removals are left as they are: their completion waits for seconds and takes the pass lock. Plans are
        computed in a thread, since those of large nodes take long enough to delay the other tasks of the daemon.
        """
        snapshot = await self._observer.observe(scope)
        return Preview(scope, snapshot, await asyncio.to_thread(plans_for, scope, snapshot, self._policy, only))

    async def prepare_saved(self, saved: SavedPlan, current: GCPolicy) -> tuple[Preview, tuple[Drift, ...]]:
        """Complete interrupted removals, then observe and plan the removals of a saved plan.

        Returned are the plans of the pass, and the listed items that are kept.

        ``current`` is the policy in force; this collector's policy must be the stricter of it and the saved one.
        """
        await self._recover()
        snapshot = await self._observer.observe(saved.scope)
        in_force, plans = await asyncio.to_thread(plans_for_saved, saved, snapshot, current)
        return Preview(saved.scope, snapshot, plans), find_drift(saved, (*in_force, *plans))

    async def run(  # noqa: PLR0913 - the options of a pass
        self,
        preview: Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_result: Callable[[Result], None] = lambda _: None,
        recorder: PassRecorder = _NO_RECORDER,
    ) -> PassReport:
        """Carry out the plans of a preview, then further rounds while a shortfall remains.

        Args:
            preview: the plans of the first round, carried out as shown.
            trigger: cause of the pass, for the history.
            stop: set to end the pass between two items.
            max_rounds: with 1, only removals listed in ``preview`` are executed.
            on_result: called with each result.
            recorder: records each round before its first removal, and each result; not used by a dry run.
        """

        def record(result: Result) -> None:
            recorder.record(result)
            on_result(result)

        started_s = self._clock.monotonic_s()
        progress = PassProgress(self._clock.now(), preview, trigger)
        current: Preview | None = preview
        while current is not None:
            progress.plans.extend(current.plans)
            if current.acts and not self._dry_run:
                await recorder.begin_round(progress, current)
            if not await self._collected(progress, current):
                break
            removers = self._removers(progress, current)
            try:
                results = await carry_out(
                    current.removals,
                    removers,
                    clock=self._clock,
                    stop=stop,
                    enough=self._enough(current),
                    on_result=on_result if self._dry_run else record,
                )
            except Interrupted as interrupted:
                progress.results.extend(interrupted.results)
                progress.end = PassEnd.CANCELLED, "stopped between two items"
                if interrupted.lost:
                    progress.end = PassEnd.RUNTIME_LOST, interrupted.lost
                break
            finally:
                progress.settled_s += sum(each.settled_s for each in removers.values() if isinstance(each, Settling))
            progress.results.extend(results)
            progress.rounds += 1
            current = await self._next_round(progress, current, results, max_rounds, stop)
        return await self._report(progress, started_s, stop)

    def _removers(self, progress: PassProgress, current: Preview) -> Mapping[ItemKind, Remover | BatchRemover]:
        hurried = progress.trigger == EVICTION_TRIGGER
        undo = self._undo_terms(progress, current)
        return self._make_removers(current.snapshot, self._policy, hurried=hurried, undo=undo)

    async def _recover(self) -> None:
        if self._completion.recover is not None and not self._dry_run:
            await self._completion.recover()

    async def _collected(self, progress: PassProgress, current: Preview) -> bool:
        """End undo windows and run the runtime's garbage collection as far as the plan counts on it.

        Returns false if the runtime is unavailable.
        """
        if self._dry_run or not (current.acts and (current.pending_bytes or current.ends_undo)):
            return True
        try:
            undo = self._completion.undo
            ended = current.ends_undo and undo is not None and await undo.end_all()
            own_bytes = progress.end_undo() if ended else 0
            if ended or current.pending_bytes:
                await self._completion.collect_garbage()
        except RuntimeUnavailableError as error:
            progress.end = PassEnd.RUNTIME_LOST, str(error)
            detail = f"runtime unavailable: {error}"
            progress.results.extend(Result(each, Outcome.NOT_ATTEMPTED, detail) for each in current.removals)
            return False
        except NodeAgentError as error:
            progress.warnings.append(f"unreferenced content not collected: {error}")
        else:
            progress.collected_bytes += max(0, current.pending_bytes - own_bytes)
        return True

    def _undo_terms(self, progress: PassProgress, current: Preview) -> UndoTerms | None:
        undo = self._completion.undo
        if undo is None:
            return None
        return undo_terms(progress.id, progress.trigger, undo.window, space_needed=current.ends_undo)

    def _enough(self, current: Preview) -> Callable[[Decision], bool] | None:
        """Return a check that ends removals by threshold once the measured usage is low enough.

        Upper-bound sizes can also be far too small, since the runtime reports compressed content; then the measurement
        after each removal decides. With exact accounting all planned removals are carried out.
        """
        observed = current.snapshot.image_filesystem
        if self._dry_run or observed is None:
            return None
        exact = any(plan.accounting is Accounting.LAYERS for plan in current.plans)
        low = self._policy.images.low_threshold_percent - (1 if exact else 0)

        def enough(decision: Decision) -> bool:
            if decision.kind is not ItemKind.IMAGE or decision.reason.code not in _FOR_SPACE:
                return False
            try:
                return self._read_filesystem(observed.path).used_percent <= low
            except NodeAgentError:
                return False

        return enough

    async def _next_round(
        self, progress: PassProgress, current: Preview, results: Sequence[Result], max_rounds: int, stop: asyncio.Event
    ) -> Preview | None:
        """Return the preview of a further round, ``None`` if none is needed. Only images are planned again."""
        if self._dry_run or current.scope is Scope.CONTAINERS or current.snapshot.image_filesystem is None:
            return None
        if progress.rounds >= max_rounds or not any(result.decision.kind is ItemKind.IMAGE for result in results):
            return None
        low = self._policy.images.low_threshold_percent
        try:
            after = await self._measure_after_collection(progress, current.snapshot.image_filesystem.path, stop)
            missing_bytes = _missing_bytes(after, low) if any(plan.wanted_bytes for plan in current.plans) else 0
            if missing_bytes <= progress.undo_bytes:
                return None
            snapshot = await self._observer.observe(Scope.IMAGES)
        except NodeAgentError as error:
            progress.warnings.append(f"no further round: {error}")
            return None
        policy = replace(self._policy.images, high_threshold_percent=min(99, low + 1))
        plan = plan_image_gc(snapshot, policy, failed=progress.failed_images(), spent=progress.spent())
        if not plan.removals:
            progress.last_plan = plan
            return None
        return Preview(Scope.IMAGES, snapshot, (plan,))

    async def _report(self, progress: PassProgress, started_s: float, stop: asyncio.Event) -> PassReport:
        before = progress.preview.snapshot.image_filesystem
        after = None
        if before is not None and not self._dry_run:
            try:
                after = await self._measure_after_collection(progress, before.path, stop)
            except NodeAgentError as error:
                progress.warnings.append(f"cannot measure the image filesystem after the pass: {error}")
        end = progress.end or self._end(progress, after)
        duration_s = self._clock.monotonic_s() - started_s
        return progress.report(end, duration_s=duration_s, dry_run=self._dry_run, after=after)

    async def _measure_after_collection(self, progress: PassProgress, path: str, stop: asyncio.Event) -> FsObservation:
        """Measure a filesystem once it shows the freed bytes, or after a bounded wait.

        containerd sometimes collects in the background, and XFS frees inodes and blocks with a delay; a pass that
        measured at once would remove more than needed. Without exact accounting the freed bytes are unknown, so
        there is no wait.
        """
        before = progress.preview.snapshot.image_filesystem
        exact = any(plan.accounting is Accounting.LAYERS for plan in progress.plans)
        predicted_bytes = progress.collected_bytes + sum(
            result.decision.frees_bytes or 0
            for result in progress.results
            if result.outcome is Outcome.DONE and result.decision.kind in _ON_IMAGEFS and result.undo_until is None
        )
        certain_bytes = max(0, predicted_bytes * 98 // 100 - MEASUREMENT_SLACK_BYTES)
        target_bytes = (before.available_bytes if before is not None else 0) + certain_bytes
        waited_s = 0.0
        while True:
            measured = self._read_filesystem(path)
            settled = not exact or not certain_bytes or measured.available_bytes >= target_bytes
            if settled or waited_s >= SETTLE_WITHIN_S or stop.is_set():
                return measured
            waited_s += SETTLE_STEP_S
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SETTLE_STEP_S)

    def _end(self, progress: PassProgress, after: FsObservation | None) -> tuple[PassEnd, str]:
        if self._dry_run:
            return progress.preview.predicted_end
        blocked = [plan.blocked for plan in progress.plans if plan.blocked]
        if blocked:
            return PassEnd.REFUSED, "; ".join(blocked)
        by_threshold = any(plan.wanted_bytes for plan in progress.plans if plan.kind == "images")
        low = self._policy.images.low_threshold_percent
        if by_threshold and after is not None and _missing_bytes(after, low) > progress.undo_bytes:
            return PassEnd.SHORTFALL, _shortfall_detail(progress, after, low)
        if not progress.results and not progress.collected_bytes:
            return PassEnd.NOTHING_TO_DO, ""
        return PassEnd.COMPLETE, ""


def _missing_bytes(observed: FsObservation, low: int) -> int:
    """Return the bytes still to be freed for a low threshold in percent.

    The arithmetic is the planner's. Usage in percent is rounded as in the kubelet: a target met to the byte can still
    read one percent above the threshold, and such a pass would end as a shortfall.
    """
    return max(0, observed.capacity_bytes * (100 - low) // 100 - observed.available_bytes)


def _shortfall_detail(progress: PassProgress, after: FsObservation, low: int) -> str:
    """Return the shortfall and the number of kept images by reason code, as a sentence."""
    missing = _missing_bytes(after, low)
    last = progress.last_plan or next((plan for plan in reversed(progress.plans) if plan.kind == "images"), None)
    removed = progress.removed_ids()
    counts: dict[str, int] = {}
    for decision in last.decisions if last else ():
        if decision.id not in removed:
            counts[decision.reason.code.value] = counts.get(decision.reason.code.value, 0) + 1
    kept = ", ".join(f"{count} {code}" for code, count in sorted(counts.items(), key=lambda item: -item[1]))
    usage = f"imagefs is {after.used_percent}% full, {format_bytes(missing)} above the low threshold {low}%"
    return f"{usage}; images kept: {kept}" if kept else f"{usage}; no images remain"
