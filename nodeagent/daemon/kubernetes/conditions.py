"""The task that applies the agent's own conditions to the Node object, over reloads."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.kubernetes import CONDITIONS
from nodeagent.daemon.loop_status import Activity
from nodeagent.daemon.loops import wait_for_any
from nodeagent.errors import ApiServerError, ApiServerRefusedError

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.node_api import NodeApi
    from nodeagent.plan.kubernetes.conditions import LoopResult

POLL_S: Final = 10.0
CHANGE_POLL_S: Final = 1.0
_SLACK_S: Final = 120.0
_REMOVE_WITHIN_S: Final = 3.0
_LASTING: Final = frozenset({401, 403, 422})
_LASTING_RETRY_S: Final = 60.0


class ConditionsTask:
    """Applies conditions while that is configured; a reload that disables it removes them."""

    def __init__(self, context: DaemonContext) -> None:
        """Take the daemon context; :meth:`run` imports the client of the API server if it is needed."""
        self._context = context
        self._logger = context.logger.bind(task=CONDITIONS)
        self._ran = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped."""
        while not stop.is_set():
            settings = self._context.settings
            if off := self._off_because(settings):
                if self._ran:
                    self._context.loop_statuses.disabled(CONDITIONS, off)
                await wait_for_any(POLL_S, stop)
                continue
            self._ran = True
            try:
                await self._run_session(settings, stop)
            except Exception:  # an unexpected error must not end the daemon's other tasks
                self._logger.exception("pass_crashed", loop=CONDITIONS)
                await wait_for_any(POLL_S, stop)

    def _off_because(self, settings: Settings) -> str:
        if not settings.kubernetes.publish_conditions or settings.kubernetes.access is None:
            return "not enabled"
        return "dry run: the API server is not written to" if self._context.dry_run else ""

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # import h11, ssl and the objects of the API, which a daemon without conditions does not load
        from nodeagent.host.node import node_name  # noqa: PLC0415
        from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
        from nodeagent.kube.node_api import NodeApi  # noqa: PLC0415

        access = settings.kubernetes.access
        if access is None:
            return
        client = ApiClient(access, ApiCredentials(access))
        nodes = NodeApi(client, node_name(settings.kubelet.node_name))
        try:
            await self._report(nodes, settings, stop)
        finally:
            client.close()

    async def _report(self, nodes: NodeApi, settings: Settings, stop: asyncio.Event) -> None:
        from nodeagent.observe.node_identity import read_foreign  # noqa: PLC0415 - with the client
        from nodeagent.plan.kubernetes.conditions import (  # noqa: PLC0415
            REPORT_S,
            ConditionMemory,
            is_due,
            own_conditions,
        )
        from nodeagent.plan.kubernetes.pod_watch import retry_s  # noqa: PLC0415

        memory, failures, logged, identified = ConditionMemory(), 0, "", False
        clock, statuses = self._context.clock, self._context.loop_statuses
        while not stop.is_set() and self._context.settings is settings and not self._off_because(settings):
            wait_s = POLL_S
            try:
                conditions = own_conditions(self._loops(), memory.conditions or (), clock.now())
                if is_due(memory, conditions, clock.monotonic_s()):
                    if not identified and (because := await read_foreign(nodes)):
                        raise ApiServerRefusedError(f"no condition is written: {because}", 403)
                    identified = True
                    await nodes.apply_conditions(conditions)
                    memory = ConditionMemory(conditions, clock.monotonic_s() + REPORT_S)
                    statuses.ended(CONDITIONS, "succeeded")
                    if failures:
                        failures, logged = 0, ""
                        self._logger.info("api_request_recovered", part="conditions")
            except ApiServerError as error:
                failures, identified = failures + 1, False
                wait_s = retry_s(failures, 0.0)
                if isinstance(error, ApiServerRefusedError) and error.status in _LASTING:
                    wait_s = max(wait_s, _LASTING_RETRY_S)
                if str(error) != logged:
                    logged = str(error)
                    self._logger.warning("api_request_failed", part="conditions", error=logged, hint="nodeagent doctor")
                statuses.ended(CONDITIONS, "failed", detail=str(error), failed=True)
            statuses.waiting(CONDITIONS, wait_s, _SLACK_S)
            await self._wait(wait_s, settings, stop)
        if memory.conditions and not self._context.settings.kubernetes.publish_conditions:
            with suppress(ApiServerError, TimeoutError):
                async with asyncio.timeout(_REMOVE_WITHIN_S):
                    await nodes.apply_conditions(())

    async def _wait(self, wait_s: float, settings: Settings, stop: asyncio.Event) -> None:
        """Wait for a time, or until other settings are in force."""
        ends_s = self._context.clock.monotonic_s() + wait_s
        while not stop.is_set() and self._context.settings is settings:
            left_s = ends_s - self._context.clock.monotonic_s()
            if left_s <= 0:
                return
            await wait_for_any(min(left_s, CHANGE_POLL_S), stop)

    def _loops(self) -> list[LoopResult]:
        from nodeagent.plan.kubernetes.conditions import LoopResult  # noqa: PLC0415 - as above

        return [
            LoopResult(each.name, each.result, each.detail, is_disabled=each.activity is Activity.DISABLED)
            for each in self._context.loop_statuses.all
        ]
