"""Pod facts that determine the shutdown order."""

from __future__ import annotations

from nodeagent.pods.plan.facts import SpecIndex, shutdown_pods
from tests.unit.pods.plan.fact_cases import FILE
from tests.unit.pods.plan.pod_cases import API, UID, merged, runtime_pod, spec, traits


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
