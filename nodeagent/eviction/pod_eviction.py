"""One eviction within a pass: recorded before it begins, watched while the pod stops, and the wait for its effect."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.eviction import LOOP_NAME
from nodeagent.eviction.actions import EvictionRecord, Monitors, PassActions
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.plan.effects import VISIBLE_WITHIN_S, effects_of_eviction, extended
from nodeagent.eviction.plan.preview import SOONEST_S
from nodeagent.eviction.plan.ranking import Eviction, RankingInput
from nodeagent.eviction.plan.reclaim import Shortage, shortage_of
from nodeagent.eviction.plan.state import record_eviction
from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold
from nodeagent.eviction.reporting import eviction_fields
from nodeagent.gc.pass_state import new_pass_id
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.eviction.signals import SignalLayout, SignalMonitor, SignalReadings
    from nodeagent.model.pods import PodInventory

SLACK_S: Final = 60.0
"""Time without progress after which the eviction loop counts as hung."""


class PodEviction:
    """Evicts the victim of a plan."""

    def __init__(
        self, context: DaemonContext, actions: PassActions, monitors: Monitors, effect_wait: EffectWait
    ) -> None:
        self._context = context
        self._actions = actions
        self._signals = monitors.signals
        self._pods = monitors.pods
        self._reporter = monitors.reporter
        self._effect_wait = effect_wait

    async def run(
        self,
        started_at: datetime,
        plan: EvictionPlan,
        eviction: Eviction,
        pods: PodInventory,
        readings: SignalReadings,
    ) -> EvictionResult:
        """Evict the chosen pod; log and record the result.

        Args:
            started_at: start of the pass, aware UTC.
            plan: the plan that chose the pod.
            eviction: victim of the plan, with the reason for its eviction.
            pods: the pods of the plan.
            readings: the signals of the plan.

        Raises:
            RuntimeUnavailableError: no connection to the runtime; the eviction is logged and recorded as failed.
            NodeAgentError: the pods could not be read again; the eviction is logged and recorded as failed.
        """
        record = EvictionRecord(new_pass_id(started_at), started_at, plan, eviction, _available(plan))
        if self._actions.dry_run:
            result = EvictionResult(EvictionOutcome.DRY_RUN)
            if self._reporter.log_pressure("would_evict", eviction_fields(plan, eviction)):
                await self._actions.history.finish(replace(record, result=result, dry_run=True))
            return result
        recorded = await self._begin_record(record)
        self._reporter.logger.warning("eviction_started", **eviction_fields(plan, eviction))
        began_s = self._context.clock.monotonic_s()
        try:
            result = await self._carry_out(eviction, pods, readings)
        except NodeAgentError as error:
            unavailable = "runtime unavailable: " if isinstance(error, RuntimeUnavailableError) else ""
            failed = EvictionResult(EvictionOutcome.FAILED, f"{unavailable}{error}")
            self._log_result(plan, eviction, failed, after=None)
            await self._actions.history.finish(replace(record, result=failed))
            raise
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self._actions.history.abandon(record, "cancelled" if cancelled else "crashed")
            raise
        finally:
            await recorded
        visible = await self._effect_wait.wait(plan, unrecorded_effect=result.outcome is EvictionOutcome.GONE)
        after = visible.available
        self._log_result(plan, eviction, result, after=after)
        await self._actions.history.finish(replace(record, result=result, after=after))
        if eviction.is_urgent:
            self._pods.evicted(self._context.clock.monotonic_s() - began_s)
        return result

    async def _begin_record(self, record: EvictionRecord) -> asyncio.Future[None]:
        """Begin the history entry; return its write.

        The write has ended, unless the eviction is urgent and without a grace period: a node without free memory may
        delay the write until the kernel's OOM killer acts.
        """
        recorded = asyncio.ensure_future(self._actions.history.begin(record))
        if record.eviction.is_urgent and record.eviction.grace_s <= 0:
            await asyncio.sleep(0)
        else:
            await recorded
        return recorded

    def _log_result(
        self, plan: EvictionPlan, eviction: Eviction, result: EvictionResult, *, after: float | None
    ) -> None:
        """Log the result of an eviction; ``after`` is the available amount measured after it."""
        logger = self._reporter.logger
        level = logger.error if result.outcome is EvictionOutcome.FAILED else logger.warning
        level(
            "evicted" if result.outcome is EvictionOutcome.EVICTED else "eviction_failed",
            **eviction_fields(plan, eviction),
            outcome=result.outcome.value,
            detail=result.detail,
            took_s=round(result.took_s, 3),
            hurried=result.hurried,
            available_after=after,
        )

    async def _carry_out(self, eviction: Eviction, pods: PodInventory, readings: SignalReadings) -> EvictionResult:
        """Evict a pod, with its effects recorded as outstanding; return the result."""
        uid, hurry = eviction.pod.uid, asyncio.Event()
        outstanding = self._actions.effects
        layout = await self._signals.layout()
        effects = effects_of_eviction(
            eviction,
            readings.observations,
            RankingInput(layout.layout, layout.others, removes_volumes=self._actions.removes_volumes()),
            readings.at,
        )
        admission = self._actions.admission
        if admission is not None and (within_s := admission.freed_within_s) is not None:
            effects = extended(effects, within_s)
        with_logs = eviction.status is not None and _is_for_logs(eviction.status.threshold, layout)
        await outstanding.begin(eviction, pods.handles[uid], effects, with_logs=with_logs)
        work = asyncio.ensure_future(self._actions.evictor.evict(eviction, pods.handles[uid], hurry))
        try:
            await self._watch_eviction(work, hurry, eviction)
            result = await work
        finally:
            work.cancel()
        now = self._signals.now()
        if result.outcome is EvictionOutcome.EVICTED:
            for_limit = eviction.status is None
            self._context.eviction = record_eviction(self._context.eviction, now, storage_limit=for_limit)
            await outstanding.stopped(uid, now, is_urgent=eviction.is_urgent)
        elif result.outcome is EvictionOutcome.FAILED and (
            relieves_disk(eviction) if result.may_end is None else result.may_end
        ):
            await outstanding.unverified(uid, now)
        else:
            await outstanding.drop(uid)
        return result

    async def _watch_eviction(
        self, work: asyncio.Future[EvictionResult], hurry: asyncio.Event, eviction: Eviction
    ) -> None:
        """Wait for an eviction; shorten its grace period when a hard threshold of the same resource is met."""
        while True:
            self._context.loop_statuses.beat(LOOP_NAME, SLACK_S)
            done, _ = await asyncio.wait({work}, timeout=SOONEST_S if not hurry.is_set() else SLACK_S / 2)
            if done:
                return
            if eviction.grace_s <= 0 or hurry.is_set():
                continue
            evaluation = await self._signals.evaluate()
            for status in evaluation.acting:
                if status.threshold.hard and MEANINGS[status.threshold.signal].resource is eviction.starved:
                    self._reporter.logger.warning(
                        "eviction_grace_shortened", pod_uid=eviction.pod.uid, threshold=status.threshold.text
                    )
                    hurry.set()
                    break


def relieves_disk(eviction: Eviction) -> bool:
    """Return whether an eviction is for a filesystem threshold, rather than for memory, PIDs or a storage limit."""
    return eviction.status is not None and MEANINGS[eviction.status.threshold.signal].filesystem is not None


def _is_for_logs(threshold: Threshold, layout: SignalLayout) -> bool:
    """Return whether a threshold is for the filesystem of the logs: nodefs, or their own."""
    of_logs = Shortage.POD_LOGS if layout.has_separate_logs else Shortage.NODEFS
    return shortage_of(threshold.signal, layout.layout, threshold.filesystem) is of_logs


def _available(plan: EvictionPlan) -> float | None:
    observation = plan.selected.observation if plan.selected is not None else None
    return None if observation is None else observation.available


class Visible(NamedTuple):
    """Readings after an action.

    Attributes:
        readings: the last readings; ``None`` if the plan has no threshold.
        available: available amount of the signal; ``None`` without readings or if the signal is unreadable.
    """

    readings: SignalReadings | None
    available: float | None


class EffectWait(Record):
    """Reads the signals after an action until its effect is measured."""

    context: DaemonContext
    actions: PassActions
    signals: SignalMonitor

    async def wait(self, plan: EvictionPlan, *, unrecorded_effect: bool = False) -> Visible:
        """Wait up to ``VISIBLE_WITHIN_S`` for the effect of an action; return the last readings.

        A slower effect remains outstanding for the next passes. ``unrecorded_effect`` waits although no effect is
        recorded, such as for a pod that ended by itself.
        """
        if plan.selected is None:
            return Visible(None, None)
        effects, clock = self.actions.effects, self.context.clock
        threshold, ends_s = plan.selected.threshold, clock.monotonic_s() + VISIBLE_WITHIN_S
        shortage = shortage_of(threshold.signal, (await self.signals.layout()).layout, threshold.filesystem)
        while True:
            readings = await self.signals.read()
            await effects.update(readings, may_act=may_act(self.context, self.actions))
            reading = next((each for each in readings.observations if each.measurand == threshold.measurand), None)
            if reading is None:
                return Visible(readings, None)
            cleared = not threshold.met_by(reading.available, reading.capacity, with_reclaim=True)
            if cleared:
                effects.end_cleared(shortage)
            waiting = unrecorded_effect or effects.is_outstanding(shortage, threshold.measurand.path)
            if cleared or not waiting or clock.monotonic_s() >= ends_s:
                return Visible(readings, reading.available)
            await asyncio.sleep(self.actions.settle_step_s)


def may_act(context: DaemonContext, actions: PassActions) -> bool:
    """Return whether containers may be removed: not in a dry run, and not while passes are paused."""
    return not actions.dry_run and context.pass_lock.pause() is None
