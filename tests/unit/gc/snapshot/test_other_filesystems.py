"""Eviction signals of further image filesystems, and the filesystems of writable layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout, others_of
from nodeagent.model.pods import ContainerTraits, PodReading, RuntimePod
from nodeagent.model.pressure import FilesystemLayout, Footprint, LayerUsage, OtherFilesystem
from nodeagent.model.runtime import Container, ContainerState
from nodeagent.pods.usage import measure_missing, with_layers
from nodeagent.record import replace
from nodeagent.runtime.containerd import SnapshotUsage
from nodeagent.runtime.cri import ContainerUsage
from tests.support.manual_clock import ManualClock
from tests.unit.builders import container, image_filesystem, sandbox

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.runtime import ImageFilesystem

ELSEWHERE = 12345
"""Device id without a path in these tests."""


def found(path: str = "/kata", stores: tuple[str, ...] = ("kata",), device: int | None = ELSEWHERE) -> ImageFilesystem:
    made = image_filesystem(path, 50, *stores)
    if device is None or made.observed is None:
        return replace(made, observed=None, error="cannot be read")
    return replace(made, observed=replace(made.observed, device_id=device))


@pytest.mark.parametrize(
    ("several", "watched"),
    [
        ([], []),
        ([found()], ["/kata"]),
        ([found(), found("/bind-mount")], ["/kata"]),
        ([found(), found("/lazy", ("a", ""), 9)], ["/kata", "/lazy"]),
        ([found(stores=())], []),
        ([found(stores=("",))], []),
        ([found(device=None)], []),
    ],
    ids=["one", "two", "same-device", "three", "stores-unknown", "blobs-only", "unreadable"],
)
def test_each_readable_filesystem_with_a_snapshotter_is_watched_once(
    tmp_path: Path, several: list[ImageFilesystem], watched: list[str]
) -> None:
    first = found(str(tmp_path), ("overlayfs", ""), tmp_path.stat().st_dev)
    paths = SignalPaths("/proc", str(tmp_path), str(tmp_path))
    assert [each.path for each in others_of(paths, (first, *several))] == watched
    assert not others_of(SignalPaths("/proc"), (first, *several))


def test_other_filesystem_on_nodefs_is_marked(tmp_path: Path) -> None:
    shared = found("/x", device=tmp_path.stat().st_dev)
    (other,) = others_of(SignalPaths(str(tmp_path), "/proc", "/proc"), [shared])
    assert other.on_nodefs


@pytest.fixture
def device(tmp_path: Path) -> int:
    return tmp_path.stat().st_dev


async def test_filesystem_that_was_unmounted_is_not_read_and_the_others_are(tmp_path: Path, device: int) -> None:
    mounted = OtherFilesystem(str(tmp_path), device, frozenset({"a"}))
    gone = OtherFilesystem(str(tmp_path / "gone"), device, frozenset({"b"}))
    unmounted = OtherFilesystem(str(tmp_path), ELSEWHERE, frozenset({"c"}))
    reader = EvictionSignalReader(EvictionSettings(), ManualClock(), pod_log_root=tmp_path)
    layout = SignalLayout(SignalPaths(None), FilesystemLayout.SINGLE, (), others=(unmounted, gone, mounted))
    readings = await reader.read(layout)
    assert {each.path for each in readings.observations if each.path} == {str(tmp_path)}
    assert any("is on another filesystem than before" in each for each in readings.unread)
    assert any(gone.path in each for each in readings.unread)


# ---- writable layers


def pod_of(*containers: Container, **stores: str) -> RuntimePod:
    traits = {key: ContainerTraits(snapshotter=store) for key, store in stores.items()}
    return RuntimePod("uid", sandbox("s"), ("s",), containers, traits=traits)


RUNNING = ContainerState.RUNNING


def test_layers_have_their_device_and_snapshotter_where_known() -> None:
    pod = pod_of(*(container(each, state=RUNNING) for each in "abc"), container("dead"), a="kata", b="overlayfs")
    stats = {
        "a": ContainerUsage("a", writable_bytes=5, writable_inodes=2),
        "dead": ContainerUsage("dead", writable_bytes=7),
    }
    reading = with_layers(PodReading(), pod, stats, {"a": 1, "c": 3}, {"a"})
    assert set(reading.layers) == {
        LayerUsage(Footprint(5, 2, is_lower_bound=True), 1, "kata"),
        LayerUsage(Footprint(), None, "overlayfs"),
        LayerUsage(Footprint(), 3, ""),
        LayerUsage(Footprint(7, 0), None, ""),
    }


@pytest.mark.parametrize(
    ("stats", "answer", "measured"),
    [
        ({}, SnapshotUsage(9, 3), {"a": 9}),
        ({"a": ContainerUsage("a")}, SnapshotUsage(9, 3), {"a": 9}),
        ({"a": ContainerUsage("a", writable_bytes=1)}, SnapshotUsage(9, 3), {}),
        ({}, None, {}),
        ({}, RuntimeRequestError("Usage", "x", "INTERNAL", ""), {}),
        ({}, RuntimeUnavailableError("down"), {}),
    ],
    ids=["none", "without-size", "reported", "snapshotter-fails", "error", "unavailable"],
)
async def test_layer_without_a_reported_size_is_measured_by_the_runtime(
    stats: dict[str, ContainerUsage], answer: SnapshotUsage | Exception | None, measured: dict[str, int]
) -> None:
    asked = []

    async def measure(snapshotter: str, key: str) -> SnapshotUsage | None:
        asked.append((snapshotter, key))
        if isinstance(answer, Exception):
            raise answer
        return answer

    pod = pod_of(
        container("a", state=RUNNING), container("unknown", state=RUNNING), container("dead"), a="kata", dead="kata"
    )
    found_sizes = await measure_missing([pod], stats, measure)
    assert {key: each.writable_bytes for key, each in found_sizes.items()} == measured
    assert asked in ([], [("kata", "a")])
