"""Pod facts from the runtime alone: assumptions, annotations, inference."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.pods import CRITICAL_PRIORITY, PodReading
from nodeagent.model.pressure import UNKNOWN, Fact, FactSource, Footprint, PodLifecycle, QosClass
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.pods.plan.fact_cases import FILE, A, C, I, K, kept
from tests.unit.pods.plan.pod_cases import API, merged, runtime_pod, spec, traits

# ---- from the runtime alone ----


def test_ordinary_pod_of_a_standalone_node_is_evictable() -> None:
    facts = merged(runtime_pod(traits(999)))
    assert facts.priority == Fact(0, A)
    assert facts.static == Fact(value=False, source=C)
    assert facts.mirror == Fact(value=False, source=C)
    assert facts.critical == Fact(value=False, source=A)
    assert facts.qos == Fact(QosClass.BURSTABLE, FactSource.CGROUP)
    assert facts.ephemeral_request_bytes == Fact(0, A)
    assert facts.termination_grace_s == Fact(30.0, C)
    assert facts.lifecycle is PodLifecycle.ACTIVE
    assert facts.usage is None
    assert kept(facts) is None


def test_pod_created_by_hand_is_evictable() -> None:
    facts = merged(runtime_pod(traits(0), annotations={}, cgroup_parent="", container_annotations={}))
    assert facts.static == Fact(value=False, source=A)
    assert facts.memory_request_bytes == Fact(0, A)
    assert facts.qos == UNKNOWN
    assert facts.termination_grace_s == UNKNOWN
    assert kept(facts) is None


def test_facts_from_cri_alone_keep_the_pod_beside_a_kubelet() -> None:
    facts = merged(runtime_pod(traits(999)), assume=False)
    assert facts.priority == UNKNOWN
    assert facts.ephemeral_request_bytes == UNKNOWN
    assert kept(facts) == "facts-missing"


PRIORITY = "nodeagent.dev/priority"

SHOP = frozenset({"shop"})


@pytest.mark.difference("inferred-facts")
@pytest.mark.parametrize(
    ("annotations", "rule"),
    [
        pytest.param(FILE, "static-pod", id="static"),
        pytest.param({"kubernetes.io/config.source": "http"}, "static-pod", id="from a URL"),
        pytest.param({**API, "kubernetes.io/config.mirror": "x"}, "mirror-pod", id="mirror"),
        pytest.param({**API, PRIORITY: str(CRITICAL_PRIORITY)}, "critical-pod", id="priority"),
    ],
)
def test_mark_in_an_annotation_protects_only_in_a_trusted_namespace(annotations: dict[str, str], rule: str) -> None:
    pod = runtime_pod(traits(999), annotations=annotations)
    assert kept(merged(pod, trusted=SHOP)) == rule
    assert merged(pod, trusted=SHOP).ignored == ()
    untrusted = merged(pod, trusted=frozenset({"other"}))
    assert kept(untrusted) is None
    assert untrusted.priority == Fact(0, A)
    (ignored,) = untrusted.ignored
    assert ignored.endswith("has no effect in namespace shop, which is not in eviction.annotation_namespaces")


@pytest.mark.parametrize("trusted", [frozenset(), SHOP], ids=["other namespace", "trusted namespace"])
@pytest.mark.parametrize("text", ["2e9", "", "x" * 99, "99999999999999", str(2**31), "\u0662", "1.5"])
def test_malformed_priority_counts_as_nothing_with_a_warning(text: str, trusted: frozenset[str]) -> None:
    facts = merged(runtime_pod(traits(999), annotations={**API, PRIORITY: text}), trusted=trusted)
    assert (facts.priority, kept(facts)) == (Fact(0, A), None)
    (ignored,) = facts.ignored
    assert ignored.startswith(f"annotation {PRIORITY} is {text[:40]!r}, not")


@pytest.mark.parametrize("trusted", [frozenset(), SHOP], ids=["other namespace", "trusted namespace"])
def test_malformed_source_counts_as_nothing_with_a_warning(trusted: frozenset[str]) -> None:
    facts = merged(runtime_pod(traits(), annotations={"kubernetes.io/config.source": "?"}), trusted=trusted)
    assert (facts.static, kept(facts)) == (Fact(value=False, source=A), None)
    assert facts.ignored == ("annotation kubernetes.io/config.source is '?', not api, file or http",)


def test_marks_written_by_a_kubelet_count() -> None:
    beside = merged(runtime_pod(traits(), annotations=FILE), assume=False)
    assert (beside.static, beside.ignored) == (Fact(value=True, source=C), ())


@pytest.mark.parametrize(
    ("pod", "rule"),
    [
        pytest.param(
            {"cgroup_parent": "/kubepods/burstable/pod" + "a" * 32}, "facts-contradictory", id="other's cgroup"
        ),
        pytest.param({"namespace": "kube-system"}, "protected-namespace", id="namespace"),
        pytest.param({"ready": False}, None, id="sandbox not ready"),
    ],
)
def test_pods_with_unknown_facts_are_kept(pod: dict[str, Any], rule: str | None) -> None:
    assert kept(merged(runtime_pod(traits(999), **pod))) == rule


@pytest.mark.parametrize(
    ("containers", "qos", "rule"),
    [
        ((traits(-997),), "burstable", None),
        ((traits(-997),), "besteffort", None),
        ((traits(-997, 64),), "guaranteed", None),
        ((traits(-997, 0),), "guaranteed", None),
        ((traits(None),), "burstable", None),
        ((traits(999), None), "burstable", "facts-missing"),
        ((traits(900),), "guaranteed", "facts-contradictory"),
        ((traits(900),), "besteffort", "facts-contradictory"),
        ((), "burstable", "facts-missing"),
    ],
)
def test_unread_status_keeps_the_pod_and_no_score_protects_it(
    containers: tuple[Any, ...], qos: str, rule: str | None
) -> None:
    assert kept(merged(runtime_pod(*containers, qos=qos))) == rule


@pytest.mark.parametrize("parent", ["", "/x/pod"], ids=["no cgroup", "cgroup without QoS class"])
def test_guaranteed_pod_is_not_critical_by_its_oom_score(parent: str) -> None:
    facts = merged(runtime_pod(traits(-997, 64), cgroup_parent=parent))
    assert (facts.critical, facts.priority) == (Fact(value=False, source=A), Fact(0, A))
    assert kept(facts) is None


@pytest.mark.parametrize(("text", "priority"), [("-5", -5), ("1000", 1000), ("0", 0), ("-2147483648", -(2**31))])
def test_priority_is_read_from_the_annotation(text: str, priority: int) -> None:
    pod = runtime_pod(traits(), annotations={**API, PRIORITY: text})
    assert merged(pod, trusted=SHOP).priority == Fact(priority, C)
    assert merged(pod, assume=False).priority == UNKNOWN
    assert merged(pod, kubelet=[spec(priority=7)]).priority == Fact(7, K)


def test_request_is_the_sum_over_running_containers() -> None:
    facts = merged(runtime_pod(traits(900, 100), traits(0, 50)))
    assert facts.memory_request_bytes == Fact(150 * MIB, I)
    assert [(each.name, each.memory_request_bytes) for each in facts.containers] == [
        ("c0", 100 * MIB),
        ("c1", 50 * MIB),
    ]


def test_memory_min_of_the_cgroup_is_the_exact_request() -> None:
    assert merged(runtime_pod(traits(900), memory_min=77)).memory_request_bytes == Fact(77 * MIB, FactSource.CGROUP)


def test_longest_termination_grace_period_of_the_containers_is_used() -> None:
    pod = runtime_pod(traits(), traits())
    longer = replace(pod.containers[0], annotations={"io.kubernetes.pod.terminationGracePeriod": "90"})
    senseless = replace(pod.containers[1], annotations={"io.kubernetes.pod.terminationGracePeriod": "-1"})
    assert merged(replace(pod, containers=(*pod.containers, longer))).termination_grace_s == Fact(90.0, C)
    assert merged(replace(pod, containers=(senseless,))).termination_grace_s == UNKNOWN


def test_pod_with_a_deletion_grace_period_is_ending() -> None:
    pod = runtime_pod(traits(), container_annotations={"io.kubernetes.pod.deletionGracePeriod": "30"})
    assert merged(pod).lifecycle is PodLifecycle.ENDING


def test_empty_reading_has_no_usage() -> None:
    assert merged(runtime_pod(traits()), reading=PodReading()).usage is None
    usage = merged(runtime_pod(traits()), reading=PodReading(pids=3, logs=Footprint(1, 2))).usage
    assert usage is not None
    assert (usage.pids, usage.memory_bytes, usage.logs, usage.writable) == (3, None, Footprint(1, 2), Footprint())
