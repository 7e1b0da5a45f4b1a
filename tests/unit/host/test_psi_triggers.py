"""Being woken by the kernel; what cannot be watched is told with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.host.psi_triggers import Wakes


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def test_a_kernel_without_stall_information_is_told(root: Path) -> None:
    wakes = Wakes(print, root=root)
    why = wakes.watch_stalls("memory", 100_000, 1_000_000)
    assert str(root / "proc/pressure/memory") in why
    assert "psi=1" in why
    assert wakes.names == ()
    wakes.close()


def test_a_file_that_gives_no_such_events_is_told_and_closed(root: Path) -> None:
    (root / "proc/pressure/memory").write_text("")
    before = opened()
    wakes = Wakes(print, root=root)
    assert wakes.watch_stalls("memory", 100_000, 1_000_000)
    wakes.close()
    assert opened() == before


def test_pods_without_a_cgroup_are_told(root: Path) -> None:
    wakes = Wakes(print, root=root)
    assert "memory.events" in wakes.watch_memory_events()
    wakes.close()


@pytest.mark.skipif(not Path("/proc/pressure/memory").exists(), reason="this kernel tells no stalls")
async def test_it_lets_go_of_all_it_opened() -> None:
    before = opened()
    wakes = Wakes(print)
    why = wakes.watch_stalls("memory", 100_000, 2_000_000)
    assert wakes.names == (() if why else ("memory stall",))
    wakes.attach()
    wakes.close()
    assert opened() == before
