"""Readings and actions of an eviction for memory while filesystems hang, with every thread that may call them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from nodeagent.eviction import signals as eviction_signals
from nodeagent.eviction.evictor import EvictionOutcome
from nodeagent.eviction.kernel_signals import read_filesystem_signals
from nodeagent.eviction.pod_monitor import OomKillMonitor
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader
from nodeagent.model.node import Role
from nodeagent.model.pods import PodInventory, RuntimePod
from nodeagent.model.pressure import MemorySource, Signal
from nodeagent.pods.role import RoleWatch
from nodeagent.pods.usage import PodCgroups
from nodeagent.telemetry import logging as log
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.unit.builders import sandbox
from tests.unit.eviction.plan.cases import at, pod, thresholds
from tests.unit.eviction.test_evictor import KILLABLE, Runtime, chosen, evictor
from tests.unit.kubelet_double import HandClock, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from nodeagent.eviction.signals import SignalLayout

pytestmark = pytest.mark.usefixtures("proc")
MIB = 1 << 20
PARENT = "/kubepods/burstable/poduid-web"
THREADS = 4


class Hang:
    """A call on a filesystem that does not return before the end of the test."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.calls = 0

    def __call__(self, *_: object) -> Any:
        self.calls += 1
        self.released.wait(60)
        return "/"


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.released.set()


class ImageInfo(NamedTuple):
    """Answer of the runtime to ``ImageFsInfo``."""

    image_mountpoints: tuple[str, ...] = ()
    container_mountpoints: tuple[str, ...] = ()


class Runtimes:
    async def image_fs_info(self) -> ImageInfo:
        return ImageInfo()


def node(root: Path, available_mib: int = 50) -> EvictionSignalReader:
    make_tree(root)
    (root / "proc/meminfo").write_text(f"MemTotal: 2048000 kB\nMemAvailable: {available_mib << 10} kB\n")
    settings = EvictionSettings(thresholds=thresholds(), memory_source=MemorySource.MEM_AVAILABLE)
    return EvictionSignalReader(settings, HandClock(), pod_log_root=root, root=root)


async def layout_of(reader: EvictionSignalReader) -> SignalLayout:
    return await reader.read_layout(Runtimes(), "")  # type: ignore[arg-type]


async def test_memory_shortage_is_read_without_waiting_for_a_filesystem(
    tmp_path: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_signals, "_READ_WITHIN_S", 600.0)
    monkeypatch.setattr(eviction_signals, "read_filesystem_signals", hang)
    reader = node(tmp_path)
    layout = await layout_of(reader)
    async with asyncio.timeout(20):
        found = [await reader.read(layout, urgently=True) for _ in range(3)]
    assert [[each.signal for each in one.observations] for one in found] == [[Signal.MEMORY_AVAILABLE]] * 3
    assert hang.calls == 1


async def test_shortage_that_begins_while_a_filesystem_hangs_is_read(
    tmp_path: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_signals, "_READ_WITHIN_S", 600.0)
    monkeypatch.setattr(eviction_signals, "read_filesystem_signals", hang)
    reader = node(tmp_path, available_mib=900)
    layout = await layout_of(reader)
    reading = asyncio.ensure_future(reader.read(layout, urgently=True))
    await asyncio.sleep(0)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048000 kB\nMemAvailable: 1024 kB\n")
    async with asyncio.timeout(20):
        (memory,) = (await reading).observations
    assert memory.available == MIB


async def test_filesystem_signals_of_a_slow_reading_are_returned_by_a_later_one(
    tmp_path: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any) -> Any:
        hang()
        return read_filesystem_signals(*args)

    monkeypatch.setattr(eviction_signals, "read_filesystem_signals", slow)
    reader = node(tmp_path)
    layout = await layout_of(reader)
    assert len((await reader.read(layout, urgently=True)).observations) == 1
    hang.released.set()
    async with asyncio.timeout(20):
        while len((found := await reader.read(layout, urgently=True)).observations) == 1:
            pass
    assert Signal.NODEFS_AVAILABLE in {each.signal for each in found.observations}
    assert hang.calls == 1


async def test_layout_has_no_filesystem_while_one_hangs_and_all_afterwards(
    tmp_path: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_signals, "_READ_WITHIN_S", 0.01)
    monkeypatch.setattr(eviction_signals, "nodefs_path", hang)
    reader = node(tmp_path)
    async with asyncio.timeout(20):
        layout = await layout_of(reader)
        assert (layout.paths.nodefs, layout.others_known) == (None, False)
        assert "does not answer" in layout.warnings[0]
        assert [each.signal for each in (await reader.read(layout)).observations] == [Signal.MEMORY_AVAILABLE]
        hang.released.set()
        while (await layout_of(reader)).paths.nodefs is None:
            pass
    assert hang.calls == 2


# ---- all threads of asyncio.to_thread hang


async def read_memory(root: Path) -> Any:
    reader = node(root)
    return [each.signal for each in (await reader.read(await reader.nodefs_layout(), urgently=True)).observations]


async def read_usage(root: Path) -> Any:
    make_tree(root)
    add_cgroup(root, PARENT, memory_bytes=MIB)
    cgroups = PodCgroups(root)
    pods = [RuntimePod("uid-web", sandbox("s"), ("s",), cgroup_parent=PARENT)]
    return (await cgroups.read(pods, cgroups.find_handles(pods), []))["uid-web"].pids


async def evict(_: Path) -> Any:
    runtime, web = Runtime(), pod()
    result = await evictor(runtime, web, handle=KILLABLE).evict(chosen(web), KILLABLE, asyncio.Event())
    return result.outcome


async def check_oom_kills(root: Path) -> Any:
    del root
    return await OomKillMonitor(log.configure("json", "info")).check(PodInventory((), (), {}, at(0)))


async def evaluate_role(_: Path) -> Any:
    kubelet = KubeletDouble()
    return (await RoleWatch(kubelet.clock, reader=kubelet).evaluate(Role.STANDALONE)).role


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (read_memory, [Signal.MEMORY_AVAILABLE, Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE]),
        (read_usage, 1),
        (evict, EvictionOutcome.EVICTED),
        (check_oom_kills, None),
        (evaluate_role, Role.STANDALONE),
    ],
)
async def test_eviction_for_memory_needs_no_thread_that_a_filesystem_can_block(
    tmp_path: Path, hang: Hang, call: Callable[[Path], Awaitable[Any]], expected: object
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    hanging = [loop.run_in_executor(None, hang) for _ in range(THREADS)]
    async with asyncio.timeout(20):
        assert await call(tmp_path) == expected
    hang.released.set()
    await asyncio.wait(hanging)
