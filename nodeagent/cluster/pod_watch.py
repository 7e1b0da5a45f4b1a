"""The task that watches this node's pods at the API server, across reloads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.cluster import POD_WATCH
from nodeagent.cluster.session_task import CHANGE_POLL_S, SessionTask
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ForeignNodeError, StoreError
from nodeagent.loops.passes import LoopStatuses, wait_for_any
from nodeagent.pods.plan import watch
from nodeagent.pods.watched import WatchedPods, list_address, restore_pods, write_watched_pods
from nodeagent.record import Record, replace
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.model.pods import PodSpec
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

WATCH_S: Final = 240
"""Minimum seconds of one watch; up to the same time is added at random, so that nodes do not reconnect together."""
STORE_S: Final = 30.0
"""Minimum seconds between two writes of the pods to the state directory."""
EVENT_S: Final = 0.01
"""Seconds after each event until the next one is read; the connection delays further events meanwhile."""
_SILENT_S: Final = 600.0
_LASTED_S: Final = 5.0
"""Minimum seconds after which a watch that ended without a change does not count as a failure."""
_FRUITLESS: Final = 3
"""Number of consecutive watches, refused or ended without a change, after which the pods are listed again."""
_NO_FAULT_OF_THE_VERSION: Final = frozenset({401, 403, 429})
_EXPIRED: Final = 410


class EventStream(Protocol):
    """One watch of the pods."""

    async def open(self, resource_version: str, timeout_s: int) -> None:
        """Start the watch. Raises ApiServerError if the API server refuses it or does not answer."""

    async def next_event(self) -> watch.PodEvent | None:
        """Return the next change; ``None`` at the end. Raises ApiServerError if the watch is lost or has expired."""

    def close(self) -> None:
        """Close the connection of the watch."""


class PodWatchParts(Record):
    """Collaborators of a session.

    Attributes:
        list_pods: returns the pods of the node, the resource version of the list, and whether pods beyond the limits
            are omitted; raises ApiServerError.
        foreign: returns the reason that the Node object is not proven to be of this machine, empty with proof; raises
            ApiServerError.
        make_watch: returns a new watch.
        store: writes the pods and the time of their observation; raises StoreError.
        jitter: returns a number from 0 to 1.
    """

    list_pods: Callable[[], Awaitable[tuple[tuple[PodSpec, ...], str, bool]]]
    foreign: Callable[[], Awaitable[str]]
    make_watch: Callable[[], EventStream]
    store: Callable[[tuple[PodSpec, ...], datetime], Awaitable[None]]
    jitter: Callable[[], float]


@dataclass(eq=False)
class PodWatchSession:
    """Keeps the watched pods current until it is cancelled."""

    parts: PodWatchParts
    watched: WatchedPods
    clock: Clock
    logger: FilteringBoundLogger
    statuses: LoopStatuses
    _failures: int = field(default=0, init=False)
    _fruitless: int = field(default=0, init=False)
    _expiries: int = field(default=0, init=False)
    _stored: Mapping[str, PodSpec] | None = field(default=None, init=False)
    _stored_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._states = StateLog(self.logger, self.clock)

    async def run(self) -> None:
        """List and watch the pods until cancelled."""
        while True:
            self.statuses.running(POD_WATCH, _SILENT_S)
            try:
                await self._identify()
                if watch.needs_list(self.watched.state):
                    await self._list()
                wait_s = await self._watch()
            except ApiServerError as error:
                wait_s = self._failed(error)
            self.statuses.waiting(POD_WATCH, wait_s, _SILENT_S)
            await asyncio.sleep(wait_s)

    async def _identify(self) -> None:
        """Compare the Node object with this machine before each watch: the object may have been deleted meanwhile.

        Raises:
            ForeignNodeError: the Node object is not proven to be of this machine. A watch of its pods would be of no
                use, and would delay the next comparison by minutes: the daemon may be about to register the node.
            ApiServerError: the request failed.
        """
        if foreign := await self.parts.foreign():
            self.watched.state = replace(self.watched.state, foreign=foreign)
            raise ForeignNodeError(foreign)

    async def _list(self) -> None:
        """List the pods. Raises ApiServerError if a request failed."""
        requested_s = self.clock.monotonic_s()
        pods, version, truncated = await self.parts.list_pods()
        self.watched.state = watch.after_list(
            self.watched.state,
            pods,
            version,
            requested_s=requested_s,
            now_s=self.clock.monotonic_s(),
            now=self.clock.now(),
            truncated=truncated,
        )
        self._fruitless = 0
        await self._store()

    async def _watch(self) -> float:
        """Follow one watch until its end; return the seconds until the next watch."""
        watched, stream = self.watched, self.parts.make_watch()
        began_s = self.clock.monotonic_s()
        changed = False
        try:
            await stream.open(watched.state.resource_version, WATCH_S + int(WATCH_S * self.parts.jitter()))
            self._fruitless += 1  # reset when a change is read
            watched.state = watch.after_connection(watched.state, self.clock.monotonic_s(), self.clock.now())
            self._succeeded()
            while (event := await stream.next_event()) is not None:
                watched.add(event, self.clock.monotonic_s(), self.clock.now())
                if event.kind is not None:
                    changed, self._fruitless, self._failures, self._expiries = True, 0, 0, 0
                self.statuses.beat(POD_WATCH, _SILENT_S)
                await self._store()
                await asyncio.sleep(EVENT_S)
        finally:
            stream.close()
        if changed or self.clock.monotonic_s() - began_s >= _LASTED_S:
            self._failures = self._fruitless = self._expiries = 0
            return 0.0
        self._failures += 1
        return watch.retry_s(self._failures, self.parts.jitter())

    def _failed(self, error: ApiServerError) -> float:
        """Record a failure; return the seconds until the next attempt."""
        self._failures += 1
        if isinstance(error, ApiServerRefusedError) and error.status not in _NO_FAULT_OF_THE_VERSION:
            self._fruitless += 1  # such as a resource version newer than a restored backup of etcd
        state, text = self.watched.state, str(error)
        expired = isinstance(error, ApiServerRefusedError) and error.status == _EXPIRED
        if expired:  # the API server responds: the delay of an earlier outage does not apply to the next list
            self._expiries += 1
            self._failures = self._expiries
        if expired or self._fruitless >= _FRUITLESS:
            self._fruitless = 0
            self.watched.state = watch.after_expiry(state)
        else:
            self.watched.state = watch.after_interruption(state, text)
        if not (expired and self._failures == 1):
            fields = {"part": "pods", "error": text, "hint": "nodeagent doctor"}
            self._states.log_once("api_request_failed", fields, state=text)
        self.statuses.ended(POD_WATCH, "failed", detail=text, failed=True)
        if not isinstance(error, ApiServerRefusedError):
            return watch.retry_s(self._failures, self.parts.jitter())
        # 401 and 403 are retried too: a starting API server returns them until it has read its accounts and rules
        return watch.retry_s(self._failures, self.parts.jitter(), error.retry_after_s)

    def _succeeded(self) -> None:
        self.statuses.ended(POD_WATCH, "succeeded")
        self.statuses.running(POD_WATCH, _SILENT_S)
        if self._states.end("api_request_failed"):
            self.logger.info("api_request_recovered", part="pods")

    async def _store(self) -> None:
        """Write changed pods, at most every ``STORE_S``; a failure is logged, and the next change is written again."""
        now_s = self.clock.monotonic_s()
        if self._stored is not None and now_s - self._stored_s < STORE_S:
            return
        self._stored_s, state = now_s, self.watched.state
        facts = {uid: replace(each, resource_version="") for uid, each in state.pods.items()}
        if facts == self._stored or state.answered_at is None:
            return
        self._stored = facts
        try:
            await self.parts.store(tuple(facts.values()), state.answered_at)
        except StoreError as error:
            self._states.log_once("store_notice", {"notice": str(error)}, state=str(error))


class PodWatchTask(SessionTask):
    """Runs watch sessions while the watch is configured."""

    name = POD_WATCH
    poll_s = CHANGE_POLL_S

    def _off_because(self, settings: Settings) -> str:
        """Return ``not enabled`` if the watch is not configured, such as in a standby configuration; else empty."""
        kubernetes = settings.kubernetes
        return "" if kubernetes.watch_pods and kubernetes.access is not None else "not enabled"

    def _switch_off(self, because: str) -> None:
        super()._switch_off(because)
        self._context.watched_pods.reset()
        self._ran = False

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # imported here, since a daemon without a watch does not need h11, ssl and the API objects
        from nodeagent.cluster.facts import read_foreign  # noqa: PLC0415
        from nodeagent.host.node import node_name  # noqa: PLC0415
        from nodeagent.kube.api_client import ApiClient, NodeApi  # noqa: PLC0415
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
        from nodeagent.pods.pod_api import PodApi, PodWatch  # noqa: PLC0415

        access, name = settings.kubernetes.access, node_name(settings.kubelet.node_name)
        if access is None:
            return
        watched = self._context.watched_pods
        if watched.address != list_address(name):
            watched.reset()
            try:
                await asyncio.to_thread(restore_pods, watched, settings.state_directory, name)
            except StoreError as error:
                self._logger.warning("store_notice", notice=str(error))
        client = ApiClient(access, credentials := ApiCredentials(access))

        async def store(pods: tuple[PodSpec, ...], at: datetime) -> None:
            await asyncio.to_thread(write_watched_pods, settings.state_directory, name, pods, at)

        parts = PodWatchParts(
            list_pods=PodApi(client, name).list,
            foreign=partial(read_foreign, NodeApi(client, name)),
            make_watch=lambda: PodWatch(access, credentials, name),
            store=store,
            jitter=random.random,
        )
        session = PodWatchSession(parts, watched, self._context.clock, self._logger, self._context.loop_statuses)
        work = asyncio.create_task(session.run())
        try:
            while not work.done() and self._continues(settings, stop):
                await wait_for_any(CHANGE_POLL_S, stop)
            if work.done():
                work.result()
        finally:
            work.cancel()
            await asyncio.wait({work})
            client.close()
