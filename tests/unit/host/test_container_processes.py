"""Container processes: trusted cgroups, and signals only to processes with a proven container."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.container_processes import ContainerProcesses
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

ID, OTHER = "a" * 64, "b" * 64
POD = "kubepods.slice/kubepods-pod1.slice"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Tree:
    """A cgroup tree and a proc tree in a directory; signals are sent to real processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / "sys/fs/cgroup"
        self.base.mkdir(parents=True)
        (self.base / "cgroup.controllers").write_text("memory\n")
        self.processes = ContainerProcesses(SystemClock(), root)

    def cgroup(self, container_id: str, *pids: int, below: str = "") -> Path:
        path = self.base / POD / f"cri-containerd-{container_id}.scope" / below
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        top = self.base / POD / f"cri-containerd-{container_id}.scope"
        (top / "cgroup.events").write_text(f"populated {int(bool(pids))}\nfrozen 0\n")
        return path

    def process(self, pid: int, container_id: str, *, parent: int = 1, ticks: int = 5, state: str = "S") -> None:
        place = self.root / f"proc/{pid}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "stat").write_text(f"{pid} (a) b) {state} {parent} " + "0 " * 17 + f"{ticks} 0\n")
        (place / "cgroup").write_text(f"0::/{POD}/cri-containerd-{container_id}.scope\n" if container_id else "0::/\n")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.processes.close()


class Child:
    """A child process; ``signalled`` waits for its end and returns the number of the signal."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-ISc", "import signal; signal.pause()"])
        self.pid = self.process.pid

    def signalled(self) -> int:
        return -self.process.wait(10)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.process.kill()
    child.process.wait()


async def test_container_with_processes_is_populated_until_its_last_one_has_ended(tree: Tree) -> None:
    tree.cgroup(ID, 70)
    await tree.processes.locate([ID])
    assert tree.processes.is_populated(ID) is True
    path = tree.cgroup(ID)
    assert tree.processes.is_populated(ID) is False
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    assert tree.processes.is_populated(ID) is False


async def test_cgroup_that_never_had_processes_is_not_trusted(tree: Tree) -> None:
    tree.cgroup(ID)
    await tree.processes.locate([ID, OTHER])
    assert tree.processes.is_populated(ID) is None
    assert tree.processes.is_populated(OTHER) is None
    assert not tree.processes.kill(ID)


async def test_cgroup_of_version_1_is_populated_while_it_lists_processes(tmp_path: Path) -> None:
    path = tmp_path / "sys/fs/cgroup/pids/kubepods/pod1" / ID / "inner"
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("7\n")
    processes = ContainerProcesses(SystemClock(), tmp_path)
    await processes.locate([ID])
    assert processes.is_populated(ID) is True
    (path / "cgroup.procs").write_text("")
    assert processes.is_populated(ID) is False


async def test_end_of_the_last_process_is_reported_on_version_1(tmp_path: Path, child: Child) -> None:
    second, changed = Child(), asyncio.Event()
    path = tmp_path / "sys/fs/cgroup/pids/kubepods/pod1" / ID
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text(f"{child.pid}\n{second.pid}\n")
    processes = ContainerProcesses(SystemClock(), tmp_path)
    for pid in (child.pid, second.pid):
        place = tmp_path / f"proc/{pid}"
        place.mkdir(parents=True)
        (place / "cgroup").write_text(f"4:pids:/kubepods/pod1/{ID}\n")
    processes.on_change = changed.set
    await processes.locate([ID])
    processes.watch([ID])
    for process, remaining in ((child, f"{second.pid}\n"), (second, "")):
        assert processes.is_populated(ID)
        changed.clear()
        (path / "cgroup.procs").write_text(remaining)
        process.process.kill()
        async with asyncio.timeout(10):
            await changed.wait()
    assert processes.is_populated(ID) is False
    second.process.wait()
    processes.close()


async def test_watched_containers_leave_descriptors_for_other_files(tmp_path: Path) -> None:
    processes = ContainerProcesses(SystemClock(), tmp_path, max_watched=1)
    for container_id in (ID, OTHER):
        path = tmp_path / "sys/fs/cgroup/pids/kubepods/pod1" / container_id
        path.mkdir(parents=True)
        (path / "cgroup.procs").write_text(f"{os.getpid()}\n")
        (tmp_path / f"proc/{os.getpid()}").mkdir(parents=True, exist_ok=True)
    (tmp_path / f"proc/{os.getpid()}/cgroup").write_text(f"4:pids:/kubepods/pod1/{ID}\n5:cpu:/{OTHER}\n")
    await processes.locate([ID, OTHER])
    before = open_descriptors()
    processes.watch([ID, OTHER])
    assert open_descriptors() == before + 2, "one epoll descriptor and one pidfd"
    processes.close()


async def test_monitor_of_a_container_is_not_its_process(tree: Tree) -> None:
    for name, pid in (("conmon-", 71), ("", 70)):
        path = tree.base / f"system.slice/crio-{name}{ID}.scope"
        path.mkdir(parents=True)
        (path / "cgroup.procs").write_text(f"{pid}\n")
        (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    await tree.processes.locate([ID])
    assert tree.processes.is_populated(ID) is True
    (tree.base / f"system.slice/crio-{ID}.scope/cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert tree.processes.is_populated(ID) is False


async def test_cgroups_with_the_same_id_are_not_trusted(tree: Tree) -> None:
    tree.cgroup(ID, 70)
    assert await tree.processes.locate([OTHER]), "the search is complete, but OTHER has no cgroup"
    (tree.base / f"other.slice/cri-containerd-{ID}.scope").mkdir(parents=True)
    assert not await tree.processes.locate([ID])
    assert tree.processes.is_populated(ID) is None


async def test_main_process_receives_term_and_younger_ones_do_not(tree: Tree, child: Child) -> None:
    executed = Child()
    tree.cgroup(ID, executed.pid, child.pid)
    tree.process(child.pid, ID, parent=900, ticks=100)
    tree.process(executed.pid, ID, parent=900, ticks=200)
    await tree.processes.locate([ID])
    assert tree.processes.terminate(ID)
    assert child.signalled() == signal.SIGTERM
    assert executed.alive
    executed.process.kill()
    executed.process.wait()


async def test_main_process_receives_the_stop_signal_of_its_image(tree: Tree, child: Child) -> None:
    tree.cgroup(ID, child.pid)
    tree.process(child.pid, ID)
    tree.processes.stop_signals = {ID: 37}
    await tree.processes.locate([ID])
    assert tree.processes.terminate(ID)
    assert child.signalled() == 37


async def test_every_process_of_a_container_is_killed(tree: Tree, child: Child) -> None:
    second = Child()
    tree.cgroup(ID, child.pid)
    tree.cgroup(ID, second.pid, below="inner")
    for pid in (child.pid, second.pid):
        tree.process(pid, ID)
    await tree.processes.locate([ID])
    assert tree.processes.kill(ID)
    assert (child.signalled(), second.signalled()) == (signal.SIGKILL, signal.SIGKILL)


@pytest.mark.parametrize("owner", ["", OTHER], ids=["of-the-host", "of-another-container"])
async def test_process_that_is_not_in_the_container_is_not_signalled(tree: Tree, child: Child, owner: str) -> None:
    tree.cgroup(ID, child.pid)
    tree.process(child.pid, owner)  # the PID was reused by another process after cgroup.procs was read
    await tree.processes.locate([ID])
    assert not tree.processes.terminate(ID)
    assert not tree.processes.kill(ID)
    assert child.alive


async def test_unknown_process_is_not_signalled(tree: Tree, child: Child) -> None:
    child.process.kill()
    child.process.wait()
    tree.cgroup(ID, child.pid)
    await tree.processes.locate([ID])
    assert not tree.processes.terminate(ID)
    assert not tree.processes.kill(ID)


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", True), ("S", False), ("D", False)])
async def test_stopped_parent_of_the_main_process_is_a_stopped_shim(tree: Tree, state: str, stopped: bool) -> None:
    tree.cgroup(ID, os.getpid())
    tree.process(os.getpid(), ID, parent=900)
    tree.process(900, "", state=state)
    await tree.processes.locate([ID])
    assert tree.processes.has_stopped_shim(ID) is stopped


@pytest.mark.parametrize("field", ["SigPnd", "ShdPnd"])
@pytest.mark.parametrize(
    ("mask", "stop_signals", "pending"),
    [
        ("0000000000004000", {}, True),
        ("0000000000000000", {}, False),
        ("0000000000000400", {}, False),
        ("0000001000000000", {ID: 37}, True),
        ("0000000000004000", {ID: 37}, False),
    ],
)
async def test_sent_stop_signal_is_pending_until_the_main_process_receives_it(
    tree: Tree, field: str, mask: str, stop_signals: dict[str, int], pending: bool
) -> None:
    tree.cgroup(ID, 70)
    tree.process(70, ID)
    tree.processes.stop_signals = stop_signals
    await tree.processes.locate([ID])
    assert not tree.processes.has_pending_term(ID), "no pending TERM without a status file"
    (tree.root / "proc/70/status").write_text(f"Name:\ta\n{field}:\t{mask}\nSigBlk:\t{'f' * 16}\n")
    assert tree.processes.has_pending_term(ID) is pending


async def test_term_blocked_by_a_real_process_is_pending(tree: Tree) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    blocked = Child()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    tree.cgroup(ID, blocked.pid)
    tree.process(blocked.pid, ID)
    (tree.root / f"proc/{blocked.pid}/status").symlink_to(f"/proc/{blocked.pid}/status")
    await tree.processes.locate([ID])
    assert not tree.processes.has_pending_term(ID)
    assert tree.processes.terminate(ID)
    assert tree.processes.has_pending_term(ID)
    blocked.process.kill()
    assert blocked.signalled() == signal.SIGKILL


@pytest.mark.parametrize(("state", "delayed"), [("R", True), ("D", True), ("S", False), ("T", False)])
async def test_main_process_that_waits_for_a_cpu_or_a_disk_is_delayed(tree: Tree, state: str, delayed: bool) -> None:
    assert not tree.processes.is_delayed(ID)
    tree.cgroup(ID, 70)
    tree.process(70, ID, state=state)
    await tree.processes.locate([ID])
    assert tree.processes.is_delayed(ID) is delayed


async def test_cpu_time_is_that_of_the_located_cgroup(tree: Tree) -> None:
    path = tree.cgroup(ID, 70)
    assert tree.processes.cpu_us(ID) is None
    await tree.processes.locate([ID])
    assert tree.processes.cpu_us(ID) is None
    (path / "cpu.stat").write_text("usage_usec 1234\nuser_usec 1000\n")
    assert tree.processes.cpu_us(ID) == 1234


async def test_container_that_is_no_longer_listed_is_forgotten(tree: Tree) -> None:
    tree.cgroup(ID, 70)
    await tree.processes.locate([ID])
    tree.processes.watch([ID])
    tree.processes.forget_others([OTHER])
    assert tree.processes.is_populated(ID) is None
