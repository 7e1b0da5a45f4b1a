"""The task that sends Events about the node and its pods, beside a kubelet or on a standalone node."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.cluster import EVENTS
from nodeagent.cluster.plan import events
from nodeagent.cluster.session_task import RegistrationReporter, SessionTask, open_node_api
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.telemetry.event_catalogue import sentence
from nodeagent.telemetry.logging import StateLog, subscribe, unsubscribe
from nodeagent.text import escape

if TYPE_CHECKING:
    import asyncio

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.api_client import NodeApi
    from nodeagent.model.kubernetes import Node
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock


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
                    is_due = outbox.has_due()
                    if node is None or is_due:  # the object can be replaced meanwhile
                        node = await _identified(nodes)
                    # an event that is added during the reading can be later than a replacement
                    wait_s = await outbox.send(nodes, node, reporter) if is_due else EVENT_POLL_S
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
    from nodeagent.cluster.facts import compare_with_machine  # noqa: PLC0415 - imported with the client

    node = await nodes.get_node()
    if node is None:
        raise ApiServerUnavailableError("no Event is sent: there is no Node object yet")
    if because := await compare_with_machine(node):
        raise ApiServerRefusedError(f"no Event is sent: {because}", 403)
    return node


EVENT_POLL_S: Final = 2.0
_EXISTS: Final = 409
_ENDING: Final = "NamespaceTerminating"
"""Cause of the refusal of an Event in a namespace that is being deleted. Source: Kubernetes ``NamespaceLifecycle``."""
_LATER: Final = frozenset({401, 403, 429})
"""HTTP statuses below 500 after which an Event is retried; after other refusals below 500 the Event is dropped."""


class EventRequests(Protocol):
    """Requests that create Events."""

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event.

        Raises:
            ApiServerError: the request failed.
        """


class EventOutbox:
    """Bounded queue of Events, which outlives sessions and outages of the API server."""

    def __init__(self, clock: Clock, *, of_pods: bool = False) -> None:
        """Create an empty outbox; ``of_pods`` collects Events about pods in addition to the node."""
        self._clock = clock
        self._of_pods = of_pods
        self._lock = threading.Lock()  # log events are published by other threads too
        self._queue = events.EventQueue()

    def open(self) -> None:
        """Start collecting log events."""
        self.close()
        subscribe(self.add)

    def close(self) -> None:
        """Stop collecting log events."""
        unsubscribe(self.add)

    def add(self, event: Mapping[str, object]) -> None:
        """Queue a log event if its name is selected for sending."""
        name = str(event.get("event"))
        pod = _pod_of(event) if self._of_pods and name in events.POD_SELECTED else None
        if name not in events.SELECTED and pod is None:
            return
        values = {key: value for key, value in event.items() if key not in ("event", "level", "timestamp")}
        note = escape(sentence(name, values))
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        with self._lock:
            self._queue = events.add_event(self._queue, name, note, now, now_s)
            if pod is not None:
                note = escape(str(event["message"])) if name == "evicted" and event.get("message") else note
                self._queue = events.add_event(self._queue, name, note, now, now_s, pod=pod)

    def has_due(self) -> bool:
        """Return whether an event is due and not rate-limited."""
        with self._lock:
            return events.take_event(self._queue, self._clock.monotonic_s())[1] is not None

    async def send(self, requests: EventRequests, node: Node, reporter: RegistrationReporter) -> float:
        """Send the oldest due event, if any; return the seconds until the next attempt.

        An event that the API server refuses for its content is dropped; after any other failure it is queued again.
        """
        with self._lock:
            self._queue, due = events.take_event(self._queue, self._clock.monotonic_s())
        if due is None:
            return EVENT_POLL_S
        try:
            await requests.create_event(events.event_body(due, node.metadata.name, node.metadata.uid))
        except ApiServerRefusedError as error:
            if error.status == _EXISTS:
                return 0.0  # an earlier attempt created the Event
            if (error.status in _LATER and _ENDING not in error.causes) or error.status >= 500:
                self._put_back(due)
            return reporter.failed("events", error)
        except ApiServerError as error:
            self._put_back(due)
            return reporter.failed("events", error)
        reporter.succeeded("events")
        return 0.0

    def _put_back(self, due: events.Occurrence) -> None:
        with self._lock:
            self._queue = events.put_back(self._queue, due)


def _pod_of(event: Mapping[str, object]) -> events.PodReference | None:
    """Return the pod named by a log event; ``None`` if the event names no pod."""
    namespace, name, uid = (str(event.get(key) or "") for key in ("pod_namespace", "pod_name", "pod_uid"))
    return events.PodReference(namespace, name, uid) if namespace and name and uid else None
