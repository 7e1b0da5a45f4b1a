"""The task that writes the agent's own conditions to the Node object, across reloads."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.kubernetes import CONDITIONS
from nodeagent.daemon.kubernetes.session_task import SessionTask, open_node_api
from nodeagent.daemon.passes import Activity
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.node_api import NodeApi
    from nodeagent.plan.kubernetes.conditions import LoopResult

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
        from nodeagent.observe.node_identity import compare_with_machine  # noqa: PLC0415 - imported with the client
        from nodeagent.plan.kubernetes.conditions import (  # noqa: PLC0415
            REPORT_S,
            ConditionMemory,
            conditions_patch,
            is_due,
            own_conditions,
        )
        from nodeagent.plan.kubernetes.pod_watch import retry_s  # noqa: PLC0415

        memory, failures, identified, uid = ConditionMemory(), 0, False, ""
        clock, statuses = self._context.clock, self._context.loop_statuses
        states = StateLog(self._logger, clock)
        while self._continues(settings, stop) and not self._off_because(settings):
            wait_s = self.poll_s
            try:
                results = loop_results(self._context)
                conditions = own_conditions(results, memory.conditions or (), clock.now())
                if is_due(memory, conditions, clock.monotonic_s()):
                    if not identified:
                        found = await nodes.get_node()
                        because = await compare_with_machine(found)
                        if found is None or because:
                            raise ApiServerRefusedError(f"no condition is written: {because}", 403)
                        identified, uid = True, found.metadata.uid
                        # written by an earlier run, or by a request without an answer
                        conditions = own_conditions(results, found.status.conditions, clock.now())
                    await nodes.patch_status(conditions_patch(uid, conditions))
                    memory = ConditionMemory(conditions, clock.monotonic_s() + REPORT_S)
                    statuses.ended(CONDITIONS, "succeeded")
                    failures = 0
                    if states.end("api_request_failed"):
                        self._logger.info("api_request_recovered", part="conditions")
            except ApiServerError as error:
                failures, identified = failures + 1, False
                wait_s = retry_s(failures, 0.0)  # 401 and 403 are retried too, as in PodWatchSession
                fields = {"part": "conditions", "error": str(error), "hint": "nodeagent doctor"}
                states.log_once("api_request_failed", fields, state=str(error))
                statuses.ended(CONDITIONS, "failed", detail=str(error), failed=True)
            statuses.waiting(CONDITIONS, wait_s, _SLACK_S)
            await self._wait(wait_s, settings, stop)
        if memory.conditions and not self._context.settings.kubernetes.publish_conditions:
            with suppress(ApiServerError, TimeoutError):
                async with asyncio.timeout(_REMOVE_WITHIN_S):
                    await nodes.patch_status(conditions_patch(uid, ()))


def loop_results(context: DaemonContext) -> list[LoopResult]:
    """Return the last result of every loop."""
    from nodeagent.plan.kubernetes.conditions import LoopResult  # noqa: PLC0415 - imported with the client

    return [
        LoopResult(each.name, each.result, each.detail, is_disabled=each.activity is Activity.DISABLED)
        for each in context.loop_statuses.all
    ]
