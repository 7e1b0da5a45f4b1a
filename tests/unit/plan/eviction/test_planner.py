"""Who goes, who never does, and that it is one at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.model.pressure import ContainerUse, EmptyDir, Observation, PodFacts, PodUse, Resource, Signal
from nodeagent.plan.decision import ReasonCode, Verdict
from nodeagent.plan.eviction.planner import EvictionPlan, Reclaim, plan_eviction
from nodeagent.plan.eviction.ranking import CRITICAL_PRIORITY, Layout, rank, why_spared
from nodeagent.plan.eviction.thresholds import EvictionPolicy, Threshold, parse_thresholds
from tests.unit.builders import MIB, NOW, ago

POLICY = EvictionPolicy(protected_namespaces=frozenset({"kube-system"}))


def pod(name: str, mib: int | None = 100, *, request: int = 0, namespace: str = "shop", **rest: Any) -> PodFacts:
    use = None if mib is None else PodUse(memory_bytes=mib * MIB)
    return PodFacts(
        f"uid-{name}",
        namespace,
        name,
        memory_request_bytes=request * MIB,
        **{"use": use, "started_at": ago(60), **rest},
    )


def threshold(signal: str = "memory.available", value: str = "100Mi", *, soft: bool = False) -> Threshold:
    if soft:
        made = parse_thresholds({"pid.available": "0%"}, {signal: value}, {signal: "1m"}, {})
    else:
        made = parse_thresholds({signal: value}, {}, {}, {})
    return made[0]


def names(pods: list[PodFacts]) -> list[str]:
    return [each.name for each in pods]


def evict(
    *pods: PodFacts, acting: Threshold | None = None, reclaimed: bool = True, layout: Layout = Layout.ONE
) -> EvictionPlan:
    crossed = threshold() if acting is None else acting
    seen = {crossed.signal: Observation(crossed.signal, 50 * MIB, 4096 * MIB, NOW)}
    return plan_eviction(list(pods), POLICY, [crossed], seen, layout=layout, reclaimed=reclaimed, now=NOW)


def test_memory_over_request_then_priority_then_how_much_over() -> None:
    pods = [
        pod("guaranteed", 900, request=1000),
        pod("small", 10),
        pod("over-a-lot", 500, request=100),
        pod("over-high", 5000, request=100, priority=10),
        pod("unknown", None, priority=99),
        pod("under-low", 10, request=100, priority=-5),
    ]
    assert names(rank(pods, Signal.MEMORY_AVAILABLE, Resource.MEMORY, Layout.ONE)) == [
        "unknown",
        "over-a-lot",
        "small",
        "over-high",
        "under-low",
        "guaranteed",
    ]


def test_processes_by_priority_then_number() -> None:
    pods = [pod(f"p{pids}", use=PodUse(pids=pids), priority=priority) for pids, priority in ((9, 5), (100, 5), (3, 0))]
    assert names(rank(pods, Signal.PID_AVAILABLE, Resource.PIDS, Layout.ONE)) == ["p3", "p100", "p9"]


@pytest.mark.parametrize(
    ("signal", "layout", "first"),
    [
        ("nodefs.available", Layout.ONE, "writer"),
        ("imagefs.available", Layout.ONE, "writer"),
        ("nodefs.available", Layout.DEDICATED_IMAGEFS, "logger"),
        ("imagefs.available", Layout.DEDICATED_IMAGEFS, "writer"),
        ("containerfs.available", Layout.DEDICATED_IMAGEFS, "writer"),
        ("nodefs.available", Layout.SPLIT, "writer"),
    ],
)
def test_disk_counts_what_lies_on_the_filesystem(signal: str, layout: Layout, first: str) -> None:
    pods = [
        pod("logger", use=PodUse(writable_bytes=1, log_bytes=50, volume_bytes=5)),
        pod("writer", use=PodUse(writable_bytes=90, log_bytes=2, volume_bytes=3)),
    ]
    assert names(rank(pods, Signal(signal), Resource.EPHEMERAL_STORAGE, layout))[0] == first


def test_inodes_are_not_compared_with_a_request_in_bytes() -> None:
    pods = [
        pod("few", use=PodUse(writable_inodes=5)),
        pod("many", use=PodUse(writable_inodes=9), storage_request_bytes=10**9),
    ]
    assert names(rank(pods, Signal.NODEFS_INODES_FREE, Resource.INODES, Layout.ONE)) == ["many", "few"]


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"static": True}, ReasonCode.POD_STATIC),
        ({"mirror": True}, ReasonCode.POD_STATIC),
        ({"static": None}, ReasonCode.POD_FACTS_UNSURE),
        ({"priority": CRITICAL_PRIORITY}, ReasonCode.POD_CRITICAL),
        ({"priority": CRITICAL_PRIORITY - 1}, None),
        ({"critical_because": "oom_score_adj is -997"}, ReasonCode.POD_CRITICAL),
        ({"namespace": "kube-system"}, ReasonCode.POD_NAMESPACE_PROTECTED),
        ({"contradiction": "two sources"}, ReasonCode.POD_FACTS_UNSURE),
        ({}, None),
    ],
)
def test_who_is_spared(facts: dict[str, Any], code: ReasonCode | None) -> None:
    reason = why_spared(pod("p", **facts), POLICY)
    assert (reason.code if reason else None) is code
    plan = evict(pod("p", 9999, **facts), pod("other", 1, request=10))
    assert [each.pod.name for each in plan.victims] == (["other"] if code else ["p"])


def test_one_goes_and_the_others_are_told_their_place() -> None:
    plan = evict(pod("a", 300), pod("b", 200), pod("c", 100))
    (victim,) = plan.victims
    assert (victim.pod.name, victim.grace_s, victim.signal) == ("a", 1.0, "memory.available")
    assert [(each.name, each.verdict) for each in plan.plan.decisions] == [
        ("shop/a", Verdict.REMOVE),
        ("shop/b", Verdict.KEEP),
        ("shop/c", Verdict.KEEP),
    ]
    assert plan.plan.decisions[0].reason.sentence == (
        "the node is low on memory: memory.available<100Mi, 50.0 MiB available; it is number 1 of 3 in order of "
        "eviction and uses 300 MiB"
    )


def test_the_message_is_the_kubelets() -> None:
    containers = (
        ContainerUse("app", 300 * MIB, 100 * MIB),
        ContainerUse("side", 5 * MIB, 10 * MIB),
        ContainerUse("unknown", None, None),
    )
    (victim,) = evict(pod("a", 300, containers=containers)).victims
    assert victim.message == (
        "The node was low on resource: memory. Threshold quantity: 102400Ki, available: 51200Ki. "
        "Container app was using 307200Ki, request is 102400Ki, has larger consumption of memory. "
    )


@pytest.mark.parametrize(("maximum", "own", "given"), [(0, 30, 30), (10, 30, 10), (60, 30, 30)])
def test_a_soft_threshold_gives_a_pod_time(maximum: float, own: float, given: float) -> None:
    policy = EvictionPolicy(maximum_pod_grace_s=maximum)
    plan = plan_eviction(
        [pod("a", grace_s=own)], policy, [threshold(soft=True)], {}, layout=Layout.ONE, reclaimed=True, now=NOW
    )
    assert plan.victims[0].grace_s == given


@pytest.mark.parametrize(
    ("signal", "layout", "expected"),
    [
        ("memory.available", Layout.ONE, ()),
        ("nodefs.available", Layout.ONE, (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES)),
        ("nodefs.inodesFree", Layout.DEDICATED_IMAGEFS, ()),
        ("imagefs.available", Layout.DEDICATED_IMAGEFS, (Reclaim.DEAD_CONTAINERS, Reclaim.IMAGES)),
        ("nodefs.available", Layout.SPLIT, (Reclaim.DEAD_CONTAINERS,)),
        ("imagefs.available", Layout.SPLIT, (Reclaim.IMAGES,)),
    ],
)
def test_the_node_gives_back_first(signal: str, layout: Layout, expected: tuple[Reclaim, ...]) -> None:
    acting = threshold(signal, "10%")
    first = evict(pod("a"), acting=acting, reclaimed=False, layout=layout)
    assert first.reclaim == expected
    assert bool(first.victims) is not bool(expected)
    assert len(evict(pod("a"), acting=acting, reclaimed=True, layout=layout).victims) == 1


def test_limits_of_their_own_send_all_that_break_them_and_pressure_nobody() -> None:
    plan = evict(
        pod("volume", empty_dirs=(EmptyDir("data", 11, 10), EmptyDir("free", 99, 0))),
        pod(
            "total", use=PodUse(writable_bytes=6, log_bytes=5), containers=(ContainerUse("c", storage_limit_bytes=10),)
        ),
        pod("at-limit", empty_dirs=(EmptyDir("data", 10, 10),)),
        pod("critical", priority=CRITICAL_PRIORITY, empty_dirs=(EmptyDir("data", 11, 10),)),
        pod("hungry", 10_000),
    )
    assert {(each.pod.name, each.signal) for each in plan.victims} == {
        ("volume", "emptydirfs.limit"),
        ("total", "ephemeralpodfs.limit"),
    }
    assert {each.grace_s for each in plan.victims} == {1.0}


def test_a_containers_own_limit_leaves_its_layer_out_where_that_lies_elsewhere() -> None:
    containers = (
        ContainerUse("a", writable_bytes=8, log_bytes=5, storage_limit_bytes=10),
        ContainerUse("b", storage_limit_bytes=90),
    )
    breaking = pod("p", use=PodUse(writable_bytes=8, log_bytes=5), containers=containers)
    (victim,) = evict(breaking).victims
    assert victim.signal == "ephemeralcontainerfs.limit"
    assert evict(breaking, layout=Layout.DEDICATED_IMAGEFS).victims[0].signal == "memory.available"


PODS = st.lists(
    st.builds(
        PodFacts,
        uid=st.uuids().map(str),
        namespace=st.sampled_from(["shop", "kube-system"]),
        name=st.sampled_from("abc"),
        priority=st.one_of(st.none(), st.integers(-10, 10), st.just(CRITICAL_PRIORITY)),
        static=st.sampled_from([False, False, True, None]),
        memory_request_bytes=st.one_of(st.none(), st.integers(0, 5)),
        use=st.one_of(st.none(), st.builds(PodUse, memory_bytes=st.one_of(st.none(), st.integers(0, 10)))),
    ),
    max_size=12,
    unique_by=lambda each: each.uid,
)


@given(PODS, st.randoms())
def test_whoever_is_spared_stays_and_at_most_one_goes_whatever_the_order(pods: list[PodFacts], dice: Any) -> None:
    plan = evict(*pods)
    assert len(plan.victims) <= 1
    assert sorted(each.id for each in plan.plan.decisions) == sorted(each.uid for each in pods)
    spared = {each.uid for each in pods if why_spared(each, POLICY)}
    assert not spared & {each.pod.uid for each in plan.victims}
    assert bool(plan.victims) is (len(spared) < len(pods))
    shuffled = list(pods)
    dice.shuffle(shuffled)
    assert [each.pod.uid for each in evict(*shuffled).victims] == [each.pod.uid for each in plan.victims]


@given(st.integers(-10, 10), st.integers(-10, 10), st.integers(0, 10), st.integers(0, 10))
def test_at_equal_excess_a_lower_priority_never_outlives_a_higher(one: int, other: int, used: int, asked: int) -> None:
    pods = [pod("one", used, request=asked, priority=one), pod("other", used, request=asked, priority=other)]
    (victim,) = evict(*pods).victims
    assert victim.pod.priority == min(one, other)
