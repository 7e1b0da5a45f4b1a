"""Garbage collection passes: observe, plan, remove, measure, and plan again on a shortfall.

A plan is fixed while it is carried out. If an item fails, or less is freed than predicted, a further round observes and
plans again without the failed items, within the limits of the pass. Otherwise one stuck image, counted as freed in
every plan, would prevent the removal of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.gc import executor, pass_state
from nodeagent.gc.plan.image_targets import wanted_on
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import GCPolicy, Scope, SpaceGoal
from nodeagent.host.stalls import IdleDisk
from nodeagent.model.decision import Accounting, Decision, ItemKind, ReasonCode
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.gc.pass_history import HistoryRecorder
    from nodeagent.gc.plan.saved_plan import Drift, SavedPlan
    from nodeagent.gc.restore import ImageUndo
    from nodeagent.model.runtime import FsObservation
    from nodeagent.units import Clock


MakeRemovers = Callable[..., Mapping[ItemKind, executor.Remover | executor.BatchRemover]]


MAX_ROUNDS = 5

_FOR_SPACE = frozenset(
    {
        ReasonCode.LEAST_RECENTLY_USED,
        ReasonCode.UNTAGGED_FIRST,
        ReasonCode.IRREPLACEABLE_LAST,
        ReasonCode.COLLECT_AHEAD,
    }
)


class Collector(Record):
    """Executor of garbage collection passes.

    Attributes:
        observer: reads the snapshots.
        make_removers: returns the remover of each kind of item, for a plan made from this snapshot and policy.
        policy: policies of the planners.
        clock: dates the passes and measures durations.
        read_filesystem: reads the usage of a filesystem.
        collect_garbage: runs the runtime's own garbage collection; called only for plans with pending bytes.
        recover: completes interrupted removals; called before each pass, except in a dry run.
        undo: undo windows of image removals; ``None`` if removals free their space immediately.
        dry_run: whether passes only report the planned removals.
    """

    observer: pass_state.SnapshotReader
    make_removers: MakeRemovers
    policy: GCPolicy
    clock: Clock
    read_filesystem: Callable[[str], FsObservation]
    collect_garbage: Callable[[], Awaitable[None]]
    recover: Callable[[], Awaitable[None]] | None = None
    undo: ImageUndo | None = None
    dry_run: bool = False

    async def prepare(
        self, scope: Scope, patterns: Sequence[str] = (), goal: SpaceGoal | None = None
    ) -> pass_state.Preview:
        """Complete interrupted removals, then observe and plan a pass; arguments as in ``preview_pass``."""
        await self._recover()
        return await pass_state.preview_pass(self.observer, self.policy, scope, patterns, goal)

    async def preview(self, scope: Scope, patterns: Sequence[str] = ()) -> pass_state.Preview:
        """Observe and plan without any change to the node; ``patterns`` select images as in ``plans_for``.

        Interrupted removals are not completed, since their completion takes seconds and requires the pass lock.
        """
        return await pass_state.preview_pass(self.observer, self.policy, scope, patterns)

    async def prepare_saved(self, saved: SavedPlan) -> tuple[pass_state.Preview, tuple[Drift, ...]]:
        """Complete interrupted removals, then observe and plan the removals of a saved plan.

        Returns:
            The preview of the pass, and the removals of the saved plan that are not carried out.
        """
        await self._recover()
        snapshot = await self.observer.observe(saved.scope)
        plans, drift = await asyncio.to_thread(pass_state.plans_for_saved, saved, snapshot, self.policy)
        return pass_state.Preview(saved.scope, snapshot, plans), drift

    async def run(  # noqa: PLR0913 - the options of a pass
        self,
        preview: pass_state.Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_result: Callable[[executor.Result], None] = lambda _: None,
        recorder: HistoryRecorder | None = None,
    ) -> executor.PassReport:
        """Carry out the plans of a preview, then further rounds while a shortfall remains.

        Args:
            preview: the plans of the first round, carried out as shown.
            trigger: cause of the pass, for the history.
            stop: event that, when set, ends the pass between two items.
            max_rounds: with 1, only removals listed in ``preview`` are executed; required for selected images, since
                further rounds plan without the selection.
            on_result: called with each result.
            recorder: records each round before its first removal, and each result; not used by a dry run.
        """
        recorder = None if self.dry_run else recorder

        def record(result: executor.Result) -> None:
            if recorder is not None:
                recorder.record(result)
            on_result(result)

        started_s = self.clock.monotonic_s() - preview.snapshot.reading_s
        progress = pass_state.PassProgress(self.clock.now(), preview, trigger, self.policy)
        current: pass_state.Preview | None = preview
        while current is not None:
            progress.plans.extend(current.plans)
            if recorder is not None and current.acts:
                await recorder.begin_round(progress, current)
            if not await self._collected(progress, current):
                break
            removers = self._removers(progress, current)
            try:
                results = await executor.carry_out(
                    current.removals,
                    removers,
                    clock=self.clock,
                    stop=stop,
                    enough=None if trigger == executor.PassTrigger.EVICTION else self._enough(progress, current),
                    busy=None if self.dry_run else IdleDisk(stop).wait,
                    on_result=record,
                )
            except executor.Interrupted as interrupted:
                progress.results.extend(interrupted.results)
                detail = "stopped between two items" if stop.is_set() else interrupted.reason
                progress.end = executor.PassEnd.CANCELLED, detail
                if interrupted.lost:
                    progress.end = executor.PassEnd.RUNTIME_LOST, interrupted.lost
                break
            finally:
                batches = [each for each in removers.values() if isinstance(each, executor.BatchRemover)]
                progress.settled_s += sum(each.settled_s for each in batches)
            progress.results.extend(results)
            progress.rounds += 1
            current = await self._next_round(progress, current, results, max_rounds, stop)
        return await self._report(progress, started_s, stop)

    def _removers(
        self, progress: pass_state.PassProgress, current: pass_state.Preview
    ) -> Mapping[ItemKind, executor.Remover | executor.BatchRemover]:
        if self.dry_run:
            return dict.fromkeys(ItemKind, executor.DryRunRemover())
        hurried = progress.trigger == executor.PassTrigger.EVICTION
        undo = None
        if self.undo is not None and progress.preview.wanted_available_bytes is None:
            undo = pass_state.undo_terms(
                progress.id, progress.trigger, self.undo.window, space_needed=current.ends_undo
            )
        return self.make_removers(current.snapshot, progress.policy, hurried=hurried, undo=undo)

    async def _recover(self) -> None:
        if self.recover is not None and not self.dry_run:
            await self.recover()

    async def _collected(self, progress: pass_state.PassProgress, current: pass_state.Preview) -> bool:
        """End undo windows and run the runtime's garbage collection if the plan relies on their space.

        Returns:
            Whether the pass can continue: false if the runtime is unavailable.
        """
        if self.dry_run or not (current.acts and (current.pending_bytes or current.ends_undo)):
            return True
        try:
            ended = current.ends_undo and self.undo is not None and await self.undo.end_all()
            own_bytes = progress.end_undo() if ended else 0
            if ended or current.pending_bytes:
                await self.collect_garbage()
        except RuntimeUnavailableError as error:
            progress.end = executor.PassEnd.RUNTIME_LOST, str(error)
            detail = f"runtime unavailable: {error}"
            progress.results.extend(
                executor.Result(each, executor.Outcome.NOT_ATTEMPTED, detail) for each in current.removals
            )
            return False
        except NodeAgentError as error:
            progress.warnings.append(f"unreferenced content not collected: {error}")
        else:
            progress.collected_bytes += max(0, current.pending_bytes - own_bytes)
        return True

    def _enough(
        self, progress: pass_state.PassProgress, current: pass_state.Preview
    ) -> Callable[[Decision], bool] | None:
        """Return a check that skips removals for space once the measured usage has reached the target.

        The check measures before each removal: with upper-bound accounting, predicted sizes can also be far too small,
        since the runtime reports compressed content. With exact accounting, the limit is one percent lower, so that the
        rounded percentage skips no planned removal. The result is ``None`` in a dry run and without a reading.
        """
        observed = pass_state.readings_of(current.snapshot)
        if self.dry_run or not observed:
            return None
        margin = 1 if any(plan.accounting is Accounting.LAYERS for plan in current.plans) else 0
        targets = [target.path for plan in current.plans for target in plan.targets]
        policy = progress.policy.images

        def is_relieved(path: str) -> bool:
            if current.ahead_available_bytes is not None:
                return self.read_filesystem(path).available_bytes >= current.ahead_available_bytes
            wanted = wanted_on(current.plans, path if targets else "")
            return pass_state.is_relieved(self.read_filesystem(path), policy, wanted, margin=margin)

        def enough(decision: Decision) -> bool:
            if decision.kind is not ItemKind.IMAGE or decision.reason.code not in _FOR_SPACE:
                return False
            paths = targets or [each.path for each in observed]
            own = [path for path in paths if decision.bytes_on(path)]
            try:
                return all(map(is_relieved, own or paths))
            except NodeAgentError:
                return False

        return enough

    async def _next_round(
        self,
        progress: pass_state.PassProgress,
        current: pass_state.Preview,
        results: Sequence[executor.Result],
        max_rounds: int,
        stop: asyncio.Event,
    ) -> pass_state.Preview | None:
        """Return the preview of a further round, for images only; ``None`` if no round is needed or possible.

        A collection ahead of the forecast has one round: its effect is measured by a new forecast.
        """
        is_last = self.dry_run or current.scope is Scope.CONTAINERS or current.ahead_available_bytes is not None
        if is_last or not pass_state.readings_of(current.snapshot):
            return None
        has_images = any(result.decision.kind is ItemKind.IMAGE for result in results)
        if progress.rounds >= max_rounds or not (has_images or progress.preview.wanted_available_bytes is not None):
            return None
        try:
            shortage = await pass_state.Measurement(progress, self.read_filesystem, stop).shortage()
            if shortage is None:
                return None
            snapshot = await self.observer.observe(Scope.IMAGES)
        except NodeAgentError as error:
            progress.warnings.append(f"no further round: {error}")
            return None
        path, missing = shortage
        policy = progress.policy_of_round(snapshot, missing)
        failed = progress.failed_images()
        plan = plan_image_gc(snapshot, policy, failed=failed, spent=progress.spent(), only_on=path)
        if not plan.removals:
            progress.last_plan = plan
            return None
        return pass_state.Preview(Scope.IMAGES, snapshot, (plan,))

    async def _report(
        self, progress: pass_state.PassProgress, started_s: float, stop: asyncio.Event
    ) -> executor.PassReport:
        hurried = progress.trigger == executor.PassTrigger.EVICTION
        measurement = pass_state.Measurement(progress, self.read_filesystem, stop, hurried=hurried)
        measured: tuple[executor.MeasuredFilesystem, ...] = ()
        if not self.dry_run:
            try:
                measured = await measurement.read()
            except NodeAgentError as error:
                progress.warnings.append(f"cannot measure the image filesystem after the pass: {error}")
        end = progress.end or self._end(progress, measurement, measured)
        duration_s = self.clock.monotonic_s() - started_s
        return progress.report(end, duration_s=duration_s, dry_run=self.dry_run, measured=measured)

    def _end(
        self,
        progress: pass_state.PassProgress,
        measurement: pass_state.Measurement,
        measured: Sequence[executor.MeasuredFilesystem],
    ) -> tuple[executor.PassEnd, str]:
        if self.dry_run:
            return progress.preview.predicted_end
        blocked = [plan.blocked for plan in progress.plans if plan.blocked]
        if blocked:
            return executor.PassEnd.REFUSED, "; ".join(blocked)
        shortfall = measurement.shortfall_detail(measured)
        if shortfall:
            return executor.PassEnd.SHORTFALL, shortfall
        if not progress.results and not progress.collected_bytes:
            return executor.PassEnd.NOTHING_TO_DO, ""
        return executor.PassEnd.COMPLETE, ""
