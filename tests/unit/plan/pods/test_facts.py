"""Facts of pods merged from all their sources."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.model import Container, ContainerState, Sandbox
from nodeagent.model.pods import EmptyDirSpec, PodReading, PodSpec
from nodeagent.model.pressure import (
    UNKNOWN,
    EmptyDirFacts,
    Fact,
    FactSource,
    Footprint,
    PodFacts,
    PodLifecycle,
    QosClass,
)
from nodeagent.model.priority import CRITICAL_PRIORITY
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.eviction.protection import Protection
from nodeagent.plan.pods.definitions import SpecIndex
from nodeagent.plan.pods.facts import merge_facts
from nodeagent.plan.pods.groups import group_pods
from nodeagent.plan.pods.shutdown_pods import shutdown_pods
from tests.unit.builders import MIB, ago
from tests.unit.plan.pod_cases import API, UID, container_spec, merged, runtime_pod, spec, traits

K, M, C, I, A = (  # noqa: E741 - one letter for each source in tables
    FactSource.KUBELET,
    FactSource.MANIFEST,
    FactSource.CRI,
    FactSource.INFERRED,
    FactSource.ASSUMED,
)
FILE = {"kubernetes.io/config.source": "file"}


def kept(facts: PodFacts, **policy: Any) -> str | None:
    """Return the code of the rule that keeps a pod."""
    reason = Protection([facts], EvictionPolicy(**policy)).keep_reason(facts)
    return None if reason is None else reason.code.value


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
        pytest.param({}, {"annotations": FILE}, "the kubelet and the runtime differ on static", id="static"),
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


def test_storage_limit_counts_for_main_containers_only() -> None:
    listed = (
        container_spec("c0", ephemeral_limit=1),
        replace(container_spec("c1", ephemeral_limit=2), init=True),
        replace(container_spec("c2", ephemeral_limit=3), init=True, sidecar=True),
    )
    facts = merged(runtime_pod(traits(), traits(), traits()), kubelet=[spec(priority=0, containers=listed)])
    assert [(each.name, each.ephemeral_limit_bytes) for each in facts.containers] == [
        ("c0", MIB),
        ("c1", None),
        ("c2", None),
    ]


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


# ---- the runtime's lists ----


def sandbox(key: str, uid: str = UID, *, ready: bool = True, created_s: float = 100, name: str = "web") -> Sandbox:
    return Sandbox(key, name, "shop", uid, ready, created_at=ago(created_s))


def container(key: str, home: str, *, state: ContainerState = ContainerState.RUNNING, uid: str = UID) -> Container:
    return Container(key, key, home, state, created_at=ago(50), labels={"io.kubernetes.pod.uid": uid})


def grouped(sandboxes: list[Sandbox], containers: list[Container]) -> Any:
    return group_pods(sandboxes, containers, cgroup_parents={}, traits={}, memory_min_bytes={})


def test_only_active_pods_are_returned() -> None:
    exited = container("c", "down", state=ContainerState.EXITED)
    assert grouped([sandbox("down", ready=False)], [exited]) == ()
    for state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
        (pod,) = grouped([sandbox("down", ready=False)], [container("c", "down", state=state)])
        assert pod.sandbox_ids == ()
    (pod,) = grouped([sandbox("up")], [])
    assert pod.sandbox_ids == ("up",)


def test_main_sandbox_is_the_newest_ready_one() -> None:
    (pod,) = grouped([sandbox("old", ready=False, created_s=10), sandbox("up", created_s=99)], [])
    assert (pod.sandbox.id, pod.contradictions) == ("up", ())
    (pod,) = grouped([sandbox("older", created_s=99), sandbox("newer", created_s=1)], [])
    assert (pod.sandbox.id, pod.sandbox_ids) == ("newer", ("newer", "older"))
    assert pod.contradictions == ("more than one ready sandbox",)


def test_pod_without_uid_has_its_sandbox_id_and_is_kept() -> None:
    (pod,) = grouped([sandbox("s", uid="")], [])
    assert (pod.uid, pod.contradictions) == ("s", ("sandbox has no pod UID",))


def test_container_labelled_with_another_pod_makes_both_pods_contradictory() -> None:
    first, second = grouped(
        [sandbox("s1", uid="u1"), sandbox("s2", uid="u2", name="db")], [container("c", "s1", uid="u2")]
    )
    assert first.contradictions == second.contradictions
    assert "its label has pod u2" in first.contradictions[0]


def test_container_without_a_listed_sandbox_is_ignored() -> None:
    assert grouped([], [container("c", "gone")]) == ()


# ---- for a shutdown ----


def test_shutdown_pod_has_the_sources_of_its_facts() -> None:
    pod = runtime_pod(traits(), traits(), labels={"app": "web"}, annotations={**API, "nodeagent.dev/priority": "5"})
    (stopped,) = shutdown_pods([merged(pod)], [pod])
    assert (stopped.priority, stopped.priority_source) == (5, "annotation nodeagent.dev/priority")
    assert (stopped.static, stopped.node_critical, stopped.labels) == (False, False, {"app": "web"})
    assert stopped.container_ids == (f"c1-{UID}", f"c0-{UID}")
    assert stopped.termination_grace_s == 30


def test_assumed_priority_is_unknown_in_a_shutdown_pod() -> None:
    pod = runtime_pod(traits())
    (stopped,) = shutdown_pods([merged(pod)], [pod])
    assert (stopped.priority, stopped.priority_source) == (None, "")


def test_shutdown_pod_has_the_kubelets_facts_and_labels() -> None:
    pod = runtime_pod(traits(), labels={"app": "old"})
    listed = [spec(priority=9, labels={"app": "new"})]
    (stopped,) = shutdown_pods([merged(pod, kubelet=listed)], [pod], SpecIndex(listed))
    assert (stopped.priority, stopped.priority_source, stopped.labels) == (9, "kubelet /pods", {"app": "new"})


def test_static_and_critical_pod_has_the_sources_of_both_facts() -> None:
    pod = runtime_pod(traits(-997), annotations=FILE)
    (stopped,) = shutdown_pods([merged(pod)], [pod])
    assert (stopped.static_source, stopped.node_critical_source) == (
        "annotation kubernetes.io/config.source",
        "oom_score_adj",
    )
    assert stopped.priority is None
    assert shutdown_pods([merged(pod)], []) == ()


# ---- properties of the facts of any pod ----

SCORES = st.none() | st.builds(
    traits,
    st.none() | st.sampled_from([-1000, -997, -1, 0, 2, 3, 500, 999, 1000]),
    st.none() | st.sampled_from([0, 64]),
)
SOURCES = st.sampled_from([None, "api", "file", "http", "?"])
PARENTS = st.sampled_from(
    [
        "",
        "/x",
        f"/kubepods/pod{UID}",
        f"/kubepods/burstable/pod{UID}",
        f"/kubepods/besteffort/pod{UID}",
        "/kubepods/pod" + "a" * 32,
    ]
)


@st.composite
def pod_annotations(draw: st.DrawFn) -> dict[str, str]:
    made = {}
    if (source := draw(SOURCES)) is not None:
        made["kubernetes.io/config.source"] = source
    if draw(st.booleans()):
        made["nodeagent.dev/priority"] = draw(st.sampled_from(["0", "-7", "5000", "2000000000", "x", ""]))
    if draw(st.integers(0, 5)) == 0:
        made["kubernetes.io/config.mirror"] = "h"
    return made


@st.composite
def runtime_pods(draw: st.DrawFn) -> Any:
    return runtime_pod(
        *draw(st.lists(SCORES, max_size=3)),
        annotations=draw(pod_annotations()),
        cgroup_parent=draw(PARENTS),
        state=draw(st.sampled_from([ContainerState.RUNNING, ContainerState.EXITED])),
        memory_min=draw(st.sampled_from([0, 10])),
    )


@st.composite
def specs(draw: st.DrawFn, name: str = "web") -> PodSpec:
    source = draw(SOURCES)
    return spec(
        name,
        annotations={} if source is None else {"kubernetes.io/config.source": source},
        priority=draw(st.none() | st.sampled_from([-7, 0, 5000, CRITICAL_PRIORITY])),
        priority_class=draw(st.sampled_from(["", "custom", "system-node-critical"])),
        qos=draw(st.none() | st.sampled_from(list(QosClass))),
        memory_request_bytes=draw(st.sampled_from([0, MIB])),
        termination_grace_s=draw(st.none() | st.sampled_from([0.0, 30.0])),
        deleting=draw(st.booleans()),
        phase=draw(st.sampled_from(["", "Running", "Failed"])),
    )


LISTS = st.none() | st.lists(specs(), max_size=2)
MANY = settings(suppress_health_check=[HealthCheck.too_slow])


def facts_by_name(facts: PodFacts) -> dict[str, Fact[Any]]:
    """Return every fact by its name."""
    values = {each.name: getattr(facts, each.name) for each in fields(facts)}
    return {name: value for name, value in values.items() if isinstance(value, Fact)}


@MANY
@given(pod=runtime_pods(), kubelet=LISTS, manifests=st.lists(specs(), max_size=1), assume=st.booleans())
def test_every_fact_has_its_source(pod: Any, kubelet: Any, manifests: Any, assume: bool) -> None:
    facts = merged(pod, kubelet=kubelet, manifests=manifests, assume=assume)
    for name, fact in facts_by_name(facts).items():
        assert (fact.value is None) == (fact.source is FactSource.MISSING), name
        if fact.source is A:
            assert assume, name
        if fact.source is K:
            assert kubelet, name
        if fact.source is M:
            assert manifests, name


@MANY
@given(pod=runtime_pods(), listed=specs(), manifests=st.lists(specs(), max_size=1), assume=st.booleans())
def test_facts_of_the_kubelet_have_precedence(pod: Any, listed: PodSpec, manifests: Any, assume: bool) -> None:
    facts = merged(pod, kubelet=[listed], manifests=manifests, assume=assume)
    if listed.priority is not None:
        assert facts.priority == Fact(listed.priority, K)
    if listed.qos is not None:
        assert facts.qos == Fact(listed.qos, K)
    assert facts.memory_request_bytes == Fact(listed.memory_request_bytes, K)
    if listed.annotations.get("kubernetes.io/config.source") in {"api", "file", "http"}:
        assert facts.static.source is K


@MANY
@given(pod=runtime_pods(), kubelet=LISTS, manifests=st.lists(specs(), max_size=1), assume=st.booleans())
def test_contradiction_or_unknown_fact_keeps_the_pod(pod: Any, kubelet: Any, manifests: Any, assume: bool) -> None:
    facts = merged(pod, kubelet=kubelet, manifests=manifests, assume=assume)
    if facts.contradictions or facts.lifecycle is PodLifecycle.FINISHED:
        assert kept(facts) is not None
    if kept(facts) is None:
        assert facts.static.value is False
        assert facts.mirror.value is False
        assert facts.critical.value is False
        assert facts.priority.value is not None
        assert facts.priority.value < CRITICAL_PRIORITY
        sources = {each.annotations.get("kubernetes.io/config.source", "api") for each in kubelet or ()}
        assert sources <= {"api"}
        if not assume:
            assert facts.priority.source in {K, C}


@MANY
@given(pod=runtime_pods(), kubelet=LISTS, manifests=st.lists(specs(), max_size=1))
def test_assumptions_only_replace_unknown_facts(pod: Any, kubelet: Any, manifests: Any) -> None:
    without = merged(pod, kubelet=kubelet, manifests=manifests, assume=False)
    with_ = merged(pod, kubelet=kubelet, manifests=manifests, assume=True)
    assert {*without.contradictions} <= {*with_.contradictions}
    for name, fact in facts_by_name(without).items():
        marked = name in {"static", "mirror"} and fact.source is C  # by annotations, which only a kubelet may write
        if fact.value is not None and not marked:
            assert facts_by_name(with_)[name] == fact


def test_input_order_does_not_change_the_facts() -> None:
    pods = [runtime_pod(traits(), uid=uid) for uid in ("b", "a", "c")]
    specs_ = SpecIndex()
    first = merge_facts(pods, specs_, {}, memory_capacity_bytes=None, assume=True)
    assert [each.uid for each in first] == ["a", "b", "c"]
    assert first == merge_facts(pods[::-1], specs_, {}, memory_capacity_bytes=None, assume=True)


def test_empty_reading_has_no_usage() -> None:
    assert merged(runtime_pod(traits()), reading=PodReading()).usage is None
    usage = merged(runtime_pod(traits()), reading=PodReading(pids=3, logs=Footprint(1, 2))).usage
    assert usage is not None
    assert (usage.pids, usage.memory_bytes, usage.logs, usage.writable) == (3, None, Footprint(1, 2), Footprint())


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
