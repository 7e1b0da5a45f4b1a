"""Deadlines of phases and kills: late phases share the remaining time, and KILL follows TERM."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.shutdown.plan.planner import (
    MINIMUM_AFTER_TERM_MS,
    UNLIMITED,
    DelayLimit,
    ShutdownBudget,
    by_priority,
    final_term_ms,
    is_too_late,
    kill_due_ms,
    last_kill_ms,
    phase_end_ms,
    shutdown_budget,
    two_bands,
)

FOUR = shutdown_budget(by_priority([(0, 10), (1000, 10), (2000, 10), (3000, 10)]), UNLIMITED)
ALL = frozenset(range(4))


@pytest.mark.parametrize(
    ("index", "start_ms", "occupied", "end_ms"),
    [
        (0, 0, ALL, 10_000),
        (1, 400, ALL, 20_000),
        (1, 10_000, ALL, 20_000),
        (1, 18_500, ALL, 25_666),
        (1, 18_500, {1}, 28_500),
        (0, 18_500, {0, 3}, 28_500),
        (0, 30_000, ALL, 32_500),
        (3, 39_000, {3}, 40_000),
        (2, 41_000, ALL, 41_000),
    ],
    ids=[
        "in-time",
        "early",
        "exact",
        "late",
        "late-alone-has-its-own-time",
        "late-with-one-later-phase",
        "late-with-all",
        "last-second",
        "over",
    ],
)
def test_end_of_a_phase(index: int, start_ms: int, occupied: set[int], end_ms: int) -> None:
    assert phase_end_ms(FOUR, index, start_ms, occupied) == end_ms


@pytest.mark.difference("shutdown-phase-of-0")
def test_phase_without_time_ends_at_its_start() -> None:
    budget = shutdown_budget(two_bands(10, 0), UNLIMITED)
    assert phase_end_ms(budget, 1, 12_000, {1}) == 12_000


@pytest.mark.difference("shutdown-phase-of-0")
@pytest.mark.parametrize(
    ("signalled_ms", "own_ms", "due_ms"),
    [
        (None, 3000, 38_000),
        (100, None, 10_000),
        (100, 3000, 3100),
        (100, 60_000, 10_000),
        (100, 0, 100 + MINIMUM_AFTER_TERM_MS),
        (9900, None, 9900 + MINIMUM_AFTER_TERM_MS),
        (37_900, None, 37_900 + MINIMUM_AFTER_TERM_MS),
    ],
    ids=["unconfirmed", "phase", "own-grace", "capped", "no-grace", "late-term", "last-term"],
)
def test_time_of_kill(signalled_ms: int | None, own_ms: int | None, due_ms: int) -> None:
    assert kill_due_ms(signalled_ms, own_ms, 10_000, 38_000) == due_ms


@pytest.mark.parametrize(
    ("index", "start_ms", "too_late"),
    [(0, 0, False), (1, 10_200, False), (3, 39_500, False), (3, 39_501, True), (0, 41_000, True)],
)
def test_phase_without_a_minimum_time_is_too_late(index: int, start_ms: int, too_late: bool) -> None:
    assert is_too_late(FOUR, index, start_ms) is too_late


def test_phase_without_time_of_its_own_is_never_too_late() -> None:
    assert not is_too_late(shutdown_budget(two_bands(10, 0), UNLIMITED), 1, 12_000)


@pytest.mark.parametrize("limit_ms", [200, 2000, 5000])
def test_phase_of_a_short_limit_that_starts_in_time_is_not_too_late(limit_ms: int) -> None:
    budget = budget_of([10, 10, 10, 10], limit_ms)
    starts_ms = [0, *(each.deadline_ms for each in budget.phases[:-1])]
    assert [is_too_late(budget, index, at_ms + 5) for index, at_ms in enumerate(starts_ms)] == [False] * 4


@pytest.mark.difference("shutdown-direct-signals")
def test_last_term_is_shortly_before_kill() -> None:
    assert final_term_ms(0, 10_000) == 9000
    assert final_term_ms(0, 2000) == 1500
    assert final_term_ms(500, 500) == 500


WEIGHTS = st.lists(st.integers(0, 100), min_size=1, max_size=6)


def budget_of(weights: list[int], limit_ms: int | None) -> ShutdownBudget:
    limit = UNLIMITED if limit_ms is None else DelayLimit(limit_ms * 1000)
    return shutdown_budget(by_priority(list(enumerate(map(float, weights)))), limit)


@given(WEIGHTS, st.one_of(st.none(), st.integers(0, 200_000)), st.lists(st.integers(0, 90_000), max_size=6), st.data())
def test_phases_never_end_after_the_granted_time_in_spite_of_delays(
    weights: list[int], limit_ms: int | None, delays_ms: list[int], data: st.DataObject
) -> None:
    budget = budget_of(weights, limit_ms)
    occupied = data.draw(st.sets(st.integers(0, len(weights) - 1)))
    now_ms = 0
    for index in range(len(weights)):
        now_ms += delays_ms[index] if index < len(delays_ms) else 0
        end_ms = phase_end_ms(budget, index, now_ms, occupied)
        assert now_ms <= end_ms <= max(budget.granted_ms, now_ms)
        if now_ms < budget.granted_ms and budget.phases[index].granted_ms > len(weights) * 100:
            assert end_ms > now_ms, "every phase has time while the shutdown has time"
        now_ms = end_ms


@given(WEIGHTS, st.integers(0, 400_000), st.integers(0, 400_000), st.data())
def test_later_start_never_ends_a_phase_earlier(
    weights: list[int], start_ms: int, delay_ms: int, data: st.DataObject
) -> None:
    budget = budget_of(weights, None)
    index = data.draw(st.integers(0, len(weights) - 1))
    occupied = frozenset(range(len(weights)))
    assert phase_end_ms(budget, index, start_ms, occupied) <= phase_end_ms(budget, index, start_ms + delay_ms, occupied)


@given(
    st.one_of(st.none(), st.integers(0, 100_000)),
    st.one_of(st.none(), st.integers(0, 100_000)),
    st.integers(0, 100_000),
    st.integers(0, 100_000),
)
def test_kill_never_follows_term_before_the_minimum_time(
    signalled_ms: int | None, own_ms: int | None, phase_end: int, ends_ms: int
) -> None:
    last_ms = last_kill_ms(0, ends_ms)
    due_ms = kill_due_ms(signalled_ms, own_ms, phase_end, last_ms)
    if signalled_ms is None:
        assert due_ms == last_ms <= ends_ms
    else:
        assert due_ms <= max(last_ms, signalled_ms + MINIMUM_AFTER_TERM_MS)
        assert due_ms >= signalled_ms + MINIMUM_AFTER_TERM_MS
        if own_ms is not None and own_ms >= MINIMUM_AFTER_TERM_MS and due_ms < min(last_ms, phase_end):
            assert due_ms >= signalled_ms + own_ms, "KILL waits for the termination grace period within the phase"
