"""Work that holds a lock until its own end, even if the request that started it ends before."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def run_exclusively(lock: asyncio.Lock, work: Coroutine[object, object, T]) -> T:
    """Return the result of some work that runs under a lock.

    Cancelled while it waits for the lock, it does not start the work. Cancelled later, it leaves the work running under
    the lock, so that what cannot be interrupted, such as a thread, is never started twice.

    Raises:
        Exception: that of the work.
    """
    try:
        await lock.acquire()
    except BaseException:
        work.close()
        raise
    task = asyncio.ensure_future(work)
    task.add_done_callback(partial(_release, lock))
    return await asyncio.shield(task)


def _release(lock: asyncio.Lock, ended: asyncio.Future[T]) -> None:
    lock.release()
    if not ended.cancelled():
        ended.exception()  # raised to the caller, unless that was cancelled
