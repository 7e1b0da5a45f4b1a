"""Wait for the effect of an eviction or of a reclaim step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.plan.eviction.effects import VISIBLE_WITHIN_S
from nodeagent.plan.eviction.shortage import shortage_of

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.eviction.pass_actions import PassActions
    from nodeagent.daemon.eviction.signal_monitor import SignalMonitor
    from nodeagent.observe.eviction_signals import SignalReadings
    from nodeagent.plan.eviction.planner import EvictionPlan


class Visible(NamedTuple):
    """Readings after an action.

    Attributes:
        readings: the last readings; ``None`` if the plan has no threshold.
        available: available amount of the signal; ``None`` without readings or if the signal is unreadable.
    """

    readings: SignalReadings | None
    available: float | None


class EffectWait:
    """Reads the signals after an action until its effect is measured."""

    def __init__(self, context: DaemonContext, actions: PassActions, signals: SignalMonitor) -> None:
        self._context = context
        self._actions = actions
        self._signals = signals

    async def wait(self, plan: EvictionPlan, *, unrecorded_effect: bool = False) -> Visible:
        """Wait up to ``VISIBLE_WITHIN_S`` for the effect of an action; return the last readings.

        A slower effect remains outstanding for the next passes. ``unrecorded_effect`` waits although no effect is
        recorded, such as for a pod that ended by itself.
        """
        if plan.selected is None:
            return Visible(None, None)
        effects, clock = self._actions.effects, self._context.clock
        threshold, ends_s = plan.selected.threshold, clock.monotonic_s() + VISIBLE_WITHIN_S
        shortage = shortage_of(threshold.signal, (await self._signals.layout()).layout, threshold.filesystem)
        while True:
            readings = await self._signals.read()
            await effects.update(readings, may_act=may_act(self._context, self._actions))
            reading = next((each for each in readings.observations if each.measurand == threshold.measurand), None)
            if reading is None:
                return Visible(readings, None)
            cleared = not threshold.met_by(reading.available, reading.capacity, with_reclaim=True)
            if cleared:
                effects.end_cleared(shortage)
            waiting = unrecorded_effect or effects.is_outstanding(shortage, threshold.measurand.path)
            if cleared or not waiting or clock.monotonic_s() >= ends_s:
                return Visible(readings, reading.available)
            await asyncio.sleep(self._actions.settle_step_s)


def may_act(context: DaemonContext, actions: PassActions) -> bool:
    """Return whether containers may be removed: not in a dry run, and not while passes are paused."""
    return not actions.dry_run and context.pass_lock.pause() is None
