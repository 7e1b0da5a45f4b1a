"""Eviction messages, in the wording of the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.record import replace
from tests.unit.plan.eviction.cases import container, disk, planned, pod, read, thresholds
from tests.unit.plan.eviction.planner_cases import ALL_STEPS

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts


@pytest.mark.parametrize(
    ("facts", "signal", "message"),
    [
        pytest.param(
            pod(
                containers=(
                    container("app", memory=300, memory_request=100),
                    container("small", memory=50, memory_request=100),
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
            pod(writable=disk(50), containers=(container("app", writable=3, logs=2, ephemeral_request=4),)),
            "nodefs.available",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 50Mi. "
            "Container app was using 5Mi, request is 4Mi, has larger consumption of ephemeral-storage. ",
            id="disk",
        ),
        pytest.param(
            pod(writable=disk(0, 52428800), containers=(container("app", memory=5),)),
            "nodefs.inodesFree",
            "The node was low on resource: inodes. Threshold quantity: 104857600, available: 52428800. ",
            id="inodes",
        ),
    ],
)
def test_eviction_message_equals_that_of_the_kubelet(facts: PodFacts, signal: str, message: str) -> None:
    plan = planned([facts], read(signal), limits=thresholds(f"{signal}<100Mi"), reclaimed=ALL_STEPS)
    assert plan.victim is not None
    assert plan.victim.message == message


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
