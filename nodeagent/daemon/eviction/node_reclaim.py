"""Node-level reclaim within an eviction pass: one step under the pass lock, with its outstanding effect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from nodeagent.act.eviction.reclaimer import Reclaimed
from nodeagent.act.freed_space import make_visible
from nodeagent.daemon.eviction import LOOP_NAME
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.plan.eviction.effects import effect_of_reclaim
from nodeagent.plan.eviction.signals import MEANINGS, Unit

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.eviction.pass_actions import Monitors, PassActions
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.threshold_status import ThresholdStatus
    from nodeagent.plan.eviction.thresholds import Threshold

_RECLAIM_S: Final = 600.0
_CANCEL_WITHIN_S: Final = 5.0


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
        self.failed: set[ReclaimStep] = set()

    async def run_step(
        self, step: ReclaimStep, status: ThresholdStatus, without_victim: AbstractSet[Threshold] = frozenset()
    ) -> bool:
        """Run one step, interrupted when a hard memory or PID threshold is met; return whether the step finished.

        Thresholds in ``without_victim`` interrupt no step, since no pod can be evicted for them. A failed step counts
        as completed, so that it does not withhold evictions permanently. The effect of the step is outstanding
        afterwards, unless no space was freed.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        threshold = status.threshold.text
        try:
            done = await self._run_locked(step, status, without_victim)
        except PassBusyError as error:
            self._reporter.log_warnings([f"node-level reclaim postponed: {error}"])
            return False
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            self.failed.add(step)
            self._reporter.logger.warning("reclaim_failed", step=step.text, threshold=threshold, error=str(error))
            return True
        if done is None:
            return False
        dry_run, report = self._actions.dry_run, done.report
        if not dry_run:
            if report is not None:
                await make_visible(await self._paths())
            await self._record_effect(done, status)
        self._reporter.logger.warning(
            "would_reclaim" if dry_run else "reclaimed",
            step=step.text,
            threshold=threshold,
            removed=0 if report is None else len(report.results if dry_run else report.removed),
            failed=0 if report is None else len(report.failed),
            predicted_bytes=sum(each.decision.frees_bytes or 0 for each in report.results) if report else 0,
            pass_id="" if report is None else report.id,
        )
        return True

    async def _paths(self) -> list[str]:
        """Return a path on each filesystem of the node."""
        layout = await self._signals.layout()
        first = (layout.paths.nodefs, layout.paths.imagefs, layout.paths.containerfs)
        return [each for each in (*first, *(other.path for other in layout.others)) if each is not None]

    async def _run_locked(
        self, step: ReclaimStep, status: ThresholdStatus, without_victim: AbstractSet[Threshold]
    ) -> Reclaimed | None:
        """Run a step under the pass lock; ``None`` if it was not started or was interrupted."""
        async with self._context.pass_lock.take(urgent=True) as end:
            if end.is_set():
                return None
            self._context.loop_statuses.beat(LOOP_NAME, _RECLAIM_S)
            work = asyncio.ensure_future(self._actions.reclaimer.run(step, end))
            try:
                if not await self._signals.shortage_before(work, without_victim):
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
