"""Node-level reclaim within an eviction pass: one step under the pass lock, with its outstanding effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.eviction import LOOP_NAME
from nodeagent.eviction.plan.effects import effect_of_reclaim, is_insufficient
from nodeagent.eviction.plan.reclaim import ReclaimStep, device_role, space_needed
from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold, ThresholdStatus, Unit
from nodeagent.eviction.reclaimer import Reclaimable, Reclaimed
from nodeagent.gc.pass_state import make_visible
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole
from nodeagent.telemetry.logging import stable

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.actions import Monitors, PassActions
    from nodeagent.eviction.plan.state import Evaluation

_RECLAIM_S: Final = 600.0
_CANCEL_WITHIN_S: Final = 5.0


class StepEnd(StrEnum):
    """End of the wait for a reclaim step.

    ``FINISHED``: the step finished or failed. ``INTERRUPTED``: it was not started, or was interrupted.
    ``INSUFFICIENT``: it is still running, but neither this step nor a later step can clear the threshold. ``PARTIAL``:
    it removed the items needed by its plan, and continues with further items if the measured effect is too small.
    """

    FINISHED = "finished"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"
    INSUFFICIENT = "insufficient"


class NodeReclaim:
    """Runs node-level reclaim steps, each under the pass lock; an eviction does not acquire that lock.

    Attributes:
        failed: reclaim steps that failed in this pass.
    """

    def __init__(self, context: DaemonContext, actions: PassActions, monitors: Monitors) -> None:
        self._context = context
        self._actions = actions
        self._signals = monitors.signals
        self._reporter = monitors.reporter
        self._reclaimable: tuple[FilesystemRole, Reclaimable] | None = None
        self._layout = FilesystemLayout.SINGLE
        self._running: asyncio.Future[StepEnd] | None = None
        self.failed: set[ReclaimStep] = set()

    async def run_step(
        self, step: ReclaimStep, status: ThresholdStatus, without_candidate: AbstractSet[Threshold] = frozenset()
    ) -> StepEnd:
        """Run one step, interrupted when a hard memory or PID threshold is met; return after its end.

        A step that is still running ends first. The method returns earlier if a hard filesystem threshold remains met
        even if this step and all later steps free everything that they can: a pod must then be evicted in any case.
        :meth:`finish` waits for the step.

        Thresholds in ``without_candidate`` interrupt no step, since no pod can be evicted for them. A failed step
        counts as completed, so that it does not withhold evictions permanently. The effect of the step is outstanding
        afterwards, unless no space was freed.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        await self.finish()
        self._layout = (await self._signals.layout()).layout
        insufficient = asyncio.Event()
        if self.is_insufficient(status):  # known from the plan of an earlier step
            insufficient.set()
        self._running = asyncio.ensure_future(self._run_step(step, status, without_candidate, insufficient))
        noticed = asyncio.ensure_future(insufficient.wait())
        try:
            await asyncio.wait({self._running, noticed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            noticed.cancel()
        if self._running.done():
            ended, self._running = self._running, None
            return ended.result()
        self._log_step("reclaim_insufficient", step, status.threshold, reclaimable=self._amount(status.threshold))
        return StepEnd.INSUFFICIENT

    def is_insufficient(self, status: ThresholdStatus | None) -> bool:
        """Return whether the last plan of an image reclaim step shows that reclaim cannot clear a threshold.

        The result is false if nothing is reclaimable: the step then ends at once.
        """
        amount = None if status is None or self._actions.dry_run else self._amount(status.threshold)
        return status is not None and bool(amount) and is_insufficient(status, amount)

    def delays(self, status: ThresholdStatus | None) -> bool:
        """Return whether a step that is still running may clear a threshold, so that no pod is evicted for it yet."""
        if self._running is None or self._running.done() or status is None:
            return False
        return MEANINGS[status.threshold.signal].filesystem is not None and not self.is_insufficient(status)

    async def finish(self) -> None:
        """Wait for a step that is still running; an unavailable runtime is logged."""
        if self._running is None:
            return
        self._context.loop_statuses.beat(LOOP_NAME, _RECLAIM_S)
        await asyncio.wait({self._running})
        ended, self._running = self._running, None
        error = None if ended.cancelled() else ended.exception()
        if isinstance(error, RuntimeUnavailableError):
            self._reporter.log_warnings([f"node-level reclaim ended: {error}"])
        elif error is not None:
            raise error

    def cancel(self) -> None:
        """Cancel a step that is still running; images in a transaction are restored."""
        if self._running is not None:
            self._running.cancel()

    def _amount(self, threshold: Threshold) -> int | None:
        """Return the reclaimable amount in the unit of a threshold; ``None`` if unknown for its filesystem."""
        filesystem = MEANINGS[threshold.signal].filesystem
        if self._reclaimable is None or threshold.filesystem is not None or filesystem is None:
            return None
        device, reclaimable = self._reclaimable
        if device is not device_role(filesystem, self._layout):
            return None
        is_inodes = MEANINGS[threshold.signal].unit is Unit.INODES
        return reclaimable.inodes if is_inodes else reclaimable.size_bytes

    async def _run_step(
        self,
        step: ReclaimStep,
        status: ThresholdStatus,
        without_candidate: AbstractSet[Threshold],
        insufficient: asyncio.Event,
    ) -> StepEnd:
        """Run one step and record its effect.

        ``insufficient`` is set when a reading shows that reclaim cannot clear the threshold.
        """
        threshold = status.threshold

        def check(evaluation: Evaluation) -> None:
            current = next((each for each in evaluation.acting if each.threshold == threshold), None)
            if self.is_insufficient(current):
                insufficient.set()

        try:
            done = await self._run_locked(step, status, without_candidate, check)
        except PassBusyError as error:
            self._reporter.log_warnings([f"node-level reclaim postponed: {error}"])
            return StepEnd.INTERRUPTED
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            self.failed.add(step)
            self._log_step("reclaim_failed", step, threshold, stable(str(error)), error=str(error))
            return StepEnd.FINISHED
        if done is None:
            return StepEnd.INTERRUPTED
        dry_run, report = self._actions.dry_run, done.report
        if not dry_run:
            if report is not None:
                await make_visible(await self._paths())
            await self._record_effect(done, status)
        removed = 0 if report is None else len(report.results if dry_run else report.removed)
        failed = 0 if report is None else len(report.failed)
        self._reporter.end("reclaim_failed", threshold.text, step.text)
        if removed:
            self._reporter.end("reclaimed", threshold.text, step.text)
        self._log_step(
            "would_reclaim" if dry_run else "reclaimed",
            step,
            threshold,
            f"{removed} removed, {failed} failed",
            removed=removed,
            failed=failed,
            predicted_bytes=sum(each.decision.frees_bytes or 0 for each in report.results) if report else 0,
            pass_id="" if report is None else report.id,
        )
        return StepEnd.FINISHED if dry_run or done.complete else StepEnd.PARTIAL

    def _log_step(self, event: str, step: ReclaimStep, threshold: Threshold, state: str = "", **fields: object) -> None:
        """Log the state of a step for a threshold; each repetition is counted."""
        fields = {"step": step.text, "threshold": threshold.text, **fields}
        self._reporter.log_once(event, fields, about=[threshold.text, step.text], state=state, counted=True)

    async def _paths(self) -> list[str]:
        """Return a path on each filesystem of the node."""
        layout = await self._signals.layout()
        first = (layout.paths.nodefs, layout.paths.imagefs, layout.paths.containerfs)
        return [each for each in (*first, *(other.path for other in layout.others)) if each is not None]

    async def _run_locked(
        self,
        step: ReclaimStep,
        status: ThresholdStatus,
        without_candidate: AbstractSet[Threshold],
        check: Callable[[Evaluation], None],
    ) -> Reclaimed | None:
        """Run a step under the pass lock; ``None`` if it was not started or was interrupted.

        ``check`` is called with each evaluation of the signals during the step.
        """
        async with self._context.pass_lock.take(urgent=True) as end:
            if end.is_set():
                return None
            self._context.loop_statuses.beat(LOOP_NAME, _RECLAIM_S)
            needed = space_needed(status, self._signals.rate(status))
            work = asyncio.ensure_future(
                self._actions.reclaimer.run(step, needed, end, lambda found: self._set_planned(step, found))
            )
            try:
                if not await self._signals.shortage_before(work, without_candidate, check):
                    return await work
                end.set()
                await asyncio.wait({work}, timeout=_CANCEL_WITHIN_S)
                if not self._actions.dry_run:  # some items may be removed already, or a removal may still be running
                    known = _succeeded(work)
                    partial = work.result() if known else Reclaimed(step, None)
                    await self._record_effect(partial, status, known=known)
                return None
            finally:
                work.cancel()

    def _set_planned(self, step: ReclaimStep, reclaimable: Reclaimable) -> None:
        self._reclaimable = step.filesystem, reclaimable

    async def _record_effect(self, done: Reclaimed, status: ThresholdStatus, *, known: bool = True) -> None:
        """Record the expected effect of a reclaim step; with ``known`` false the freed amount is unknown."""
        inodes = MEANINGS[status.threshold.signal].unit is Unit.INODES
        effect = effect_of_reclaim(
            done.step,
            status,
            (await self._signals.layout()).layout,
            predicted=done.freed(inodes=inodes) if known else None,
            confirmed=done.confirmed,
            now=self._signals.now(),
        )
        if effect is not None:
            await self._actions.effects.add(effect)


def _succeeded(work: asyncio.Future[Any]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None
