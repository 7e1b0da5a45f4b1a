"""Property tests of merged pod facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.model.pods import CRITICAL_PRIORITY
from nodeagent.model.pressure import Fact, FactSource, PodFacts, PodLifecycle, QosClass
from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.facts import SpecIndex, merge_facts
from tests.unit.builders import MIB
from tests.unit.pods.plan.fact_cases import A, C, K, M, kept
from tests.unit.pods.plan.pod_cases import UID, merged, runtime_pod, spec, traits

if TYPE_CHECKING:
    from nodeagent.model.pods import PodSpec

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
    """Return all facts of a pod by field name."""
    values = {name: getattr(facts, name) for name in facts.__struct_fields__}
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


@pytest.mark.difference("protected-pods")
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
        marked = name in {"static", "mirror"} and fact.source is C  # from annotations of a kubelet
        if fact.value is not None and not marked:
            assert facts_by_name(with_)[name] == fact


def test_input_order_does_not_change_the_facts() -> None:
    pods = [runtime_pod(traits(), uid=uid) for uid in ("b", "a", "c")]
    specs_ = SpecIndex()
    first = merge_facts(pods, specs_, {}, memory_capacity_bytes=None, assume=True)
    assert [each.uid for each in first] == ["a", "b", "c"]
    assert first == merge_facts(pods[::-1], specs_, {}, memory_capacity_bytes=None, assume=True)
