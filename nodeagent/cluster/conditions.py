"""The task that writes the agent's own conditions to the Node object, across reloads."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.cluster import CONDITIONS, TAINTS
from nodeagent.cluster.session_task import (
    OF_A_START,
    START_FAILURES,
    RegistrationReporter,
    SessionTask,
    open_node_api,
)
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ForeignNodeError
from nodeagent.loops.passes import Activity
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    from nodeagent.cluster.plan.conditions import LoopResult, TaintPlan
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.api_client import NodeApi
    from nodeagent.settings.settings import Settings

_SLACK_S: Final = 120.0
_REMOVE_WITHIN_S: Final = 3.0


class ConditionsTask(SessionTask):
    """Writes the conditions while ``publish_conditions`` is enabled; a reload that disables it removes them."""

    name = CONDITIONS

    def _off_because(self, settings: Settings) -> str:
        return self._not_written(enabled=settings.kubernetes.publish_conditions, settings=settings)

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        nodes = open_node_api(settings)
        try:
            await self._report(nodes, settings, stop)
        finally:
            nodes.close()

    async def _report(self, nodes: NodeApi, settings: Settings, stop: asyncio.Event) -> None:
        from nodeagent.cluster.facts import compare_with_machine  # noqa: PLC0415 - imported with the client
        from nodeagent.cluster.plan.conditions import (  # noqa: PLC0415
            REPORT_S,
            ConditionMemory,
            conditions_patch,
            is_due,
            own_conditions,
        )
        from nodeagent.pods.plan.watch import retry_s  # noqa: PLC0415

        memory, failures, identified, uid = ConditionMemory(), 0, False, ""
        clock, statuses = self._context.clock, self._context.loop_statuses
        reporter = RegistrationReporter(StateLog(self._logger, clock), statuses, CONDITIONS)
        while self._continues(settings, stop) and not self._off_because(settings):
            wait_s = self.poll_s
            try:
                results = loop_results(self._context)
                shortage = self._context.trend.shortage_at(clock.now())
                conditions = own_conditions(results, memory.conditions or (), clock.now(), shortage=shortage)
                if is_due(memory, conditions, clock.monotonic_s()):
                    if not identified:
                        found = await nodes.get_node()
                        because = await compare_with_machine(found)
                        if found is None or because:
                            raise ApiServerRefusedError(f"no condition is written: {because}", 403)
                        identified, uid = True, found.metadata.uid
                        # written by an earlier run, or by a request without an answer
                        conditions = own_conditions(results, found.status.conditions, clock.now(), shortage=shortage)
                    await nodes.patch_status(conditions_patch(uid, conditions))
                    memory = ConditionMemory(conditions, clock.monotonic_s() + REPORT_S)
                    failures = 0
                    reporter.succeeded("conditions")
            except ApiServerError as error:
                failures, identified = failures + 1, False
                wait_s = retry_s(failures, 0.0)  # 401 and 403 are retried too, as in PodWatchSession
                reporter.failed("conditions", error)
            statuses.waiting(CONDITIONS, wait_s, _SLACK_S)
            await self._wait(wait_s, settings, stop)
        if memory.conditions and not self._context.settings.kubernetes.publish_conditions:
            with suppress(ApiServerError, TimeoutError):
                async with asyncio.timeout(_REMOVE_WITHIN_S):
                    await nodes.patch_status(conditions_patch(uid, ()))


def loop_results(context: DaemonContext) -> list[LoopResult]:
    """Return the last result of every loop."""
    from nodeagent.cluster.plan.conditions import LoopResult  # noqa: PLC0415 - imported with the client

    return [
        LoopResult(each.name, each.result, each.detail, is_disabled=each.activity is Activity.DISABLED)
        for each in context.loop_statuses.all
    ]


class TaintsTask(SessionTask):
    """Applies ``condition_taints``; without them, taints of an earlier run or configuration are removed once.

    The taints are applied on a change of a condition, else every 5 minutes, independently of the conditions: a refused
    taint does not suspend the conditions.
    """

    name = TAINTS

    def __init__(self, context: DaemonContext) -> None:
        """Create the task; whether a taint of an earlier run remains is unknown until the Node object is read."""
        super().__init__(context)
        self._may_remain: bool | None = None

    def _off_because(self, settings: Settings) -> str:
        enabled = bool(settings.kubernetes.condition_taints) or self._may_remain is not False
        return self._not_written(enabled=enabled, settings=settings)

    def _switch_off(self, because: str) -> None:
        if self._is_reported():
            super()._switch_off(because)

    def _is_reported(self) -> bool:
        return any(each.name == self.name for each in self._context.loop_statuses.all)

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        nodes = open_node_api(settings)
        try:
            if self._may_remain is None and not settings.kubernetes.condition_taints:
                self._may_remain = await self._has_taint(nodes, settings, stop)
            await self._apply(nodes, settings, stop)
            if self._may_remain and self._context.settings.kubernetes.access is None and not self._context.dry_run:
                await self._remove(nodes)  # no later session has an API server
        finally:
            nodes.close()

    async def _has_taint(self, nodes: NodeApi, settings: Settings, stop: asyncio.Event) -> bool | None:
        """Return whether the Node object has a taint of an earlier run; ``None`` if the session ended before an answer.

        Nothing is reported, since the taints are not configured. An identity that may not read the object set no taint.
        """
        # imported with the client
        from nodeagent.cluster.plan.conditions import is_condition_taint  # noqa: PLC0415
        from nodeagent.cluster.plan.heartbeat import retry_delay_s  # noqa: PLC0415

        failures = 0
        while self._continues(settings, stop):
            try:
                found = await nodes.get_node()
            except ApiServerError as error:
                failures += 1
                refused = isinstance(error, ApiServerRefusedError) and error.status in OF_A_START
                if refused and failures > START_FAILURES:
                    return False
                await self._wait(retry_delay_s(failures), settings, stop)
            else:
                return found is not None and any(map(is_condition_taint, found.spec.taints))
        return None

    async def _apply(self, nodes: NodeApi, settings: Settings, stop: asyncio.Event) -> None:
        # imported with the client
        from nodeagent.cluster.own_parts import apply_taints  # noqa: PLC0415
        from nodeagent.cluster.plan.conditions import REPORT_S, desired_effects  # noqa: PLC0415

        configured, clock, statuses = (
            settings.kubernetes.condition_taints,
            self._context.clock,
            self._context.loop_statuses,
        )
        reporter = RegistrationReporter(StateLog(self._logger, clock), statuses, TAINTS)
        applied: dict[str, str] | None = None
        due_s = 0.0
        self._may_remain = bool(configured) or self._may_remain
        while self._continues(settings, stop) and not self._off_because(settings):
            wait_s = self.poll_s
            desired = desired_effects(loop_results(self._context), configured)
            if desired != applied or clock.monotonic_s() >= due_s:
                try:
                    plan = await apply_taints(nodes, desired)
                    applied, due_s = desired, clock.monotonic_s() + REPORT_S
                    self._log(plan)
                    self._may_remain = bool(configured)
                    if configured or plan.patch is not None:
                        reporter.succeeded("taints", f"node tainted: {', '.join(plan.present)}" if plan.present else "")
                except ApiServerError as error:
                    if not configured and isinstance(error, ForeignNodeError):
                        self._may_remain = False
                    else:
                        wait_s = reporter.failed("taints", error)
            if configured or self._is_reported():
                statuses.waiting(TAINTS, wait_s, _SLACK_S)
            if self._may_remain:
                await self._wait(wait_s, settings, stop)

    async def _remove(self, nodes: NodeApi) -> None:
        from nodeagent.cluster.own_parts import apply_taints  # noqa: PLC0415
        from nodeagent.cluster.plan.conditions import desired_effects  # noqa: PLC0415

        with suppress(ApiServerError, TimeoutError):
            async with asyncio.timeout(_REMOVE_WITHIN_S):
                self._log(await apply_taints(nodes, desired_effects((), {})))

    def _log(self, plan: TaintPlan) -> None:
        for event, taints in (("node_tainted", plan.added), ("node_untainted", plan.removed)):
            if taints:
                self._logger.info(event, taints=", ".join(taints))
