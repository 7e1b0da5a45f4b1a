"""Placement of pods in shutdown phases, and their grace periods."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.pods import CRITICAL_PRIORITY, NODE_CRITICAL_PRIORITY
from nodeagent.model.stops import PodOutcome, PodProgress, ShutdownPod
from nodeagent.record import replace
from nodeagent.shutdown.plan.planner import (
    DelayLimit,
    Phase,
    PlacedBy,
    Selector,
    elapsed_since,
    place,
    plan_shutdown,
    shutdown_budget,
    two_bands,
)
from tests.unit.shutdown.plan.cases import NETWORK_LAST, PODS, budget, graces, phase_lists, pod, uids

# --- placement


@pytest.mark.difference("shutdown-unknown-priority")
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


@pytest.mark.difference("shutdown-selectors")
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


# --- grace periods


def test_termination_grace_period_is_capped_by_the_phase() -> None:
    pods = [pod("short", termination_grace_s=3), pod("long", termination_grace_s=90), pod("unknown")]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods)
    assert graces(plan) == {"short": 3000, "long": 20_000, "unknown": 20_000}
    assert {stop.pod.uid for stop in plan.phases[0].stops if stop.capped} == {"long"}


@pytest.mark.difference("shutdown-unused-time")
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


def test_phases_that_start_late_share_the_remaining_time_by_weight() -> None:
    pods = [pod("web"), pod("etcd", static=True)]
    plan = plan_shutdown(budget(two_bands(30, 10)), pods, elapsed_ms=24_000)
    assert graces(plan) == {"web": 4000, "etcd": 2000}
    assert [(phase.starts_ms, phase.ends_ms) for phase in plan.phases] == [(24_000, 28_000), (28_000, 30_000)]


def test_no_pod_has_time_after_the_granted_time() -> None:
    plan = plan_shutdown(budget(two_bands(30, 10)), [pod("web"), pod("etcd", static=True)], elapsed_ms=31_000)
    assert graces(plan) == {"web": 0, "etcd": 0}


@pytest.mark.parametrize(("started", "now", "elapsed"), [(10.0, 12.5, 2500), (10.0, 9.0, 0), (10.0, 10.0, 0)])
def test_elapsed_time_is_never_negative(started: float, now: float, elapsed: int) -> None:
    assert elapsed_since(started, now) == elapsed


# --- properties for all inputs


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
            assert 0 <= stop.grace_ms <= max(0, plan.budget.granted_ms - phase.starts_ms)
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
        priorities = []
        for stop in phase.stops:
            if stop.placement.by in (PlacedBy.STATIC, PlacedBy.NODE_CRITICAL, PlacedBy.SYSTEM_UNKNOWN):
                assert index == last
            elif stop.placement.by is not PlacedBy.SELECTOR:
                priorities.append(stop.pod.priority or 0)
            if stop.pod.static or stop.pod.node_critical:
                assert index >= last
        assert all(priority >= highest_so_far for priority in priorities)
        highest_so_far = max([highest_so_far, *priorities])


@given(phase_lists(), PODS, st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_input_order(
    phases: tuple[Phase, ...], pods: list[ShutdownPod], order: Any
) -> None:
    shuffled = list(pods)
    order.shuffle(shuffled)
    fitted = budget(phases, 30_000_000)
    assert plan_shutdown(fitted, pods) == plan_shutdown(fitted, shuffled)


@given(phase_lists(), PODS, st.integers(0, 10**8))
def test_scaling_does_not_change_the_phase(phases: tuple[Phase, ...], pods: list[ShutdownPod], limit_us: int) -> None:
    assert uids(plan_shutdown(budget(phases, limit_us), pods)) == uids(plan_shutdown(budget(phases, None), pods))
