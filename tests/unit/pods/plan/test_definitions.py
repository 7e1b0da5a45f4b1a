"""Pod facts from the kubelet's list and from static manifests."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.pods import CRITICAL_PRIORITY, EmptyDirSpec, PodReading, PodSpec
from nodeagent.model.pressure import UNKNOWN, EmptyDirFacts, Fact, Footprint, PodLifecycle, QosClass
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.pods.plan.fact_cases import FILE, A, C, K, M, kept
from tests.unit.pods.plan.pod_cases import API, container_spec, merged, runtime_pod, spec, traits

# ---- from a server that is not verified ----


@pytest.mark.parametrize(
    "forged",
    [
        {"priority": CRITICAL_PRIORITY},
        {"priority": -1000},
        {"priority_class": "system-node-critical"},
        {"annotations": FILE},
        {"annotations": {**API, "kubernetes.io/config.mirror": "x"}},
    ],
)
def test_unverified_list_changes_neither_priority_nor_protection(forged: dict[str, Any]) -> None:
    pod = runtime_pod(traits(999))
    alone, facts = merged(pod), merged(pod, kubelet=[spec(is_verified=False, **forged)])
    for name in ("priority", "priority_class", "critical", "static", "mirror", "contradictions"):
        assert getattr(facts, name) == getattr(alone, name), name
    assert kept(facts) is None
    assert merged(pod, kubelet=[spec(**forged)]) != facts


@pytest.mark.parametrize(
    ("priority", "critical"), [(1_999_999_999, False), (2_000_000_000, True), (2_000_000_001, True), (None, False)]
)
def test_pod_is_critical_from_priority_two_billion_in_every_definition(priority: int | None, critical: bool) -> None:
    pod = runtime_pod(traits(999))
    listed = merged(pod, kubelet=[spec(priority=priority)])
    annotated = merged(
        runtime_pod(traits(999), annotations={} if priority is None else {"nodeagent.dev/priority": str(priority)}),
        trusted=frozenset({"shop"}),
    )
    static = merged(runtime_pod(traits(999), annotations={}), manifests=[spec(priority=priority, annotations={})])
    assert (listed.critical.value, static.critical.value) == (critical, critical)
    assert (kept(listed), kept(annotated)) == ("critical-pod", "critical-pod") if critical else (None, None)


# ---- with the kubelet ----


def test_facts_of_the_kubelet_precede_those_of_the_runtime() -> None:
    listed = spec(
        priority=100,
        priority_class="high",
        qos=QosClass.BURSTABLE,
        memory_request_bytes=5 * MIB,
        ephemeral_request_bytes=6 * MIB,
        ephemeral_limit_bytes=7 * MIB,
        termination_grace_s=45.0,
        containers=(container_spec("c0", 5, ephemeral_limit=7),),
        empty_dirs=(EmptyDirSpec("cache", 9 * MIB), EmptyDirSpec("rest")),
        phase="Running",
    )
    reading = PodReading(memory_bytes=1, empty_dir_bytes={"cache": 3, "other": 4}, container_logs_bytes={"c0": 2})
    facts = merged(runtime_pod(traits(900)), kubelet=[listed], reading=reading, assume=False)
    assert {facts.priority.source, facts.static.source, facts.mirror.source, facts.critical.source} == {K}
    assert (facts.priority.value, facts.priority_class, facts.qos) == (100, "high", Fact(QosClass.BURSTABLE, K))
    assert (facts.memory_request_bytes, facts.ephemeral_request_bytes) == (Fact(5 * MIB, K), Fact(6 * MIB, K))
    assert (facts.ephemeral_limit_bytes, facts.termination_grace_s) == (7 * MIB, Fact(45.0, K))
    (container,) = facts.containers
    assert (container.memory_request_bytes, container.ephemeral_limit_bytes) == (5 * MIB, 7 * MIB)
    assert container.logs_bytes == 2
    assert facts.empty_dirs == (
        EmptyDirFacts("cache", 3, 9 * MIB),
        EmptyDirFacts("other", 4, None),
        EmptyDirFacts("rest", None, None),
    )
    assert kept(facts) is None


@pytest.mark.parametrize(
    ("pod", "listed", "contradiction"),
    [
        pytest.param({}, {"qos": QosClass.GUARANTEED}, "the kubelet has Guaranteed, the cgroup Burstable", id="class"),
        pytest.param({}, {"annotations": FILE}, "the kubelet's list and the runtime differ on static", id="static"),
        pytest.param({}, {"name": "db"}, "the kubelet has shop/db, the runtime shop/web", id="name"),
        pytest.param({}, {"uid": "other"}, "not in the kubelet's list", id="not listed"),
    ],
)
def test_contradiction_between_kubelet_and_runtime_keeps_the_pod(
    pod: dict[str, Any], listed: dict[str, Any], contradiction: str
) -> None:
    facts = merged(runtime_pod(traits(999), **pod), kubelet=[spec(**{"priority": 0, **listed})])
    assert contradiction in facts.contradictions
    assert kept(facts) in {"facts-contradictory", "static-pod"}


def test_priority_of_the_kubelet_precedes_the_oom_score() -> None:
    facts = merged(runtime_pod(traits(-997)), kubelet=[spec(priority=0)])
    assert (facts.critical, facts.contradictions) == (Fact(value=False, source=K), ())


def test_malformed_pod_of_the_kubelet_is_kept_without_values_and_costs_only_itself() -> None:
    broken = spec(malformed="pod 3 (shop/web): spec.priority is 'high', not a 32-bit number")
    facts = merged(runtime_pod(traits(900)), kubelet=[broken], assume=False)
    assert facts.contradictions == (f"malformed in the kubelet's list: {broken.malformed}",)
    assert (facts.priority, kept(facts)) == (UNKNOWN, "facts-contradictory")
    neighbour = merged(runtime_pod(traits(900), uid="u-2"), kubelet=[broken, spec(uid="u-2", priority=5)], assume=False)
    assert (neighbour.priority, kept(neighbour)) == (Fact(5, K), None)


def test_list_with_a_pod_without_readable_uid_is_incomplete() -> None:
    nameless = spec(uid="", malformed="pod 3: metadata: null is not an object")
    facts = merged(runtime_pod(traits(900)), kubelet=[nameless], assume=False)
    assert facts.contradictions == ()
    assert kept(facts) == "facts-missing"


def test_malformed_manifest_keeps_its_pod() -> None:
    broken = spec("etcd", uid="", annotations={}, malformed="etcd.yaml: spec: null is not an object")
    assert kept(merged(runtime_pod(traits(), name="etcd", annotations=FILE), manifests=[broken])) == (
        "facts-contradictory"
    )


def test_storage_limits_of_main_and_init_containers_are_known() -> None:
    listed = (
        container_spec("c0", ephemeral_limit=1),
        replace(container_spec("c1", ephemeral_limit=2), init=True),
        replace(container_spec("c2", ephemeral_limit=3), init=True, sidecar=True),
        container_spec("c3"),
    )
    pod = runtime_pod(traits(), traits(), traits(), traits(), traits())
    facts = merged(pod, kubelet=[spec(priority=0, containers=listed)])
    limits = {"c0": MIB, "c1": 2 * MIB, "c2": 3 * MIB, "c3": 0, "c4": None}
    assert {each.name: each.ephemeral_limit_bytes for each in facts.containers} == limits


@pytest.mark.parametrize(
    ("logs", "logs_bytes"),
    [(None, None), (Footprint(0, 0, is_lower_bound=True), None), (Footprint(0, 0), 0)],
    ids=["not read", "incomplete", "read"],
)
def test_container_without_log_directory_has_no_logs_if_the_directory_of_the_pod_was_read(
    logs: Footprint | None, logs_bytes: int | None
) -> None:
    facts = merged(runtime_pod(traits()), reading=PodReading(logs=logs))
    assert [each.logs_bytes for each in facts.containers] == [logs_bytes]


def test_uid_listed_twice_is_contradictory() -> None:
    assert kept(merged(runtime_pod(traits()), kubelet=[spec(priority=0), spec(priority=0)])) == "facts-contradictory"


def test_outdated_list_still_has_the_facts_of_its_pods() -> None:
    old = [spec(priority=3)]
    assert merged(runtime_pod(traits()), kubelet=old, complete=False, assume=False).priority == Fact(3, K)
    unlisted = merged(runtime_pod(traits(), uid="new"), kubelet=old, complete=False, assume=False)
    assert unlisted.contradictions == ()
    assert kept(unlisted) == "facts-missing"


@pytest.mark.parametrize(
    ("listed", "lifecycle"),
    [
        ({"deleting": True}, PodLifecycle.ENDING),
        ({"phase": "Failed"}, PodLifecycle.ENDING),
        ({"phase": "Running"}, PodLifecycle.ACTIVE),
    ],
)
def test_lifecycle_follows_from_the_kubelet_list(listed: dict[str, Any], lifecycle: PodLifecycle) -> None:
    assert merged(runtime_pod(traits()), kubelet=[spec(**listed)]).lifecycle is lifecycle


def test_listed_pod_with_a_final_phase_is_finished() -> None:
    pod = runtime_pod(traits(), state=ContainerState.EXITED)
    assert merged(pod, kubelet=[spec(phase="Succeeded")]).lifecycle is PodLifecycle.FINISHED


@pytest.mark.parametrize(
    ("listed", "priority"),
    [({}, Fact(0, K)), ({"priority_class": "custom"}, UNKNOWN), ({"priority": -3}, Fact(-3, K))],
    ids=["none", "class without number", "a number"],
)
def test_listed_pod_without_priority_has_0_unless_its_class_is_unknown(
    listed: dict[str, Any], priority: Fact[int | None]
) -> None:
    assert merged(runtime_pod(traits()), kubelet=[spec(**listed)]).priority == priority


@pytest.mark.difference("critical-class")
@pytest.mark.parametrize("priority_class", ["system-node-critical", "system-cluster-critical"])
def test_pod_of_a_critical_class_is_critical(priority_class: str) -> None:
    facts = merged(runtime_pod(traits()), kubelet=[spec(priority_class=priority_class)])
    assert facts.critical == Fact(value=True, source=K)
    assert kept(facts) == "critical-pod"


def test_static_pod_is_matched_by_the_hash_of_its_mirror() -> None:
    uid = "ab" * 16
    mirror = spec(
        "etcd-node-1",
        uid="mirror-uid",
        annotations={"kubernetes.io/config.mirror": uid, "kubernetes.io/config.hash": uid},
    )
    pod = runtime_pod(traits(), uid=uid, name="etcd-node-1", annotations={**FILE, "kubernetes.io/config.hash": uid})
    facts = merged(pod, kubelet=[mirror])
    assert facts.mirror == Fact(value=True, source=K)
    assert facts.static == Fact(value=True, source=C)
    assert facts.contradictions == ()


# ---- with manifests ----


@pytest.mark.parametrize("annotations", [FILE, {}], ids=["annotated", "not annotated"])
@pytest.mark.parametrize("name", ["etcd-node-1", "etcd"])
def test_pod_with_a_manifest_is_static(annotations: dict[str, str], name: str) -> None:
    defined = spec("etcd", uid="", annotations={}, priority=2_000_001_000, memory_request_bytes=MIB)
    facts = merged(runtime_pod(traits(), name=name, annotations=annotations), manifests=[defined], node_name="Node-1")
    assert facts.static == Fact(value=True, source=M)
    assert facts.priority == Fact(2_000_001_000, M)
    assert facts.memory_request_bytes == Fact(MIB, M)
    assert kept(facts) == "static-pod"


def test_pod_from_the_api_server_is_not_static_by_its_name() -> None:
    facts = merged(runtime_pod(traits(), name="etcd-node-1"), manifests=[spec("etcd", annotations={}, priority=5)])
    assert facts.static == Fact(value=False, source=C)
    assert facts.priority == Fact(0, A)


def test_unknown_config_source_in_the_kubelets_list_is_a_contradiction() -> None:
    strange = {"kubernetes.io/config.source": "?"}
    facts = merged(runtime_pod(traits()), kubelet=[spec("web", annotations=strange)])
    assert kept(facts) == "facts-contradictory"
    assert any("kubernetes.io/config.source is '?'" in each for each in facts.contradictions)


def test_facts_of_the_kubelet_precede_those_of_the_manifest() -> None:
    facts = merged(
        runtime_pod(traits(), name="etcd-node-1", annotations=FILE),
        kubelet=[spec("etcd-node-1", annotations=FILE, priority=1)],
        manifests=[spec("etcd", annotations={}, priority=2, termination_grace_s=9.0)],
    )
    assert facts.priority == Fact(1, K)
    assert facts.termination_grace_s == Fact(9.0, M)


@pytest.mark.parametrize(
    ("listed", "complete", "rule"),
    [
        pytest.param((), True, "facts-contradictory", id="empty list of a starting kubelet"),
        pytest.param((spec("etcd", uid="static"),), True, "facts-contradictory", id="static pods only"),
        pytest.param((), False, "facts-missing", id="empty list, then no answer"),
        pytest.param(None, False, "facts-missing", id="never an answer"),
    ],
)
def test_pod_missing_in_the_list_is_kept(listed: tuple[PodSpec, ...] | None, complete: bool, rule: str) -> None:
    facts = merged(runtime_pod(traits(999)), kubelet=listed, complete=complete, assume=False)
    assert kept(facts) == rule
