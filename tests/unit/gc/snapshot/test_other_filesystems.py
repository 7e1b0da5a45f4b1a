"""Eviction signals of further image filesystems, and the filesystems of writable layers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout, others_of
from nodeagent.model.pods import ContainerTraits, PodReading, RuntimePod
from nodeagent.model.pressure import FilesystemLayout, Footprint, LayerUsage, OtherFilesystem
from nodeagent.model.runtime import Container, ContainerState, Space
from nodeagent.pods.usage import measure_missing, with_layers
from nodeagent.record import replace
from nodeagent.runtime.cri import ContainerUsage
from tests.support.manual_clock import ManualClock
from tests.unit.builders import container, image_filesystem, sandbox

if TYPE_CHECKING:
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


# ---- filesystem of the pod logs


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize(
    ("devices", "log_device", "watched"),
    [
        ((1, 2, 2), 3, ["/logs"]),
        ((1, 1, 1), 3, ["/logs"]),
        ((1, 2, 2), 1, []),
        ((1, 2, 2), 2, []),
        ((1, 2, 3), 3, []),
        ((1, 2, 2), ELSEWHERE, ["/kata"]),
        ((1, 2, 2), None, []),
        ((1, None, None), 3, []),
    ],
    ids=["own", "own-single", "nodefs", "imagefs", "containerfs", "image-filesystem", "missing", "imagefs-unknown"],
)
def test_filesystem_of_the_logs_is_watched_if_it_has_no_other_role(
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[int | None, ...],
    log_device: int | None,
    watched: list[str],
) -> None:
    paths = SignalPaths(*(None if each is None else f"/{each}" for each in devices))
    monkeypatch.setattr("nodeagent.eviction.signals.filesystem_id", lambda path: int(path[1:]))
    reader = EvictionSignalReader(EvictionSettings(), ManualClock(), pod_log_root=Path("/logs"))
    several = [found()] if watched == ["/kata"] else []
    layout = reader.resolve_layout(paths, several, log_device)
    assert [each.path for each in layout.others] == watched
    assert layout.has_separate_logs is (watched == ["/logs"])
    added = {each.signal.value.split(".")[0] for each in layout.thresholds if each.filesystem is not None}
    assert added == {"/logs": {"nodefs"}, "/kata": {"imagefs"}}.get("".join(watched), set())


async def test_filesystem_of_the_logs_has_readings_of_nodefs_with_its_path(tmp_path: Path, device: int) -> None:
    logs = OtherFilesystem(str(tmp_path), device, frozenset())
    reader = EvictionSignalReader(EvictionSettings(), ManualClock(), pod_log_root=tmp_path)
    layout = SignalLayout(SignalPaths(None), FilesystemLayout.SINGLE, (), others=(logs,))
    readings = await reader.read(layout)
    found_signals = {each.signal.value for each in readings.observations if each.path == str(tmp_path)}
    assert "nodefs.available" in found_signals <= {"nodefs.available", "nodefs.inodesFree"}


async def test_hanging_filesystem_of_the_logs_is_omitted_and_the_others_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def identify(path: str) -> int:
        if path == "/logs":
            released.wait(30)
        return 1

    monkeypatch.setattr("nodeagent.eviction.signals.filesystem_id", identify)
    monkeypatch.setattr("nodeagent.eviction.signals._LOGS_WITHIN_S", 0.05)
    reader = EvictionSignalReader(EvictionSettings(), ManualClock(), pod_log_root=Path("/logs"))
    try:
        layout = await reader.nodefs_layout()
    finally:
        released.set()
    assert layout.paths.nodefs is not None
    assert [each for each in layout.warnings if "pod logs" in each] == [
        "filesystem of the pod logs unknown: it does not answer within 0.05 s"
    ]
    assert (layout.others, layout.others_known) == ((), False)


def test_unknown_filesystem_of_the_logs_counts_as_one_of_its_own(tmp_path: Path) -> None:
    """Logs that may be elsewhere do not count for nodefs."""
    reader = EvictionSignalReader(EvictionSettings(), ManualClock(), pod_log_root=tmp_path)
    paths = SignalPaths(nodefs="/", imagefs="/")
    assert reader.resolve_layout(paths, (), 0).has_separate_logs
    assert not reader.resolve_layout(paths, (), None).has_separate_logs


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
        ({}, Space(9, 3), {"a": 9}),
        ({"a": ContainerUsage("a")}, Space(9, 3), {"a": 9}),
        ({"a": ContainerUsage("a", writable_bytes=1)}, Space(9, 3), {}),
        ({}, None, {}),
        ({}, RuntimeRequestError("Usage", "x", "INTERNAL", ""), {}),
        ({}, RuntimeUnavailableError("down"), {}),
    ],
    ids=["none", "without-size", "reported", "snapshotter-fails", "error", "unavailable"],
)
async def test_layer_without_a_reported_size_is_measured_by_the_runtime(
    stats: dict[str, ContainerUsage], answer: Space | Exception | None, measured: dict[str, int]
) -> None:
    asked = []

    async def measure(snapshotter: str, key: str) -> Space | None:
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
