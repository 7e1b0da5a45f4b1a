"""One eviction pass: node-level reclaim, then the choice of a pod and its eviction.

Each step of node-level reclaim has the pass lock, and an outstanding effect until its effect is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.eviction import LOOP_NAME
from nodeagent.eviction.actions import NO_VICTIM, Monitors, PassActions, PassResult, PodMeasurement
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.plan.effects import UsageSample, add_sample, effect_of_reclaim, is_insufficient, pod_fields
from nodeagent.eviction.plan.planner import EvictionPlan, plan_eviction
from nodeagent.eviction.plan.reclaim import ReclaimStep, device_role, space_needed
from nodeagent.eviction.plan.thresholds import MEANINGS, Threshold, ThresholdStatus, Unit
from nodeagent.eviction.pod_eviction import EffectWait, PodEviction, relieves_disk
from nodeagent.eviction.reclaimer import IMAGE_ACTIONS, UNKNOWN_AMOUNTS, Reclaimable, Reclaimed
from nodeagent.gc.pass_state import make_visible
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.record import replace
from nodeagent.telemetry.logging import stable

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.plan.api_eviction import RefusedEviction
    from nodeagent.eviction.plan.policy import EvictionPolicy
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.signals import SignalReadings
    from nodeagent.model.pods import PodInventory

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
        self._planned: tuple[ReclaimStep, Reclaimable] | None = None
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

    async def repeat_dry_run(self, step: ReclaimStep, reclaimable: Reclaimable) -> None:
        """Plan with a step that an earlier pass in dry run has logged, and with its reclaimable amounts."""
        self._layout = (await self._signals.layout()).layout
        self._set_planned(step, reclaimable)

    def reclaimable(self, step: ReclaimStep) -> Reclaimable:
        """Return the reclaimable amounts of the last planned step; unknown if another step was planned last."""
        planned, amounts = self._planned or (None, UNKNOWN_AMOUNTS)
        return amounts if planned == step else UNKNOWN_AMOUNTS

    def would_suffice(self, status: ThresholdStatus) -> bool:
        """Return whether the reclaim that a dry run logs instead of executing would clear a threshold."""
        amount = self._amount(status.threshold) if self._actions.dry_run else None
        return amount is not None and status.shortfall is not None and amount >= status.shortfall

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
        if self._planned is None or threshold.filesystem is not None or filesystem is None:
            return None
        step, reclaimable = self._planned
        if step.filesystem is not device_role(filesystem, self._layout):
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
        self._planned = step, reclaimable

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


_MAX_FAILED: Final = 5
_FAILED_KEPT_S: Final = 600.0
_FAILED_ATTEMPTS: Final = 2
_DRY_RUN_KEPT_S: Final = 60.0
_NOT_RECLAIMED: Final = "; in the dry run no dead containers, logs and images are removed first"
_NOTHING_FOUND: Final = frozenset(
    {PassResult.NO_POD, PassResult.NO_PRESSURE, PassResult.WAITING, PassResult.INEFFECTIVE, PassResult.URGENT}
)
_RESULTS: Final = {
    ReasonCode.EFFECT_OUTSTANDING: PassResult.WAITING,
    ReasonCode.EVICTION_INEFFECTIVE: PassResult.INEFFECTIVE,
    ReasonCode.EVICTION_LIMIT: PassResult.LIMITED,
    ReasonCode.EVICTION_SLOWED: PassResult.SLOWED,
}
_ENDS_THE_PASS: Final = frozenset({EvictionOutcome.EVICTED, EvictionOutcome.GONE, EvictionOutcome.DRY_RUN})


@dataclass(slots=True)
class Attempts:
    """Outcomes of earlier passes that restrict the next pass.

    Attributes:
        failed_s: monotonic times of failed evictions in seconds, by pod UID.
        dry_run_steps: reclaim steps that a dry run logged in the last minute, each with the reclaimable amounts.
        dry_run_at_s: monotonic time of the first of these steps in seconds.
    """

    failed_s: dict[str, list[float]] = field(default_factory=dict)
    dry_run_steps: dict[ReclaimStep, Reclaimable] = field(default_factory=dict)
    dry_run_at_s: float = 0.0

    def expire_dry_run(self, now_s: float) -> None:
        """Forget the steps of a dry run after a minute: the images in use change while their threshold remains met."""
        if not self.dry_run_steps or now_s - self.dry_run_at_s >= _DRY_RUN_KEPT_S:
            self.dry_run_steps.clear()
            self.dry_run_at_s = now_s

    def excluded(self, now_s: float) -> dict[str, str]:
        """Return the pods with repeated failed evictions in the last ten minutes: reason by pod UID.

        A pod is retried after its first failure, since a hung runtime may respond by then and another pod would be
        evicted otherwise.
        """
        since_s = now_s - _FAILED_KEPT_S
        recent = {uid: [at_s for at_s in times if at_s > since_s] for uid, times in self.failed_s.items()}
        self.failed_s = {uid: times for uid, times in recent.items() if times}
        return {
            uid: f"not stopped in {len(times)} attempts"
            for uid, times in self.failed_s.items()
            if len(times) >= _FAILED_ATTEMPTS
        }


@dataclass(eq=False)
class EvictionPass:
    """One eviction pass: acts on one evaluation of the thresholds and evicts at most one pod.

    Attributes:
        attempts: updated in place.
        stop: ends the pass early.
        covered: thresholds that need no second pass: this pass acts on their resource, or they have no victim.
    """

    context: DaemonContext
    policy: EvictionPolicy
    actions: PassActions
    monitors: Monitors
    attempts: Attempts
    stop: asyncio.Event
    _reclaimed: set[ReclaimStep] = field(default_factory=set, init=False)
    _has_reclaimed: bool = field(default=False, init=False)
    _without_candidate: frozenset[Threshold] = field(default_factory=frozenset, init=False)
    covered: set[Threshold] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._node_reclaim = NodeReclaim(self.context, self.actions, self.monitors)
        self._effect_wait = EffectWait(self.context, self.actions, self.monitors.signals)
        self._measurement = PodMeasurement(self.monitors)

    async def run(
        self, evaluation: Evaluation, readings: SignalReadings | None, is_limit_check_due: Callable[[], bool]
    ) -> PassResult:
        """Run node-level reclaim, then evict at most one pod, for a threshold or for the storage limit of the pod.

        Args:
            evaluation: status of the thresholds.
            readings: the evaluated readings, for the first plan; ``None`` to read the signals again.
            is_limit_check_due: returns whether to check the pods against their storage limits, if no threshold has a
                victim.

        Raises:
            NodeAgentError: the pods or the image filesystem could not be read.
        """
        self.covered.update(each.threshold for each in evaluation.acting)  # until the first plan
        try:
            return await self._run(evaluation, readings, is_limit_check_due)
        except asyncio.CancelledError:
            self._node_reclaim.cancel()
            raise
        finally:
            self._measurement.discard()
            await self._node_reclaim.finish()
            if self.actions.images is not None:
                self.actions.images.discard()

    async def _run(
        self, evaluation: Evaluation, readings: SignalReadings | None, is_limit_check_due: Callable[[], bool]
    ) -> PassResult:
        result = PassResult.PRESSURE if evaluation.met else PassResult.NO_PRESSURE
        while evaluation.acting:
            before = self._without_candidate
            found, readings = await self._relieve(evaluation, readings), None
            result = result if found is PassResult.NO_PRESSURE and self._without_candidate else found
            if found not in NO_VICTIM and found is not PassResult.DRY_RUN:
                break
            if self._without_candidate == before:
                break
        is_idle = result not in _RESULTS.values() and not self._is_relievable(evaluation)
        if (result in NO_VICTIM or is_idle) and is_limit_check_due():
            found = await self._evict_one(evaluation, with_disk=True)
            return found if found not in _NOTHING_FOUND else result
        return result

    def _is_relievable(self, evaluation: Evaluation) -> bool:
        """Return whether an eviction may relieve one of the thresholds acted on."""
        others = (each.threshold for each in evaluation.acting if each.threshold not in self._without_candidate)
        return any(MEANINGS[each.signal].resource is not None for each in others)

    async def _relieve(self, evaluation: Evaluation, readings: SignalReadings | None) -> PassResult:
        """Act on the most urgent threshold for which a pod may still be evicted."""
        plan = await self._reclaim(evaluation, readings)
        if plan.selected is None:
            return self._cleared() if plan.waiting is None else self._hindered(plan, plan.waiting)
        if plan.reclaim:
            return PassResult.RECLAIMING
        if self._node_reclaim.would_suffice(plan.selected):
            self._without_candidate |= {plan.selected.threshold}
            return PassResult.DRY_RUN
        relieve = self.actions.relieve_with_cache
        if relieve is not None and await relieve(plan.selected):
            return PassResult.RECLAIMED
        if plan.hindrance is not None:
            self._without_candidate |= {plan.selected.threshold}
            return self._hindered(plan, plan.hindrance)
        with_disk = MEANINGS[plan.selected.threshold.signal].filesystem is not None
        return await self._evict_one(evaluation, with_disk=with_disk)

    def _cleared(self) -> PassResult:
        """Return the result of a pass without a further threshold to act on."""
        if not self._has_reclaimed or self._without_candidate:
            return PassResult.NO_PRESSURE
        return PassResult.DRY_RUN if self.actions.dry_run else PassResult.RECLAIMED

    async def _reclaim(self, evaluation: Evaluation, readings: SignalReadings | None) -> EvictionPlan:
        """Run the reclaim steps one by one, measuring the effect of each; return the remaining plan.

        If a step and all later steps cannot clear the threshold, the method returns while that step is running.

        ``readings`` are the current readings for the first plan; ``None`` to read the signals.
        """
        while True:
            plan = await self._plan(evaluation, readings or await self.monitors.signals.read(), None, {})
            readings = None
            if not plan.reclaim or plan.selected is None or self.stop.is_set():
                return plan
            if not self.actions.dry_run and self.monitors.signals.is_soon_exhausted(plan.selected):
                self._begin_observations(plan)
            step = plan.reclaim[0]
            end = StepEnd.FINISHED
            if (logged := self.attempts.dry_run_steps.get(step)) is not None:
                await self._node_reclaim.repeat_dry_run(step, logged)
            else:
                end = await self._node_reclaim.run_step(step, plan.selected, self._without_candidate)
            if end is StepEnd.INTERRUPTED:
                return plan
            if end is StepEnd.INSUFFICIENT:
                self._has_reclaimed = True
                self._reclaimed.update(plan.reclaim)
                continue
            if step in self._node_reclaim.failed and step.other is not None and step.other.stores:
                self._without_candidate |= {plan.selected.threshold}  # no pod is evicted before image reclaim
                continue
            self._has_reclaimed = True
            if end is not StepEnd.PARTIAL:
                self._reclaimed.add(step)
            readings = (await self._effect_wait.wait(plan)).readings
            if self.actions.dry_run:
                self.attempts.dry_run_steps[step] = self._node_reclaim.reclaimable(step)

    def _begin_observations(self, plan: EvictionPlan) -> None:
        """Begin what the next steps of a plan require, while its first step runs: space runs out within seconds."""
        self._measurement.begin()
        if self.actions.images is not None and any(each.action in IMAGE_ACTIONS for each in plan.reclaim):
            self.actions.images.begin()

    async def _evict_one(self, evaluation: Evaluation, *, with_disk: bool) -> PassResult:
        """Evict the first pod in eviction order that can be stopped."""
        started_at = self.context.clock.now()
        excluded = self.attempts.excluded(self.context.clock.monotonic_s())
        eviction = PodEviction(self.context, self.actions, self.monitors, self._effect_wait)
        for _ in range(_MAX_FAILED):
            if self.stop.is_set():
                break
            pods = await (
                self._measurement.read(self._without_candidate) if with_disk else self.monitors.pods.read_urgently()
            )
            if pods is None:
                return PassResult.URGENT
            pods = self._without_evicted(pods)
            readings = await self.monitors.signals.read(filesystems=with_disk)
            plan, held = await self._admitted(partial(self._plan, evaluation, readings, pods), excluded)
            self._sample(pods, readings, with_disk=with_disk)
            if plan.victim is None:
                if not with_disk and await self.monitors.pods.await_list():
                    continue
                return await self._without_pod(plan, pods)
            if (not_now := await self._not_now(plan, plan.victim, held)) is not None:
                return not_now
            result = await eviction.run(started_at, plan, plan.victim, pods, readings)
            if result.outcome not in {EvictionOutcome.EVICTED, EvictionOutcome.DRY_RUN}:
                self.monitors.pods.expire()  # the pod ended or changed since the list
            if result.outcome in _ENDS_THE_PASS:
                return PassResult(result.outcome.value)
            excluded[plan.victim.pod.uid] = result.detail
            if (ended := self._end_after_failure(plan, plan.victim, result)) is not None:
                return ended
        return PassResult.FAILED

    def _end_after_failure(self, plan: EvictionPlan, victim: Eviction, result: EvictionResult) -> PassResult | None:
        """Return the result of a pass that ends with a failed eviction; ``None`` to try the next pod."""
        held = self._refused_eviction(victim)
        if held is not None and not held.tries_next:
            return self._postponed(plan, victim, held)
        if result.outcome is EvictionOutcome.FAILED and relieves_disk(victim):
            self.attempts.failed_s.setdefault(victim.pod.uid, []).append(self.context.clock.monotonic_s())
            return PassResult.FAILED  # the pod may still end: its effect is outstanding; memory permits no wait
        return None

    async def _admitted(
        self, make_plan: Callable[[dict[str, str]], Awaitable[EvictionPlan]], excluded: dict[str, str]
    ) -> tuple[EvictionPlan, RefusedEviction | None]:
        """Return a plan without refused pods, and the reason to postpone its eviction; ``None`` if it may start.

        If every candidate is refused and the threshold is hard, the victim is the first pod that may be deleted instead
        of evicted.
        """
        plan = await make_plan(excluded)
        while plan.victim is not None and (held := self._refused_eviction(plan.victim)) is not None:
            if not held.tries_next:
                return plan, held
            excluded[plan.victim.pod.uid] = held.text
            plan = await make_plan(excluded)
        admission, selected = self.actions.admission, plan.selected
        if plan.victim is None and admission is not None and selected is not None and selected.threshold.hard:
            permitted = admission.permit_deletion(excluded)
            if permitted:
                plan = await make_plan({uid: text for uid, text in excluded.items() if uid not in permitted})
        return plan, None

    def _refused_eviction(self, eviction: Eviction) -> RefusedEviction | None:
        admission = self.actions.admission
        return None if admission is None else admission.refused_eviction(eviction)

    def _postponed(self, plan: EvictionPlan, victim: Eviction, held: RefusedEviction) -> PassResult:
        """Log an eviction that waits for the API server; pass over its threshold, so that the next is acted on."""
        if plan.selected is not None and victim.status is not None:
            self._without_candidate |= {plan.selected.threshold}
        self.monitors.reporter.log_pressure(
            "eviction_postponed",
            {
                **pod_fields(victim.pod),
                "threshold": "" if plan.selected is None else plan.selected.threshold.text,
                "because": held.text,
            },
        )
        return PassResult.POSTPONED

    async def _not_now(self, plan: EvictionPlan, victim: Eviction, held: RefusedEviction | None) -> PassResult | None:
        """Return the result of a pass that is postponed, stopped, paused or refused; ``None`` if it may evict.

        A pass is also postponed if a running reclaim step may clear the threshold after all.
        """
        if self._node_reclaim.delays(plan.selected):
            return PassResult.RECLAIMING
        if held is not None and not self.actions.dry_run:
            return self._postponed(plan, victim, held)
        paused = self.stop.is_set() or self.context.pass_lock.pause() is not None
        return PassResult.CALLED_OFF if paused or await self.actions.refused() else None

    def _without_evicted(self, pods: PodInventory) -> PodInventory:
        """Return the pods without those that were evicted after the runtime listed them."""
        ended = {
            each.uid
            for each in self.context.eviction.victims
            if each.verified and each.at_s >= pods.observed_at.monotonic_s
        }
        return replace(pods, facts=tuple(each for each in pods.facts if each.uid not in ended)) if ended else pods

    async def _plan(
        self, evaluation: Evaluation, readings: SignalReadings, pods: PodInventory | None, excluded: dict[str, str]
    ) -> EvictionPlan:
        layout = await self.monitors.signals.layout()
        plan = plan_eviction(
            replace(evaluation, state=self.context.eviction),
            pods.facts if pods is not None else None,
            self.policy,
            layout=layout.layout,
            now=readings.at,
            observations=readings.observations,
            reclaimed=frozenset(self._reclaimed),
            excluded=excluded,
            without_candidate=self._without_candidate,
            others=layout.others,
            removes_volumes=self.actions.removes_volumes(),
        )
        relieved = None if plan.selected is None else MEANINGS[plan.selected.threshold.signal].resource
        statuses = (each.threshold for each in evaluation.statuses)
        self.covered.clear()
        self.covered |= plan.without_candidate | {
            each for each in statuses if MEANINGS[each.signal].resource is relieved
        }
        return plan

    def _sample(self, pods: PodInventory, readings: SignalReadings, *, with_disk: bool) -> None:
        """Record the usage of the pods, with which the next plan measures their growth."""
        state = self.context.eviction
        sample = UsageSample.of(pods.facts, readings.observations, readings.at, with_disk=with_disk)
        self.context.eviction = replace(state, samples=add_sample(state.samples, sample))

    async def _without_pod(self, plan: EvictionPlan, pods: PodInventory) -> PassResult:
        """Log a plan without a victim, record the thresholds without candidate, and return the result of the pass."""
        if plan.is_hindered_by(ReasonCode.GROWTH_UNKNOWN):
            return PassResult.PRESSURE
        await self._report_unrelieved(plan, pods)
        passed_over, self._without_candidate = plan.without_candidate - self._without_candidate, plan.without_candidate
        if (hindrance := plan.hindrance or plan.waiting) is not None:
            return self._hindered(plan, hindrance)
        return PassResult.NO_POD if plan.unrelieved is not None or passed_over else PassResult.NO_PRESSURE

    async def _report_unrelieved(self, plan: EvictionPlan, pods: PodInventory) -> None:
        """Record and log the shortage that no eviction ends, once, with the largest consumers outside of pods."""
        statement, selected = plan.unrelieved, plan.selected
        if statement is None or selected is None:
            return
        threshold = selected.threshold
        known = self.context.eviction.unrelieved.get(threshold)
        outside = known.outside if known is not None else await self._consumers(threshold, pods)
        is_reclaimed = not self.actions.dry_run or MEANINGS[threshold.signal].filesystem is None
        sentence = statement.sentence + ("" if is_reclaimed else _NOT_RECLAIMED)
        statement = replace(statement, sentence=sentence, outside=outside)
        state = self.context.eviction
        self.context.eviction = replace(state, unrelieved={**state.unrelieved, threshold: statement})
        self.monitors.reporter.log_no_evictable_pod(plan, statement)

    async def _consumers(self, threshold: Threshold, pods: PodInventory) -> tuple[str, ...]:
        """Return the largest consumers outside of pods; empty if a hard memory or PID threshold is met meanwhile.

        They are unknown for an additional filesystem, whose directories are not walked.
        """
        if self.actions.find_consumers is None or threshold.filesystem is not None:
            return ()
        work = asyncio.ensure_future(self.actions.find_consumers(threshold.signal, pods))
        try:
            return () if await self.monitors.signals.shortage_before(work, {threshold}) else await work
        finally:
            work.cancel()

    def _hindered(self, plan: EvictionPlan, hindrance: Reason) -> PassResult:
        """Log what prevents an eviction, and return the result of the pass."""
        self.monitors.reporter.log_hindrance(plan, hindrance)
        return _RESULTS[hindrance.code]
