"""Wait for container creations in progress, and the counted waiting time of transactions."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from nodeagent.gc.guard import Waits, settle
from nodeagent.runtime.leases import CreationLeases
from tests.support.manual_clock import ManualClock
from tests.support.virtual_time import play


def test_time_counts_only_while_a_transaction_waits_and_none_works() -> None:
    clock = ManualClock()
    waits = Waits(clock)
    with waits.working():
        clock.at_s += 1
        with waits.waiting():
            clock.at_s += 2
            with waits.working():
                clock.at_s += 4
                with waits.waiting():
                    clock.at_s += 8
            clock.at_s += 16
        clock.at_s += 32
    clock.at_s += 64
    assert waits.total_s == 2 + 8 + 16


def test_wait_ends_with_its_error() -> None:
    clock = ManualClock()
    waits = Waits(clock)
    with ExitStack() as ended:
        ended.enter_context(waits.working())
        ended.enter_context(waits.waiting())
        clock.at_s += 1
    clock.at_s += 2
    assert waits.total_s == 1


class LoopClock(ManualClock):
    """A clock with the monotonic time of the running event loop."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


class NoCreations:
    async def leases(self) -> CreationLeases:
        return CreationLeases(frozenset(), frozenset())


@pytest.mark.parametrize(
    ("delays_s", "ends_s"),
    [
        ((0.0,), 0.25),
        ((0.3, 0.0), 0.25 + 0.3 + 0.3),
        ((0.1, 0.2, 0.0), 0.25 + 0.1 + 0.1 + 0.2 + 0.2),
        ((0.6, 0.1), 1.0 + 0.1),
        ((5.0,), 0.25 + 5.0),
    ],
    ids=["prompt", "delayed once", "delayed twice", "cut at the maximum", "one delay longer than the maximum"],
)
def test_wait_is_extended_by_the_delay_of_writes_up_to_its_maximum(delays_s: tuple[float, ...], ends_s: float) -> None:
    left = list(delays_s)

    async def write() -> None:
        await asyncio.sleep(left.pop(0))

    async def wait() -> None:
        await settle(NoCreations(), write, LoopClock(), 1.0)
        assert asyncio.get_running_loop().time() == pytest.approx(ends_s)

    play(wait())
    assert not left
