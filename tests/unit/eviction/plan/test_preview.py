"""Pods with predicted evictions in the reload preview."""

from __future__ import annotations

from typing import Any

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.preview import first_victim, pods_over_limits
from nodeagent.model.pressure import FilesystemLayout, PodUsage
from tests.unit.eviction.plan.cases import evaluated, known, pod, read

POLICY = EvictionPolicy()
SINGLE = FilesystemLayout.SINGLE
MIB = 1 << 20


def test_pods_over_their_limits_are_listed_in_order_without_protected_ones() -> None:
    over: dict[str, Any] = {"ephemeral_limit_bytes": 5 * MIB, "usage": PodUsage(ephemeral_bytes=6 * MIB)}
    pods = [
        pod("b", **over),
        pod("a", **over),
        pod("within", **over | {"ephemeral_limit_bytes": 6 * MIB}),
        pod("system", namespace="kube-system", **over),
        pod("static", static=known(value=True), **over),
    ]
    found = pods_over_limits(pods, POLICY)
    assert [each.name for each in found] == ["a", "b"]
    assert found[0].reason.code.value == "pod-over-storage-limit"


def test_first_victim_is_the_first_of_the_ranking() -> None:
    pods = [pod("small", memory=10), pod("big", memory=500), pod("kept", memory=900, namespace="kube-system")]
    found = first_victim(evaluated(read(available_mib=50)), pods, POLICY, SINGLE)
    assert found is not None
    assert (found.namespace, found.name) == ("shop", "big")


def test_no_victim_is_predicted_without_pressure() -> None:
    assert first_victim(evaluated(read(available_mib=900)), [pod()], POLICY, SINGLE) is None
    assert first_victim(evaluated(read(available_mib=50)), [], POLICY, SINGLE) is None
