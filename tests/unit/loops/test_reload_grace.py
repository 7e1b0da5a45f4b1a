"""Reload grace period: start, restart and end, with a manual clock."""

from __future__ import annotations

import pytest

from nodeagent.loops.passes import PassLock, Pause, PausedBy
from nodeagent.loops.reload_grace import ReloadGrace, grace_needed_s
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from tests.sim.clock import SimClock

PAUSED = Pause(PausedBy.OPERATOR, "maintenance")


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def pass_lock(clock: SimClock) -> PassLock:
    return PassLock(clock)


@pytest.fixture
def grace(clock: SimClock, pass_lock: PassLock) -> ReloadGrace:
    made = ReloadGrace(clock, pass_lock)
    made.begin(60, "test")
    made.announce()
    return made


def test_new_grace_period_is_not_pending(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    assert (made.pending, made.over(), made.left_s(), made.until()) == (False, False, 0.0, None)
    made.announce()
    assert not made.pending


def test_period_ends_after_its_length(grace: ReloadGrace, clock: SimClock) -> None:
    clock.advance(59)
    assert (grace.over(), grace.left_s()) == (False, 1)
    clock.advance(1)
    assert (grace.over(), grace.left_s(), grace.pending) == (True, 0, True)
    assert grace.end()
    assert not grace.end()
    assert not grace.over()


def test_period_does_not_end_before_the_effect_is_announced(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    made.begin(60, "test")
    clock.advance(1000)
    assert (made.over(), made.left_s(), made.until()) == (False, 60, None)
    made.announce()
    assert (made.over(), made.left_s()) == (False, 60)


def test_period_restarts_at_resume(grace: ReloadGrace, clock: SimClock, pass_lock: PassLock) -> None:
    clock.advance(50)
    pass_lock.add_pause(PAUSED)
    clock.advance(1000)
    assert (grace.over(), grace.left_s(), grace.until()) == (False, 60, None)
    pass_lock.end_pause(PausedBy.OPERATOR)
    clock.advance(59)
    assert not grace.over()
    clock.advance(1)
    assert grace.over()


def test_period_restarts_at_the_expiry_of_a_pause(grace: ReloadGrace, clock: SimClock, pass_lock: PassLock) -> None:
    pass_lock.add_pause(replace(PAUSED, until_s=clock.monotonic_s() + 100))
    clock.advance(130)
    assert (grace.over(), grace.left_s()) == (False, 30)


def test_period_starts_at_the_end_of_an_earlier_pause(clock: SimClock, pass_lock: PassLock) -> None:
    made = ReloadGrace(clock, pass_lock)
    pass_lock.add_pause(PAUSED)
    made.begin(60, "test")
    made.announce()
    clock.advance(100)
    pass_lock.end_pause(PausedBy.OPERATOR)
    assert made.left_s() == 60


def test_period_starts_at_the_end_of_the_last_pause(grace: ReloadGrace, clock: SimClock, pass_lock: PassLock) -> None:
    pass_lock.add_pause(PAUSED)
    pass_lock.add_pause(replace(PAUSED, by=PausedBy.SHUTDOWN))
    pass_lock.end_pause(PausedBy.OPERATOR)
    clock.advance(100)
    assert not grace.over()
    pass_lock.end_pause(PausedBy.SHUTDOWN)
    assert grace.left_s() == 60


def test_period_of_zero_ends_the_wait(grace: ReloadGrace) -> None:
    grace.begin(0, "test")
    assert not grace.pending


@pytest.mark.parametrize(
    ("before", "after", "pending", "waits"),
    [
        (True, False, False, True),
        (True, True, False, False),
        (False, True, False, False),
        (False, True, True, False),
        (False, False, False, False),
        (False, False, True, True),
        (True, False, True, True),
    ],
)
def test_only_a_switch_to_active_or_a_change_during_a_wait_waits(
    before: bool, after: bool, pending: bool, waits: bool
) -> None:
    made = checked(Origin())
    needed_s = grace_needed_s(replace(made, dry_run=before), replace(made, dry_run=after), pending=pending)
    assert needed_s == (60.0 if waits else 0.0)
