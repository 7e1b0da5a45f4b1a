"""Largest consumers of memory and PIDs outside of pods, from ``/proc`` files."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from nodeagent.eviction.consumers import find_consumers
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory
from nodeagent.model.pressure import Moment, Signal
from tests.support.kernel_tree import add_cgroup, make_tree
from tests.support.kubelet_tree import add_process

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
OF_POD = 70


async def consumers(root: Path, signal: Signal) -> tuple[str, ...]:
    container = ContainerHandle("c", "app", str(root / "sys/fs/cgroup/pod"), OF_POD, "image")
    handles = {"u": PodHandle("u", ("s",), (container,), None)}
    pods = PodInventory((), (), handles, Moment(datetime(2026, 1, 1, tzinfo=UTC), 0.0))
    unused: Any = None
    return await find_consumers(unused, unused, signal, pods)


def process(root: Path, pid: int, name: str, *, pages: int, threads: int = 1) -> Path:
    directory = add_process(root, pid, name)
    (directory / "statm").write_text(f"{9 * pages} {pages} 0 0 0 0 0\n")
    with (directory / "status").open("a") as status:
        status.write(f"Threads:\t{threads}\n")
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path)
    add_cgroup(tmp_path, "pod", processes=[OF_POD])
    process(tmp_path, OF_POD, "app", pages=1 << 20, threads=9000)
    return tmp_path


async def test_largest_processes_outside_of_pods_are_named_with_their_amount(root: Path) -> None:
    for number in range(1, 6):
        process(root, number, f"daemon-{number}", pages=(1 << 20) // PAGE * number, threads=100 - number)
    assert await consumers(root, Signal.MEMORY_AVAILABLE) == tuple(
        f"daemon-{number} (process {number}) {number}.00 MiB" for number in (5, 4, 3, 2)
    )
    assert (await consumers(root, Signal.PID_AVAILABLE))[0] == "daemon-1 (process 1) 99"


async def test_process_whose_command_line_cannot_be_read_delays_no_pass(root: Path) -> None:
    directory = process(root, 5, "kube-controller-manager", pages=(1 << 20) // PAGE)
    (directory / "cmdline").unlink()
    os.mkfifo(directory / "cmdline")  # like a process that waits for memory, with its address space locked
    try:
        async with asyncio.timeout(20):
            assert await consumers(root, Signal.MEMORY_AVAILABLE) == ("kube-controller (process 5) 1.00 MiB",)
    finally:
        os.close(os.open(directory / "cmdline", os.O_RDWR))


async def test_ended_and_unreadable_processes_are_omitted(root: Path) -> None:
    process(root, 5, "ended", pages=8).joinpath("stat").unlink()
    process(root, 6, "odd", pages=8).joinpath("statm").unlink()
    assert await consumers(root, Signal.MEMORY_AVAILABLE) == ()
    psutil.PROCFS_PATH = str(root / "none")  # restored by the fixture
    assert await consumers(root, Signal.MEMORY_AVAILABLE) == ()
