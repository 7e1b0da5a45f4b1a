"""Threads for blocking calls: for calls that may never return, and for calls that an urgent eviction waits for.

Calls on filesystems, such as ``statfs`` on a dead mount, may never return, and all threads of ``asyncio.to_thread`` may
hang in such calls. Guarded calls have threads of their own, of which each guard blocks at most one. Calls on kernel
files, without which no eviction for memory or PIDs is possible, have threads that no filesystem can block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, Generic, ParamSpec, TypeVar

from nodeagent.errors import ObservationError

T = TypeVar("T")
P = ParamSpec("P")

KERNEL_THREADS: Final = 4
_MANY_ITEMS: Final = 2_000
_GUARDED: Final = ThreadPoolExecutor(32, "guarded")
_KERNEL: Final = ThreadPoolExecutor(KERNEL_THREADS, "kernel")


def start_kernel_threads() -> None:
    """Start the threads of :func:`call_kernel`, since no thread can be started once the node has no free PID."""
    all_started = threading.Barrier(KERNEL_THREADS)
    for _ in range(KERNEL_THREADS):
        _KERNEL.submit(all_started.wait, 1.0)  # a waiting thread is not idle, so that each call starts another


async def call_kernel(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that only computes, or accesses only kernel files and processes.

    Kernel files are those of proc, sysfs and cgroups.
    """
    call = partial(copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_KERNEL, call)


async def compute(items: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a pure function, which for many items runs in a thread, so that the event loop responds."""
    if items < _MANY_ITEMS:
        return function(*args, **kwargs)
    return await call_kernel(function, *args, **kwargs)


class HangingCallError(ObservationError):
    """A guarded call did not return in time.

    The text has no subject, as in ``does not answer within 2 s``; the caller prefixes the object of the call.
    """


class GuardedCall(Generic[T]):
    """Executor of blocking functions in a worker thread, one function at a time.

    A call waits for the previous call. After a call has exceeded its deadline, further calls fail immediately until the
    late call returns. A guard is not bound to an event loop, since a hanging thread outlives the loop that started it.
    """

    def __init__(self) -> None:
        self._running: Future[T] | None = None
        self._is_late = False

    async def run(self, function: Callable[[], T], *, within_s: float | None = None) -> T:
        """Return the result of a function.

        Args:
            function: blocking function; runs in the context of the caller.
            within_s: time limit in seconds for the wait for the previous function, and again for this function.
                ``None`` for no limit. A running function continues after the limit and after a cancellation.

        Raises:
            HangingCallError: this function or the previous function did not return in time.
            Exception: any exception of the function.
        """
        while self._running is not None and not self._running.done():
            if self._is_late:
                raise HangingCallError("still does not answer")
            await self._wait(self._running, within_s)
        call = self._running = Future[T]()
        self._is_late = False
        call.set_running_or_notify_cancel()  # a cancellation ends only the wait for the call
        with suppress(RuntimeError):  # no free PID for a further thread; the call waits for one of the others
            asyncio.get_running_loop().run_in_executor(_GUARDED, copy_context().run, _complete, call, function)
        await self._wait(call, within_s)
        return call.result()

    async def _wait(self, call: Future[T], within_s: float | None) -> None:
        """Wait for a call.

        Raises:
            HangingCallError: the call did not return within ``within_s`` seconds.
        """
        waiting = asyncio.wrap_future(call)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=within_s)
        finally:
            waiting.cancel()  # the call continues; asyncio would log its error otherwise
        if not done:
            self._is_late = self._is_late or call is self._running
            raise HangingCallError(f"does not answer within {within_s:g} s")
        waiting.exception()  # retrieved, since asyncio logs unretrieved errors


def _complete(call: Future[T], function: Callable[[], T]) -> None:
    try:
        call.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised again in the caller
        call.set_exception(error)
