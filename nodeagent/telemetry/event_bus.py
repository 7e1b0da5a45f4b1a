"""Bus of log events, for the counters and for clients with an event stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Self

from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

Subscriber = Callable[[Mapping[str, object]], None]
"""Receives an event with its name (``event``), ``level``, ``timestamp`` and values. It runs inside the logging call, so
it must return at once; a subscriber that raises is unsubscribed."""

MAX_SUBSCRIBERS: Final = 64

_subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> None:
    """Deliver all further events to ``subscriber``, at any configured log level; debug events only if logged.

    Raises:
        UsageError: the bus already has ``MAX_SUBSCRIBERS`` subscribers.
    """
    if len(_subscribers) >= MAX_SUBSCRIBERS:
        raise UsageError(f"limit of {MAX_SUBSCRIBERS} event subscribers reached; retry after one has disconnected")
    _subscribers.append(subscriber)


def unsubscribe(subscriber: Subscriber) -> None:
    """Remove a subscriber; an unknown subscriber is ignored."""
    if subscriber in _subscribers:
        _subscribers.remove(subscriber)


def publish(values: Mapping[str, object]) -> None:
    """Deliver an event to all subscribers. A subscriber that raises an exception is unsubscribed."""
    if not _subscribers:
        return
    event = {key: value for key, value in values.items() if key != "exc_info"}
    for subscriber in tuple(_subscribers):
        try:
            subscriber(event)
        except Exception:  # noqa: BLE001 - logging must not fail, and this failure cannot be logged
            unsubscribe(subscriber)


class Subscription:
    """Queue of the events since ``__enter__``. A full queue drops its oldest event.

    A subscription is for use in one event loop only.

    Attributes:
        missed: number of dropped events.
    """

    def __init__(self, size: int = 1000) -> None:
        """Create a queue of at most ``size`` events, without a subscription."""
        self._size = size
        self._events: deque[Mapping[str, object]] = deque()
        self._available = asyncio.Event()
        self.missed = 0

    def __enter__(self) -> Self:
        subscribe(self._append)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unsubscribe(self._append)

    async def next(self) -> Mapping[str, object]:
        """Wait for the next event and return it."""
        while not self._events:
            self._available.clear()
            await self._available.wait()
        return self._events.popleft()

    def _append(self, event: Mapping[str, object]) -> None:
        if len(self._events) >= self._size:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._available.set()
