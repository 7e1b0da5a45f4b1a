"""Listening to what the agent logs: metrics count events, and whoever follows the agent gets them as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Self

from nodeagent.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

Tap = Callable[[Mapping[str, object]], None]
"""Gets an event with its name (``event``), ``level``, ``timestamp`` and values. It is called while the event is being
logged, so it returns at once; one that raises is taken off."""

MOST: Final = 64

_taps: list[Tap] = []


def subscribe(tap: Tap) -> None:
    """Have every event from now on told to ``tap``, whatever the configured level; debug only where it is logged.

    Raises:
        UsageError: there are too many already.
    """
    if len(_taps) >= MOST:
        raise UsageError(f"the agent's events are followed {MOST} times already; try again once one has ended")
    _taps.append(tap)


def unsubscribe(tap: Tap) -> None:
    """Take a tap off; one that is off already is no fault."""
    if tap in _taps:
        _taps.remove(tap)


def publish(values: Mapping[str, object]) -> None:
    """Tell an event to every tap. It never raises."""
    if not _taps:
        return
    told = {key: value for key, value in values.items() if key != "exc_info"}
    for tap in tuple(_taps):
        try:
            tap(told)
        except Exception:  # noqa: BLE001 - logging must not fail, and cannot log this
            unsubscribe(tap)


class Subscription:
    """The events from the moment of entering on, one after the other. A slow reader loses the oldest.

    It belongs to one event loop.

    Attributes:
        missed: how many were lost so far.
    """

    def __init__(self, size: int = 1000) -> None:
        """Prepare to hold back ``size`` events at most."""
        self._size = size
        self._events: deque[Mapping[str, object]] = deque()
        self._some = asyncio.Event()
        self.missed = 0

    def __enter__(self) -> Self:
        subscribe(self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unsubscribe(self._take)

    async def next(self) -> Mapping[str, object]:
        """Return the next event, once there is one."""
        while not self._events:
            self._some.clear()
            await self._some.wait()
        return self._events.popleft()

    def _take(self, event: Mapping[str, object]) -> None:
        if len(self._events) >= self._size:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._some.set()
