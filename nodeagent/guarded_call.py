"""Blocking calls that may never return, such as ``statfs`` on a dead mount: each guard loses one thread at most."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

from nodeagent.errors import ObservationError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class HangingCallError(ObservationError):
    """No result of a guarded call in time; the text follows a noun."""


class GuardedCall(Generic[T]):
    """Runs blocking functions in a worker thread, one at a time.

    A call waits for the one before it. After a call exceeded its deadline, later ones fail at once until it returns.
    It belongs to no event loop: a thread that hangs outlives the loop that started it.
    """

    def __init__(self) -> None:
        self._running: Future[T] | None = None
        self._is_late = False

    async def run(self, function: Callable[[], T], *, within_s: float | None = None) -> T:
        """Return the result of a function.

        Args:
            function: blocking; runs in the context of the caller.
            within_s: deadline of the function, and before it of the wait for an earlier one; ``None`` for none. The
                function is not ended by it, and neither by a cancellation of the caller.

        Raises:
            HangingCallError: the function, or an earlier one, did not return in time.
            Exception: as the function.
        """
        while self._running is not None and not self._running.done():
            if self._is_late:
                raise HangingCallError("still does not answer")
            await self._wait(self._running, within_s)
        call = self._running = Future[T]()
        self._is_late = False
        call.set_running_or_notify_cancel()  # cancels waits for it only
        asyncio.get_running_loop().run_in_executor(None, copy_context().run, _complete, call, function)
        await self._wait(call, within_s)
        return call.result()

    async def _wait(self, call: Future[T], within_s: float | None) -> None:
        """Wait for a call. Raises HangingCallError after the deadline."""
        waiting = asyncio.wrap_future(call)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=within_s)
        finally:
            waiting.cancel()  # without effect on the call, whose error asyncio would log otherwise
        if not done:
            self._is_late = self._is_late or call is self._running
            raise HangingCallError(f"does not answer within {within_s:g} s")
        waiting.exception()  # retrieved, as above


def _complete(call: Future[T], function: Callable[[], T]) -> None:
    try:
        call.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        call.set_exception(error)
