"""Reclaim steps of the eviction plan, before any pod is evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.model.pressure import FilesystemLayout
from tests.unit.eviction.plan.cases import SINGLE, disk, evaluated, planned, pod, read, reasons, thresholds, victim
from tests.unit.eviction.plan.planner_cases import ALL_STEPS, steps

if TYPE_CHECKING:
    from nodeagent.eviction.plan.reclaim import ReclaimStep


SPLIT, DEDICATED = FilesystemLayout.SPLIT, FilesystemLayout.DEDICATED_IMAGEFS

DISK = thresholds("nodefs.available<10%", minimum_reclaim="nodefs.available=5%")


def both_images(filesystem: str) -> list[str]:
    return [f"unused-images on {filesystem}", f"irreplaceable-images on {filesystem}"]


def test_threshold_acted_on_before_is_cleared_by_its_minimum_reclaim() -> None:
    limits = thresholds(minimum_reclaim="memory.available=100Mi")
    after = evaluated(read(), limits=limits).state
    later = planned(
        [pod()],
        read(seconds=9),
        limits=limits,
        state=after,
        seconds=9,
        observations=[read(available_mib=150, seconds=9)],
    )
    assert victim(later) == "web"
    first = planned([pod()], limits=limits, observations=[read(available_mib=150)])
    assert first.victim is None


@pytest.mark.difference("reclaim-steps", "reclaim-for-nodefs")
@pytest.mark.parametrize(
    ("layout", "signal", "expected"),
    [
        (SINGLE, "nodefs.available", ["dead-containers on nodefs", *both_images("nodefs")]),
        (SINGLE, "imagefs.inodesFree", ["dead-containers on nodefs", *both_images("nodefs")]),
        (DEDICATED, "nodefs.available", ["logs on nodefs"]),
        (DEDICATED, "imagefs.available", ["dead-containers on imagefs", *both_images("imagefs")]),
        (DEDICATED, "containerfs.inodesFree", ["dead-containers on imagefs", *both_images("imagefs")]),
        (SPLIT, "nodefs.inodesFree", ["dead-containers on nodefs"]),
        (SPLIT, "imagefs.available", both_images("imagefs")),
        (SPLIT, "containerfs.available", ["dead-containers on nodefs"]),
        (SINGLE, "memory.available", []),
        (SINGLE, "pid.available", []),
        (SINGLE, "swap.free", []),
    ],
)
def test_node_level_reclaim_precedes_eviction(layout: FilesystemLayout, signal: str, expected: list[str]) -> None:
    facts = pod(writable=disk(1, 100), logs=disk(1, 100), swap=1)
    plan = planned([facts], read(signal, available=5, capacity=1000), limits=thresholds(f"{signal}<10"), layout=layout)
    assert [step.text for step in plan.reclaim] == expected
    assert (plan.victim is not None) is (not expected)
    assert reasons(plan) == {"web": "reclaim-first" if expected else "low-on-resource"}
    assert [each.pod.name for each in plan.ranking] == ["web"]


@pytest.mark.difference("cleared-by-reclaim")
@pytest.mark.parametrize(
    ("available_mib", "reclaimed", "code", "remaining"),
    [
        pytest.param(90, steps("dead-containers"), "reclaim-first", 2, id="steps remain"),
        pytest.param(90, ALL_STEPS, "low-on-resource", 0, id="all steps without effect"),
        pytest.param(120, ALL_STEPS, "low-on-resource", 0, id="above the threshold, below the minimum reclaim"),
        pytest.param(149.9, ALL_STEPS, "low-on-resource", 0, id="just below the minimum reclaim"),
        pytest.param(151, ALL_STEPS, "reclaim-sufficient", 0, id="cleared"),
        pytest.param(151, steps("dead-containers"), "reclaim-sufficient", 0, id="cleared by the first step"),
    ],
)
def test_pod_is_evicted_only_after_insufficient_reclaim(
    available_mib: float, reclaimed: frozenset[ReclaimStep], code: str, remaining: int
) -> None:
    plan = planned(
        [pod(writable=disk(50))],
        read("nodefs.available", 90),
        limits=DISK,
        observations=[read("nodefs.available", available_mib)],
        reclaimed=reclaimed,
    )
    assert reasons(plan) == {"web": code}
    assert len(plan.reclaim) == remaining


@pytest.mark.difference("cleared-by-reclaim")
def test_pid_shortage_does_not_evict_a_pod_for_cleared_disk_pressure() -> None:
    limits = thresholds("nodefs.available<10%,pid.available<100")
    readings = [read("nodefs.available", 90), read("pid.available", available=5, capacity=1000)]
    pods = [pod("disk", writable=disk(900), pids=1), pod("forks", pids=500)]
    first = planned(pods, *readings, limits=limits)
    assert [step.filesystem for step in first.reclaim] == ["nodefs"] * 3
    after = [read("nodefs.available", 500), readings[1]]
    second = planned(pods, *readings, limits=limits, observations=after, reclaimed=ALL_STEPS)
    assert victim(second) == "forks"
    assert second.selected is not None
    assert second.selected.threshold.text == "pid.available<100"


def test_reclaim_step_runs_once_for_a_device_with_several_roles() -> None:
    limits = thresholds("nodefs.available<10%,imagefs.available<15%")
    before = [read("nodefs.available", 90), read("imagefs.available", 90)]
    after = [read("nodefs.available", 120), read("imagefs.available", 120)]
    plan = planned([pod(writable=disk(50))], *before, limits=limits, observations=after, reclaimed=ALL_STEPS)
    assert not plan.reclaim
    assert plan.selected is not None
    assert plan.selected.threshold.text == "imagefs.available<15%"
    assert victim(plan) == "web"


def test_minimum_reclaim_does_not_count_for_signals_without_reclaim() -> None:
    limits = thresholds("nodefs.available<10%,pid.available<100", minimum_reclaim="pid.available=500")
    before = [read("nodefs.available", 90), read("pid.available", available=5, capacity=1000)]
    after = [read("nodefs.available", 500), read("pid.available", available=200, capacity=1000)]
    plan = planned([pod()], *before, limits=limits, observations=after, reclaimed=ALL_STEPS)
    assert reasons(plan) == {"web": "reclaim-sufficient"}
