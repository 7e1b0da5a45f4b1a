"""Kernel pressure triggers, and the errors for unavailable triggers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.host.psi_triggers import MEMORY_EVENTS, PressureTriggers


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def test_kernel_without_psi_is_a_fault_with_a_hint(root: Path) -> None:
    triggers = PressureTriggers(print, root=root)
    fault = triggers.add_stall_trigger("memory", 100_000, 1_000_000)
    assert str(root / "proc/pressure/memory") in fault
    assert "psi=1" in fault
    assert triggers.names == ()
    triggers.close()


def test_file_without_epoll_support_is_a_fault_and_closed(root: Path) -> None:
    (root / "proc/pressure/memory").write_text("")
    before = open_descriptors()
    triggers = PressureTriggers(print, root=root)
    assert triggers.add_stall_trigger("memory", 100_000, 1_000_000)
    triggers.close()
    assert open_descriptors() == before


def test_missing_pod_cgroup_is_a_fault(root: Path) -> None:
    triggers = PressureTriggers(print, root=root)
    assert "memory.events" in triggers.add_memory_events()
    triggers.close()


def test_pod_cgroup_is_watched_once_from_its_creation(root: Path) -> None:
    triggers, pods = PressureTriggers(print, root=root), root / "sys/fs/cgroup/kubepods.slice"
    assert triggers.add_memory_events()
    before = open_descriptors()
    pods.mkdir()
    os.mkfifo(pods / "memory.events")  # a FIFO, since epoll refuses regular files
    for _ in range(2):
        assert not triggers.add_memory_events()
        assert (triggers.names, open_descriptors()) == ((MEMORY_EVENTS,), before + 1)
    triggers.close()


@pytest.mark.skipif(not Path("/proc/pressure/memory").exists(), reason="PSI unavailable")
async def test_close_closes_all_descriptors() -> None:
    before = open_descriptors()
    triggers = PressureTriggers(print)
    fault = triggers.add_stall_trigger("memory", 100_000, 2_000_000)
    assert triggers.names == (() if fault else ("memory stall",))
    triggers.attach()
    triggers.close()
    assert open_descriptors() == before
