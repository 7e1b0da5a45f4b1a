"""Eviction signals from kernel files: both cgroup versions, missing and malformed files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psutil
import pytest

from nodeagent.eviction.kernel_signals import SignalPaths, read_signals
from nodeagent.model.pressure import MemorySource, Signal
from tests.support.kernel_tree import UNUSED_MEMORY, VMSTAT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("proc")
NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
MIB = 1 << 20
MEMINFO = f"""\
{UNUSED_MEMORY}\
MemTotal:        4194304 kB
MemFree:             100 kB
MemAvailable:    2097152 kB
SwapTotal: {{swap}} kB
SwapFree:            512 kB
"""
FILES = {
    "proc/meminfo": MEMINFO.format(swap=1024),
    "proc/vmstat": VMSTAT,
    "proc/loadavg": "0.10 0.20 0.30 3/250 9999\n",
    "proc/sys/kernel/pid_max": "32768\n",
    "proc/sys/kernel/threads-max": "20000\n",
    "proc/pressure/memory": "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=3.25 avg60=0 total=1\n",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}
V2 = {
    "sys/fs/cgroup/memory.stat": f"anon {1000 * MIB}\nfile {700 * MIB}\ninactive_file {300 * MIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.max": f"{3000 * MIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.current": f"{1500 * MIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.stat": f"inactive_file {200 * MIB}\n",
}
V1 = {
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1700 * MIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {300 * MIB}\n",
}


class StoppedClock:
    def now(self) -> datetime:
        return NOW

    def monotonic_s(self) -> float:
        return 0.0


def read(
    root: Path, files: dict[str, str | None], source: MemorySource = MemorySource.WORKING_SET
) -> tuple[dict[Signal, tuple[float, float]], tuple[str, ...]]:
    for name, text in files.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    psutil.PROCFS_PATH = str(root / "proc")  # restored by the fixture
    signals, warnings = read_signals(SignalPaths(str(root)), StoppedClock(), source=source, root=root)
    assert {each.observed_at.at for each in signals} <= {NOW}
    return {each.signal: (each.available, each.capacity) for each in signals}, warnings


@pytest.mark.parametrize("layout", [V1, V2], ids=["v1", "v2"])
def test_available_memory_is_capacity_minus_working_set(tmp_path: Path, layout: dict[str, str]) -> None:
    signals, warnings = read(tmp_path, {**FILES, **layout})
    assert signals[Signal.MEMORY_AVAILABLE] == ((4096 - 1400) * MIB, 4096 * MIB)
    assert warnings == ()
    assert (Signal.ALLOCATABLE_MEMORY_AVAILABLE in signals) is (layout is V2)


@pytest.mark.parametrize(("kernel_estimate", "expected"), [(True, 2048 * MIB), (False, None)])
def test_kernel_estimate_of_available_memory_is_read_on_request(
    tmp_path: Path, *, kernel_estimate: bool, expected: int | None
) -> None:
    read(tmp_path, {**FILES, **V2})
    signals, _ = read_signals(SignalPaths(None), StoppedClock(), kernel_estimate=kernel_estimate, root=tmp_path)
    (memory,) = (each for each in signals if each.signal is Signal.MEMORY_AVAILABLE)
    assert memory.memory is not None
    assert (memory.memory.formula, memory.kernel_available) == ((4096 - 1400) * MIB, expected)


def test_mem_available_above_the_memory_is_rejected(tmp_path: Path) -> None:
    impossible = MEMINFO.format(swap=1024).replace("2097152", "9999999999")
    signals, warnings = read(tmp_path, {**FILES, **V2, "proc/meminfo": impossible}, MemorySource.MEM_AVAILABLE)
    assert Signal.MEMORY_AVAILABLE not in signals
    assert "exceeds MemTotal" in warnings[0]


def test_all_signals_of_a_cgroup_v2_node_are_read(tmp_path: Path) -> None:
    signals, _ = read(tmp_path, {**FILES, **V2})
    assert signals[Signal.ALLOCATABLE_MEMORY_AVAILABLE] == ((3000 - 1300) * MIB, 3000 * MIB)
    assert signals[Signal.PID_AVAILABLE] == (20000 - 250, 20000)
    assert signals[Signal.SWAP_FREE] == (512 << 10, 1024 << 10)
    assert signals[Signal.MEMORY_PSI_SOME] == (12.5, 100)
    assert signals[Signal.MEMORY_PSI_FULL] == (3.25, 100)
    assert signals[Signal.IO_PSI_SOME] == (0, 100)
    assert Signal.IO_PSI_FULL not in signals
    assert signals[Signal.NODEFS_AVAILABLE][1] > 0
    assert Signal.IMAGEFS_AVAILABLE not in signals


def test_mem_available_source_uses_the_estimate_of_the_kernel(tmp_path: Path) -> None:
    signals, _ = read(tmp_path, {**FILES, **V2}, MemorySource.MEM_AVAILABLE)
    assert signals[Signal.MEMORY_AVAILABLE] == (2048 * MIB, 4096 * MIB)


@pytest.mark.parametrize(
    ("changed", "signal", "value"),
    [
        (
            {"sys/fs/cgroup/memory.stat": f"anon 1\nfile 1\ninactive_file {9 * MIB}\n"},
            Signal.MEMORY_AVAILABLE,
            4096 * MIB,
        ),
        ({"sys/fs/cgroup/memory.stat": f"anon {9 << 40}\nfile 1\ninactive_file 1\n"}, Signal.MEMORY_AVAILABLE, 0),
        ({"proc/loadavg": "0 0 0 1/99999 1\n"}, Signal.PID_AVAILABLE, 0),
    ],
)
def test_available_amount_is_between_zero_and_capacity(
    tmp_path: Path, changed: dict[str, str], signal: Signal, value: float
) -> None:
    signals, _ = read(tmp_path, {**FILES, **V2, **changed})
    assert signals[signal][0] == value


@pytest.mark.parametrize(
    ("changed", "missing", "warning"),
    [
        ({"proc/meminfo": "nothing\n"}, {Signal.MEMORY_AVAILABLE, Signal.SWAP_FREE}, "MemTotal missing"),
        ({"sys/fs/cgroup/memory.stat": "anon 1\n"}, {Signal.MEMORY_AVAILABLE}, ": file missing"),
        ({"proc/loadavg": "0 0\n"}, {Signal.PID_AVAILABLE}, "has no task count"),
        ({"proc/sys/kernel/pid_max": "many\n"}, {Signal.PID_AVAILABLE}, "is not a number"),
        ({"proc/pressure/memory": "some total=1\n"}, {Signal.MEMORY_PSI_SOME, Signal.MEMORY_PSI_FULL}, "no avg10"),
        ({"sys/fs/cgroup/kubepods.slice/memory.max": "max\n"}, {Signal.ALLOCATABLE_MEMORY_AVAILABLE}, ""),
        ({"sys/fs/cgroup/kubepods.slice/memory.max": f"{1 << 62}\n"}, {Signal.ALLOCATABLE_MEMORY_AVAILABLE}, ""),
        ({"proc/meminfo": MEMINFO.format(swap=0)}, {Signal.SWAP_FREE}, ""),
    ],
)
def test_unreadable_signal_is_omitted_with_a_warning(
    tmp_path: Path, changed: dict[str, str], missing: set[Signal], warning: str
) -> None:
    (tmp_path / "complete").mkdir()
    (tmp_path / "changed").mkdir()
    complete, _ = read(tmp_path / "complete", {**FILES, **V2})
    signals, warnings = read(tmp_path / "changed", {**FILES, **V2, **changed})
    assert complete.keys() - signals.keys() == missing
    assert len(warnings) >= bool(warning)
    assert all(warning in each for each in warnings[:1])


def test_kernel_without_psi_causes_no_warning(tmp_path: Path) -> None:
    signals, warnings = read(tmp_path, {name: text for name, text in {**FILES, **V2}.items() if "pressure" not in name})
    assert not any(".psi." in signal.value for signal in signals)
    assert warnings == ()
