"""Inference of a pod's definition from its cgroup and OOM scores."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.pressure import UNKNOWN, Fact, FactSource, QosClass
from nodeagent.pods.plan.facts import (
    inconsistencies,
    infer_critical,
    infer_qos,
    infer_request,
    qos_of_cgroup,
    sum_requests,
)
from tests.unit.builders import MIB
from tests.unit.pods.plan.pod_cases import CAPACITY_BYTES, UID, runtime_pod, traits

G, B, E = QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT
SLICED = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("parent", "qos", "uid"),
    [
        (f"/kubepods/pod{UID}", G, UID),
        (f"/kubepods/burstable/pod{UID}", B, UID),
        (f"/kubepods/besteffort/pod{UID}/", E, UID),
        (f"/own/root/kubepods/burstable/pod{UID}", B, UID),
        (f"kubepods-pod{SLICED}.slice", G, UID),
        (f"kubepods-burstable-pod{SLICED}.slice", B, UID),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice", E, UID),
        (f"own-kubepods-burstable-pod{SLICED}.slice", B, UID),
        ("/kubepods/burstable/pod" + "ab" * 16, B, "ab" * 16),
        ("/kubepods/burstable/podweb", B, ""),
        ("/kubepods/burstable", None, ""),
        (f"/kubepods/other/pod{UID}", None, ""),
        (f"/kubepods/burstable/pod{UID}/more", None, ""),
        ("/test", None, ""),
        ("", None, ""),
    ],
)
def test_cgroup_has_qos_class_and_uid(parent: str, qos: QosClass | None, uid: str) -> None:
    assert qos_of_cgroup(parent) == (qos, uid)


@pytest.mark.parametrize(
    ("scores", "qos"),
    [([1000], E), ([1000, 1000], E), ([999, 3], B), ([1000, 999], None), ([-997], None), ([0], None), ([], None)],
)
def test_qos_class_is_inferred_from_scores_without_a_cgroup(scores: list[int], qos: QosClass | None) -> None:
    pod = runtime_pod(*map(traits, scores), cgroup_parent="")
    assert infer_qos(pod) == (UNKNOWN if qos is None else Fact(qos, FactSource.INFERRED))


@pytest.mark.parametrize(
    ("score", "limit", "qos", "critical"),
    [
        (999, 0, B, False),
        (0, 0, B, False),
        (1000, 0, E, False),
        (-997, 0, B, True),
        (-997, 0, E, True),
        (-997, 64, None, True),
        (-997, 64, G, False),
        (-997, 0, G, True),
        (-997, None, G, None),
        (-998, 64, G, True),
        (-1, 0, B, True),
        (None, 0, B, None),
    ],
)
def test_score_below_that_of_the_class_is_critical(
    score: int | None, limit: float | None, qos: QosClass | None, critical: bool | None
) -> None:
    found = infer_critical(runtime_pod(traits(score, limit)), qos)
    assert found.value is critical
    assert found.source is (FactSource.MISSING if critical is None else FactSource.INFERRED)


def test_critical_is_unknown_with_an_unread_container_unless_another_is_critical() -> None:
    assert infer_critical(runtime_pod(traits(999), None), B) == UNKNOWN
    assert infer_critical(runtime_pod(traits(-997), None), B).value is True
    assert infer_critical(runtime_pod(), B) == UNKNOWN


@pytest.mark.difference("inferred-facts")
@pytest.mark.parametrize(
    ("score", "limit", "qos", "request_mib", "source"),
    [
        pytest.param(1000, 0, E, 0, FactSource.INFERRED, id="best effort"),
        pytest.param(0, 64, E, 0, FactSource.INFERRED, id="best effort by its cgroup alone"),
        pytest.param(-997, 64, G, 64, FactSource.INFERRED, id="guaranteed"),
        pytest.param(0, 64, G, 64, FactSource.INFERRED, id="guaranteed by its cgroup alone"),
        pytest.param(-997, 0, G, None, FactSource.MISSING, id="guaranteed without limit"),
        pytest.param(-997, 0, B, None, FactSource.MISSING, id="score of a critical pod"),
        pytest.param(0, 64, B, 64, FactSource.INFERRED, id="score not set by the kubelet, with a limit"),
        pytest.param(0, 0, B, 0, FactSource.ASSUMED, id="score not set by the kubelet"),
        pytest.param(None, None, None, 0, FactSource.ASSUMED, id="no source"),
        pytest.param(900, 100, B, 100, FactSource.INFERRED, id="burstable up to its limit"),
        pytest.param(3, 0, B, CAPACITY_BYTES / MIB, FactSource.INFERRED, id="lowest burstable score"),
        pytest.param(3, 100, B, 100, FactSource.INFERRED, id="lowest burstable score up to its limit"),
    ],
)
def test_request_is_inferred_from_score_and_limit(
    score: int | None, limit: float | None, qos: QosClass | None, request_mib: float | None, source: FactSource
) -> None:
    found = infer_request(traits(score, limit), qos, CAPACITY_BYTES, assume=True)
    assert found == Fact(None if request_mib is None else int(request_mib * MIB), source)
    if source is FactSource.ASSUMED:
        assert infer_request(traits(score, limit), qos, CAPACITY_BYTES, assume=False) == UNKNOWN


@given(request=st.integers(0, 1 << 45), capacity=st.integers(1 << 28, 1 << 45))
def test_burstable_request_is_inferred_within_a_thousandth_and_never_too_low(request: int, capacity: int) -> None:
    request = min(request, capacity)
    score = min(999, max(3, 1000 - 1000 * request // capacity))
    found = infer_request(traits(score), B, capacity, assume=False).value
    assert found is not None
    assert request <= found + 1
    assert found <= capacity
    assert abs(found - request) <= 2 * capacity // 1000 + 1


def test_request_is_unknown_without_the_nodes_memory() -> None:
    assert infer_request(traits(900), B, None, assume=True) == UNKNOWN
    assert infer_request(None, B, CAPACITY_BYTES, assume=True) == UNKNOWN


def test_sum_of_requests_has_the_weakest_source() -> None:
    sure, guess = Fact(5, FactSource.INFERRED), Fact(0, FactSource.ASSUMED)
    assert sum_requests([sure, sure]) == Fact(10, FactSource.INFERRED)
    assert sum_requests([sure, guess]) == Fact(5, FactSource.ASSUMED)
    assert sum_requests([sure, UNKNOWN]) == UNKNOWN
    assert sum_requests([]) == UNKNOWN


@pytest.mark.parametrize(
    ("score", "qos", "uid", "found"),
    [
        (999, B, UID, []),
        (-997, G, UID, []),
        (0, G, UID, []),
        (900, G, UID, ["cgroup is Guaranteed, oom_score_adj is not"]),
        (900, E, UID, ["cgroup is BestEffort, oom_score_adj is Burstable"]),
        (999, B, "another", [f"cgroup has pod {UID}"]),
    ],
)
def test_contradictions_are_reported(score: int, qos: QosClass, uid: str, found: list[str]) -> None:
    pod = runtime_pod(traits(score), uid=uid, cgroup_parent=f"/kubepods/burstable/pod{UID}")
    assert inconsistencies(pod, qos) == found
