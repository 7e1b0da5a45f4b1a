"""Watch of this node's pods: list, then changes until the watch ends, again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.daemon.kubernetes import POD_WATCH
from nodeagent.errors import ApiServerError, ApiServerRefusedError, StoreError
from nodeagent.plan.kubernetes.pod_watch import (
    after_connection,
    after_event,
    after_expiry,
    after_interruption,
    after_list,
    needs_list,
    retry_s,
)
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    from nodeagent.clock import Clock
    from nodeagent.daemon.loop_status import LoopStatuses
    from nodeagent.model.pods import PodSpec
    from nodeagent.observe.watched_pods import WatchedPods
    from nodeagent.plan.kubernetes.pod_watch import PodEvent

WATCH_S: Final = 240
"""Least duration of one watch; up to as much is added, so that the watches of nodes do not end together."""
STORE_S: Final = 30.0
"""Least time between two writes of the pods."""
_SILENT_S: Final = 600.0
_LASTED_S: Final = 5.0
"""Duration from which a watch that ended without a change is no failure."""
_FRUITLESS: Final = 3
"""Watches in a row that were refused or ended before a change, after which the pods are listed again."""
_NO_FAULT_OF_THE_VERSION: Final = frozenset({401, 403, 429})
_EXPIRED: Final = 410


class EventStream(Protocol):
    """One watch."""

    async def open(self, resource_version: str, timeout_s: int) -> None:
        """Start the watch. Raises ApiServerError if it is refused or not answered."""

    async def next_event(self) -> PodEvent | None:
        """Return the next change; ``None`` at the end. Raises ApiServerError if it is lost or has expired."""

    def close(self) -> None:
        """Close the connection."""


class PodWatchParts(Record):
    """Collaborators of a session.

    Attributes:
        list_pods: returns all pods and their version; raises ApiServerError.
        foreign: returns the reason that the list may be of another node, empty for none; raises ApiServerError.
        make_watch: returns a new watch.
        store: writes pods as of a time; raises StoreError.
        jitter: returns a number from 0 to 1.
    """

    list_pods: Callable[[], Awaitable[tuple[tuple[PodSpec, ...], str]]]
    foreign: Callable[[], Awaitable[str]]
    make_watch: Callable[[], EventStream]
    store: Callable[[tuple[PodSpec, ...], datetime], Awaitable[None]]
    jitter: Callable[[], float]


class PodWatchSession:
    """Keeps the watched pods current until it is cancelled."""

    def __init__(
        self,
        parts: PodWatchParts,
        watched: WatchedPods,
        clock: Clock,
        logger: FilteringBoundLogger,
        statuses: LoopStatuses,
    ) -> None:
        self._parts = parts
        self._watched = watched
        self._clock = clock
        self._logger = logger
        self._statuses = statuses
        self._failures = 0
        self._fruitless = 0
        self._logged = ""
        self._stored: Mapping[str, PodSpec] | None = None
        self._stored_s = 0.0

    async def run(self) -> None:
        """List and watch; it ends by cancellation only."""
        while True:
            self._statuses.running(POD_WATCH, _SILENT_S)
            try:
                if needs_list(self._watched.state):
                    await self._list()
                wait_s = await self._watch()
            except ApiServerError as error:
                wait_s = self._failed(error)
            self._statuses.waiting(POD_WATCH, wait_s, _SILENT_S)
            await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        requested_s = self._clock.monotonic_s()
        pods, version = await self._parts.list_pods()
        foreign = await self._parts.foreign()
        self._watched.state = after_list(
            self._watched.state,
            pods,
            version,
            requested_s=requested_s,
            now_s=self._clock.monotonic_s(),
            now=self._clock.now(),
            foreign=foreign,
        )
        self._fruitless = 0
        await self._store()

    async def _watch(self) -> float:
        """Follow one watch until its end; return the seconds until the next."""
        watched, stream = self._watched, self._parts.make_watch()
        began_s = self._clock.monotonic_s()
        changed = False
        try:
            await stream.open(watched.state.resource_version, WATCH_S + int(WATCH_S * self._parts.jitter()))
            self._fruitless += 1  # until a change is read
            watched.state = after_connection(watched.state, self._clock.monotonic_s(), self._clock.now())
            self._succeeded()
            while (event := await stream.next_event()) is not None:
                watched.state = after_event(watched.state, event, self._clock.monotonic_s(), self._clock.now())
                if event.kind is not None:
                    changed, self._fruitless, self._failures = True, 0, 0
                self._statuses.beat(POD_WATCH, _SILENT_S)
                await self._store()
        finally:
            stream.close()
        if changed or self._clock.monotonic_s() - began_s >= _LASTED_S:
            self._failures = self._fruitless = 0
            return 0.0
        self._failures += 1
        return retry_s(self._failures, self._parts.jitter())

    def _failed(self, error: ApiServerError) -> float:
        """Record a failure; return the seconds until the next attempt."""
        self._failures += 1
        if isinstance(error, ApiServerRefusedError) and error.status not in _NO_FAULT_OF_THE_VERSION:
            self._fruitless += 1  # such as a version from before a restored backup, which is too new now
        state, text = self._watched.state, str(error)
        expired = isinstance(error, ApiServerRefusedError) and error.status == _EXPIRED
        if expired or self._fruitless >= _FRUITLESS:
            self._fruitless = 0
            self._watched.state = after_expiry(state)
        else:
            self._watched.state = after_interruption(state, text)
        if text != self._logged and not (expired and self._failures == 1):
            self._logged = text
            self._logger.warning("api_request_failed", part="pods", error=text, hint="nodeagent doctor")
        self._statuses.ended(POD_WATCH, "failed", detail=text, failed=True)
        if not isinstance(error, ApiServerRefusedError):
            return retry_s(self._failures, self._parts.jitter())
        # also after 401 and 403, which a starting API server gives until it has read its accounts and rules
        return retry_s(self._failures, self._parts.jitter(), error.retry_after_s)

    def _succeeded(self) -> None:
        self._statuses.ended(POD_WATCH, "succeeded")
        self._statuses.running(POD_WATCH, _SILENT_S)
        if self._logged:
            self._logged = ""
            self._logger.info("api_request_recovered", part="pods")

    async def _store(self) -> None:
        """Write changed pods, at most every ``STORE_S``; a failure is logged once and tried again later."""
        state, now_s = self._watched.state, self._clock.monotonic_s()
        if self._stored is not None and now_s - self._stored_s < STORE_S:
            return
        facts = {uid: replace(each, resource_version="") for uid, each in state.pods.items()}
        if facts == self._stored or state.foreign or state.answered_at is None:
            return
        self._stored, self._stored_s = facts, now_s
        try:
            await self._parts.store(tuple(facts.values()), state.answered_at)
        except StoreError as error:
            self._logger.warning("store_notice", notice=str(error))
