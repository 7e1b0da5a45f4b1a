"""Eviction plan for pods over their own ephemeral storage limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.pods import PodReading
from nodeagent.model.pressure import UNKNOWN, EmptyDirFacts, FilesystemLayout, Footprint, PodUsage
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import (
    EMPTY_FOOTPRINT,
    container,
    disk,
    evaluated,
    known,
    planned,
    pod,
    read,
    reasons,
    victim,
)
from tests.unit.eviction.plan.planner_cases import SOFT
from tests.unit.pods.plan.pod_cases import UID, container_spec, merged, runtime_pod, spec, traits

if TYPE_CHECKING:
    from nodeagent.eviction.plan.planner import EvictionPlan
    from nodeagent.model.pressure import PodFacts


READ: dict[str, Any] = dict.fromkeys(("writable", "logs", "volumes"), EMPTY_FOOTPRINT)
NO_PRESSURE = read(available_mib=900)
LAYOUTS = pytest.mark.parametrize("layout", FilesystemLayout)
KINDS = pytest.mark.parametrize(
    "kind",
    [{}, {"init": True, "sidecar": True}, {"init": True}],
    ids=["main container", "sidecar", "init container"],
)

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
    assert plan.plan.decisions[0].frees_bytes is None  # volumes and logs can remain
    off = EvictionPolicy(local_storage_isolation=False)
    assert planned([OVER[limit]], read(available_mib=900), policy=off).victim is None


def limited(kind: dict[str, Any], layer: float | None, logs: float | None) -> PodFacts:
    """Return a pod with one container of a kind, its usage in MiB and a limit of 5 MiB; ``None`` is unread usage."""
    reading = PodReading(
        container_writable_bytes={} if layer is None else {f"c0-{UID}": int(layer * MIB)},
        container_logs_bytes={} if not logs else {"c0": int(logs * MIB)},
        logs=None if logs is None else disk(logs),
    )
    listed = replace(container_spec("c0", ephemeral_limit=5), **kind)
    return merged(runtime_pod(traits()), kubelet=[spec(priority=0, containers=(listed,))], reading=reading)


def plan_of(facts: PodFacts, layout: FilesystemLayout = FilesystemLayout.SINGLE) -> EvictionPlan:
    return planned([facts], NO_PRESSURE, layout=layout)


@pytest.mark.difference("layer-limits")
@pytest.mark.difference("init-container-limits")
@LAYOUTS
@KINDS
@pytest.mark.parametrize(
    ("layer", "logs", "measured"),
    [
        (6, 0, "6.00 MiB of local storage (writable layer 6.00 MiB, logs 0 B)"),
        (0, 6, "6.00 MiB of local storage (writable layer 0 B, logs 6.00 MiB)"),
        (3, 2.5, "5.50 MiB of local storage (writable layer 3.00 MiB, logs 2.50 MiB)"),
        (None, 6, "6.00 MiB of local storage (logs 6.00 MiB, not read: writable layer)"),
        (6, None, "6.00 MiB of local storage (writable layer 6.00 MiB, not read: logs)"),
    ],
)
def test_container_over_its_limit_is_evicted_on_every_layout(
    layout: FilesystemLayout, kind: dict[str, Any], layer: float | None, logs: float | None, measured: str
) -> None:
    plan = plan_of(limited(kind, layer, logs), layout)
    assert plan.victim is not None
    assert plan.victim.message == 'Container c0 exceeded its local ephemeral storage limit "5Mi". '
    assert plan.victim.reason.sentence == f"container c0 uses {measured}, limit 5.00 MiB"
    parts = {"writable_bytes": layer, "logs_bytes": logs}
    assert (
        plan.victim.reason.details.items()
        >= {
            "container": "c0",
            "usage_bytes": int(((layer or 0) + (logs or 0)) * MIB),
            "limit_bytes": 5 * MIB,
            **{key: int(mib * MIB) for key, mib in parts.items() if mib is not None},
        }.items()
    )


@pytest.mark.difference("unread-limits")
@LAYOUTS
@KINDS
@pytest.mark.parametrize(
    ("layer", "logs", "code", "unread"),
    [
        (5, 0, "no-threshold-met", None),
        (2.5, 2.5, "no-threshold-met", None),
        (None, 5, "storage-limit-unchecked", ("writable layer of container c0",)),
        (5, None, "storage-limit-unchecked", ("logs of container c0",)),
        (None, None, "storage-limit-unchecked", ("writable layer of container c0", "logs of container c0")),
    ],
)
def test_container_not_known_to_be_over_its_limit_is_kept_and_unread_usage_is_reported(  # noqa: PLR0917
    layout: FilesystemLayout,
    kind: dict[str, Any],
    layer: float | None,
    logs: float | None,
    code: str,
    unread: tuple[str, ...] | None,
) -> None:
    plan = plan_of(limited(kind, layer, logs), layout)
    (decision,) = plan.plan.decisions
    assert (plan.victim, decision.reason.code.value) == (None, code)
    assert decision.reason.details.get("unread") == unread


def test_layer_of_an_earlier_instance_does_not_count_for_the_limit() -> None:
    earlier = runtime_pod(traits(), state=ContainerState.EXITED)
    again = runtime_pod(traits(), traits())
    (ended,), (_, running) = earlier.containers, sorted(again.containers, key=lambda each: each.id)
    restarted = replace(again, containers=(replace(running, name="c0"), ended))
    reading = PodReading(container_writable_bytes={ended.id: 9 * MIB, running.id: MIB}, logs=EMPTY_FOOTPRINT)
    listed = spec(priority=0, containers=(container_spec("c0", ephemeral_limit=5),))
    assert plan_of(merged(restarted, kubelet=[listed], reading=reading)).victim is None


def test_annotations_set_no_limit() -> None:
    forged = {"kubernetes.io/config.source": "api", "ephemeral-storage": "1", "nodeagent.dev/ephemeral-storage": "1"}
    pod_of_tenant = runtime_pod(traits(), annotations=forged, container_annotations=forged)
    reading = PodReading(container_writable_bytes={f"c0-{UID}": 9 * MIB}, logs=EMPTY_FOOTPRINT)
    assert plan_of(merged(pod_of_tenant, reading=reading, trusted=frozenset({"shop"}))).victim is None


def test_exceeded_emptydir_is_found_behind_an_unread_one() -> None:
    facts = pod(empty_dirs=(EmptyDirFacts("cache", None, 1), EmptyDirFacts("ok", 9, 10), EmptyDirFacts("tmp", 11, 10)))
    plan = plan_of(facts)
    assert plan.victim is not None
    assert plan.victim.reason.sentence == "emptyDir tmp uses 11 B, limit 10 B"


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        pytest.param(pod(empty_dirs=(EmptyDirFacts("tmp", 10, 10),)), "no-threshold-met", id="exactly at the limit"),
        pytest.param(
            pod(empty_dirs=(EmptyDirFacts("tmp", 10, 0),)), "no-threshold-met", id="a limit of 0 is unlimited"
        ),
        pytest.param(pod(empty_dirs=(EmptyDirFacts("tmp", None, 1),)), "storage-limit-unchecked", id="not read"),
        pytest.param(pod(usage=PodUsage(ephemeral_bytes=10)), "no-threshold-met", id="no limit"),
        pytest.param(pod(usage=PodUsage(), ephemeral_limit_bytes=1), "storage-limit-unchecked", id="sum not read"),
        pytest.param(pod(usage=None, ephemeral_limit_bytes=1), "storage-limit-unchecked", id="nothing read"),
        pytest.param(
            pod(
                usage=PodUsage(writable=EMPTY_FOOTPRINT, logs=disk(1), volumes=Footprint(), ephemeral_bytes=MIB),
                ephemeral_limit_bytes=MIB,
            ),
            "storage-limit-unchecked",
            id="part of the sum not read",
        ),
        pytest.param(
            pod(
                usage=PodUsage(**READ, ephemeral_bytes=1),
                ephemeral_limit_bytes=1,
                containers=(container("app", writable=0), container("helper", writable=None)),
            ),
            "storage-limit-unchecked",
            id="layer of a container not read for the sum",
        ),
        pytest.param(
            pod(usage=PodUsage(**READ, ephemeral_bytes=1), ephemeral_limit_bytes=1),
            "no-threshold-met",
            id="sum at the limit",
        ),
        pytest.param(replace(OVER["pod"], static=known(value=True)), "static-pod", id="static"),
        pytest.param(replace(OVER["emptyDir"], priority=known(2_000_000_000)), "critical-pod", id="critical"),
        pytest.param(replace(OVER["container"], mirror=known(value=True)), "mirror-pod", id="mirror"),
        pytest.param(replace(OVER["emptyDir"], namespace="kube-system"), "protected-namespace", id="protected"),
        pytest.param(replace(OVER["emptyDir"], priority=UNKNOWN), "facts-missing", id="priority unknown"),
    ],
)
def test_pod_not_known_to_be_over_its_limits_or_protected_is_kept(facts: PodFacts, code: str) -> None:
    plan = plan_of(facts)
    assert (plan.victim, [each.reason.code.value for each in plan.plan.decisions]) == (None, [code])


def test_pods_with_unread_usage_have_no_separate_reason_without_checks_of_limits_or_with_a_met_threshold() -> None:
    unread = pod(empty_dirs=(EmptyDirFacts("tmp", None, 1),))
    off = planned([unread], NO_PRESSURE, policy=EvictionPolicy(local_storage_isolation=False))
    assert set(reasons(off).values()) == {"no-threshold-met"}
    assert set(reasons(planned([unread], read(available_mib=50))).values()) == {"low-on-resource"}


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
