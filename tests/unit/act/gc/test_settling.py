"""Measurement of the time in which transactions only wait."""

from __future__ import annotations

from contextlib import ExitStack

from nodeagent.act.gc.settling import Waits
from tests.support.manual_clock import ManualClock


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
