"""Eviction order of pods by signal: usage above request, priority, usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.plan.ranking import RankingInput, freed_by_eviction, rank_pods, usage_of
from nodeagent.model.pressure import FactSource, FilesystemLayout, Footprint, PodLifecycle, PodUsage, Signal
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import SINGLE, disk, known, pod

if TYPE_CHECKING:
    from nodeagent.model.pressure import PodFacts

SPLIT, DEDICATED = FilesystemLayout.SPLIT, FilesystemLayout.DEDICATED_IMAGEFS


def order(pods: list[PodFacts], signal: str) -> list[str]:
    ranked = rank_pods(pods, Signal(signal), SINGLE)
    assert ranked == rank_pods(reversed(pods), Signal(signal), SINGLE)
    assert [each.rank for each in ranked] == list(range(1, len(pods) + 1))
    return [each.pod.name for each in ranked]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [pod("within", memory=900, request=1000), pod("above", memory=60, request=50)],
            ["above", "within"],
            id="above the request first",
        ),
        pytest.param(
            [pod("high", memory=900, request=0, priority=10), pod("low", memory=60, request=50, priority=9)],
            ["low", "high"],
            id="then lower priority",
        ),
        pytest.param(
            [pod("little", memory=500, request=490), pod("much", memory=60, request=0)],
            ["much", "little"],
            id="then more above the request",
        ),
        pytest.param(
            [pod("low", memory=10, request=100, priority=-5), pod("high", memory=200, request=100, priority=100)],
            ["high", "low"],
            id="above the request before priority",
        ),
        pytest.param(
            [pod("at", memory=100, request=100, priority=-1), pod("above", memory=101, request=100)],
            ["above", "at"],
            id="exactly at the request is not above",
        ),
        pytest.param(
            [pod("below", memory=100, request=500), pod("close", memory=450, request=500)],
            ["close", "below"],
            id="below the request by distance",
        ),
        pytest.param([pod("b"), pod("a")], ["a", "b"], id="ties by UID"),
        pytest.param(
            [pod("hog", memory=900), pod("unread", memory=None, priority=10**6)],
            ["unread", "hog"],
            id="unknown usage first",
        ),
        pytest.param(
            [pod("none", usage=None, priority=2), pod("unread", memory=None, priority=1)],
            ["unread", "none"],
            id="unknown usage by priority",
        ),
        pytest.param(
            [pod("unknown", priority=None, memory=200), pod("one", priority=1, memory=300), pod("zero", memory=100)],
            ["unknown", "zero", "one"],
            id="unknown priority is 0",
        ),
    ],
)
def test_pods_are_ranked_for_memory_by_excess_priority_and_usage(pods: list[PodFacts], expected: list[str]) -> None:
    assert order(pods, "memory.available") == expected
    assert order(pods, "allocatableMemory.available") == expected


@pytest.mark.difference("stall-ranking")
@pytest.mark.parametrize("signal", ["memory.psi.some", "memory.psi.full"])
def test_stall_ranks_by_priority_and_the_stall_of_the_pod_itself(signal: str) -> None:
    pods = [
        pod("hog", memory=900, stalled=0.0),
        pod("stalls", memory=5, stalled=24.0),
        pod("stalls-more", memory=5, stalled=55.2),
        pod("important", memory=5, stalled=90.0, priority=5),
        pod("unread", memory=900),
    ]
    assert order(pods, signal) == ["stalls-more", "stalls", "hog", "unread", "important"]
    ranked = rank_pods(pods, Signal(signal), SINGLE)
    assert ranked[0].measure == "waits for memory 55.2% of the time, priority 0"
    assert [each.frees for each in ranked] == [55.2, 24.0, 0.0, None, 90.0]


def test_swap_ranks_by_swapped_out_memory_alone() -> None:
    pods = [pod("resident", memory=900, request=0, swap=1), pod("swapped", memory=10, request=100, swap=50)]
    assert order(pods, "swap.free") == ["swapped", "resident"]
    assert [each.frees for each in rank_pods(pods, Signal.SWAP_FREE, SINGLE)] == [50 * MIB, MIB]


@pytest.mark.difference("swapped-memory")
def test_memory_and_swap_signals_rank_by_memory_and_swap() -> None:
    swapped = pod("swapped", usage=PodUsage(memory_bytes=10 * MIB, swap_bytes=500 * MIB))
    resident = pod("resident", usage=PodUsage(memory_bytes=100 * MIB, swap_bytes=0))
    assert order([swapped, resident], "swap.free") == ["swapped", "resident"]
    assert order([swapped, resident], "memory.available") == ["swapped", "resident"]
    first, second = rank_pods([swapped, resident], Signal.MEMORY_AVAILABLE, SINGLE)
    assert first.measure == "uses 510 MiB of memory (500 MiB swapped out), no request, priority 0"
    assert (first.details["swapped_bytes"], second.details.get("swapped_bytes")) == (500 * MIB, None)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(
            [pod("within", writable=disk(50), ephemeral_request=60), pod("above", logs=disk(2), ephemeral_request=1)],
            ["above", "within"],
            id="above the request first",
        ),
        pytest.param(
            [pod("high", volumes=disk(90), priority=1), pod("low", volumes=disk(10))], ["low", "high"], id="priority"
        ),
        pytest.param(
            [pod("sum", writable=disk(4), logs=disk(4), volumes=disk(4)), pod("one", writable=disk(11))],
            ["sum", "one"],
            id="all parts add up",
        ),
        pytest.param(
            [pod("none", usage=PodUsage()), pod("most", writable=disk(500))], ["none", "most"], id="unknown usage"
        ),
    ],
)
def test_pods_are_ranked_for_disk_by_excess_priority_and_usage(pods: list[PodFacts], expected: list[str]) -> None:
    assert order(pods, "nodefs.available") == expected


@pytest.mark.difference("inode-request")
@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("none"), pod("any", priority=9, logs=disk(0, 1))], ["any", "none"], id="any usage first"),
        pytest.param(
            [pod("high", logs=disk(0, 99), priority=1), pod("low", logs=disk(0, 1))], ["low", "high"], id="priority"
        ),
        pytest.param(
            [pod("few", logs=disk(900, 5)), pod("many", volumes=disk(0, 6), ephemeral_request=500)],
            ["many", "few"],
            id="more inodes, regardless of the request in bytes",
        ),
    ],
)
def test_pods_are_ranked_for_inodes_by_priority_and_usage(pods: list[PodFacts], expected: list[str]) -> None:
    assert order(pods, "nodefs.inodesFree") == expected


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("high", pids=900, priority=1), pod("low", pids=1)], ["low", "high"], id="priority first"),
        pytest.param([pod("few", pids=5), pod("many", pids=6)], ["many", "few"], id="then more"),
        pytest.param(
            [pod("read", pids=900), pod("unread", pids=None), pod("low", pids=1, priority=-1)],
            ["low", "unread", "read"],
            id="unknown usage first within a priority",
        ),
    ],
)
def test_pods_are_ranked_for_pids_by_priority_and_count(pods: list[PodFacts], expected: list[str]) -> None:
    assert order(pods, "pid.available") == expected


@pytest.mark.parametrize(
    ("layout", "signal", "used_mib"),
    [
        (SINGLE, "nodefs.available", 111),
        (SINGLE, "imagefs.available", 111),
        (SINGLE, "containerfs.available", 111),
        (DEDICATED, "nodefs.available", 110),
        (DEDICATED, "imagefs.available", 1),
        (DEDICATED, "containerfs.available", 1),
        (SPLIT, "nodefs.available", 111),
        (SPLIT, "imagefs.available", 0),
        (SPLIT, "containerfs.available", 111),
    ],
)
def test_usage_counts_the_parts_on_the_filesystem_of_the_signal(
    layout: FilesystemLayout, signal: str, used_mib: int
) -> None:
    usage = PodUsage(writable=disk(1, 1), logs=disk(10, 10), volumes=disk(100, 100))
    assert usage_of(usage, Signal(signal), layout) == (used_mib * MIB, ())
    inodes = Signal(signal.replace("available", "inodesFree"))
    assert usage_of(usage, inodes, layout) == (used_mib, ())


def test_unread_part_counts_as_0_with_a_note() -> None:
    usage = PodUsage(writable=disk(1), logs=Footprint())
    notes = ("logs not read, counted as 0", "volumes not read, counted as 0")
    assert usage_of(usage, Signal.NODEFS_AVAILABLE, SINGLE) == (MIB, notes)
    assert usage_of(usage, Signal.NODEFS_AVAILABLE, DEDICATED) == (None, ())


@pytest.mark.difference("disk-usage-measured")
def test_incomplete_measurement_ranks_before_complete_ones_and_by_what_is_known() -> None:
    def hidden(name: str, used_bytes: int, priority: int = 0) -> PodFacts:
        usage = PodUsage(volumes=Footprint(used_bytes, 5, is_lower_bound=True))
        return replace(pod(name, priority=priority), usage=usage)

    big = replace(pod("big"), usage=PodUsage(volumes=Footprint(900 * MIB, 5)))
    pods = [hidden("much", 8 * MIB), big, hidden("important", 9 * MIB, priority=5), hidden("little", 60 << 10)]
    assert order(pods, "nodefs.available") == ["much", "little", "important", "big"]
    ranked = rank_pods(pods, Signal("nodefs.available"), SINGLE)
    assert ranked[0].measure.startswith("uses at least 8.00 MiB of ")
    assert [each.details.get("usage_is_lower_bound") for each in ranked] == [True, True, True, None]


def test_finished_pods_and_signals_without_a_resource_have_no_ranking() -> None:
    pods = [pod("done", lifecycle=PodLifecycle.FINISHED), pod("ending", lifecycle=PodLifecycle.ENDING)]
    assert [each.pod.name for each in rank_pods(pods, Signal.MEMORY_AVAILABLE, SINGLE)] == ["ending"]
    assert rank_pods(pods, Signal.IO_PSI_FULL, SINGLE) == ()


def test_ranked_pod_has_usage_request_and_assumed_facts() -> None:
    facts = replace(
        pod(memory=100, request=60),
        priority=known(0, FactSource.ASSUMED),
        memory_request_bytes=known(60 * MIB, FactSource.INFERRED),
    )
    (ranked,) = rank_pods([facts], Signal.MEMORY_AVAILABLE, SINGLE)
    assert ranked.measure == "uses 100 MiB of memory, request 60.0 MiB, priority 0"
    assert ranked.note == " (priority assumed; memory request inferred)"
    assert ranked.details == {
        "rank": 1,
        "resource": "memory",
        "priority": 0,
        "usage_bytes": 100 * MIB,
        "request_bytes": 60 * MIB,
        "excess_bytes": 40 * MIB,
        "assumed": ("priority assumed", "memory request inferred"),
    }
    (of_pids,) = rank_pods([pod(pids=7)], Signal.PID_AVAILABLE, SINGLE)
    assert (of_pids.measure, of_pids.details["usage_pids"]) == ("uses 7 pids, priority 0", 7)
    (unread,) = rank_pods([pod(memory=None)], Signal.MEMORY_AVAILABLE, SINGLE)
    assert unread.measure == "memory usage unknown, priority 0"


@pytest.mark.difference("volumes-not-freed")
@pytest.mark.parametrize(
    ("layout", "signal", "removes_volumes", "freed_mib"),
    [
        (SINGLE, "nodefs.available", False, 11),
        (SINGLE, "nodefs.available", True, 111),
        (SINGLE, "imagefs.available", False, 11),
        (DEDICATED, "nodefs.available", False, 10),
        (DEDICATED, "nodefs.available", True, 110),
        (DEDICATED, "imagefs.available", False, 1),
        (SPLIT, "imagefs.available", True, 0),
        (SINGLE, "memory.available", False, 60),
        (SINGLE, "memory.available", True, 100),
    ],
)
def test_eviction_frees_what_does_not_outlive_the_pod(
    layout: FilesystemLayout, signal: str, removes_volumes: bool, freed_mib: int
) -> None:
    memory: dict[str, Any] = {"memory": 120, "memory_volumes": 40, "memory_cache": 20, "swap": 500}
    facts = pod(writable=disk(1, 1), logs=disk(10, 10), volumes=disk(100, 100), **memory)
    placement = RankingInput(layout, removes_volumes=removes_volumes)
    assert freed_by_eviction(facts.usage, Signal(signal), placement) == (freed_mib * MIB, False)
    if signal != "memory.available":
        inodes = Signal(signal.replace("available", "inodesFree"))
        assert freed_by_eviction(facts.usage, inodes, placement) == (freed_mib, False)


def test_unread_part_is_not_counted_as_freed_and_an_incomplete_volume_does_not_matter() -> None:
    usage = PodUsage(logs=disk(10), volumes=Footprint(900 * MIB, 5, is_lower_bound=True))
    assert freed_by_eviction(usage, Signal.NODEFS_AVAILABLE, SINGLE) == (10 * MIB, False)
    assert freed_by_eviction(PodUsage(), Signal.NODEFS_AVAILABLE, SINGLE) == (None, False)
    hidden = PodUsage(writable=Footprint(MIB, 5, is_lower_bound=True))
    assert freed_by_eviction(hidden, Signal.NODEFS_AVAILABLE, SINGLE) == (MIB, True)
