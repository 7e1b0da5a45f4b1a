"""Concurrent calls for many items, with a limit on the calls in progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_CALLS = 8


async def run_bounded(
    call: Callable[[Item], Awaitable[Result]], items: Sequence[Item], limit: int = MAX_CALLS
) -> list[Result]:
    """Return the result of ``call`` for every item, in order, at most ``limit`` at a time; the first error ends all."""
    results: dict[int, Result] = {}
    pending = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await call(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[index] for index in range(len(items))]
