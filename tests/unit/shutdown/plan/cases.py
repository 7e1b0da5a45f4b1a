"""Phases, pods and Hypothesis strategies for tests of shutdown plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from nodeagent.model.pods import CRITICAL_PRIORITY
from nodeagent.model.stops import ShutdownPod
from nodeagent.shutdown.plan.planner import (
    DelayLimit,
    Phase,
    Selector,
    ShutdownBudget,
    check_phases,
    shutdown_budget,
    two_bands,
)

if TYPE_CHECKING:
    from nodeagent.shutdown.plan.planner import ShutdownPlan

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


PRIORITIES = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([-1, 0, 1, 2_000_000_000]))


def _pod(values: dict[str, Any]) -> ShutdownPod:
    return ShutdownPod(**values)


PODS = st.lists(
    st.fixed_dictionaries(
        {
            "uid": st.text("abcdef", min_size=1, max_size=4),
            "namespace": st.sampled_from(["shop", "kube-system", "calico-system"]),
            "name": st.text("xyz", min_size=1, max_size=3),
            "priority": PRIORITIES,
            "static": st.booleans(),
            "node_critical": st.booleans(),
            "labels": st.sampled_from([{}, {"tier": "storage", "node": "yes"}]),
            "termination_grace_s": st.one_of(st.none(), st.floats(0, 10**6)),
        }
    ).map(_pod),
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
