"""Eviction plan: selected pod, and reasons to keep all other pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.plan.planner import effective_grace_s, plan_eviction, shortage_signal
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.decision import Verdict
from nodeagent.model.pressure import UNKNOWN, FactSource, PodLifecycle, QosClass
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import (
    POLICY,
    SINGLE,
    at,
    disk,
    evaluated,
    known,
    planned,
    pod,
    read,
    reasons,
    thresholds,
    victim,
)
from tests.unit.eviction.plan.planner_cases import ALL_STEPS, SOFT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.eviction.plan.planner import EvictionPlan


@pytest.mark.difference("unmeasured-pod", "protected-pods")
@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        pytest.param({"static": known(value=True)}, "static-pod", "static pod (source: kubelet)", id="static"),
        pytest.param({"mirror": known(value=True)}, "mirror-pod", "mirror pod", id="mirror"),
        pytest.param(
            {"critical": known(value=True, source=FactSource.INFERRED)},
            "critical-pod",
            "critical: by priority class (source: inferred)",
            id="critical",
        ),
        pytest.param({"priority": known(2_000_000_000)}, "critical-pod", "priority 2000000000", id="priority"),
        pytest.param(
            {"priority_class": "system-node-critical"}, "critical-pod", "class system-node-critical", id="class"
        ),
        pytest.param(
            {"namespace": "kube-system"}, "protected-namespace", "protected namespace kube-system", id="namespace"
        ),
        pytest.param(
            {"contradictions": ("cgroup has BestEffort, the API Guaranteed",)},
            "facts-contradictory",
            "cgroup has BestEffort",
            id="sources disagree",
        ),
        pytest.param(
            {"qos": known(QosClass.BEST_EFFORT), "request": 5},
            "facts-contradictory",
            "BestEffort with a memory request",
            id="best effort with a request",
        ),
        pytest.param(
            {"qos": known(QosClass.GUARANTEED)},
            "facts-contradictory",
            "Guaranteed without a memory request",
            id="guaranteed without a request",
        ),
        pytest.param({"memory": -1}, "facts-contradictory", "negative usage or request", id="negative usage"),
        pytest.param({"request": -1}, "facts-contradictory", "negative usage or request", id="negative request"),
        pytest.param({"static": UNKNOWN}, "facts-missing", "unknown: static or not", id="static unknown"),
        pytest.param({"mirror": UNKNOWN}, "facts-missing", "mirror or not", id="mirror unknown"),
        pytest.param({"critical": UNKNOWN}, "facts-missing", "critical or not", id="critical unknown"),
        pytest.param({"priority": UNKNOWN}, "facts-missing", "unknown: priority", id="priority unknown"),
        pytest.param({"uid": ""}, "facts-missing", "UID, namespace or name", id="no UID"),
        pytest.param({"request": None}, "facts-missing", "unknown: memory request", id="request unknown"),
        pytest.param({"memory": None}, "usage-unknown", "memory usage unknown", id="usage unknown"),
        pytest.param({"usage": None}, "usage-unknown", "memory usage unknown", id="unknown usage"),
        pytest.param({"lifecycle": PodLifecycle.FINISHED}, "pod-not-active", "pod is finished", id="finished"),
    ],
)
def test_protected_pod_is_never_evicted(fields: Mapping[str, Any], code: str, text: str) -> None:
    first = replace(
        pod("first", **({"memory": 900} | {k: v for k, v in fields.items() if k in BUILT})), **_facts(fields)
    )
    plan = planned([first, pod("second", memory=50, request=100)])
    assert victim(plan) == "second"
    decision = next(each for each in plan.plan.decisions if each.name.endswith("/first"))
    assert (decision.verdict, decision.reason.code.value) == (Verdict.KEEP, code)
    assert text in decision.reason.sentence
    alone = planned([first])
    assert alone.victim is None
    (warning,) = alone.plan.warnings
    statement = "memory.available<100Mi is met, and no eviction ends the shortage of 50.0 MiB"
    cause = "no pod is known to use the resource" if code == "pod-not-active" else "every pod is protected"
    assert warning.startswith(f"{statement}: {cause}; ")


def test_pod_with_the_priority_below_critical_is_evicted() -> None:
    assert victim(planned([pod("below", memory=900, priority=1_999_999_999)])) == "below"


def test_terminating_pod_is_evicted_with_a_shorter_grace_period() -> None:
    ending = pod("ending", memory=900, lifecycle=PodLifecycle.ENDING, termination_grace_s=known(3600.0))
    plan = planned([ending, pod("innocent", memory=100)])
    assert victim(plan) == "ending"
    assert plan.victim is not None
    assert plan.victim.grace_s == POLICY.hard_grace_s


BUILT = frozenset({"memory", "request"})


def _facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in BUILT}


@pytest.mark.parametrize(
    ("fields", "signal"),
    [
        pytest.param({"request": None}, "pid.available", id="memory request for PIDs"),
        pytest.param({"request": None}, "nodefs.inodesFree", id="memory request for inodes"),
        pytest.param({"ephemeral_request": None}, "memory.available", id="storage request for memory"),
        pytest.param({"qos": UNKNOWN}, "memory.available", id="QoS class"),
        pytest.param({"termination_grace_s": UNKNOWN}, "memory.available", id="grace period"),
    ],
)
def test_unneeded_unknown_fact_does_not_protect_the_pod(fields: Mapping[str, Any], signal: str) -> None:
    plan = planned(
        [pod("any", writable=disk(0, 100), **fields)],
        read(signal, available=1, capacity=1000),
        limits=thresholds(f"{signal}<10"),
        reclaimed=ALL_STEPS,
    )
    assert victim(plan) == "any"


def test_pods_with_the_same_uid_are_contradictory_and_duplicates_are_merged() -> None:
    plan = planned([pod("a"), pod("b", uid="uid-a"), pod("c"), pod("c")])
    assert reasons(plan) == {"a": "facts-contradictory", "b": "facts-contradictory", "c": "low-on-resource"}
    assert len(plan.plan.decisions) == 3


@pytest.mark.difference("unmeasured-pod")
def test_pod_with_unknown_usage_is_evicted_first_if_the_policy_allows_it() -> None:
    pods = [pod("hog", memory=900), pod("unread", memory=None)]
    assert victim(planned(pods)) == "hog"
    assert victim(planned(pods, policy=EvictionPolicy(evict_unmeasured=True))) == "unread"


def test_one_pod_is_evicted_and_every_pod_has_a_decision_with_its_usage() -> None:
    plan = planned([pod("within", memory=80, request=90), pod("hog", memory=300), pod("above", memory=50, request=20)])
    assert [(each.name, each.verdict.value) for each in plan.plan.decisions] == [
        ("shop/hog", "remove"),
        ("shop/above", "keep"),
        ("shop/within", "keep"),
    ]
    first, second, _ = (each.reason for each in plan.plan.decisions)
    assert first.sentence == (
        "node is low on memory: threshold memory.available<100Mi met, 50Mi of 1000Mi, limit 100Mi; "
        "first in eviction order: uses 300 MiB of memory, no request, priority 0"
    )
    assert second.sentence == (
        "rank 2 of 3; at most one pod is evicted per pass: uses 50.0 MiB of memory, request 20.0 MiB, priority 0"
    )
    assert (first.details["usage_bytes"], second.details["excess_bytes"]) == (300 * MIB, 30 * MIB)
    assert plan.plan.frees_bytes == 300 * MIB
    assert plan.victim is not None
    assert (plan.victim.signal, plan.victim.starved) == ("memory.available", "memory")


def test_excluded_pod_is_skipped() -> None:
    plan = planned([pod("hog", memory=900), pod("next")], excluded={"uid-hog": "StopContainer failed"})
    assert victim(plan) == "next"
    assert plan.plan.decisions[1].verdict is Verdict.FAILED
    assert plan.plan.decisions[1].reason.sentence.endswith("StopContainer failed")


@pytest.mark.parametrize(
    ("plan", "code", "text"),
    [
        pytest.param(planned([pod()], read(available_mib=100)), "no-threshold-met", "no eviction threshold", id="none"),
        pytest.param(planned([pod()], limits=()), "no-threshold-met", "no eviction threshold met", id="no thresholds"),
        pytest.param(
            planned([pod()], limits=SOFT),
            "grace-period-running",
            "met for 0s; grace period 1m30s, 1m30s left",
            id="grace",
        ),
        pytest.param(
            planned([pod()], read(), seconds=0.5, state=evaluated(read()).state),
            "no-new-reading",
            "no new reading since the last action",
            id="same reading",
        ),
        pytest.param(
            planned([pod()], read(available=-1)), "reading-rejected", "-1 of 1048576000 is negative", id="impossible"
        ),
        pytest.param(
            planned([pod()], read(), seconds=1.5), "reading-rejected", "reading rejected: read 2s ago", id="old"
        ),
        pytest.param(
            planned([pod()], read("io.psi.full", available=99.0, capacity=100), limits=thresholds("io.psi.full>50")),
            "not-relieved-by-eviction",
            "io.psi.full>50% met, but evicting a pod does not relieve this signal",
            id="stalled on I/O",
        ),
        pytest.param(
            planned([pod()], observations=[read(available_mib=150)]),
            "no-longer-met",
            "memory.available<100Mi no longer met: 150Mi of 1000Mi, limit 100Mi",
            id="cleared without reclaim",
        ),
        pytest.param(planned([pod()], observations=[]), "reading-rejected", "not read again", id="not read again"),
    ],
)
def test_pod_is_kept_with_the_reason_that_no_threshold_is_acted_on(plan: EvictionPlan, code: str, text: str) -> None:
    assert plan.victim is None
    assert not plan.reclaim
    assert plan.hindrance is None
    (decision,) = plan.plan.decisions
    assert decision.reason.code.value == code
    assert text in decision.reason.sentence


@pytest.mark.difference("reading-age")
def test_late_decision_needs_new_readings() -> None:
    found = evaluated(read())
    late = plan_eviction(found, [pod()], POLICY, layout=SINGLE, now=at(1.5))
    assert late.victim is None
    assert late.plan.blocked.startswith("memory.available<100Mi: reading rejected: read 2s ago")
    renewed = plan_eviction(found, [pod()], POLICY, layout=SINGLE, now=at(1.5), observations=[read(seconds=1)])
    assert victim(renewed) == "web"


def test_memory_precedes_disk_and_hard_precedes_soft() -> None:
    limits = thresholds(
        "nodefs.available<10%,memory.available<100Mi",
        soft="memory.available<200Mi",
        soft_grace_period="memory.available=1ms",
    )
    start = evaluated(read(), limits=limits).state
    plan = planned(
        [pod()], read("nodefs.available", 5, seconds=1), read(seconds=1), limits=limits, state=start, seconds=1
    )
    assert plan.selected is not None
    assert plan.selected.threshold.text == "memory.available<100Mi"


def test_io_stall_is_a_warning_and_memory_is_still_acted_on() -> None:
    limits = thresholds("io.psi.full>50,memory.available<100Mi")
    plan = planned([pod()], read(), read("io.psi.full", available=99.0, capacity=100), limits=limits)
    assert victim(plan) == "web"
    assert plan.plan.warnings == ("io.psi.full>50% is met, but no pod is evicted for it",)


HARD_THRESHOLD, SOFT_THRESHOLD = thresholds()[0], SOFT[0]


@pytest.mark.difference("hard-grace-period")
@pytest.mark.parametrize(
    ("threshold", "own_s", "policy", "grace_s"),
    [
        (HARD_THRESHOLD, 30, EvictionPolicy(), 0),
        (HARD_THRESHOLD, 30, EvictionPolicy(hard_grace_s=1, max_pod_grace_s=20), 1),
        (None, 30, EvictionPolicy(hard_grace_s=1), 1),
        (SOFT_THRESHOLD, 30, EvictionPolicy(max_pod_grace_s=20), 20),
        (SOFT_THRESHOLD, 10, EvictionPolicy(max_pod_grace_s=20), 10),
        (SOFT_THRESHOLD, 10, EvictionPolicy(), 10),
        (SOFT_THRESHOLD, 0, EvictionPolicy(max_pod_grace_s=20), 0),
        (SOFT_THRESHOLD, None, EvictionPolicy(max_pod_grace_s=20), 20),
        (SOFT_THRESHOLD, None, EvictionPolicy(), 30),
    ],
)
def test_grace_period_is_limited_by_the_kind_of_threshold(
    threshold: Any, own_s: float | None, policy: EvictionPolicy, grace_s: float
) -> None:
    assert effective_grace_s(threshold, pod(termination_grace_s=known(own_s)), policy) == grace_s


def test_pod_is_evicted_by_the_kernels_estimate_until_that_is_above_the_threshold() -> None:
    plan = planned([pod("hog")], read(available_mib=117, kernel_mib=8))
    assert victim(plan) == "hog"
    assert plan.victim is not None
    assert plan.victim.reason.sentence.count("8.00 MiB") or "8Mi" in plan.victim.reason.sentence
    assert "(MemAvailable)" in plan.victim.reason.sentence
    kept = planned(
        [pod("hog")], read(available_mib=117, kernel_mib=8), observations=(read(kernel_mib=300, available_mib=400),)
    )
    assert victim(kept) is None


@pytest.mark.parametrize(
    ("available_mib", "signal"),
    [
        ({"memory.available": 500, "nodefs.available": 500}, "memory.available"),
        ({"memory.available": 500, "nodefs.available": 50}, "nodefs.available"),
        ({"memory.available": 50, "nodefs.available": 50}, "memory.available"),
        ({"memory.available": 500, "nodefs.available": 150}, "nodefs.available"),
        ({}, "memory.available"),
    ],
    ids=["no shortage", "disk", "memory is more urgent", "soft threshold in its grace period", "no reading"],
)
def test_pods_are_ranked_for_the_most_urgent_shortage(available_mib: Mapping[str, float], signal: str) -> None:
    limits = thresholds(
        "memory.available<100Mi,nodefs.available<100Mi",
        soft="nodefs.available<200Mi",
        soft_grace_period="nodefs.available=1m",
    )
    readings = [read(name, amount) for name, amount in available_mib.items()]
    assert shortage_signal(evaluated(*readings, limits=limits)) == signal


def test_pods_are_not_ranked_for_a_stall_that_no_eviction_ends() -> None:
    stall = read("io.psi.full", available=90.0, capacity=100.0)
    found = evaluated(stall, limits=thresholds("io.psi.full>40%"))
    assert len(found.met) == 1
    assert shortage_signal(found) == "memory.available"
