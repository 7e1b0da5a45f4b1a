"""Property tests of threshold evaluations and eviction plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.eviction.plan.planner import plan_eviction
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.ranking import find_violation, rank_pods
from nodeagent.eviction.plan.reclaim import reclaim_steps
from nodeagent.eviction.plan.state import EvictionState, evaluate
from nodeagent.eviction.plan.thresholds import MEANINGS, Amount, Threshold, Unit
from nodeagent.model.decision import ReasonCode, Verdict
from nodeagent.model.pods import CRITICAL_CLASS_PRIORITIES, CRITICAL_PRIORITY
from nodeagent.model.pressure import (
    UNKNOWN,
    ContainerFacts,
    EmptyDirFacts,
    Fact,
    FactSource,
    FilesystemLayout,
    Footprint,
    Moment,
    PodFacts,
    PodLifecycle,
    PodUsage,
    QosClass,
    Resource,
    Signal,
    SignalReading,
)
from nodeagent.record import replace
from tests.unit.eviction.plan.cases import at

if TYPE_CHECKING:
    import random

    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.eviction.plan.state import Evaluation

EXAMPLES = settings(suppress_health_check=[HealthCheck.too_slow])

EVERY_STEP = frozenset(
    step for signal in Signal for layout in FilesystemLayout for step in reclaim_steps(signal, layout)
)
EMPTY_STATE = EvictionState()

small = st.integers(0, 6)
layouts = st.sampled_from(FilesystemLayout)
policies = st.builds(
    EvictionPolicy,
    evict_unmeasured=st.booleans(),
    local_storage_isolation=st.booleans(),
    max_evictions_per_window=st.sampled_from([0, 0, 0, 1]),
    hard_grace_s=st.sampled_from([0.0, 1.0]),
    max_pod_grace_s=st.sampled_from([0.0, 20.0]),
)


def known(value: Any) -> Fact[Any]:
    return Fact(value, FactSource.KUBELET)


FLAWS: tuple[dict[str, Any], ...] = (
    {"uid": "uid-0"},
    {"namespace": "kube-system"},
    {"namespace": ""},
    {"priority": known(CRITICAL_PRIORITY)},
    {"priority": known(CRITICAL_PRIORITY + 1000)},
    {"priority": UNKNOWN},
    {"priority_class": "system-node-critical"},
    {"qos": known(QosClass.BEST_EFFORT)},
    {"qos": UNKNOWN},
    *({name: fact} for name in ("static", "mirror", "critical") for fact in (known(value=True), UNKNOWN)),
    {"memory_request_bytes": UNKNOWN},
    {"ephemeral_request_bytes": UNKNOWN},
    {"usage": None},
    {"usage": PodUsage()},
    {"usage": PodUsage(memory_bytes=3, writable=Footprint(2, 2), ephemeral_bytes=4), "ephemeral_limit_bytes": 3},
    *[{"empty_dirs": (EmptyDirFacts("tmp", 5, 4),)}] * 3,
    {"containers": (ContainerFacts("app", writable_bytes=2, logs_bytes=3, ephemeral_limit_bytes=4),)},
    {"containers": (ContainerFacts("app", logs_bytes=3, ephemeral_limit_bytes=4),)},
    {"empty_dirs": (EmptyDirFacts("tmp", 4, 4),)},
    {"lifecycle": PodLifecycle.ENDING},
    {"lifecycle": PodLifecycle.FINISHED},
    {"contradictions": ("x",)},
)
flaws = st.sampled_from(({},) * 30 + FLAWS)
footprints = st.builds(Footprint, small, small)
usages = st.builds(PodUsage, small, small, small, footprints, footprints, footprints, small)


@st.composite
def pods(draw: st.DrawFn) -> tuple[PodFacts, ...]:
    """Return pods; about a third have a fact that protects the pod or changes its rank."""
    return tuple(
        replace(
            PodFacts(
                uid=f"uid-{number}",
                namespace="shop",
                name=f"pod-{number}",
                priority=known(draw(st.sampled_from([0, 1, -1, 1000]))),
                qos=known(QosClass.BURSTABLE),
                static=known(value=False),
                mirror=known(value=False),
                critical=known(value=False),
                memory_request_bytes=known(draw(small)),
                ephemeral_request_bytes=known(draw(small)),
                termination_grace_s=known(draw(st.sampled_from([0.0, 5.0, 30.0]))),
                usage=draw(usages),
            ),
            **draw(flaws),
        )
        for number in range(draw(st.integers(0, 7)))
    )


@st.composite
def limits(draw: st.DrawFn) -> tuple[Threshold, ...]:
    return tuple(
        Threshold(
            signal,
            draw(st.sampled_from([Amount(number=20), Amount(share=0.5), Amount(number=60)])),
            draw(st.sampled_from([0.0, 0.0, 30.0])),
            draw(st.sampled_from([None, Amount(number=10)])),
        )
        for signal in draw(st.lists(st.sampled_from(Signal), min_size=1, max_size=6))
    )


READINGS = (
    *[(5, 100, 0.0), (25, 100, 0.5), (55, 100, 1.0), (95, 100, 0.0), (5, 100, 0.0), (55, 100, 0.0)] * 3,
    *[(-1, 100, 0.0), (101, 100, 0.0), (0, 0, 0.0), (5, 100, 1.5), (5, 100, -0.5), None],
)
"""Strategy of a reading: available amount, capacity and age in seconds; ``None`` for a missing reading."""


@st.composite
def readings(draw: st.DrawFn, now: Moment) -> tuple[SignalReading, ...]:
    drawn = draw(st.lists(st.sampled_from(READINGS), min_size=len(Signal), max_size=len(Signal)))
    return tuple(
        SignalReading(signal, each[0], each[1], Moment(now.at, now.monotonic_s - each[2]))
        for signal, each in zip(Signal, drawn, strict=True)
        if each is not None
    )


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    """Return the last evaluation of one to four passes; in some cases monotonic time steps back."""
    state, seconds, thresholds, policy = EMPTY_STATE, 0.0, draw(limits()), draw(policies)
    for _ in range(draw(st.integers(0, 3))):
        observed = draw(readings(at(seconds)))
        state = evaluate(state, observed, thresholds, policy, now=at(seconds)).state
        seconds += draw(st.sampled_from([1.0, 10.0, 30.0, 600.0, -700.0]))
    if draw(st.integers(0, 5)) == 0:
        state = replace(state, evicted_s=(at(seconds).monotonic_s,))
    return evaluate(state, draw(readings(at(seconds))), thresholds, policy, now=at(seconds))


reclaims = st.sampled_from([frozenset(), EVERY_STEP])


def plan(
    found: Evaluation, listed: tuple[PodFacts, ...], policy: EvictionPolicy, layout: FilesystemLayout, reclaimed: Any
) -> EvictionPlan:
    return plan_eviction(found, listed, policy, layout=layout, now=found.at, reclaimed=reclaimed)


@EXAMPLES
@given(evaluations(), pods(), policies, layouts, reclaims)
def test_protected_pods_are_never_evicted(
    found: Evaluation, listed: tuple[PodFacts, ...], policy: EvictionPolicy, layout: FilesystemLayout, reclaimed: Any
) -> None:
    eviction = plan(found, listed, policy, layout, reclaimed).victim
    if eviction is None:
        return
    chosen = eviction.pod
    assert chosen.static.value is False
    assert chosen.mirror.value is False
    assert chosen.critical.value is False
    assert chosen.priority.value is not None
    assert chosen.priority.value < CRITICAL_PRIORITY
    assert chosen.priority_class not in CRITICAL_CLASS_PRIORITIES
    assert chosen.namespace
    assert chosen.namespace not in policy.protected_namespaces
    assert chosen.lifecycle is not PodLifecycle.FINISHED
    assert not chosen.contradictions
    assert [each.uid for each in listed].count(chosen.uid) == 1


@EXAMPLES
@given(evaluations(), pods(), policies, layouts, reclaims)
def test_plan_has_one_decision_per_pod_and_at_most_one_victim(
    found: Evaluation, listed: tuple[PodFacts, ...], policy: EvictionPolicy, layout: FilesystemLayout, reclaimed: Any
) -> None:
    made = plan(found, listed, policy, layout, reclaimed)
    assert sorted(each.name for each in made.plan.decisions) == sorted(f"{p.namespace}/{p.name}" for p in listed)
    removals = made.plan.removals
    assert len(removals) <= 1
    assert [each.id for each in removals] == ([made.victim.pod.uid] if made.victim else [])
    assert all(each.reason.sentence for each in made.plan.decisions)
    if made.victim:
        assert made.plan.decisions[0].verdict is Verdict.REMOVE
        assert not made.reclaim
        assert made.hindrance is None
        assert made.victim.grace_s >= 0
        assert made.victim.message.endswith(" ")


amounts = st.none() | small
limited_containers = st.builds(
    ContainerFacts, st.just("app"), writable_bytes=amounts, logs_bytes=amounts, ephemeral_limit_bytes=amounts
)
limited_volumes = st.builds(EmptyDirFacts, st.just("tmp"), amounts, amounts)
limited_pods = st.builds(
    lambda listed, containers, volumes, limit_bytes: tuple(
        replace(each, containers=containers, empty_dirs=volumes, ephemeral_limit_bytes=limit_bytes) for each in listed
    ),
    pods(),
    st.lists(limited_containers, max_size=3).map(tuple),
    st.lists(limited_volumes, max_size=2).map(tuple),
    amounts,
)


def measured_above_a_limit(pod: PodFacts) -> bool:
    """Return whether the measured usage of a pod, a container or a volume is above its limit, by a separate formula."""
    total = 0 if pod.usage is None else pod.usage.ephemeral_bytes or 0
    pairs = [(total, pod.ephemeral_limit_bytes), *((each.used_bytes or 0, each.limit_bytes) for each in pod.empty_dirs)]
    pairs += [
        ((each.writable_bytes or 0) + (each.logs_bytes or 0), each.ephemeral_limit_bytes) for each in pod.containers
    ]
    return any(limit_bytes and used_bytes > limit_bytes for used_bytes, limit_bytes in pairs)


@pytest.mark.difference("layer-limits")
@EXAMPLES
@given(limited_pods)
def test_storage_limits_do_not_depend_on_the_layout_and_evict_only_for_measured_usage(
    listed: tuple[PodFacts, ...],
) -> None:
    calm = evaluate(EMPTY_STATE, (), (), EvictionPolicy(), now=at(0))
    plans = [plan(calm, listed, EvictionPolicy(), layout, EVERY_STEP) for layout in FilesystemLayout]
    assert plans.count(plans[0]) == len(plans)
    over = {each.uid for each in listed if measured_above_a_limit(each)}
    unlimited = {each.id for each in plans[0].plan.decisions if each.reason.code is ReasonCode.NO_THRESHOLD_MET}
    if plans[0].victim is None:
        assert not over & unlimited
    else:
        assert plans[0].victim.pod.uid in over


@EXAMPLES
@given(evaluations(), pods(), policies, layouts, reclaims)
def test_no_pod_is_evicted_without_a_threshold_or_limit(
    found: Evaluation, listed: tuple[PodFacts, ...], policy: EvictionPolicy, layout: FilesystemLayout, reclaimed: Any
) -> None:
    made = plan(found, listed, policy, layout, reclaimed)
    if made.victim and made.victim.status is None:
        assert policy.local_storage_isolation
        assert find_violation(made.victim.pod)
        return
    if made.victim or made.reclaim:
        assert made.selected is not None
        threshold, reading = made.selected.threshold, made.selected.observation
        assert threshold in {each.threshold for each in found.acting}
        assert MEANINGS[threshold.signal].resource is not None
        assert reading is not None
        assert 0 <= reading.available <= reading.capacity
        assert reading.capacity > 0
        assert threshold.met_by(reading.available, reading.capacity, with_reclaim=True)
    if not found.acting:
        assert made.victim is None
        assert not made.reclaim


@EXAMPLES
@given(evaluations(), pods(), policies, layouts)
def test_lower_priority_is_evicted_first_at_equal_excess(
    found: Evaluation, listed: tuple[PodFacts, ...], policy: EvictionPolicy, layout: FilesystemLayout
) -> None:
    made = plan(found, listed, policy, layout, EVERY_STEP)
    if made.victim is None or made.victim.ranked is None:
        return
    chosen = made.victim.ranked
    later = {each.id for each in made.plan.decisions if each.reason.code.value == "ranked-later"}
    for other in made.ranking:
        if other.pod.uid in later and other.excess == chosen.excess:
            assert other.priority >= chosen.priority
        if other.pod.uid in later and other.priority == chosen.priority and chosen.excess is not None:
            assert other.excess is not None
            assert other.excess <= chosen.excess


@EXAMPLES
@given(pods(), st.sampled_from(Signal), layouts)
def test_usage_above_the_request_ranks_before_usage_within(
    listed: tuple[PodFacts, ...], signal: Signal, layout: FilesystemLayout
) -> None:
    ranked = rank_pods(listed, signal, layout)
    if MEANINGS[signal].resource is Resource.PIDS or MEANINGS[signal].unit is Unit.STALL_PERCENT:
        assert [each.priority for each in ranked] == sorted(each.priority for each in ranked)
        return
    groups = [2 if each.excess is None else int(each.excess > 0) for each in ranked]
    assert groups == sorted(groups, key=lambda group: (group != 2, -group))


@pytest.mark.difference("pod-order")
@EXAMPLES
@given(evaluations(), pods(), policies, layouts, reclaims, st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_order_of_pods(  # noqa: PLR0917 - values drawn by Hypothesis
    found: Evaluation,
    listed: tuple[PodFacts, ...],
    policy: EvictionPolicy,
    layout: FilesystemLayout,
    reclaimed: Any,
    shuffler: random.Random,
) -> None:
    first = plan(found, listed, policy, layout, reclaimed)
    assert plan(found, listed, policy, layout, reclaimed) == first
    shuffled = list(listed)
    shuffler.shuffle(shuffled)
    assert plan(found, tuple(shuffled), policy, layout, reclaimed) == first


@EXAMPLES
@given(st.data(), limits(), policies, st.randoms(use_true_random=False))
def test_evaluation_does_not_depend_on_the_order_of_thresholds_and_readings(
    data: st.DataObject, thresholds: tuple[Threshold, ...], policy: EvictionPolicy, shuffler: random.Random
) -> None:
    observed, mixed = list(data.draw(readings(at(0)))), list(thresholds)
    first = evaluate(EMPTY_STATE, observed, thresholds, policy, now=at(0))
    shuffler.shuffle(mixed)
    shuffler.shuffle(observed)
    second = evaluate(EMPTY_STATE, observed, mixed, policy, now=at(0))
    assert second == first
    assert [each.threshold.minimum_reclaim for each in second.statuses] == [
        each.threshold.minimum_reclaim for each in first.statuses
    ]


@EXAMPLES
@given(evaluations(), limits(), policies)
def test_readings_are_acted_on_once(
    found: Evaluation, thresholds: tuple[Threshold, ...], policy: EvictionPolicy
) -> None:
    observed = [each.observation for each in found.statuses if each.observation is not None]
    assert not evaluate(found.state, observed, thresholds, policy, now=found.at).acting


@EXAMPLES
@given(
    st.lists(st.tuples(st.floats(-1000, 1000), st.floats(-(10**6), 10**6), st.booleans()), max_size=8),
    st.floats(1, 500),
)
def test_no_clock_step_ends_a_grace_period_early(passes: list[tuple[float, float, bool]], grace_s: float) -> None:
    """Step the wall clock and the monotonic clock at random: only advances of the monotonic clock count."""
    threshold = Threshold(Signal.MEMORY_AVAILABLE, Amount(number=50), grace_s)
    state, now_s, met_for_s = EMPTY_STATE, 0.0, 0.0
    met_before = False
    for step_s, wall_s, met in passes:
        now_s += step_s
        met_for_s = met_for_s + max(0.0, step_s) if met and met_before else 0.0
        now = at(now_s, wall_s=wall_s)
        observed = SignalReading(Signal.MEMORY_AVAILABLE, 10 if met else 90, 100, now)
        found = evaluate(state, [observed], [threshold], EvictionPolicy(), now=now)
        if found.acting:
            assert met
            assert met_for_s >= grace_s - 1e-6
        state, met_before = found.state, met
