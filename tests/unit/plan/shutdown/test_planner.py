"""Shutdown phases, their budgets, and the placement of pods."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model import PodOutcome, PodProgress, ShutdownPod
from nodeagent.model.priority import CRITICAL_PRIORITY, NODE_CRITICAL_PRIORITY
from nodeagent.plan.shutdown.budget import DelayLimit, ShutdownBudget, shutdown_budget
from nodeagent.plan.shutdown.phases import (
    Phase,
    Selector,
    by_priority,
    check_phases,
    two_bands,
)
from nodeagent.plan.shutdown.planner import (
    PlacedBy,
    ShutdownPlan,
    begin_phase,
    elapsed_since,
    place,
    plan_shutdown,
)
from nodeagent.units import USEC_INFINITY

MANY_US = 3600 * 10**6
FOUR = (
    Phase("batch", 5, -10),
    Phase("web", 20, 0),
    Phase("database", 10, 1000),
    Phase("critical", 10, CRITICAL_PRIORITY),
)
NETWORK_LAST = (
    *two_bands(30, 10),
    Phase("network", 5, None, (Selector(("calico-system",)), Selector(labels={"tier": "storage", "node": "yes"}))),
)


def pod(uid: str = "a", **more: Any) -> ShutdownPod:
    return ShutdownPod(uid=uid, **{"namespace": "shop", "name": f"pod-{uid}", **more})


def budget(
    phases: tuple[Phase, ...] = FOUR, limit_us: int | None = MANY_US, limit_set_by: str = "", **more: Any
) -> ShutdownBudget:
    return shutdown_budget(phases, DelayLimit(limit_us, limit_set_by), **{"reserve_ms": 0, **more})


def uids(plan: ShutdownPlan) -> list[list[str]]:
    return [sorted(stop.pod.uid for stop in phase.stops) for phase in plan.phases]


def graces(plan: ShutdownPlan) -> dict[str, int]:
    return {stop.pod.uid: stop.grace_ms for phase in plan.phases for stop in phase.stops}


# --- the phases


def test_two_durations_become_two_priority_bands() -> None:
    assert [(phase.min_priority, phase.seconds) for phase in two_bands(30, 10)] == [(0, 20), (2_000_000_000, 10)]


def test_zero_grace_period_has_no_phases() -> None:
    assert two_bands(0, 0) == ()


def test_whole_grace_period_may_be_critical() -> None:
    assert [phase.seconds for phase in two_bands(10, 10)] == [0, 10]


@pytest.mark.parametrize(
    ("total", "critical", "message"),
    [
        (10, 11, r"grace_period_critical \(11s\) is part of grace_period \(10s\)"),
        (0, 1, "cannot be more than it"),
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


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1000, 5), (0, 5)], "must ascend: 'priority-0' with min_priority 0 comes after 'priority-1000' with 1000"),
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


def test_scaling_is_noted_with_the_file_that_sets_the_limit() -> None:
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
def test_time_at_the_signal_suffices_from_two_seconds_on(
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


# --- placement


@pytest.mark.parametrize(
    ("facts", "phase", "by", "why"),
    [
        ({"priority": -11}, 0, PlacedBy.BELOW_ALL, "priority -11, below the lowest phase's -10"),
        ({"priority": -10}, 0, PlacedBy.PRIORITY, "priority -10"),
        ({"priority": -1}, 0, PlacedBy.PRIORITY, "priority -1"),
        ({"priority": 0, "priority_source": "kubelet /pods"}, 1, PlacedBy.PRIORITY, "priority 0 (kubelet /pods)"),
        ({"priority": 999}, 1, PlacedBy.PRIORITY, "priority 999"),
        ({"priority": 1000}, 2, PlacedBy.PRIORITY, "priority 1000"),
        ({"priority": CRITICAL_PRIORITY - 1}, 2, PlacedBy.PRIORITY, "priority 1999999999"),
        ({"priority": CRITICAL_PRIORITY}, 3, PlacedBy.PRIORITY, "priority 2000000000, critical"),
        ({"priority": NODE_CRITICAL_PRIORITY}, 3, PlacedBy.PRIORITY, "priority 2000001000, critical"),
        ({}, 1, PlacedBy.PRIORITY_ASSUMED, "priority unknown, assumed 0"),
        ({"namespace": "kube-system"}, 3, PlacedBy.SYSTEM_UNKNOWN, "priority unknown, in kube-system"),
        ({"namespace": "kube-system", "priority": 0}, 1, PlacedBy.PRIORITY, "priority 0"),
        ({"static": True, "priority": 0}, 3, PlacedBy.STATIC, "static pod"),
        ({"static": True, "static_source": "config.source"}, 3, PlacedBy.STATIC, "static pod (config.source)"),
        (
            {"node_critical": True, "node_critical_source": "oom_score_adj"},
            3,
            PlacedBy.NODE_CRITICAL,
            "node-critical pod (oom_score_adj)",
        ),
    ],
)
def test_pod_is_placed_by_its_facts(facts: dict[str, Any], phase: int, by: PlacedBy, why: str) -> None:
    placement = place(pod(**facts), budget().phases)
    assert (placement.phase, placement.by, placement.why) == (phase, by, why)


@pytest.mark.parametrize(
    ("facts", "phase", "by"),
    [
        ({"namespace": "calico-system"}, 2, PlacedBy.SELECTOR),
        ({"namespace": "calico-system", "static": True}, 2, PlacedBy.SELECTOR),
        ({"labels": {"tier": "storage", "node": "yes", "x": "y"}}, 2, PlacedBy.SELECTOR),
        ({"labels": {"tier": "storage"}}, 0, PlacedBy.PRIORITY_ASSUMED),
        ({"static": True}, 1, PlacedBy.STATIC),
    ],
    ids=["namespace", "static-too", "all-labels", "one-label", "static-in-its-band"],
)
def test_selector_moves_a_pod_to_a_later_phase(facts: dict[str, Any], phase: int, by: PlacedBy) -> None:
    placement = place(pod(**facts), budget(NETWORK_LAST).phases)
    assert (placement.phase, placement.by) == (phase, by)


def test_selector_of_an_earlier_phase_is_ignored() -> None:
    phases = (Phase("first", 5, None, (Selector(("shop",)),)), *two_bands(30, 10))
    assert place(pod(), budget(phases).phases).phase == 1


def test_last_matching_selector_is_used() -> None:
    late = Phase("late", 5, None, (Selector(("shop",)),))
    phases = (*two_bands(30, 10), late, replace(late, name="later"))
    placement = place(pod(), budget(phases).phases)
    assert (placement.phase, placement.why) == (3, "selected by namespace shop")


def test_selector_is_shown_with_namespaces_and_labels() -> None:
    assert str(Selector(("a", "b"), {"k": "v", "c": "d"})) == "namespace a or b and label c=d and label k=v"


# --- time


def test_termination_grace_period_is_capped_by_the_phase() -> None:
    pods = [pod("short", termination_grace_s=3), pod("long", termination_grace_s=90), pod("unknown")]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods)
    assert graces(plan) == {"short": 3000, "long": 20_000, "unknown": 20_000}
    assert {stop.pod.uid for stop in plan.phases[0].stops if stop.capped} == {"long"}


def test_unused_time_extends_the_next_phase() -> None:
    pods = [pod("web", termination_grace_s=2), pod("etcd", static=True, termination_grace_s=30)]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods)
    assert [(phase.starts_ms, phase.ends_ms) for phase in plan.phases] == [(0, 2000), (2000, 30_000)]
    assert plan.ends_ms == 30_000


def test_empty_phase_takes_no_time() -> None:
    plan = plan_shutdown(budget(), [pod("db", priority=1000)])
    assert [(phase.starts_ms, phase.ends_ms) for phase in plan.phases] == [
        (0, 0),
        (0, 0),
        (0, 35_000),
        (35_000, 35_000),
    ]


def test_long_termination_grace_period_does_not_shorten_the_next_phase() -> None:
    pods = [pod("stubborn", termination_grace_s=3600), pod("etcd", static=True, termination_grace_s=3600)]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods)
    assert graces(plan) == {"stubborn": 20_000, "etcd": 10_000}


def test_timeouts_are_whole_seconds_rounded_up() -> None:
    plan = plan_shutdown(budget(limit_us=5_000_000), [pod("a", priority=-10), pod("b", priority=0)])
    assert [stop.timeout_s for phase in plan.phases for stop in phase.stops] == [1, 3]


def test_phase_that_begins_early_has_more_time() -> None:
    pods = [pod("web", termination_grace_s=20), pod("etcd", static=True, termination_grace_s=600)]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods)
    assert [stop.grace_ms for stop in begin_phase(plan.phases[1], elapsed_ms=4000)] == [26_000]
    assert [stop.grace_ms for stop in begin_phase(plan.phases[1], elapsed_ms=99_000)] == [0]


def test_plan_without_phases_is_empty() -> None:
    plan = plan_shutdown(shutdown_budget((), DelayLimit(5_000_000)), [pod()])
    assert (plan.phases, plan.ends_ms) == ((), 0)


def test_pod_listed_twice_is_stopped_once() -> None:
    plan = plan_shutdown(budget(), [pod("a"), pod("a", name="again", static=True)])
    assert list(chain.from_iterable(uids(plan))) == ["a"]


# --- continuation after a restart


def test_ended_pods_are_not_stopped_again() -> None:
    progress = {
        "stopped": PodProgress(PodOutcome.STOPPED, 0),
        "killed": PodProgress(PodOutcome.KILLED, 0),
        "failed": PodProgress(PodOutcome.FAILED, 0, "unavailable"),
        "stopping": PodProgress(PodOutcome.STOPPING, 0),
    }
    pods = [pod(uid) for uid in ("stopped", "killed", "failed", "stopping", "new")]
    plan = plan_shutdown(budget(), pods, elapsed_ms=1000, progress=progress)
    assert uids(plan) == [[], ["failed", "new", "stopping"], [], []]


def test_pod_with_an_earlier_stop_request_has_used_part_of_its_grace() -> None:
    pods = [pod("a", termination_grace_s=10), pod("b", termination_grace_s=10)]
    plan = plan_shutdown(
        budget(two_bands(30, 10)), pods, elapsed_ms=7000, progress={"a": PodProgress(PodOutcome.STOPPING, 1000)}
    )
    assert graces(plan) == {"a": 4000, "b": 10_000}


def test_pods_of_a_phase_past_its_deadline_are_killed_at_once() -> None:
    pods = [pod("web"), pod("etcd", static=True)]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods, elapsed_ms=24_000)
    assert graces(plan) == {"web": 0, "etcd": 6000}
    assert [(phase.starts_ms, phase.ends_ms) for phase in plan.phases] == [(24_000, 24_000), (24_000, 30_000)]


def test_all_pods_are_killed_at_once_after_the_granted_time() -> None:
    plan = plan_shutdown(budget(two_bands(30, 10)), [pod("web"), pod("etcd", static=True)], elapsed_ms=31_000)
    assert graces(plan) == {"web": 0, "etcd": 0}


@pytest.mark.parametrize(("started", "now", "elapsed"), [(10.0, 12.5, 2500), (10.0, 9.0, 0), (10.0, 10.0, 0)])
def test_elapsed_time_is_never_negative(started: float, now: float, elapsed: int) -> None:
    assert elapsed_since(started, now) == elapsed


# --- properties of all input

PRIORITIES = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([-1, 0, 1, 2_000_000_000]))
PODS = st.lists(
    st.builds(
        ShutdownPod,
        uid=st.text("abcdef", min_size=1, max_size=4),
        namespace=st.sampled_from(["shop", "kube-system", "calico-system"]),
        name=st.text("xyz", min_size=1, max_size=3),
        priority=PRIORITIES,
        static=st.booleans(),
        node_critical=st.booleans(),
        labels=st.sampled_from([{}, {"tier": "storage", "node": "yes"}]),
        termination_grace_s=st.one_of(st.none(), st.floats(0, 10**6)),
    ),
    unique_by=lambda each: each.uid,
)


@st.composite
def phase_lists(draw: st.DrawFn) -> tuple[Phase, ...]:
    minima = sorted(draw(st.sets(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5)))
    phases = [Phase(f"p{each}", draw(st.floats(0, 10**5)), each) for each in minima]
    for index in range(draw(st.integers(0, 2))):
        late = Phase(f"s{index}", draw(st.floats(0, 10**5)), None, (Selector(("calico-system",)),))
        phases.insert(draw(st.integers(0, len(phases))), late)
    check_phases(phases)
    return tuple(phases)


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


@given(phase_lists(), PODS, st.integers(0, 10**9), st.integers(0, 10**6))
def test_every_pod_is_in_one_phase_and_no_phase_ends_late(
    phases: tuple[Phase, ...], pods: list[ShutdownPod], limit_us: int, elapsed_ms: int
) -> None:
    plan = plan_shutdown(budget(phases, limit_us), pods, elapsed_ms=elapsed_ms)
    assert sorted(chain.from_iterable(uids(plan))) == sorted(each.uid for each in pods)
    assert plan.ends_ms <= max(plan.budget.granted_ms, elapsed_ms)
    assert plan.ends_ms * 1000 <= max(limit_us, elapsed_ms * 1000)
    ends_ms = elapsed_ms
    for phase in plan.phases:
        assert phase.starts_ms == ends_ms
        ends_ms = phase.ends_ms
        for stop in phase.stops:
            assert 0 <= stop.grace_ms <= max(0, phase.budget.deadline_ms - phase.starts_ms)
            own_s = stop.pod.termination_grace_s
            assert own_s is None or stop.grace_ms <= round(own_s * 1000)


@given(phase_lists(), PODS)
def test_pods_are_stopped_in_order_of_priority_and_critical_pods_last(
    phases: tuple[Phase, ...], pods: list[ShutdownPod]
) -> None:
    plan = plan_shutdown(budget(phases, None), pods)
    last = max(index for index, phase in enumerate(phases) if phase.min_priority is not None)
    highest_so_far = -(2**31)
    for index, phase in enumerate(plan.phases):
        known = []
        for stop in phase.stops:
            if stop.placement.by in (PlacedBy.STATIC, PlacedBy.NODE_CRITICAL, PlacedBy.SYSTEM_UNKNOWN):
                assert index == last
            elif stop.placement.by is not PlacedBy.SELECTOR:
                known.append(stop.pod.priority or 0)
            if stop.pod.static or stop.pod.node_critical:
                assert index >= last
        assert all(priority >= highest_so_far for priority in known)
        highest_so_far = max([highest_so_far, *known])


@given(phase_lists(), PODS, st.randoms(use_true_random=False))
def test_input_order_does_not_matter(phases: tuple[Phase, ...], pods: list[ShutdownPod], order: Any) -> None:
    shuffled = list(pods)
    order.shuffle(shuffled)
    fitted = budget(phases, 30_000_000)
    assert plan_shutdown(fitted, pods) == plan_shutdown(fitted, shuffled)


@given(phase_lists(), PODS, st.integers(0, 10**8))
def test_scaling_does_not_change_the_phase(phases: tuple[Phase, ...], pods: list[ShutdownPod], limit_us: int) -> None:
    assert uids(plan_shutdown(budget(phases, limit_us), pods)) == uids(plan_shutdown(budget(phases, None), pods))
