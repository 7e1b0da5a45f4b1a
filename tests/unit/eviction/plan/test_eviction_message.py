"""Eviction messages, in the wording of the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.kube.podspec import parse_pod
from nodeagent.model.pods import PodReading
from nodeagent.model.pressure import Footprint
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import container, disk, planned, pod, read, thresholds
from tests.unit.eviction.plan.planner_cases import ALL_STEPS
from tests.unit.pods.plan.pod_cases import UID, merged, runtime_pod, traits

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts


@pytest.mark.difference("message-pod-level")
@pytest.mark.parametrize(
    ("facts", "signal", "message"),
    [
        pytest.param(
            pod(
                containers=(
                    container("app", memory=300, memory_request=100),
                    container("small", memory=50, memory_request=100),
                    container("exact", memory=100, memory_request=100),
                    container("zero", memory=0, memory_request=0),
                    container("free", memory=1.5, memory_request=0),
                    container("odd", memory=1),
                    container("unread", memory_request=1),
                )
            ),
            "memory.available",
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
            "Container app was using 300Mi, request is 100Mi, has larger consumption of memory. "
            "Container free was using 1536Ki, request is 0, has larger consumption of memory. "
            "Container odd was using 1Mi, request is unknown, has larger consumption of memory. ",
            id="memory",
        ),
        pytest.param(
            pod(
                writable=disk(50),
                containers=(
                    container("app", writable=3, logs=2, ephemeral_request=4),
                    container("exact", writable=3, logs=2, ephemeral_request=5),
                    container("none", writable=0, logs=0, ephemeral_request=0),
                ),
            ),
            "nodefs.available",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 50Mi. "
            "Container app was using 5Mi, request is 4Mi, has larger consumption of ephemeral-storage. ",
            id="disk",
        ),
        pytest.param(
            pod(writable=disk(0, 52428800), containers=(container("app", memory=5),)),
            "nodefs.inodesFree",
            "The node was low on resource: inodes. Threshold quantity: 100Mi, available: 52428800. ",
            id="inodes",
        ),
    ],
)
def test_eviction_message_equals_that_of_the_kubelet(facts: PodFacts, signal: str, message: str) -> None:
    plan = planned([facts], read(signal), limits=thresholds(f"{signal}<100Mi"), reclaimed=ALL_STEPS)
    assert plan.victim is not None
    assert plan.victim.message == message


@pytest.mark.parametrize(
    ("threshold", "available", "capacity", "quantities"),
    [
        ("memory.available<1G", 512 * MIB, 4096 * MIB, "1G, available: 512Mi"),
        ("memory.available<1e9", 512 * MIB, 4096 * MIB, "1e9, available: 512Mi"),
        ("memory.available<25%", 64 * MIB, 400 * MIB, "100Mi, available: 64Mi"),
        ("nodefs.available<2000000k", 1_000_000_000, 4096 * MIB, "2G, available: 1000000000"),
        ("nodefs.inodesFree<50000", 12_000, 10**6, "50k, available: 12k"),
        ("nodefs.inodesFree<5%", 12_288, 1_024_000, "50Ki, available: 12288"),
        ("pid.available<1000", 999, 32768, "1k, available: 999"),
        ("pid.available<1Ki", 900, 32768, "1Ki, available: 900"),
    ],
)
def test_quantities_of_a_message_keep_their_form(
    threshold: str, available: float, capacity: float, quantities: str
) -> None:
    signal = threshold.partition("<")[0]
    plan = planned(
        [pod(pids=900, memory=900, writable=disk(900, 900_000))],
        read(signal, available=available, capacity=capacity),
        limits=thresholds(threshold),
        policy=EvictionPolicy(always_evict=True),
        reclaimed=ALL_STEPS,
    )
    assert plan.victim is not None
    assert f"Threshold quantity: {quantities}. " in plan.victim.message


def _defined(*, requests: dict[str, str], limits: dict[str, object], volume: object = None) -> PodFacts:
    """Return the facts of a pod with one container and one volume, as defined by a document, that use 3 GB each."""
    document = {
        "metadata": {"name": "web", "namespace": "shop", "uid": UID},
        "spec": {
            "containers": [{"name": "c0", "resources": {"requests": {"cpu": "1m", **requests}, "limits": limits}}],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": volume}}],
        },
    }
    used = 3_000_000_000
    reading = PodReading(
        memory_bytes=used,
        container_memory_bytes={f"c0-{UID}": used},
        logs=Footprint(used, 1),
        container_logs_bytes={"c0": used},
        empty_dir_bytes={"tmp": used},
        ephemeral_bytes=used,
    )
    return merged(runtime_pod(traits()), kubelet=[parse_pod(document, "document")], reading=reading)


@pytest.mark.parametrize(
    ("requests", "limits", "request_shown"),
    [
        ({"memory": "1G"}, {}, "1G"),
        ({"memory": "1Gi"}, {"memory": "4G"}, "1Gi"),
        ({}, {"memory": "2e9"}, "2e9"),
        ({"memory": "128000k"}, {}, "128M"),
        ({}, {}, "0"),
    ],
)
def test_request_in_a_message_keeps_its_form(
    requests: dict[str, str], limits: dict[str, object], request_shown: str
) -> None:
    plan = planned([_defined(requests=requests, limits=limits)])
    assert plan.victim is not None
    assert f"Container c0 was using 3000000000, request is {request_shown}, has larger" in plan.victim.message


@pytest.mark.parametrize(
    ("limits", "volume", "message"),
    [
        ({}, "1G", 'Usage of EmptyDir volume "tmp" exceeds the limit "1G". '),
        ({}, 1_000_000, 'Usage of EmptyDir volume "tmp" exceeds the limit "1M". '),
        ({}, "1000Mi", 'Usage of EmptyDir volume "tmp" exceeds the limit "1000Mi". '),
        (
            {"ephemeral-storage": "2G"},
            None,
            "Pod ephemeral local storage usage exceeds the total limit of containers 2G. ",
        ),
    ],
)
def test_limit_in_a_message_keeps_its_form(limits: dict[str, object], volume: object, message: str) -> None:
    facts = _defined(requests={}, limits=limits, volume=volume)
    plan = planned([facts], read(available_mib=900))
    assert plan.victim is not None
    assert plan.victim.message == message
    if volume is None:
        of_container = planned([replace(facts, ephemeral_limit_bytes=None)], read(available_mib=900))
        assert of_container.victim is not None
        assert of_container.victim.message == 'Container c0 exceeded its local ephemeral storage limit "2G". '


@pytest.mark.parametrize(
    ("init", "main", "form"),
    [(["1Gi"], ["1G", "2Gi"], "1G"), (["5G"], ["", "1Gi"], "1Gi"), (["1e9"], [""], "1e9"), ([], [""], "")],
)
def test_limit_of_a_pod_has_the_form_of_its_first_container(init: list[str], main: list[str], form: str) -> None:
    def containers(amounts: list[str]) -> list[object]:
        return [
            {"name": f"c{number}", "resources": {"limits": {"ephemeral-storage": each} if each else {}}}
            for number, each in enumerate(amounts)
        ]

    document = {"metadata": {"name": "a"}, "spec": {"initContainers": containers(init), "containers": containers(main)}}
    assert parse_pod(document, "document").ephemeral_limit_text == form


@pytest.mark.difference("message-containers")
def test_message_lists_containers_that_the_spec_lacks_such_as_ephemeral_ones() -> None:
    pod = runtime_pod(traits(999), traits(999))
    reading = PodReading(memory_bytes=900 * MIB, container_memory_bytes={f"c{n}-{UID}": 450 * MIB for n in (0, 1)})
    document = {
        "metadata": {"name": "web", "namespace": "shop", "uid": UID},
        "spec": {
            "containers": [{"name": "c0", "resources": {"requests": {"cpu": "1m"}}}],
            "ephemeralContainers": [{"name": "c1", "image": "debug"}],
        },
    }
    plan = planned([merged(pod, kubelet=[parse_pod(document, "document")], reading=reading)])
    assert plan.victim is not None
    assert "Container c0 was using 450Mi, request is 0, has larger" in plan.victim.message
    assert "Container c1 was using 450Mi, request is 34359738 (inferred), has" in plan.victim.message


@pytest.mark.difference("message-containers")
def test_message_marks_an_inferred_request() -> None:
    inferred = replace(container("app", memory=300, memory_request=100), memory_request_inferred=True)
    plan = planned([pod(containers=(inferred,))])
    assert plan.victim is not None
    assert "was using 300Mi, request is 100Mi (inferred), has larger" in plan.victim.message


def test_message_of_a_stall_has_both_percentages() -> None:
    plan = planned(
        [pod(stalled=50.0)],
        read("memory.psi.full", available=55.2, capacity=100),
        limits=thresholds("memory.psi.full>40"),
    )
    assert plan.victim is not None
    assert plan.victim.message == (
        "The node was low on resource: memory. Threshold: memory.psi.full above 40.00%, observed: 55.20%. "
    )
