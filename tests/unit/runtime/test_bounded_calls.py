"""Concurrent calls: order of results; no call remains in progress after an error or a cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.runtime.connection import gather_all, run_bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Calls:
    """Fake calls: waiting calls that count their ends, and a call that fails."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = 0

    async def wait(self) -> None:
        """Wait until cancelled; count the end of the call."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended += 1

    async def fail(self) -> None:
        """Raise an error after another call has started."""
        await self.begun.wait()
        raise RuntimeUnavailableError("no connection")


async def value(each: int) -> int:
    return each


async def test_results_are_in_order_of_the_calls() -> None:
    assert await gather_all(value(1), value(2)) == (1, 2)
    assert await gather_all(value(1), value(2), value(3), value(4)) == (1, 2, 3, 4)
    assert await run_bounded(value, [1, 2, 3], limit=2) == [1, 2, 3]


def both(calls: Calls) -> Awaitable[object]:
    return gather_all(calls.wait(), calls.fail())


def bounded(calls: Calls) -> Awaitable[object]:
    return run_bounded(lambda call: call(), [calls.wait, calls.fail])


@pytest.mark.parametrize("run", [both, bounded])
async def test_no_call_outlives_the_error_of_another(run: object) -> None:
    assert callable(run)
    calls = Calls()
    with pytest.raises(RuntimeUnavailableError, match="no connection"):
        await run(calls)
    assert calls.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_calls_end_with_the_cancellation_of_their_caller() -> None:
    calls = Calls()
    caller = asyncio.ensure_future(gather_all(calls.wait(), calls.wait()))
    await calls.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert calls.ended == 2
