"""The task that sends Events about the node and its pods, beside a kubelet or on a standalone node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.daemon.kubernetes import EVENTS
from nodeagent.daemon.kubernetes.session_task import SessionTask, open_node_api
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    import asyncio

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.kubernetes.outbox import EventOutbox
    from nodeagent.kube.node_api import NodeApi
    from nodeagent.model.kubernetes import Node


class EventsTask(SessionTask):
    """Sends Events while ``publish_events`` is enabled; without a queued event no request is sent."""

    name = EVENTS

    def __init__(self, context: DaemonContext) -> None:
        """Create the task without an outbox."""
        super().__init__(context)
        self._outbox: EventOutbox | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Send Events until stopped."""
        try:
            await super().run(stop)
        finally:
            self._close()

    def _off_because(self, settings: Settings) -> str:
        return self._not_written(enabled=settings.kubernetes.publish_events, settings=settings)

    def _switch_off(self, because: str) -> None:
        super()._switch_off(because)
        self._close()

    def _close(self) -> None:
        if self._outbox is not None:
            self._outbox.close()

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        from nodeagent.daemon.kubernetes.outbox import EventOutbox  # noqa: PLC0415 - imported with the client
        from nodeagent.daemon.kubernetes.reporting import RegistrationReporter  # noqa: PLC0415 - imported with the client

        outbox = self._outbox = self._outbox or EventOutbox(self._context.clock, of_pods=True)
        outbox.open()
        reporter = RegistrationReporter(
            StateLog(self._logger, self._context.clock), self._context.loop_statuses, EVENTS
        )
        nodes = open_node_api(settings)
        node: Node | None = None
        try:
            while self._continues(settings, stop) and not self._off_because(settings):
                try:
                    node = node or await _identified(nodes)
                    wait_s = await outbox.send(nodes, node, reporter)
                except ApiServerError as error:
                    wait_s = reporter.failed("events", error)
                    if node is None:
                        wait_s = max(wait_s, self.poll_s)
                reporter.waiting(wait_s)
                await self._wait(wait_s, settings, stop)
        finally:
            nodes.close()


async def _identified(nodes: NodeApi) -> Node:
    """Return the Node object of this machine.

    Raises:
        ApiServerError: the request failed, or the Node object is missing or may describe another machine.
    """
    from nodeagent.observe.node_identity import read_foreign  # noqa: PLC0415 - imported with the client

    node = await nodes.get_node()
    if node is None:
        raise ApiServerUnavailableError("no Event is sent: there is no Node object yet")
    if because := await read_foreign(nodes):
        raise ApiServerRefusedError(f"no Event is sent: {because}", 403)
    return node
