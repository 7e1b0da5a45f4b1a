"""Passes requested over the control API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.daemon.control.requests import CALLER
from nodeagent.daemon.health import not_composed
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError, UsageError
from nodeagent.gc.documents.passes import Report
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.loop import log_report, log_result, log_start
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.plan.saved_plan import Drift, parse_plan, refusal_of
from nodeagent.host.node import node_identity
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    import asyncio

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.gc import executor as outcomes
    from nodeagent.gc import pass_state as gc_preview
    from nodeagent.gc.agent import Agent
    from nodeagent.settings.settings import Settings


def require_agent(context: DaemonContext) -> Agent:
    """Return the agent of the daemon.

    Raises:
        RuntimeUnavailableError: the daemon is not ready.
    """
    if context.agent is None:
        raise RuntimeUnavailableError(f"not ready: {not_composed(context)}")
    return context.agent


class RequestedPass:
    """One pass requested over the control API."""

    def __init__(
        self, context: DaemonContext, breakdowns: asyncio.Lock, on_result: Callable[[outcomes.Result], None]
    ) -> None:
        """Prepare a pass.

        Args:
            context: daemon context.
            breakdowns: lock that serialises measurements of filesystem usage.
            on_result: called with the result of each item.
        """
        self._context = context
        self._breakdowns = breakdowns
        self._on_result = on_result
        self._cancelled = False
        self._stop: asyncio.Event | None = None

    def cancel(self) -> None:
        """End the pass before its next item."""
        self._cancelled = True
        if self._stop is not None:
            self._stop.set()

    async def apply_scope(self, scope: Scope, rounds: int) -> Report:
        """Run a garbage collection pass over a scope and return its report.

        Raises:
            UsageError: the agent is paused, or the configuration disables the scope for this caller.
            NodeAgentError: the pass failed or was not started.
        """
        agent = require_agent(self._context)
        _refuse_disabled(scope, agent.settings)
        preview = await agent.collector.prepare(scope)
        report = await self._run(agent, preview, rounds=rounds, trigger="control")
        return await self._report(agent, report)

    async def apply_plan(self, text: str) -> Report:
        """Remove the items of a saved plan that a new plan removes too; return the report of the pass.

        Raises:
            UsageError: the plan is invalid, expired or for another node, the agent is paused, or the configuration
                disables the scope for this caller.
            NodeAgentError: the pass failed or was not started.
        """
        try:
            saved = parse_plan(text)
        except ValueError as error:
            raise UsageError(f"plan: {error}; nothing was removed") from error
        refused = refusal_of(saved, self._context.clock.now(), node_identity())
        if refused:
            raise UsageError(f"plan: {refused}")
        agent = require_agent(self._context)
        _refuse_disabled(saved.scope, agent.settings)
        preview, drift = await agent.collector.prepare_saved(saved)
        report = await self._run(agent, preview, rounds=1, trigger="apply", plan_id=saved.id)
        return await self._report(agent, report, drift)

    async def _report(self, agent: Agent, report: outcomes.PassReport, drift: Iterable[Drift] | None = None) -> Report:
        """Return a report, with the filesystem usage breakdown if the pass missed its target."""
        async with self._breakdowns:
            breakdown = await agent.break_down_shortfall(report)
        return Report.of(report, breakdown=breakdown, drift=drift)

    async def _run(
        self, agent: Agent, preview: gc_preview.Preview, *, rounds: int, trigger: str, plan_id: str = ""
    ) -> outcomes.PassReport:
        """Wait for the pass lock, carry out the plans of a preview, and return the report of the pass.

        ``agent`` is the agent of the daemon at the request; if a reload has replaced this agent, nothing is removed.
        """
        states = StateLog(self._context.logger, self._context.clock)

        def on_item(result: outcomes.Result) -> None:
            log_result(states, result, dry_run=agent.dry_run)
            self._on_result(result)

        async with self._context.pass_lock.take() as stop:
            pause_in_force = self._context.pass_lock.pause()
            if self._cancelled:
                raise NodeAgentError("nothing was removed: the client disconnected")
            if pause_in_force is not None:
                raise UsageError(f"nothing was removed: the agent is paused: {pause_in_force.reason}")
            if self._context.grace.pending:
                left_s = math.ceil(self._context.grace.left_s())
                raise UsageError(f"nothing was removed: reload grace period after a dry run, {left_s} s left")
            if self._context.agent is not agent or self._context.renew.is_set():
                raise NodeAgentError("nothing was removed: the configuration changed during the request; retry")
            self._stop = stop
            try:
                report = await agent.run(
                    preview,
                    trigger=trigger,
                    stop=stop,
                    max_rounds=rounds,
                    on_start=partial(log_start, states),
                    on_result=on_item,
                    plan_id=plan_id,
                )
            finally:
                self._stop = None
        log_report(states, preview, report)
        if report.end is PassEnd.RUNTIME_LOST:
            raise RuntimeUnavailableError(report.end_detail)
        return report


def _refuse_disabled(scope: Scope, settings: Settings) -> None:
    """Raise a ``UsageError`` for a disabled scope unless the caller is root, as for the trigger of a disabled loop."""
    if CALLER.get().is_root:
        return
    for disabled, of, name in (
        (settings.image_interval_s is None, Scope.IMAGES, "image_gc"),
        (settings.container_interval_s is None, Scope.CONTAINERS, "container_gc"),
    ):
        if disabled and scope in (of, Scope.ALL):
            raise UsageError(
                f"cannot collect {of.value}: disabled by the configuration ({name}.enabled = false); nothing was "
                "removed; requires root"
            )
