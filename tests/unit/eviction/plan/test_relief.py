"""Pods whose eviction helps against a shortage, and the statement for a shortage that no eviction ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.effects import SAMPLE_EVERY_S, UsageSample, add_sample
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.decision import ReasonCode
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import EMPTY_STATE, at, disk, planned, pod, read, reasons, thresholds, victim
from tests.unit.eviction.plan.effect_cases import EVERYTHING, effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodeagent.eviction.plan.effects import OutstandingEffect
    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.model.pressure import PodFacts, SignalReading

DISK = "imagefs.available"
MEMORY = "memory.available"


def sample(pods: Iterable[PodFacts], reading: SignalReading, seconds: float, *, with_disk: bool = True) -> UsageSample:
    return UsageSample.of(pods, (reading,), at(seconds), with_disk=with_disk)


def plan_after(
    pods: Sequence[PodFacts],
    signal: str = DISK,
    available_mib: float = 50,
    *,
    before: Sequence[PodFacts] | None = None,
    before_mib: float = 50,
    before_s: float = -1.0,
    effects: tuple[OutstandingEffect, ...] = (),
    **rest: Any,
) -> EvictionPlan:
    """Return the plan for ``signal<100Mi`` with a sample of ``before`` (by default of the same pods) one second ago."""
    earlier = sample(pods if before is None else before, read(signal, before_mib), before_s)
    state = replace(EMPTY_STATE, samples=(earlier,), outstanding=effects)
    return planned(
        pods,
        read(signal, available_mib),
        limits=thresholds(f"{signal}<100Mi"),
        state=state,
        reclaimed=EVERYTHING,
        **rest,
    )


@pytest.mark.difference("eviction-that-helps")
@pytest.mark.parametrize(
    ("pods", "signal", "code"),
    [
        pytest.param([pod("tiny", writable=disk(0.016))], DISK, "effect-too-small", id="file of the host"),
        pytest.param([pod("writer", volumes=disk(300))], DISK, "effect-too-small", id="volume outlives the pod"),
        pytest.param(
            [pod("writer", memory=800, memory_volumes=800)], MEMORY, "effect-too-small", id="memory volume outlives it"
        ),
        pytest.param([pod("cache", memory=800, memory_cache=798)], MEMORY, "effect-too-small", id="page cache remains"),
        pytest.param([pod("small", memory=0.35)], MEMORY, "effect-too-small", id="memory of the host"),
        pytest.param([pod("below", writable=disk(4.9))], DISK, "effect-too-small", id="below a tenth"),
        pytest.param([pod("tenth", writable=disk(5))], DISK, "low-on-resource", id="a tenth"),
        pytest.param([pod("logs", logs=disk(40))], DISK, "low-on-resource", id="logs are removed with the pod"),
        pytest.param(
            [pod("big", memory=400, memory_volumes=300)], MEMORY, "low-on-resource", id="more than the volume"
        ),
        pytest.param([pod("unread", writable=disk(None))], DISK, "effect-too-small", id="unread layer is not counted"),
    ],
)
def test_pod_is_evicted_only_if_its_eviction_frees_a_material_part(
    pods: list[PodFacts], signal: str, code: str
) -> None:
    plan = plan_after(pods, signal)
    assert list(reasons(plan).values()) == [code]


def test_pods_that_help_are_evicted_in_rank_order_and_others_are_kept() -> None:
    pods = [
        pod("volume", volumes=disk(900)),
        pod("important", writable=disk(400), priority=7),
        pod("small", writable=disk(1)),
        pod("large", writable=disk(60)),
        pod("larger", writable=disk(70)),
    ]
    plan = plan_after(pods)
    assert victim(plan) == "larger"
    assert reasons(plan) == {
        "larger": "low-on-resource",
        "volume": "effect-too-small",
        "large": "ranked-later",
        "small": "effect-too-small",
        "important": "ranked-later",
    }


@pytest.mark.difference("eviction-that-helps")
@pytest.mark.parametrize(
    ("used_mib", "before_mib", "available_mib", "evicted"),
    [
        pytest.param((300, 340), 90, 50, True, id="grows by all of the loss"),
        pytest.param((300, 304), 90, 50, True, id="grows by a tenth of the loss"),
        pytest.param((300, 303), 90, 50, False, id="grows by less than a tenth of the loss"),
        pytest.param((300, 300), 90, 50, False, id="does not grow"),
        pytest.param((300, 200), 90, 50, False, id="shrinks"),
        pytest.param((300, 300.9), 50.9, 50, False, id="grows within the accuracy of the measurement"),
        pytest.param((300, 340), 50, 50, True, id="grows while another process frees space"),
    ],
)
@pytest.mark.parametrize("signal", [DISK, MEMORY])
def test_pod_that_drives_the_shortage_is_evicted_although_its_volume_outlives_it(
    used_mib: tuple[float, float], before_mib: float, available_mib: float, evicted: bool, signal: str
) -> None:
    def writer(mib: float) -> PodFacts:
        return pod("writer", memory=mib, memory_volumes=mib, volumes=disk(mib))

    then, now = used_mib
    plan = plan_after([writer(now)], signal, available_mib, before=[writer(then)], before_mib=before_mib)
    assert victim(plan) == ("writer" if evicted else None)


@pytest.mark.parametrize(("kernel_mib", "evicted"), [(400, True), (20, False)], ids=["in use", "not in use"])
def test_page_cache_of_a_pod_is_freed_only_if_it_is_in_use(kernel_mib: float, evicted: bool) -> None:
    pods = [pod("reader", memory=800, memory_cache=799)]
    state = replace(EMPTY_STATE, samples=(sample(pods, read(), -1.0),))
    reading = read(available_mib=50, kernel_mib=kernel_mib)  # the lower estimate decides
    assert victim(planned(pods, reading, state=state)) == ("reader" if evicted else None)


def test_new_pod_counts_as_grown() -> None:
    plan = plan_after([pod("new", volumes=disk(300))], before=[], before_mib=350)
    assert victim(plan) == "new"


@pytest.mark.parametrize("before_s", [-0.4, -61.0])
def test_growth_is_unknown_without_a_sample_of_the_last_minute(before_s: float) -> None:
    plan = plan_after([pod("writer", volumes=disk(300))], before_s=before_s)
    assert reasons(plan) == {"writer": "growth-unknown"}
    assert (plan.is_hindered_by(ReasonCode.GROWTH_UNKNOWN), plan.unrelieved) == (True, None)


def test_loss_that_no_pod_explains_makes_a_pod_immaterial() -> None:
    pods = [pod("bystander", memory=40)]
    assert victim(plan_after(pods, MEMORY, 90, before_mib=90)) == "bystander"
    plan = plan_after(pods, MEMORY, 90, before_mib=140)  # 50 MiB/s, and 500 MiB more in ten seconds
    assert reasons(plan) == {"bystander": "effect-too-small"}
    assert "500 MiB more lost within 10 s" in plan.plan.decisions[0].reason.sentence
    large = plan_after([pod("large", memory=60)], MEMORY, 90, before_mib=140)
    assert victim(large) == "large"


@pytest.mark.parametrize(
    ("signal", "used_mib", "lost_mib", "code"),
    [
        pytest.param(DISK, 4, 30, "growth-unknown", id="a tenth of the shortage, not the cause of the loss"),
        pytest.param(DISK, 60, 130, "growth-unknown", id="less than half of the loss"),
        pytest.param(DISK, 65, 130, "low-on-resource", id="half of the loss"),
        pytest.param(DISK, 4, 0, "low-on-resource", id="nothing lost"),
        pytest.param(MEMORY, 4, 30, "low-on-resource", id="memory"),
    ],
)
def test_pod_that_did_not_cause_the_loss_is_kept_until_its_growth_is_measured(
    signal: str, used_mib: float, lost_mib: float, code: str
) -> None:
    before = read(signal, 90 + lost_mib, seconds=-1.0)
    state = replace(EMPTY_STATE, recent=(before,))
    pods = [pod("modest", memory=used_mib, writable=disk(used_mib))]
    plan = planned(pods, read(signal, 90), limits=thresholds(f"{signal}<100Mi"), state=state, reclaimed=EVERYTHING)
    assert reasons(plan) == {"modest": code}


def test_loss_that_a_pod_explains_does_not_make_others_immaterial() -> None:
    before = [pod("starts", memory=10, request=600, priority=9), pod("cheap", memory=40)]
    now = [pod("starts", memory=500, request=600, priority=9), pod("cheap", memory=40)]
    assert victim(plan_after(now, MEMORY, 50, before=before, before_mib=540)) == "cheap"


def test_shortage_that_no_eviction_ends_is_stated_with_the_usage_of_pods_and_others() -> None:
    pods = [pod("one", writable=disk(1), volumes=disk(300)), pod("two", writable=disk(2)), pod("cache", static=True)]
    pods[2] = replace(pods[2], static=replace(pods[0].static, value=True))
    plan = plan_after(pods)
    statement = plan.unrelieved
    assert statement is not None
    assert statement.sentence == (
        "imagefs.available<100Mi is met, and no eviction ends the shortage of 50.0 MiB: all 2 unprotected pods would "
        "free 3.00 MiB; pods use 303 MiB, others 647 MiB"
    )
    assert plan.plan.warnings == (statement.sentence,)
    assert (statement.short, statement.freed_by_pods, statement.pods) == (50 * MIB, 3 * MIB, 3)
    assert replace(statement, outside=("/srv/x 600Mi",)).text.endswith("; largest outside of pods: /srv/x 600Mi")


@pytest.mark.difference("stall-ranking")
def test_stall_evicts_only_a_pod_that_stalls_itself() -> None:
    limits = thresholds("memory.psi.some>6%")
    reading = read("memory.psi.some", available=24.0, capacity=100)
    pods = [pod("hog", memory=900, stalled=0.0), pod("stalls", memory=5, stalled=23.0), pod("unread", memory=900)]
    assert victim(planned(pods, reading, limits=limits)) == "stalls"
    plan = planned([pods[0], pods[2]], reading, limits=limits)
    assert reasons(plan) == {"hog": "effect-too-small", "unread": "usage-unknown"}
    assert (plan.hindrance, plan.unrelieved is None) == (None, False)


@pytest.mark.difference("eviction-that-helps")
def test_policy_restores_eviction_in_the_kubelets_order() -> None:
    always = EvictionPolicy(always_evict=True)
    pods = [pod("volume", volumes=disk(300)), pod("tiny", writable=disk(0.016))]
    ineffective = effect(ineffective=True, shortage="nodefs", until_s=at(10_000).monotonic_s)
    assert victim(plan_after(pods, policy=always)) == "volume"
    assert victim(plan_after(pods, policy=always, effects=(ineffective,))) == "volume"


def test_minimum_effect_is_configurable() -> None:
    pods = [pod("small", writable=disk(4))]
    assert victim(plan_after(pods)) is None
    assert victim(plan_after(pods, policy=EvictionPolicy(minimum_effect=0.05))) == "small"


@pytest.mark.difference("volumes-not-freed")
def test_kubelet_removes_the_volumes_of_an_evicted_pod() -> None:
    assert victim(plan_after([pod("volume", volumes=disk(300))], removes_volumes=True)) == "volume"


def test_two_samples_of_each_kind_are_kept_at_a_minimum_distance() -> None:
    samples: tuple[UsageSample, ...] = ()
    for number in range(20):
        for with_disk in (True, False):
            new = sample([], read(), number * SAMPLE_EVERY_S / 2, with_disk=with_disk)
            samples = add_sample(samples, new)
    assert sorted((each.with_disk, each.at_s - at(0).monotonic_s) for each in samples) == [
        (False, 4.0),
        (False, 4.5),
        (True, 4.0),
        (True, 4.5),
    ]


used = st.floats(0, 400)


@given(
    st.lists(st.tuples(used, used, used, used, st.integers(0, 3)), max_size=6),
    st.floats(0, 99.9),
    st.floats(0, 400),
    st.sampled_from([DISK, MEMORY, "imagefs.inodesFree"]),
)
def test_victim_frees_a_tenth_of_the_shortfall_or_grew_by_a_tenth_of_the_loss(
    facts: list[tuple[float, float, float, float, int]], available_mib: float, lost_mib: float, signal: str
) -> None:
    def built(number: int, mib: float, volume_mib: float, priority: int) -> PodFacts:
        writable, volumes = disk(mib, int(mib * MIB)), disk(volume_mib, int(volume_mib * MIB))
        memory = mib + volume_mib
        name = f"pod-{number}"
        return pod(
            name, memory=memory, memory_volumes=volume_mib, writable=writable, volumes=volumes, priority=priority
        )

    now = [built(number, each[0], each[1], each[4]) for number, each in enumerate(facts)]
    before = [built(number, each[2], each[3], each[4]) for number, each in enumerate(facts)]
    plan = plan_after(now, signal, available_mib, before=before, before_mib=available_mib + lost_mib)
    if plan.victim is None:
        assert plan.unrelieved is not None
        return
    number = int(plan.victim.pod.name.removeprefix("pod-"))
    mib, volume_mib, mib_before, volume_before, _ = facts[number]
    grew = mib + volume_mib - mib_before - volume_before
    slack = 1e-3
    assert mib >= (100 - available_mib) / 10 - slack or grew >= lost_mib / 10 - slack
    kept = {each.id for each in plan.plan.decisions if each.reason.code.value == "effect-too-small"}
    before_victim = [each.pod.uid for each in plan.ranking[: plan.ranking.index(plan.victim.ranked)]]
    assert set(before_victim) <= kept
