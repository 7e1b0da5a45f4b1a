"""The duty that watches the node's signals and evicts pods.

Signals are read at a pace that follows from how near the thresholds are, and at once when the kernel says that tasks
stall. A pass evaluates, lets the node give back what it can, and only then evicts one pod. Node-level reclaim takes
the turn that all passes share and has a collection that holds it end; an eviction waits for nobody.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nodeagent.act.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.act.eviction.reclaimer import Reclaimed
from nodeagent.daemon.loops import RuntimeWatch, wait_for_any
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.host.psi_triggers import MEMORY_EVENTS
from nodeagent.plan.decision import ReasonCode, Verdict
from nodeagent.plan.eviction.effects import (
    FREED_WITHIN_S,
    VISIBLE_WITHIN_S,
    effect_of_reclaim,
    effects_of_eviction,
    shortage_of,
)
from nodeagent.plan.eviction.local_storage import has_limit
from nodeagent.plan.eviction.planner import plan_eviction
from nodeagent.plan.eviction.poll_interval import SOONEST_S, WHILE_MET_S, next_poll_s
from nodeagent.plan.eviction.signals import MEANINGS, Unit
from nodeagent.plan.eviction.state import record_eviction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.eviction.evictor import Evictor
    from nodeagent.act.eviction.reclaimer import Reclaimer
    from nodeagent.config.eviction import EvictionSettings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.eviction.oom_kills import OomKillMonitor
    from nodeagent.daemon.eviction.outstanding_effects import OutstandingEffects
    from nodeagent.host.psi_triggers import Wakes
    from nodeagent.model.pods import PodInventory
    from nodeagent.observe.eviction_signals import EvictionSignalReader, SignalLayout, SignalReadings
    from nodeagent.plan.eviction.effects import OutstandingEffect
    from nodeagent.plan.eviction.planner import Eviction, EvictionPlan
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.eviction.state import Evaluation, ThresholdStatus

NAME: Final = "eviction"
_SLACK_S: Final = 60.0
SETTLE_STEP_S: Final = 0.1
_LIMITS_EVERY_S: Final = 60.0
_AT_MOST_FAILED: Final = 5
_STUCK_S: Final = 600.0
_STUCK_ATTEMPTS: Final = 2
_MANY_FAULTS: Final = 200
_RECLAIM_S: Final = 600.0
WATCH_S: Final = 0.5
_WARM_NEAR_S: Final = 2.0
_WARM_FAR_S: Final = 30.0
_GIVE_UP_RECLAIM_S: Final = 5.0
_NOTHING_MORE: Final = frozenset({"no-pod", "limited", "failed", "dry-run", "ineffective"})
"""Ends of a pass after which looking again soon would bring the same."""
_ENDS_THE_PASS: Final = frozenset({EvictionOutcome.EVICTED, EvictionOutcome.GONE, EvictionOutcome.DRY_RUN})
_NUMBERS: Final = re.compile(r"[0-9.]+")


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One eviction with all that led to it.

    Attributes:
        plan: what it was chosen by.
        before: available of the signal that it was for, and ``after`` it; ``None`` for a storage limit or unread.
    """

    started_at: datetime
    plan: EvictionPlan
    eviction: Eviction
    result: EvictionResult
    before: float | None
    after: float | None
    dry_run: bool


class EvictionLoop:
    """Watches and evicts, for one agent."""

    def __init__(  # noqa: PLR0913 - it composes the loop
        self,
        context: DaemonContext,
        settings: EvictionSettings,
        *,
        refused: Callable[[], Awaitable[str]],
        dry_run: bool,
        reader: EvictionSignalReader,
        survey: Callable[[], Awaitable[SignalLayout]],
        gather: Callable[[bool], Awaitable[PodInventory]],
        evictor: Evictor,
        reclaimer: Reclaimer,
        effects: OutstandingEffects,
        wakes: Wakes,
        oom: OomKillMonitor,
        note: Callable[[PassRecord], Awaitable[None]],
    ) -> None:
        """Compose the duty.

        Args:
            context: what the duties share; what is remembered of evictions lasts there over reloads.
            settings: thresholds, policy and pace.
            refused: returns why pods may not be evicted now, as beside a kubelet; empty if they may.
            dry_run: whether evictions are only told.
            reader: reads the signals.
            survey: finds out where they are.
            gather: the pods of the node, told whether to measure what they keep on disk.
            evictor: makes a pod go.
            reclaimer: what the node gives back before.
            effects: outstanding effects of evictions and reclaim.
            wakes: what wakes the loop between looks.
            oom: tells what the kernel killed.
            note: keeps a record.
        """
        self._context = context
        self._settings = settings
        self._refused = refused
        self._dry_run = dry_run
        self._reader = reader
        self._survey = survey
        self._gather = gather
        self._evictor = evictor
        self._reclaimer = reclaimer
        self._effects = effects
        self._wakes = wakes
        self._oom = oom
        self._note = note
        self._isolate = settings.policy.local_storage_isolation
        self._logger: FilteringBoundLogger = context.logger.bind(loop=NAME)
        self._runtime = RuntimeWatch(self._logger)
        self._woken = asyncio.Event()
        self._ground: SignalLayout | None = None
        self._last: Evaluation | None = None
        self._earlier: Evaluation | None = None
        self._would: set[ReclaimStep] = set()
        self._pods: PodInventory | None = None
        self._pods_s = 0.0
        self._limits_s: float | None = None
        self._met: frozenset[str] = frozenset()
        self._faults: set[str] = set()
        self._stuck: dict[str, list[float]] = {}
        self._told = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until told to stop, or until evictions are refused."""
        self._start_watching()
        await self._effects.restore()
        wake = self._context.wake.setdefault(NAME, asyncio.Event())
        try:
            while not stop.is_set() and not await self._refused():
                self._woken.clear()
                wake.clear()
                wait_s = await self.turn(stop)
                self._context.loop_statuses.waiting(NAME, wait_s, _SLACK_S)
                if (pause := self._context.pass_lock.pause()) is not None:
                    self._context.loop_statuses.paused(NAME, pause.text, wait_s + _SLACK_S)
                if await wait_for_any(min(wait_s, SOONEST_S), stop):
                    return
                await wait_for_any(max(0.0, wait_s - SOONEST_S), stop, self._woken, wake)
        finally:
            self._wakes.close()
            await self._effects.close()

    async def turn(self, stop: asyncio.Event) -> float:
        """Make one pass; return the seconds until the next look."""
        self._context.loop_statuses.running(NAME, _SLACK_S)
        try:
            wait_s = await self._pass(stop)
        except RuntimeUnavailableError as error:
            self._context.loop_statuses.ended(NAME, "runtime-unavailable", detail=str(error), failed=True)
            return min(self._runtime.lost(error), self._settings.interval_s)
        except NodeAgentError as error:
            self._context.loop_statuses.ended(NAME, "failed", detail=str(error), failed=True)
            self._tell_faults([str(error)])
            return self._settings.interval_s
        except Exception as error:  # a bug must not end the duty
            self._context.loop_statuses.ended(NAME, "crashed", detail=repr(error), failed=True)
            self._logger.exception("pass_crashed")
            return self._settings.interval_s
        self._runtime.answered()
        return wait_s

    def _start_watching(self) -> None:
        stall = self._settings.stall
        missing = [
            self._wakes.watch_stalls(resource, stall_us, stall.window_us)
            for resource, stall_us in (("memory", stall.memory_us), ("io", stall.io_us))
            if stall_us
        ]
        missing.append(self._wakes.watch_memory_events())
        self._wakes.attach()
        self._logger.info(
            "eviction_monitoring_started",
            thresholds=[each.text for each in self._settings.thresholds],
            woken_by=list(self._wakes.names),
            not_woken_by=[each for each in missing if each],
            polling=f"every {self._settings.interval_s:g} s, down to {SOONEST_S:g} s near a threshold",
            dry_run=self._dry_run,
        )

    def wake(self, name: str) -> None:
        """Look at once, as the kernel said something."""
        self._logger.debug("woken", by=name)
        if name == MEMORY_EVENTS:
            self._pods_s = -_WARM_FAR_S  # it may be a pod that has not been seen yet
        self._woken.set()

    # ---- one pass

    async def _pass(self, stop: asyncio.Event) -> float:
        if self._ground is None:
            self._ground = await self._survey()
        ground = self._ground
        seen = await self._reader.read(ground)
        await self._effects.follow(seen, may_act=self._may_act())
        evaluation = self._evaluate(seen, ground)
        if not evaluation.acting:
            await self._keep_warm(evaluation)
        if self._context.pass_lock.pause() is None and (evaluation.acting or self._limits_due()):
            result = await self._act(evaluation, ground, stop)
        else:
            result = "pressure" if evaluation.met else "no-pressure"
        self._context.loop_statuses.ended(NAME, result)
        if result in _NOTHING_MORE:
            return self._settings.interval_s
        return next_poll_s(self._last or evaluation, self._earlier, interval_s=self._settings.interval_s)

    async def _keep_warm(self, evaluation: Evaluation) -> None:
        """Look at the pods now and then, the nearer a threshold the more often.

        Then little is left to be asked when one is met, and what the asking takes is still in memory, here and in the
        runtime. What the kernel killed shows as well.
        """
        near = next_poll_s(evaluation, self._earlier, interval_s=self._settings.interval_s) < WHILE_MET_S
        age_s = self._context.clock.monotonic_s() - self._pods_s
        if self._pods is not None:
            await self._oom.look(self._pods)
            if age_s < (_WARM_NEAR_S if near else _WARM_FAR_S) - SOONEST_S:
                return
        await self._look_at_pods(on_disk=False)

    async def _measure_pods(self, ground: SignalLayout) -> PodInventory | None:
        """Look at the pods and what they keep on disk, which takes a while; ``None`` if something urgent comes up."""
        work = asyncio.ensure_future(self._look_at_pods(on_disk=True))
        try:
            return None if await self._something_urgent(work, ground) else await work
        finally:
            work.cancel()

    async def _look_at_pods(self, *, on_disk: bool) -> PodInventory:
        pods = await self._gather(on_disk)
        self._logger.debug("pods_gathered", pods=len(pods.facts))
        self._tell_faults(pods.warnings)
        self._pods, self._pods_s = pods, self._context.clock.monotonic_s()
        await self._oom.look(pods)
        return pods

    def _evaluate(self, seen: SignalReadings, ground: SignalLayout) -> Evaluation:
        evaluated = self._reader.evaluate_readings(ground, seen, self._context.eviction)
        found = evaluated.evaluation
        self._context.eviction = found.state
        self._earlier, self._last = self._last, found
        self._tell_changes(found)
        self._tell_faults(evaluated.warnings)
        return found

    def _may_act(self) -> bool:
        return not self._dry_run and self._context.pass_lock.pause() is None

    def _limits_due(self) -> bool:
        """Return whether pods are to be held against their own storage limits, which takes walking directories."""
        if not self._isolate or self._pods is None or not any(map(has_limit, self._pods.facts)):
            return False
        now_s = self._context.clock.monotonic_s()
        if self._limits_s is not None and now_s - self._limits_s < _LIMITS_EVERY_S:
            return False
        self._limits_s = now_s
        return True

    async def _act(self, evaluation: Evaluation, ground: SignalLayout, stop: asyncio.Event) -> str:
        """Reclaim on the node, then evict at most one pod; return how that ended, in one word."""
        reclaimed: set[ReclaimStep] = set()
        if not evaluation.acting:  # pods over their own limits
            return await self._evict_one(evaluation, ground, reclaimed, stop, on_disk=True)
        plan = await self._reclaim(evaluation, ground, reclaimed, stop)
        if plan.cause is None:
            return self._withheld(plan) or ("reclaimed" if reclaimed else "no-pressure")
        if plan.reclaim:
            return "reclaiming"
        if not plan.pods_may_be_chosen:
            self._tell_once("eviction_limit_reached", why="; ".join(plan.plan.warnings))
            return "limited"
        on_disk = MEANINGS[plan.cause.threshold.signal].filesystem is not None
        return await self._evict_one(evaluation, ground, reclaimed, stop, on_disk=on_disk)

    def _withheld(self, plan: EvictionPlan) -> str:
        """Log a pass withheld by an outstanding effect, once; return its result, empty if nothing was withheld."""
        why = plan.withheld
        if why is None:
            return ""
        fields = {key: value for key, value in why.details.items() if key != "left_s"}
        self._tell_once("eviction_withheld", reason=why.code.value, why=why.sentence, **fields)
        return "ineffective" if why.code is ReasonCode.EVICTION_INEFFECTIVE else "waiting"

    async def _evict_one(
        self,
        evaluation: Evaluation,
        ground: SignalLayout,
        reclaimed: set[ReclaimStep],
        stop: asyncio.Event,
        *,
        on_disk: bool,
    ) -> str:
        """Evict the first pod that may go and can; return how that ended, in one word."""
        started_at = self._context.clock.now()
        set_aside = self._stuck_pods()
        for _ in range(_AT_MOST_FAILED):
            if stop.is_set():
                break
            pods = await (self._measure_pods(ground) if on_disk else self._look_at_pods(on_disk=False))
            if pods is None:
                return "urgent"
            seen = await self._reader.read(ground)
            plan = self._plan(evaluation, ground, seen, pods, reclaimed, set_aside)
            if plan.victim is None:
                self._tell_no_victim(plan)
                return "no-pod" if plan.pods_may_be_chosen else self._withheld(plan) or "no-pressure"
            # Reclaiming and measuring took a while.
            if stop.is_set() or self._context.pass_lock.pause() is not None or await self._refused():
                return "called-off"
            result = await self._evict(started_at, plan, plan.victim, pods, ground, seen)
            if result.outcome in _ENDS_THE_PASS:
                return result.outcome.value
            uid = plan.victim.pod.uid
            set_aside[uid] = result.detail
            if result.outcome is EvictionOutcome.FAILED and _on_disk(plan.victim):
                self._stuck.setdefault(uid, []).append(self._context.clock.monotonic_s())
                break  # it may end yet, so its effect is outstanding; memory pressure leaves no time for that
        return "failed"

    def _stuck_pods(self) -> dict[str, str]:
        """Return the pods whose eviction failed repeatedly in the last ten minutes, each with the reason.

        After the first failure the same pod is tried again, since a runtime that hung may answer by then; another
        pod would be evicted in its place.
        """
        since_s = self._context.clock.monotonic_s() - _STUCK_S
        lately = {uid: [at_s for at_s in times if at_s > since_s] for uid, times in self._stuck.items()}
        self._stuck = {uid: times for uid, times in lately.items() if times}
        return {
            uid: f"not stopped in {len(times)} attempts"
            for uid, times in self._stuck.items()
            if len(times) >= _STUCK_ATTEMPTS
        }

    def _plan(  # noqa: PLR0913, PLR0917 - what one pass carries from round to round
        self,
        evaluation: Evaluation,
        ground: SignalLayout,
        seen: SignalReadings,
        pods: PodInventory | None,
        reclaimed: set[ReclaimStep],
        set_aside: Mapping[str, str],
    ) -> EvictionPlan:
        return plan_eviction(
            replace(evaluation, state=self._context.eviction),
            pods.facts if pods is not None else (),
            self._settings.policy,
            layout=ground.layout,
            now=seen.at,
            observations=seen.observations,
            reclaimed=frozenset(reclaimed),
            set_aside=set_aside,
        )

    async def _reclaim(
        self, evaluation: Evaluation, ground: SignalLayout, reclaimed: set[ReclaimStep], stop: asyncio.Event
    ) -> EvictionPlan:
        """Run what the node can give back, one step at a time, measuring after each; return what remains to do."""
        while True:
            seen = await self._reader.read(ground)
            plan = self._plan(evaluation, ground, seen, None, reclaimed, {})
            if not plan.reclaim or plan.cause is None or stop.is_set():
                return plan
            step = plan.reclaim[0]
            if step not in self._would and not await self._reclaim_step(step, plan.cause, ground):
                return plan
            reclaimed.add(step)
            await self._settle(plan, ground)
            if self._dry_run:
                self._would.add(step)

    async def _reclaim_step(self, step: ReclaimStep, cause: ThresholdStatus, ground: SignalLayout) -> bool:
        """Run one step, unless something more urgent comes up; return whether it was run.

        Its effect is then outstanding, unless it freed nothing.
        """
        threshold = cause.threshold.text
        try:
            async with self._context.pass_lock.take(urgent=True) as end:
                if end.is_set():
                    return False
                self._context.loop_statuses.beat(NAME, _RECLAIM_S)
                work = asyncio.ensure_future(self._reclaimer.run(step, end))
                try:
                    if await self._something_urgent(work, ground):
                        end.set()
                        await asyncio.wait({work}, timeout=_GIVE_UP_RECLAIM_S)
                        if not self._dry_run:  # part of it may be removed, or the removal may still be running
                            known = _succeeded(work)
                            partial = work.result() if known else Reclaimed(step, None)
                            await self._expect(partial, cause, ground, known=known)
                        return False
                    done = await work
                finally:
                    work.cancel()
        except PassBusyError as error:
            self._tell_faults([f"node-level reclaim waits: {error}"])
            return False
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            self._logger.warning("reclaim_failed", step=step.text, threshold=threshold, error=str(error))
            return True
        report = done.report
        if not self._dry_run:
            await self._expect(done, cause, ground)
        self._logger.warning(
            "would_reclaim" if self._dry_run else "reclaimed",
            step=step.text,
            threshold=threshold,
            removed=0 if report is None else len(report.results if self._dry_run else report.removed),
            failed=0 if report is None else len(report.failed),
            predicted_bytes=sum(each.decision.frees_bytes or 0 for each in report.results) if report else 0,
            pass_id="" if report is None else report.id,
        )
        return True

    async def _expect(
        self, done: Reclaimed, cause: ThresholdStatus, ground: SignalLayout, *, known: bool = True
    ) -> None:
        """Record the effect of a reclaim step; with ``known`` false its report is incomplete."""
        inodes = MEANINGS[cause.threshold.signal].unit is Unit.INODES
        effect = effect_of_reclaim(
            done.step,
            cause,
            ground.layout,
            predicted=done.freed(inodes=inodes) if known else None,
            confirmed=done.confirmed,
            now=self._reader.now(),
        )
        if effect is not None:
            await self._effects.add(effect)

    async def _something_urgent(self, work: asyncio.Future[Any], ground: SignalLayout) -> bool:
        """Watch while something is done about disk space; return whether memory or PIDs run out meanwhile."""
        while True:
            done, _ = await asyncio.wait({work}, timeout=WATCH_S)
            if done:
                return False
            found = self._evaluate(await self._reader.read(ground), ground)
            if any(MEANINGS[each.threshold.signal].filesystem is None and each.threshold.hard for each in found.acting):
                return True

    async def _evict(  # noqa: PLR0913, PLR0917 - the state of the pass
        self,
        started_at: datetime,
        plan: EvictionPlan,
        eviction: Eviction,
        pods: PodInventory,
        ground: SignalLayout,
        seen: SignalReadings,
    ) -> EvictionResult:
        """Evict the chosen pod, watching meanwhile; tell and keep what became of it."""
        if self._dry_run:
            if self._tell_once("would_evict", **_about(plan, eviction)):
                result = EvictionResult(EvictionOutcome.DRY_RUN)
                await self._note(PassRecord(started_at, plan, eviction, result, _available(plan), None, dry_run=True))
            return EvictionResult(EvictionOutcome.DRY_RUN)
        self._logger.warning("eviction_started", **_about(plan, eviction))
        uid, hurry = eviction.pod.uid, asyncio.Event()
        effects = effects_of_eviction(eviction, seen.observations, ground.layout, seen.at)
        await self._effects.begin(eviction, pods.handles[uid], effects)
        work = asyncio.ensure_future(self._evictor.evict(eviction, pods.handles[uid], hurry))
        try:
            await self._watch_meanwhile(work, hurry, eviction, ground)
            result = await work
        finally:
            work.cancel()
        if result.outcome is EvictionOutcome.EVICTED:
            self._context.eviction = record_eviction(self._context.eviction, self._reader.now())
            await self._effects.evicted(uid, self._reader.now())
            self._tell_ineffective(eviction, effects)
        elif result.outcome is EvictionOutcome.FAILED and _on_disk(eviction):
            await self._effects.unknown(uid, self._reader.now())
        else:
            await self._effects.drop(uid)
        after = await self._settle(plan, ground, ended=result.outcome is EvictionOutcome.GONE)
        level = self._logger.error if result.outcome is EvictionOutcome.FAILED else self._logger.warning
        level(
            "evicted" if result.outcome is EvictionOutcome.EVICTED else "eviction_failed",
            **_about(plan, eviction),
            outcome=result.outcome.value,
            detail=result.detail,
            took_s=round(result.took_s, 3),
            hurried=result.hurried,
            available_after=after,
        )
        await self._note(PassRecord(started_at, plan, eviction, result, _available(plan), after, dry_run=False))
        return result

    async def _watch_meanwhile(
        self, work: asyncio.Future[EvictionResult], hurry: asyncio.Event, eviction: Eviction, ground: SignalLayout
    ) -> None:
        """Cut a victim's grace short when a hard threshold of the same resource is met meanwhile."""
        while True:
            self._context.loop_statuses.beat(NAME, _SLACK_S)
            done, _ = await asyncio.wait({work}, timeout=SOONEST_S if not hurry.is_set() else _SLACK_S / 2)
            if done:
                return
            if eviction.grace_s <= 0 or hurry.is_set():
                continue
            found = self._evaluate(await self._reader.read(ground), ground)
            for status in found.acting:
                if status.threshold.hard and MEANINGS[status.threshold.signal].resource is eviction.starved:
                    self._logger.warning(
                        "eviction_grace_shortened", pod_uid=eviction.pod.uid, threshold=status.threshold.text
                    )
                    hurry.set()
                    break

    async def _settle(self, plan: EvictionPlan, ground: SignalLayout, *, ended: bool = False) -> float | None:
        """Wait up to ``VISIBLE_WITHIN_S`` for the effect of an action; return the amount available then.

        An effect that takes longer remains outstanding for the next passes. With ``ended`` a pod ended by itself,
        which has an effect that is not recorded.
        """
        if plan.cause is None:
            return None
        threshold, ends_s = plan.cause.threshold, self._context.clock.monotonic_s() + VISIBLE_WITHIN_S
        shortage = shortage_of(threshold.signal, ground.layout)
        while True:
            seen = await self._reader.read(ground)
            await self._effects.follow(seen, may_act=self._may_act())
            reading = next((each for each in seen.observations if each.signal is threshold.signal), None)
            if reading is None:
                return None
            back = not threshold.met_by(reading.available, reading.capacity, with_reclaim=True)
            if back:
                self._effects.arrived(shortage)
            waiting = ended or self._effects.outstanding(shortage)
            if back or not waiting or self._context.clock.monotonic_s() >= ends_s:
                return reading.available
            await asyncio.sleep(SETTLE_STEP_S)

    # ---- telling

    def _tell_changes(self, found: Evaluation) -> None:
        for condition in found.conditions:
            if condition.changed:
                level = self._logger.warning if condition.holds else self._logger.info
                level("condition_changed", condition=condition.condition.value, holds=condition.holds)
        met = {each.threshold.text: each for each in found.met}
        for text in sorted(met.keys() - self._met):
            status = met[text]
            seen = status.observation
            self._logger.warning(
                "threshold_met",
                threshold=text,
                signal=status.threshold.signal.value,
                available=None if seen is None else seen.available,
                capacity=None if seen is None else seen.capacity,
                limit=status.limit,
                hard=status.threshold.hard,
                grace_period_s=status.threshold.grace_s,
            )
        for text in sorted(self._met - met.keys()):
            self._logger.info("threshold_cleared", threshold=text)
        if self._met and not met:
            self._told = ""
            self._would.clear()
        self._met = frozenset(met)

    def _tell_faults(self, faults: Iterable[str]) -> None:
        """Log each once; those that differ in numbers alone are one."""
        if len(self._faults) > _MANY_FAULTS:
            self._faults.clear()
        for each in faults:
            key = _NUMBERS.sub("", each)
            if key not in self._faults:
                self._faults.add(key)
                self._logger.warning("eviction_warning", warning=each)

    def _tell_once(self, event: str, **fields: object) -> bool:
        """Log something that stands for a while once; return whether it was."""
        key = " ".join([event, *(str(fields.get(name, "")) for name in ("pod_uid", "threshold", "action"))])
        if key == self._told:
            return False
        self._told = key
        level = self._logger.error if event == "eviction_limit_reached" else self._logger.warning
        level(event, **fields)
        return True

    def _tell_ineffective(self, eviction: Eviction, effects: Iterable[OutstandingEffect]) -> None:
        """Log an eviction that cannot relieve its threshold, with the pod's usage by kind."""
        found = next((each for each in effects if each.ineffective), None)
        if found is None:
            return
        usage = eviction.pod.usage
        parts = {} if usage is None else {"writable": usage.writable, "logs": usage.logs, "volumes": usage.volumes}
        self._logger.warning(
            "eviction_ineffective",
            **found.details,
            pod_uid=eviction.pod.uid,
            **{f"{name}_bytes": each.used_bytes for name, each in parts.items()},
            pause_s=FREED_WITHIN_S,
        )

    def _tell_no_victim(self, plan: EvictionPlan) -> None:
        if plan.cause is None or not plan.pods_may_be_chosen:
            return
        why = Counter(each.reason.code.value for each in plan.plan.decisions if each.verdict is not Verdict.REMOVE)
        self._tell_once(
            "no_evictable_pod",
            threshold=plan.cause.threshold.text,
            pods=len(plan.plan.decisions),
            because=", ".join(f"{why[code]} {code}" for code in sorted(why)),
            hint="nodeagent evict --dry-run tells the reason for each pod",
        )


def _on_disk(eviction: Eviction) -> bool:
    """Return whether an eviction relieves a filesystem threshold, rather than a limit of the pod itself."""
    return eviction.status is not None and MEANINGS[eviction.status.threshold.signal].filesystem is not None


def _succeeded(work: asyncio.Future[Any]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None


def _about(plan: EvictionPlan, eviction: Eviction) -> dict[str, object]:
    """Return what is logged of an eviction."""
    cause = eviction.status
    reading = cause.observation if cause is not None else None
    return {
        "pod_uid": eviction.pod.uid,
        "pod_namespace": eviction.pod.namespace,
        "pod_name": eviction.pod.name,
        "signal": eviction.signal,
        "threshold": "" if cause is None else cause.threshold.text,
        "available": None if reading is None else reading.available,
        "limit": None if cause is None else cause.limit,
        "starved": eviction.starved.value,
        "grace_s": eviction.grace_s,
        "reason": eviction.reason.code.value,
        "why": eviction.reason.sentence,
        "message": eviction.message,
        "ranked": len(plan.ranking),
        "kept": sum(1 for each in plan.plan.decisions if each.reason.code is not ReasonCode.RANKED_LATER) - 1,
    }


def _available(plan: EvictionPlan) -> float | None:
    observation = plan.cause.observation if plan.cause is not None else None
    return None if observation is None else observation.available
