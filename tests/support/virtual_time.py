"""Event loop with virtual time that advances when the loop is idle, so that waits need no real time."""

from __future__ import annotations

import asyncio
import selectors
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with a time that starts at 0 and is advanced to the next timer; for code without sockets.

    Functions for an executor thread are called immediately in the thread of the loop.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        del executor
        made = self.create_future()
        try:
            made.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - an executor also passes every error to the future
            made.set_exception(error)
        return made


class LoopClock:
    """Clock with the time of the running loop; the wall time starts at :data:`START`."""

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("deadlock: all tasks wait and no timer is pending")
        self._loop.now_s += timeout
        return ready


def play(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine in virtual time; return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now_ms() -> int:
    """Return the running loop's time in milliseconds."""
    return round(asyncio.get_running_loop().time() * 1000)
