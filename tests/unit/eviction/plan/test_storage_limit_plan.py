"""Eviction plan for pods over their own ephemeral storage limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.pressure import UNKNOWN, EmptyDirFacts, FilesystemLayout, PodUsage
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import SINGLE, container, evaluated, known, planned, pod, read, reasons, victim
from tests.unit.eviction.plan.planner_cases import SOFT

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts


DEDICATED = FilesystemLayout.DEDICATED_IMAGEFS

OVER = {
    "emptyDir": pod("greedy", empty_dirs=(EmptyDirFacts("ok", 9, 10), EmptyDirFacts("tmp", 6 * MIB, 5 * MIB))),
    "pod": pod("greedy", usage=PodUsage(ephemeral_bytes=6 * MIB), ephemeral_limit_bytes=5 * MIB),
    "container": pod("greedy", containers=(container("app", logs=2, writable=4, ephemeral_limit=5),)),
}


@pytest.mark.parametrize(
    ("limit", "signal", "code", "message"),
    [
        (
            "emptyDir",
            "emptydirfs.limit",
            "empty-dir-over-limit",
            'Usage of EmptyDir volume "tmp" exceeds the limit "5Mi". ',
        ),
        (
            "pod",
            "ephemeralpodfs.limit",
            "pod-over-storage-limit",
            "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ",
        ),
        (
            "container",
            "ephemeralcontainerfs.limit",
            "container-over-storage-limit",
            'Container app exceeded its local ephemeral storage limit "5Mi". ',
        ),
    ],
)
def test_pod_over_its_storage_limit_is_evicted_without_pressure(
    limit: str, signal: str, code: str, message: str
) -> None:
    plan = planned([OVER[limit], pod("other")], read(available_mib=900))
    assert plan.victim is not None
    assert (plan.victim.signal, plan.victim.message, plan.victim.grace_s) == (signal, message, 0)
    assert reasons(plan) == {"greedy": code, "other": "another-pod-evicted"}
    off = EvictionPolicy(local_storage_isolation=False)
    assert planned([OVER[limit]], read(available_mib=900), policy=off).victim is None


@pytest.mark.parametrize(
    ("facts", "layout"),
    [
        pytest.param(pod(empty_dirs=(EmptyDirFacts("tmp", 10, 10),)), SINGLE, id="exactly at the limit"),
        pytest.param(pod(empty_dirs=(EmptyDirFacts("tmp", 10, 0),)), SINGLE, id="a limit of 0 is unlimited"),
        pytest.param(pod(empty_dirs=(EmptyDirFacts("tmp", None, 1),)), SINGLE, id="not read"),
        pytest.param(pod(usage=PodUsage(ephemeral_bytes=10)), SINGLE, id="no limit"),
        pytest.param(pod(usage=PodUsage(), ephemeral_limit_bytes=1), SINGLE, id="sum not read"),
        pytest.param(OVER["container"], DEDICATED, id="writable layer elsewhere"),
        pytest.param(pod(containers=(container("app", ephemeral_limit=1),)), SINGLE, id="container not read"),
        pytest.param(replace(OVER["pod"], static=known(value=True)), SINGLE, id="static"),
        pytest.param(replace(OVER["emptyDir"], priority=known(2_000_000_000)), SINGLE, id="critical"),
        pytest.param(replace(OVER["emptyDir"], namespace="kube-system"), SINGLE, id="protected"),
        pytest.param(replace(OVER["emptyDir"], priority=UNKNOWN), SINGLE, id="priority unknown"),
    ],
)
def test_pod_within_its_limits_or_protected_is_not_evicted(facts: PodFacts, layout: FilesystemLayout) -> None:
    assert planned([facts], read(available_mib=900), layout=layout).victim is None


@pytest.mark.difference("storage-limit-evictions")
def test_storage_limits_precede_soft_pressure_with_one_pod_per_pass() -> None:
    pods = [
        pod("much", empty_dirs=(EmptyDirFacts("tmp", 90, 10),)),
        pod("little", empty_dirs=(EmptyDirFacts("tmp", 11, 10),)),
        pod("high", priority=5, empty_dirs=(EmptyDirFacts("tmp", 900, 10),)),
        pod("hog", memory=900),
    ]
    start = evaluated(read(seconds=-90), limits=SOFT, seconds=-90).state
    plan = planned(pods, limits=SOFT, state=start)
    assert victim(plan) == "much"
    assert set(reasons(plan).values()) == {"empty-dir-over-limit", "another-pod-evicted"}
