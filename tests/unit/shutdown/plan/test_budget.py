"""Shutdown phases, and their time budgets within the limit of logind or systemd."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.settings.settings import Config
from nodeagent.shutdown.plan.planner import (
    DelayLimit,
    Phase,
    Selector,
    by_priority,
    check_phases,
    required_delay_s,
    shutdown_budget,
    two_bands,
)
from nodeagent.units import USEC_INFINITY
from tests.unit.shutdown.plan.cases import FOUR, NETWORK_LAST, budget, phase_lists

# --- the phases


def test_two_durations_become_two_priority_bands() -> None:
    assert [(phase.min_priority, phase.seconds) for phase in two_bands(30, 10)] == [(0, 20), (2_000_000_000, 10)]


@pytest.mark.difference("shutdown-fractions")
def test_fractions_of_a_second_are_kept() -> None:
    assert [phase.requested_ms for phase in two_bands(2.5, 0.25)] == [2250, 250]
    assert [phase.requested_ms for phase in by_priority([(0, 1.5), (1000, 0.001)])] == [1500, 1]


@pytest.mark.difference("shutdown-default")
def test_graceful_shutdown_is_enabled_with_30_seconds_by_default() -> None:
    default = Config().shutdown.settings()
    assert default.enabled is None
    assert default.phases == two_bands(30, 10)


def test_zero_grace_period_has_no_phases() -> None:
    assert two_bands(0, 0) == ()


def test_regular_phase_is_absent_if_all_time_is_critical() -> None:
    assert [phase.seconds for phase in two_bands(10, 10)] == [0, 10]


@pytest.mark.difference("shutdown-critical-part")
@pytest.mark.parametrize(
    ("total", "critical", "message"),
    [
        (10, 11, r"grace_period_critical \(11s\) is part of grace_period \(10s\)"),
        (0, 1, "must not exceed grace_period"),
        (-1, 0, "grace_period is negative: -1 seconds"),
        (10, -5, "grace_period_critical is negative: -5 seconds"),
        (float("nan"), 0, "not a number of seconds"),
        (float("inf"), 0, "not a number of seconds"),
        (10**9, 0, "more than the allowed"),
    ],
)
def test_invalid_grace_periods_are_rejected(total: float, critical: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_bands(total, critical)


@pytest.mark.difference("shutdown-priority-order")
@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1000, 5), (0, 5)], "must ascend: 'priority-0' with min_priority 0 follows 'priority-1000' with 1000"),
        ([(0, 5), (0, 6)], "both have min_priority 0"),
        ([(0, 5), (1, -6)], "'priority-1' is negative: -6 seconds"),
        ([(2**31, 5)], "is not a 32-bit number"),
        ([(-(2**31) - 1, 5)], "is not a 32-bit number"),
    ],
    ids=["descending", "duplicate", "negative", "too-high", "too-low"],
)
def test_invalid_priority_pairs_are_rejected(pairs: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_priority(pairs)


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((Phase("a", 1, 0), Phase("b", 1, 0)), "'a' and 'b' both have min_priority 0"),
        ((Phase("a", 1, 0), Phase("a", 1, 1)), "two shutdown phases have the name 'a'"),
        ((Phase("", 1, 0),), "empty name"),
        ((Phase("a", 1),), "selects no pods"),
        ((Phase("a", 1, None, (Selector(("x",)),)),), "no shutdown phase has a min_priority"),
        ((Phase("a", 1, 0, (Selector(),)),), "would match every pod"),
        ((Phase("a", 1, 5), Phase("n", 1, None, (Selector(("x",)),)), Phase("b", 1, 4)), "must ascend"),
    ],
    ids=["duplicate", "name-twice", "no-name", "no-pods", "no-band", "empty-selector", "across-a-selector"],
)
def test_invalid_phases_are_rejected(phases: tuple[Phase, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_phases(phases)


@pytest.mark.parametrize("phases", [(), FOUR, NETWORK_LAST, two_bands(30, 10), by_priority([(0, 0), (5, 0)])])
def test_valid_phases_are_accepted(phases: tuple[Phase, ...]) -> None:
    check_phases(phases)


# --- logind's limit


@pytest.mark.difference("logind-limit")
@pytest.mark.parametrize(
    ("limit_us", "granted", "scaled"),
    [
        (45_000_000, [5000, 20000, 10000, 10000], False),
        (USEC_INFINITY, [5000, 20000, 10000, 10000], False),
        (44_999_999, [4999, 20000, 10000, 10000], True),
        (9_000_000, [1000, 4000, 2000, 2000], True),
        (5_000_000, [555, 2222, 1111, 1112], True),
        (999, [0, 0, 0, 0], True),
        (0, [0, 0, 0, 0], True),
    ],
    ids=["exactly", "infinity", "just-short", "a-fifth", "default", "below-a-millisecond", "zero"],
)
def test_phases_are_scaled_in_proportion(limit_us: int, granted: list[int], scaled: bool) -> None:
    fitted = budget(limit_us=limit_us)
    assert [share.granted_ms for share in fitted.phases] == granted
    assert fitted.scaled is scaled


def test_scaling_is_noted_with_the_file_of_the_limit() -> None:
    fitted = budget(two_bands(60, 10), 30_000_000, limit_set_by="/usr/lib/systemd/logind.conf.d/unattended.conf")
    assert fitted.notes[0] == (
        "the phases add up to 1m, but logind waits only 30s (InhibitDelayMaxSec, set by "
        "/usr/lib/systemd/logind.conf.d/unattended.conf): they are scaled to 30s"
    )


def test_reserve_is_subtracted_from_the_limit() -> None:
    fitted = budget(two_bands(30, 10), 30_000_000, reserve_ms=600)
    assert fitted.granted_ms == 29_400
    assert "scaled to 29.4s" in fitted.notes[0]
    assert budget(two_bands(20, 10), 30_000_000, reserve_ms=600).notes == ()
    assert budget(two_bands(20, 10), 1_000_000, reserve_ms=600).granted_ms == 900


def test_note_on_scaling_does_not_round_the_granted_time_up_to_the_limit() -> None:
    assert budget(two_bands(90, 10), 90_000_000, reserve_ms=500).notes[0].endswith("they are scaled to 89.5s")


def test_unread_limit_is_noted() -> None:
    fitted = budget(limit_us=None)
    assert not fitted.scaled
    assert fitted.limit_ms is None
    assert "cannot read the limit" in fitted.notes[0]


def test_phase_without_time_is_noted() -> None:
    assert "phase 'critical' has no time" in budget(two_bands(10, 0)).notes[0]


@pytest.mark.parametrize(
    ("phases", "limit_us", "suffices"),
    [
        (two_bands(30, 10), None, True),
        (two_bands(30, 10), USEC_INFINITY, True),
        (two_bands(30, 10), USEC_INFINITY - 1, True),
        (two_bands(30, 10), 5_000_000, True),
        (two_bands(30, 10), 2_223_000, True),
        (two_bands(30, 10), 2_221_000, False),
        (two_bands(30, 10), 1_000_000, False),
        (two_bands(30, 10), 0, False),
        (two_bands(1, 0), 1_200_000, True),
        (two_bands(1, 0), 1_000_000, False),
        ((), 0, True),
    ],
)
def test_pods_are_stopped_at_the_signal_from_two_seconds_of_granted_time(
    phases: tuple[Phase, ...], limit_us: int | None, suffices: bool
) -> None:
    fitted = budget(phases, limit_us, reserve_ms=500)
    assert fitted.suffices_at_signal is suffices
    assert bool(fitted.delegated_because) is not suffices


def test_delegation_to_the_stop_hook_is_explained() -> None:
    assert budget(two_bands(30, 10), 0, "/etc/x.conf").delegated_because == (
        "logind waits only 0s (InhibitDelayMaxSec, set by /etc/x.conf), too short for phases of 30s in total: no pod "
        "is stopped at the signal; the unit's stop hook stops pods within TimeoutStopSec"
    )


@pytest.mark.parametrize(("limit_us", "reserve_ms"), [(-1, 0), (5, -1)])
def test_negative_limit_is_rejected(limit_us: int, reserve_ms: int) -> None:
    with pytest.raises(ValueError, match="invalid limit"):
        budget(limit_us=limit_us, reserve_ms=reserve_ms)


@given(phase_lists(), st.integers(0, 2**64 - 1), st.integers(0, 5000))
def test_granted_time_never_exceeds_the_limit(phases: tuple[Phase, ...], limit_us: int, reserve_ms: int) -> None:
    fitted = budget(phases, limit_us, reserve_ms=reserve_ms)
    shares = [share.granted_ms for share in fitted.phases]
    assert sum(shares) == fitted.granted_ms <= fitted.requested_ms
    assert limit_us == USEC_INFINITY or fitted.granted_ms * 1000 <= limit_us
    assert all(0 <= share.granted_ms <= share.phase.requested_ms + 1 for share in fitted.phases)
    for share in fitted.phases:
        exact = share.phase.requested_ms * fitted.granted_ms / fitted.requested_ms if fitted.requested_ms else 0
        assert abs(share.granted_ms - exact) <= 1.001


# --- sources of the limit


@pytest.mark.parametrize(
    ("reported_us", "limit_ms"), [(None, 5000), (30_000_000, 30_000), (0, 0), (USEC_INFINITY, None)]
)
def test_reported_limit_of_logind_precedes_its_files(reported_us: int | None, limit_ms: int | None) -> None:
    limit = DelayLimit.of_logind(reported_us, 5_000_000, "/etc/x.conf")
    assert limit.limit_ms == limit_ms
    assert limit.source == "InhibitDelayMaxSec, set by /etc/x.conf"


@pytest.mark.parametrize(
    ("timeout_us", "elapsed_s", "limit_ms"),
    [(None, 3.0, None), (60_000_000, 0.0, 50_000), (60_000_000, 3.5, 46_500), (10_000_000, 0.0, 0), (0, 0.0, 0)],
)
def test_limit_at_a_unit_stop_excludes_the_reserve_and_the_elapsed_time(
    timeout_us: int | None, elapsed_s: float, limit_ms: int | None
) -> None:
    assert DelayLimit.of_unit_stop(timeout_us, elapsed_s=elapsed_s).limit_ms == limit_ms


def test_scaling_at_a_unit_stop_names_systemd_and_its_setting() -> None:
    fitted = shutdown_budget(two_bands(60, 10), DelayLimit.of_unit_stop(40_000_000))
    assert fitted.notes[0] == (
        "the phases add up to 1m, but systemd waits only 30s (TimeoutStopSec, set by the unit): they are scaled to "
        "29.5s"
    )


@given(phase_lists())
def test_required_delay_grants_the_configured_time(phases: tuple[Phase, ...]) -> None:
    fitted = shutdown_budget(phases, DelayLimit(required_delay_s(phases) * 10**6))
    assert not fitted.scaled


@pytest.mark.parametrize(
    ("limit_us", "started_ms", "latest_end_ms"),
    [(None, 0, 32_000), (60_000_000, 0, 32_000), (30_600_000, 0, 30_500), (5_000_000, 0, 4900), (None, 40_000, 40_500)],
    ids=["unknown-limit", "long-limit", "limit-near", "scaled", "late-start"],
)
def test_latest_end_allows_the_last_kills_within_the_limit(
    limit_us: int | None, started_ms: int, latest_end_ms: int
) -> None:
    assert shutdown_budget(two_bands(30, 10), DelayLimit(limit_us)).latest_end_ms(started_ms) == latest_end_ms
