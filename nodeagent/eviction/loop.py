"""The eviction loop: passes at an interval that depends on the distance to the thresholds.

A PSI trigger or a cgroup memory event starts a pass immediately. A pass evaluates the signals, runs node-level reclaim,
and evicts at most one pod. Reclaim acquires the pass lock and ends a running garbage collection early; an eviction
requires no lock.

A shortage of memory or PIDs waits for nothing. While a pass waits for a filesystem, the runtime, a disk or the end of a
pod, the signals are still evaluated; if a hard threshold on memory or PIDs is met on which that pass does not act, a
second pass acts on it at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.eviction import LOOP_NAME
from nodeagent.eviction.actions import Monitors, PassActions, PassResult
from nodeagent.eviction.eviction_pass import Attempts, EvictionPass
from nodeagent.eviction.plan.preview import FALLING_S, SOONEST_S
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.eviction.pod_eviction import SLACK_S, may_act
from nodeagent.eviction.signals import RATE_S, SignalReadings
from nodeagent.gc.loop import RuntimeWatch
from nodeagent.guarded_call import start_kernel_threads
from nodeagent.host.psi_triggers import MEMORY_EVENTS, PressureTriggers
from nodeagent.loops.passes import wait_for_any
from nodeagent.record import replace
from nodeagent.telemetry.logging import stable

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.settings import EvictionSettings


@dataclass(eq=False)
class EvictionLoop:
    """Runs eviction passes for one agent, until stopped or until evictions are refused.

    Attributes:
        context: daemon context with the eviction state, which outlives a reload.
        settings: thresholds, policy and intervals.
        actions: actions of the passes.
        monitors: observations of the passes.
        triggers: kernel notifications that call :meth:`wake`.
    """

    context: DaemonContext
    settings: EvictionSettings
    actions: PassActions
    monitors: Monitors
    triggers: PressureTriggers
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _attempts: Attempts = field(default_factory=Attempts, init=False)
    _preparing: asyncio.Future[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._logger = self.monitors.reporter.logger
        self._runtime = RuntimeWatch(self._logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Run passes until ``stop`` is set or evictions are refused."""
        start_kernel_threads()
        self._register_triggers()
        await self.actions.effects.restore()
        await self._measure_growth(stop)
        wake = self.context.wake.setdefault(LOOP_NAME, asyncio.Event())
        try:
            while not stop.is_set() and not await self.actions.refused():
                self._woken.clear()
                wake.clear()
                self.triggers.add_memory_events()
                wait_s = await self.run_pass(stop)
                self.context.loop_statuses.waiting(LOOP_NAME, wait_s, SLACK_S, removes=True)
                # Limits the rate of passes: a trigger can fire continuously.
                if await wait_for_any(min(wait_s, SOONEST_S), stop):
                    return
                await wait_for_any(max(0.0, wait_s - SOONEST_S), stop, self._woken, wake)
        finally:
            if self._preparing is not None:
                self._preparing.cancel()
            self.triggers.close()
            self.monitors.pods.close()
            await self.actions.effects.close()

    async def run_pass(self, stop: asyncio.Event) -> float:
        """Run one pass; return the seconds until the next pass."""
        statuses, interval_s = self.context.loop_statuses, self.settings.interval_s
        statuses.running(LOOP_NAME, SLACK_S)
        try:
            result = await self._run_pass(stop)
        except RuntimeUnavailableError as error:
            statuses.ended(LOOP_NAME, PassResult.RUNTIME_UNAVAILABLE.value, detail=str(error), failed=True)
            return min(self._runtime.lost(error), interval_s)
        except NodeAgentError as error:
            statuses.ended(LOOP_NAME, PassResult.FAILED.value, detail=str(error), failed=True)
            self.monitors.reporter.log_warnings([str(error)])
            return interval_s
        except Exception as error:  # noqa: BLE001 - an unexpected error must not end the loop
            statuses.ended(LOOP_NAME, PassResult.CRASHED.value, detail=repr(error), failed=True)
            self.monitors.reporter.log_once(
                "pass_crashed", {}, state=stable(repr(error)), level="exception", counted=True
            )
            return interval_s
        self._runtime.answered()
        self.monitors.reporter.end("pass_crashed")
        statuses.ended(LOOP_NAME, result.value)
        if result.ended_a_pod:
            return min(FALLING_S, interval_s)  # the evaluation precedes the eviction; other pods may have grown since
        if result.repeats:
            return interval_s
        signals = self.monitors.signals
        # Without pressure a pass may have listed pods for longer than the interval of the signals.
        no_pressure = result is PassResult.NO_PRESSURE
        return signals.until_next_poll_s(interval_s) if no_pressure else signals.next_poll_s(interval_s)

    async def _measure_growth(self, stop: asyncio.Event) -> None:
        """Read the filesystems for a second if one is short at the start: the first pass must know their growth.

        Otherwise that pass would evict a pod instead of removing images that cannot be pulled again.
        """
        signals = self.monitors.signals
        with suppress(NodeAgentError):  # the first pass reports it
            acting = (await signals.evaluate()).acting
            if acting and all(MEANINGS[each.threshold.signal].filesystem is not None for each in acting):
                await signals.shortage_before(asyncio.ensure_future(wait_for_any(RATE_S, stop)))

    def wake(self, name: str) -> None:
        """Start a pass immediately; ``name`` is the trigger that fired."""
        self._logger.debug("woken", by=name)
        if name == MEMORY_EVENTS:
            self.monitors.pods.expire()  # the event may concern a pod that is not cached yet
        self._woken.set()

    async def _run_pass(self, stop: asyncio.Event) -> PassResult:
        signals, pods = self.monitors.signals, self.monitors.pods
        first = await signals.read()
        await self.actions.effects.update(first, may_act=may_act(self.context, self.actions))
        evaluation = await signals.evaluate(first)
        readings: SignalReadings | None = first
        if not evaluation.met:
            self._attempts.dry_run_steps.clear()
        self._attempts.expire_dry_run(first.at.monotonic_s)
        if not any(MEANINGS[each.threshold.signal].resource is not None for each in evaluation.acting):
            readings = None  # no longer current after the following reads
            if await self._refresh():
                evaluation = await signals.evaluate()
            elif self._preparing is None and self.actions.images is not None:
                self._preparing = asyncio.ensure_future(self.actions.images.prepare())
        elif self._preparing is not None:
            self._preparing.cancel()  # it would delay the observations of this pass
        paused = self.context.pass_lock.pause() is not None
        policy = self.settings.policy
        if paused:
            return PassResult.PRESSURE if evaluation.met else PassResult.NO_PRESSURE
        a_pass = EvictionPass(self.context, policy, self.actions, self.monitors, self._attempts, stop)
        work = asyncio.ensure_future(
            a_pass.run(evaluation, readings, lambda: policy.local_storage_isolation and pods.is_limit_check_due())
        )
        try:
            while (shortage := await signals.urgent_shortage(work, a_pass.covered)) is not None:
                await self._relieve_urgently(shortage, stop)
            return await work
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _relieve_urgently(self, shortage: Evaluation, stop: asyncio.Event) -> None:
        """Run a pass for a shortage of memory or PIDs, beside a pass that waits for something else."""
        actions = replace(self.actions, images=None)  # observed by the other pass
        a_pass = EvictionPass(self.context, self.settings.policy, actions, self.monitors, self._attempts, stop)
        try:
            await a_pass.run(shortage, None, lambda: False)
        except NodeAgentError as error:
            self.monitors.reporter.log_warnings([str(error)])

    async def _refresh(self) -> bool:
        """Refresh filesystems and cached pods; return whether a hard memory or PID threshold was met first.

        The pods are not listed while a signal falls to its threshold, since the eviction lists them.
        """
        signals, interval_s = self.monitors.signals, self.settings.interval_s
        is_falling, near = signals.is_falling(interval_s), signals.is_near_threshold(interval_s)

        async def refresh() -> None:
            await signals.refresh_others_if_due()
            if not is_falling:
                await self.monitors.pods.refresh_if_due(near_threshold=near)

        work = asyncio.ensure_future(refresh())
        try:
            if await signals.shortage_before(work):
                return True
            await work
        finally:
            work.cancel()
        return False

    def _register_triggers(self) -> None:
        stall = self.settings.stall
        missing = [
            self.triggers.add_stall_trigger(resource, stall_us, stall.window_us)
            for resource, stall_us in (("memory", stall.memory_us), ("io", stall.io_us))
            if stall_us
        ]
        missing.append(self.triggers.add_memory_events())
        self.triggers.attach()
        self._logger.info(
            "eviction_monitoring_started",
            thresholds=[each.text for each in self.settings.thresholds],
            woken_by=list(self.triggers.names),
            not_woken_by=[each for each in missing if each],
            polling=f"every {self.settings.interval_s:g} s, down to {FALLING_S:g} s near a threshold",
            dry_run=self.actions.dry_run,
        )
