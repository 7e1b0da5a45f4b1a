"""Work that holds a lock until the work finishes, even if its request is cancelled earlier."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def run_exclusively(lock: asyncio.Lock, work: Coroutine[object, object, T]) -> T:
    """Run work under a lock and return its result.

    A cancellation during the wait for the lock prevents the work. After a later cancellation the work continues under
    the lock, so that uninterruptible work, such as a thread, is never started twice.

    Raises:
        Exception: the work failed.
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
        ended.exception()  # retrieved here: asyncio would log the exception if the caller was cancelled
