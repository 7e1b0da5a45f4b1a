"""Example nodes: sizes, filesystem and logs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError
from nodeagent.model.runtime import ContainerState
from tests.sim.disk import GIB
from tests.sim.filesystem import SimClock, SimFilesystem
from tests.sim.scenario import example_node, scale_node

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sim.node import SimNode


def summary(node: SimNode) -> tuple[object, ...]:
    return (node.images, node.sandboxes, node.containers, node.store.snapshots, node.other_bytes)


def test_default_node_has_the_documented_content() -> None:
    node = example_node().node
    reading = SimFilesystem(node).read(node.imagefs_path)
    assert (reading.used_percent, reading.capacity_bytes) == (91, 40 * GIB)
    assert 38 <= len(node.images) <= 45
    assert sum(sandbox.ready for sandbox in node.sandboxes.values()) == 14
    assert sum(not sandbox.ready for sandbox in node.sandboxes.values()) >= 5
    dead = Counter(
        (each.sandbox_id, each.name) for each in node.containers.values() if each.state is ContainerState.EXITED
    )
    assert list(dead.values()).count(4) == 3
    assert [image.repo_tags for image in node.images.values() if image.pinned] == [(node.sandbox_image,)]
    fresh = [name for name in node.store.names.values() if (node.now - name.created_at).total_seconds() < 60]
    assert {name.target.digest for name in fresh} == {
        node.images[node.resolve_image("registry.example.com/shop/checkout:v1") or ""].target_digest
    }


def test_low_threshold_is_reached_by_removing_several_unused_images() -> None:
    node = example_node().node
    unused = [image for image in node.images.values() if not node.users_of(image.id) and not image.pinned]
    target = node.used_bytes - node.capacity_bytes * 80 // 100
    before = node.used_bytes
    largest = 0
    for image in unused:
        used = node.used_bytes
        node.remove_image(image.id)
        largest = max(largest, used - node.used_bytes)
    assert before - node.used_bytes > target > 2 * largest
    node.fill_to(91)  # possible, since the removals did not change other data


def test_equal_seeds_create_equal_nodes() -> None:
    assert summary(example_node(7).node) == summary(example_node(7).node)
    assert summary(example_node(7).node) != summary(example_node(8).node)


def test_default_node_has_no_garbage() -> None:
    assert example_node().node.collect_garbage() == 0


def test_logs_are_at_the_paths_of_the_runtime(tmp_path: Path) -> None:
    scenario = example_node()
    scenario.write_logs(tmp_path)
    node = scenario.node
    for container in node.containers.values():
        assert (tmp_path / "pods").joinpath(node.log_path(container)).is_file()
    uids = {path.name.rpartition("_")[2] for path in (tmp_path / "pods").iterdir()}
    deleted = uids - {sandbox.uid for sandbox in node.sandboxes.values()}
    assert deleted == {sandbox.uid for sandbox, _ in scenario.former_pods}
    dead = [link for link in (tmp_path / "containers").iterdir() if not link.exists()]
    assert len(dead) == len(scenario.former_pods) == 2
    assert all(link.is_symlink() for link in dead)
    assert list((tmp_path / "pods").glob("shop_search-0_*/search/4.log.*"))


@pytest.mark.parametrize(("sharing", "snapshots"), [(8, 650), (1, 991)])
def test_scaled_node_has_the_requested_size(sharing: int, snapshots: int) -> None:
    node = scale_node(100, 10, 60, sharing=sharing)
    layers = sum(1 for snapshot in node.store.snapshots.values() if snapshot.kind == "committed")
    assert len(node.images) == 100
    assert len(node.containers) == 60
    assert abs(layers - snapshots) <= 100
    assert SimFilesystem(node).read(node.root_path).used_percent == 91


def test_filesystem_is_readable_below_the_root_directory_only() -> None:
    node = scale_node(3)
    filesystem, clock = SimFilesystem(node), SimClock()
    reading = filesystem.read_filesystem(node.imagefs_path, clock)
    assert reading.available_bytes == node.capacity_bytes - node.used_bytes
    assert reading.inodes_free == node.inodes_free > 0
    assert reading.observed_at == clock.now()
    with pytest.raises(ObservationError, match="no such file"):
        filesystem.read_filesystem("/home", clock)
    filesystem.failing = "input/output error"
    with pytest.raises(ObservationError, match="input/output error"):
        filesystem.read_filesystem(node.imagefs_path, clock)


def test_clock_changes_by_calls_only() -> None:
    clock = SimClock()
    before, since = clock.now(), clock.monotonic_s()
    clock.advance(90)
    assert (clock.now() - before).total_seconds() == clock.monotonic_s() - since == 90
    clock.set_wall_time(before)
    assert clock.monotonic_s() - since == 90
