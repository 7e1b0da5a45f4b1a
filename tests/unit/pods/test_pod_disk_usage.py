"""Pod disk usage from slow directory walks, merged with the runtime's container stats."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.disk_usage import Tree
from nodeagent.host.pod_disk import PodDisk, PodDiskWalk
from nodeagent.model.pods import ContainerTraits, PodReading, RuntimePod
from nodeagent.model.pressure import Footprint, LayerUsage
from nodeagent.model.runtime import Sandbox
from nodeagent.pods.usage import PodDiskReader, replace_layers, with_disk_usage, with_stats
from nodeagent.runtime.cri import ContainerUsage
from tests.unit.pods.plan.pod_cases import runtime_pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POD = RuntimePod("u-1", Sandbox("s", "web", "shop", "u-1", ready=True), ("s",))


class Turns:
    """Replacement of ``PodDiskWalk.advance``: one step of a walk for each release of ``permitted``."""

    def __init__(self) -> None:
        self.permitted = threading.Semaphore(0)
        self.ended = threading.Event()
        self._advance = PodDiskWalk.advance

    def advance(self, walk: PodDiskWalk, _: float) -> bool:
        assert self.permitted.acquire(timeout=20)
        ended = self._advance(walk, -math.inf)
        if ended:
            self.ended.set()
        return ended


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    made = Turns()
    monkeypatch.setattr(PodDiskWalk, "advance", lambda walk, until_s: made.advance(walk, until_s))  # noqa: PLW0108 - only a function is bound to the walk
    yield made
    made.permitted.release(99)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "logs/shop_web_u-1/app"
    directory.mkdir(parents=True)
    files = [directory / f"{number}.log" for number in range(600)]
    for each in files:
        each.touch()
    return files


async def read(reader: PodDiskReader) -> tuple[Footprint | None, list[str]]:
    warnings: list[str] = []
    return (await reader.read([POD], {}, warnings)).pods["u-1"].logs, warnings


@pytest.mark.usefixtures("logs")
async def test_usage_is_a_lower_bound_until_a_slow_walk_ends(tmp_path: Path, turns: Turns) -> None:
    reader = PodDiskReader(tmp_path / "logs", tmp_path / "kubelet", tmp_path, wait_s=0.2)
    turns.permitted.release()
    found, warnings = await read(reader)
    assert found == Footprint(0, 255, is_lower_bound=True)
    assert warnings == ["pod disk usage is incomplete for shop/web; at least the shown bytes"]
    turns.permitted.release(2)
    assert await asyncio.to_thread(turns.ended.wait, 20)
    assert await read(reader) == (Footprint(0, 600), [])
    reader.close()


async def test_result_of_a_slow_walk_does_not_hide_later_growth(tmp_path: Path, logs: list[Path], turns: Turns) -> None:
    reader = PodDiskReader(tmp_path / "logs", tmp_path / "kubelet", tmp_path, wait_s=0.2)
    await read(reader)
    turns.permitted.release(3)
    assert await asyncio.to_thread(turns.ended.wait, 20)
    for each in logs:
        each.write_bytes(b"x" * 8192)
    found, _ = await read(reader)
    assert found == Footprint(0, 600)
    turns.permitted.release()
    while found == Footprint(0, 600):
        found, warnings = await read(reader)
    assert found is not None
    assert found.is_lower_bound
    assert warnings == ["pod disk usage is incomplete for shop/web; at least the shown bytes"]
    reader.close()


@pytest.mark.parametrize(
    ("writable", "expected"),
    [(Footprint(5, 1, is_lower_bound=True), Footprint(105, 3, is_lower_bound=True)), (None, None)],
)
def test_files_of_a_sandbox_count_like_a_writable_layer_and_unknown_layers_remain_unknown(
    writable: Footprint | None, expected: Footprint | None
) -> None:
    files = LayerUsage(Footprint(100, 2), 7, "")
    found = with_disk_usage(PodReading(writable=writable), PodDisk(sandbox_files=files))
    assert (found.writable, found.layers) == (expected, (files,) if expected else ())


@pytest.mark.difference("image-copies")
@pytest.mark.parametrize(
    ("snapshotter", "written"), [("overlayfs", 9), ("", 9), ("btrfs", 9), ("native", None), ("blockfile", None)]
)
def test_layer_with_a_copy_of_the_image_counts_for_the_ranking_and_not_for_storage_limits(
    snapshotter: str, written: int | None
) -> None:
    pod = runtime_pod(ContainerTraits(snapshotter=snapshotter))
    (container,) = pod.containers
    stats = {container.id: ContainerUsage(container.id, writable_bytes=9, writable_inodes=2)}
    found = with_stats(PodReading(), pod, stats, fill_memory=False)
    assert (found.writable, found.container_writable_bytes.get(container.id)) == (Footprint(9, 2), written)
    disk = PodDisk(Footprint(3), Footprint(3), {}, Footprint(4))
    assert with_disk_usage(found, disk).ephemeral_bytes == 7 + (written or 0)


@pytest.mark.parametrize(
    ("complete", "tree_bytes", "reported_bytes", "expected", "is_lower_bound"),
    [
        pytest.param(True, 5, 9, 5, False, id="complete walk replaces the runtime's figure"),
        pytest.param(False, 5, 9, 9, False, id="larger figure of the runtime counts"),
        pytest.param(False, 9, 5, 9, True, id="incomplete walk above the runtime's figure is a lower bound"),
        pytest.param(False, 0, None, 0, True, id="incomplete walk without the runtime's figure is a lower bound"),
    ],
)
def test_writable_layer_is_the_best_known_figure(
    complete: bool, tree_bytes: int, reported_bytes: int | None, expected: int, is_lower_bound: bool
) -> None:
    stats = {"c": ContainerUsage("c", writable_bytes=reported_bytes)}
    found, lower_bounds = replace_layers(stats, {"c": Tree("/u", tree_bytes, complete)})
    assert (found["c"].writable_bytes, "c" in lower_bounds) == (expected, is_lower_bound)
