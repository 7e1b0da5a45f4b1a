"""The task that sends Events about the node and its pods, beside a kubelet and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.daemon.kubernetes import EVENTS
from nodeagent.daemon.loops import wait_for_any
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError

if TYPE_CHECKING:
    import asyncio

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.kubernetes.outbox import EventOutbox
    from nodeagent.kube.node_api import NodeApi
    from nodeagent.model.kubernetes import Node

POLL_S: Final = 10.0
CHANGE_POLL_S: Final = 1.0


class EventsTask:
    """Sends Events while that is configured; without an event it sends no request."""

    def __init__(self, context: DaemonContext) -> None:
        """Take the daemon context; :meth:`run` imports the client of the API server if it is needed."""
        self._context = context
        self._logger = context.logger.bind(task=EVENTS)
        self._outbox: EventOutbox | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped."""
        try:
            while not stop.is_set():
                settings = self._context.settings
                if off := self._off_because(settings):
                    if self._outbox is not None:
                        self._context.loop_statuses.disabled(EVENTS, off)
                        self._outbox.close()
                    await wait_for_any(POLL_S, stop)
                    continue
                try:
                    await self._run_session(settings, stop)
                except Exception:  # an unexpected error must not end the daemon's other tasks
                    self._logger.exception("pass_crashed", loop=EVENTS)
                    await wait_for_any(POLL_S, stop)
        finally:
            if self._outbox is not None:
                self._outbox.close()

    def _off_because(self, settings: Settings) -> str:
        if not settings.kubernetes.publish_events or settings.kubernetes.access is None:
            return "not enabled"
        return "dry run: the API server is not written to" if self._context.dry_run else ""

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # import h11, ssl and the objects of the API, which a daemon without Events does not load
        from nodeagent.daemon.kubernetes.outbox import EventOutbox  # noqa: PLC0415
        from nodeagent.daemon.kubernetes.reporting import RegistrationReporter  # noqa: PLC0415
        from nodeagent.host.node import node_name  # noqa: PLC0415
        from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
        from nodeagent.kube.node_api import NodeApi  # noqa: PLC0415

        access = settings.kubernetes.access
        if access is None:
            return
        outbox = self._outbox = self._outbox or EventOutbox(self._context.clock, of_pods=True)
        outbox.open()
        reporter = RegistrationReporter(self._logger, self._context.loop_statuses, EVENTS)
        nodes = NodeApi(ApiClient(access, ApiCredentials(access)), node_name(settings.kubelet.node_name))
        node: Node | None = None
        try:
            while not stop.is_set() and self._context.settings is settings and not self._off_because(settings):
                try:
                    node = node or await _identified(nodes)
                    wait_s = await outbox.send(nodes, node, reporter)
                except ApiServerError as error:
                    wait_s = reporter.failed("events", error)
                    if node is None:
                        wait_s = max(wait_s, POLL_S)
                reporter.waiting(wait_s)
                await self._wait(wait_s, settings, stop)
        finally:
            nodes.close()

    async def _wait(self, wait_s: float, settings: Settings, stop: asyncio.Event) -> None:
        """Wait for a time, or until other settings are in force."""
        ends_s = self._context.clock.monotonic_s() + wait_s
        while (left_s := ends_s - self._context.clock.monotonic_s()) > 0 and not stop.is_set():
            if self._context.settings is not settings:
                return
            await wait_for_any(min(left_s, CHANGE_POLL_S), stop)


async def _identified(nodes: NodeApi) -> Node:
    """Return the Node object of this machine.

    Raises:
        ApiServerError: the request failed, or the object is not proven to be of this machine.
    """
    from nodeagent.observe.node_identity import read_foreign  # noqa: PLC0415 - with the client

    node = await nodes.get_node()
    if node is None:
        raise ApiServerUnavailableError("no Event is sent: there is no Node object yet")
    if because := await read_foreign(nodes):
        raise ApiServerRefusedError(f"no Event is sent: {because}", 403)
    return node
