"""Concurrent calls: a few of different kinds, or many with a limit on the calls in progress.

After an error or a cancellation all other calls are cancelled and awaited, since the connection may be closed next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

MAX_CALLS = 8


@overload
async def gather_all(first: Awaitable[A], second: Awaitable[B], /) -> tuple[A, B]: ...


@overload
async def gather_all(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], /
) -> tuple[A, B, C, D]: ...


@overload
async def gather_all(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], fifth: Awaitable[E], /
) -> tuple[A, B, C, D, E]: ...


async def gather_all(*calls: Awaitable[Any]) -> tuple[Any, ...]:
    """Return the results of all calls; the first error is raised after the others have been cancelled and ended."""
    tasks = [asyncio.ensure_future(each) for each in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)


async def run_bounded(
    call: Callable[[Item], Awaitable[Result]], items: Sequence[Item], limit: int = MAX_CALLS
) -> list[Result]:
    """Return the results of ``call`` in item order, with at most ``limit`` calls at a time.

    The first error is raised after the other calls have been cancelled and ended.
    """
    results: dict[int, Result] = {}
    pending = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await call(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        await _end(workers)
    return [results[index] for index in range(len(items))]


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel the tasks in progress and wait for their end; no effect if all tasks have ended."""
    pending = [each for each in tasks if not each.done()]
    for each in pending:
        each.cancel()
    if pending:
        await asyncio.wait(pending)
