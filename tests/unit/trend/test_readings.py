"""What is recorded of a reading: one resource for each filesystem, and a bounded number of parts."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.model.outlook import GrowthCategory
from nodeagent.model.pressure import (
    FilesystemLayout,
    Footprint,
    Moment,
    OtherFilesystem,
    PodFacts,
    PodUsage,
    Signal,
    SignalReading,
)
from nodeagent.record import replace
from nodeagent.trend.plan.readings import (
    LONGEST_NAME,
    MOST_PARTS,
    MOST_RESOURCES,
    Parts,
    category_of,
    image_parts,
    image_sizes,
    is_total,
    largest_and_fastest,
    part_of_image,
    parts_of_pod,
    pod_parts,
    recorded_as,
    resource_readings,
    shortened,
)
from tests.support.manual_clock import MIDNIGHT
from tests.unit.builders import MIB, graph, image, piece, snapshot

SINGLE, DEDICATED, SPLIT = FilesystemLayout.SINGLE, FilesystemLayout.DEDICATED_IMAGEFS, FilesystemLayout.SPLIT
DISKS = (Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE, Signal.CONTAINERFS_AVAILABLE)


def signal(name: Signal, available: float = 40.0, path: str = "") -> SignalReading:
    return SignalReading(name, available, 100.0, Moment(MIDNIGHT, 0.0), path=path)


@pytest.mark.parametrize(
    ("layout", "recorded"),
    [
        (SINGLE, ["nodefs.available"]),
        (DEDICATED, ["nodefs.available", "imagefs.available"]),
        (SPLIT, ["nodefs.available", "imagefs.available"]),
    ],
)
def test_a_filesystem_with_several_signals_is_recorded_once(layout: FilesystemLayout, recorded: list[str]) -> None:
    found = resource_readings(map(signal, DISKS), layout, Parts(), {})
    assert [each.resource for each in found] == recorded


@pytest.mark.parametrize(
    ("layout", "imagefs", "containerfs"),
    [(SINGLE, "nodefs", "nodefs"), (DEDICATED, "imagefs", "imagefs"), (SPLIT, "imagefs", "nodefs")],
)
def test_signals_of_one_filesystem_have_one_record(layout: FilesystemLayout, imagefs: str, containerfs: str) -> None:
    assert recorded_as(Signal.IMAGEFS_AVAILABLE, layout) == f"{imagefs}.available"
    assert recorded_as(Signal.CONTAINERFS_INODES_FREE, layout) == f"{containerfs}.inodesFree"
    assert recorded_as(Signal.IMAGEFS_AVAILABLE, layout, "/mnt") == "imagefs.available on /mnt"
    assert recorded_as(Signal.MEMORY_AVAILABLE, layout) == "memory.available"


def test_use_is_capacity_without_available_and_of_a_stall_the_stalled_share() -> None:
    found = resource_readings([signal(Signal.MEMORY_AVAILABLE), signal(Signal.IO_PSI_FULL)], SINGLE, Parts(), {})
    assert [each.used for each in found] == [60.0, 40.0]


def test_an_additional_filesystem_has_its_own_resource() -> None:
    found = resource_readings([signal(Signal.IMAGEFS_AVAILABLE, path="/mnt/b")], SINGLE, Parts(), {})
    assert [each.resource for each in found] == ["imagefs.available on /mnt/b"]


def test_at_most_a_fixed_number_of_resources_is_recorded() -> None:
    many = [signal(Signal.IMAGEFS_AVAILABLE, path=f"/mnt/{number}") for number in range(3 * MOST_RESOURCES)]
    assert len(resource_readings(many, DEDICATED, Parts(), {})) == MOST_RESOURCES


AMOUNTS = st.dictionaries(st.text(max_size=3), st.floats(0, 1e12), max_size=40)


@given(AMOUNTS, AMOUNTS)
def test_the_largest_part_and_the_one_that_grew_most_are_always_recorded(
    amounts: dict[str, float], before: dict[str, float]
) -> None:
    chosen = largest_and_fastest(amounts, before)
    assert len(chosen) == len(set(chosen)) <= MOST_PARTS
    assert set(chosen) <= set(amounts)
    if amounts:
        most_growth = max(amounts[part] - before.get(part, 0.0) for part in amounts)
        assert max(amounts.values()) in {amounts[part] for part in chosen}
        assert most_growth in {amounts[part] - before.get(part, 0.0) for part in chosen}


POD = PodFacts(
    "u1",
    "shop",
    "logger",
    usage=PodUsage(
        memory_bytes=7, pids=3, writable=Footprint(10), logs=Footprint(20), volumes=Footprint(30), swap_bytes=1
    ),
)


@pytest.mark.parametrize(
    ("layout", "others", "of_layer", "of_logs"),
    [
        (SINGLE, (), "nodefs.available", "nodefs.available"),
        (DEDICATED, (), "imagefs.available", "nodefs.available"),
        (SPLIT, (), "nodefs.available", "nodefs.available"),
        (SINGLE, (OtherFilesystem("/var/log", 5, frozenset()),), "nodefs.available", "nodefs.available on /var/log"),
    ],
    ids=["single", "dedicated", "split", "separate logs"],
)
def test_each_part_of_a_pod_counts_on_its_filesystem(
    layout: FilesystemLayout, others: tuple[OtherFilesystem, ...], of_layer: str, of_logs: str
) -> None:
    found = pod_parts([POD], layout, others)
    assert found[of_layer]["shop/logger writable layer"] == 10
    assert found[of_logs]["shop/logger logs"] == 20
    assert found["nodefs.available"]["shop/logger volumes"] == 30
    assert found["memory.available"] == {"shop/logger": 7, "pods": 7}
    assert found["pid.available"] == {"shop/logger": 3, "pods": 3}


def test_pods_of_one_name_are_one_part() -> None:
    found = pod_parts([POD, replace(POD, uid="terminating")], SINGLE, ())
    assert found["memory.available"] == {"shop/logger": 14, "pods": 14}
    assert found["nodefs.available"]["shop/logger volumes"] == found["nodefs.available"]["pod-volumes"] == 60


def test_a_category_is_the_sum_of_its_parts_on_a_filesystem() -> None:
    found = pod_parts([POD, replace(POD, name="other")], SINGLE, ())["nodefs.available"]
    assert [found[each] for each in ("writable-layers", "pod-logs", "pod-volumes")] == [20, 40, 60]
    assert sum(amount for part, amount in found.items() if is_total(part)) == 120


@pytest.mark.parametrize(
    ("part", "category"),
    [
        ("shop/a writable layer", GrowthCategory.WRITABLE),
        ("images/a volumes", GrowthCategory.VOLUMES),
        ("shop/a logs volumes", GrowthCategory.VOLUMES),
        ("shop/a logs", GrowthCategory.LOGS),
        ("images of r/logs", GrowthCategory.IMAGES),
        ("images without a name", GrowthCategory.IMAGES),
        ("shop/a", GrowthCategory.PODS),
        ("unreferenced", GrowthCategory.UNREFERENCED),
    ],
)
def test_category_of_a_part(part: str, category: GrowthCategory) -> None:
    assert category_of(part) is category


def test_sums_of_categories_are_recorded_beside_the_largest_parts() -> None:
    amounts = {f"ns/pod-{number} volumes": 1.0 + number for number in range(30)} | {"pod-volumes": 0.5}
    (found,) = resource_readings([signal(Signal.NODEFS_AVAILABLE)], SINGLE, Parts({"nodefs.available": amounts}), {})
    assert len(found.parts) <= MOST_PARTS + 1
    assert found.parts["pod-volumes"] == 0.5


@given(st.text(max_size=200))
def test_recorded_parts_of_a_pod_are_found_by_its_name(name: str) -> None:
    found = pod_parts([replace(POD, name=name)], SINGLE, ())
    assert {part for each in found.values() for part in each if not is_total(part)} == parts_of_pod(f"shop/{name}")


def test_unknown_use_of_a_pod_is_no_part() -> None:
    assert pod_parts([PodFacts("u", "a", "b"), PodFacts("v", "a", "c", usage=PodUsage())], SINGLE, ()) == {}


def test_images_count_by_repository_and_a_shared_layer_once() -> None:
    images = [image("a", "r/web:v1"), image("b", "r/web:v2"), image("c", "r/db:v1"), image("sha256:d")]
    images[3] = replace(images[3], repo_tags=())
    pieces = [piece("base", 100), piece("v1", 10), piece("v2", 20), piece("db", 5), piece("old", 7)]
    ids = [each.id for each in images]
    references = {ids[0]: ["base", "v1"], ids[1]: ["base", "v2"], ids[2]: ["base", "db"], ids[3]: ["old"]}
    seen = snapshot(*images, storage=graph(pieces, references))
    parts = image_parts(seen, image_sizes(seen))
    assert parts == {
        "images of r/web": 130 * MIB,
        "images of r/db": 5 * MIB,
        "images without a name": 7 * MIB,
        "images": 142 * MIB,
        "unreferenced": 0,
        "undo-windows": 0,
    }
    assert part_of_image("r/web@sha256:1") in parts


@given(st.text(max_size=400))
def test_a_name_is_never_longer_than_the_limit(name: str) -> None:
    assert len(shortened(name)) <= LONGEST_NAME
    assert shortened(name) == name or len(name) > LONGEST_NAME
