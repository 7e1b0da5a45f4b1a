"""Eviction signals from kernel files: both cgroup versions, missing and malformed files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psutil
import pytest

from nodeagent.eviction.kernel_signals import SignalPaths, read_signals
from nodeagent.host.meminfo import MemoryReader
from nodeagent.model.pressure import MemorySource, Signal, SignalReading
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


TOP = "sys/fs/cgroup"
SLICE = f"{TOP}/node.slice"
PODS = {
    "proc/self/cgroup": "0::/node.slice/nodeagent.service\n",
    f"{SLICE}/node-kubepods.slice/memory.max": "max\n",
    f"{SLICE}/nodeagent.service/memory.max": "1\n",
}
STATS = "anon {anon}\nfile {file}\nactive_file {active}\ninactive_file {inactive}\nslab_reclaimable 0\n"
PSI = "some avg10={some} avg60=0 avg300=0 total=1\nfull avg10=1.00 avg60=0 avg300=0 total=1\n"


def limited(directory: str, limit_mib: int, used_mib: int, active_mib: int = 0) -> dict[str, str | None]:
    """Return the files of a cgroup with a limit of memory, of which 50 MiB are inactive page cache."""
    values = {"anon": (used_mib - active_mib - 50) * MIB, "file": (active_mib + 50) * MIB}
    return {
        f"{directory}/memory.max": f"{limit_mib * MIB}\n",
        f"{directory}/memory.current": f"{used_mib * MIB}\n",
        f"{directory}/memory.stat": STATS.format(**values, active=active_mib * MIB, inactive=50 * MIB),
        f"{directory}/memory.pressure": PSI.format(some="40.00"),
    }


MACHINE_MIB = 4096 - 1400  # by the formula


@pytest.mark.difference("container-limits")
@pytest.mark.parametrize(
    ("files", "available_mib", "capacity_mib", "limit"),
    [
        pytest.param({}, MACHINE_MIB, 4096, "", id="no-limit"),
        pytest.param({f"{SLICE}/memory.max": "max\n"}, MACHINE_MIB, 4096, "", id="no-limit-of-the-slice"),
        pytest.param(limited(SLICE, 1000, 700), 350, 1000, "0.98 GiB of {root}/node.slice", id="slice"),
        pytest.param(limited(SLICE, 3900, 50), MACHINE_MIB, 3900, "3.81 GiB of {root}/node.slice", id="machine-lower"),
        pytest.param(limited(SLICE, 9000, 8900), 150, 4096, "8.79 GiB of {root}/node.slice", id="limit-above-machine"),
        pytest.param(limited(SLICE, 9000, 100), MACHINE_MIB, 4096, "", id="limit-without-effect"),
        pytest.param(limited(SLICE, 500, 900), 0, 500, "500 MiB of {root}/node.slice", id="above-the-limit"),
        pytest.param(
            {**limited(SLICE, 1000, 100), **limited(TOP, 2000, 1900)},
            150,
            1000,
            "1.95 GiB of {root}",
            id="outer-limit-lower-inner-capacity",
        ),
    ],
)
def test_available_memory_is_bounded_by_the_limits_above_the_pods(
    tmp_path: Path, files: dict[str, str | None], available_mib: int, capacity_mib: int, limit: str
) -> None:
    # the statistics of the limited root are also those of the machine's formula
    machine = {f"{TOP}/memory.stat": V2[f"{TOP}/memory.stat"]} if f"{TOP}/memory.max" not in files else {}
    read(tmp_path, {**FILES, **machine, **PODS, **files})
    signals, warnings = read_signals(SignalPaths(None), StoppedClock(), root=tmp_path)
    (memory,) = (each for each in signals if each.signal is Signal.MEMORY_AVAILABLE)
    assert warnings == ()
    assert (memory.available, memory.capacity) == (available_mib * MIB, capacity_mib * MIB)
    assert memory.limited_by == (limit and "memory.max " + limit.format(root=tmp_path / TOP))


@pytest.mark.parametrize(
    ("events", "pressure", "expected_mib"),
    [
        pytest.param((7, 7), "40.00", 700, id="limit-not-reached"),
        pytest.param((7, 9), "0.00", 700, id="no-process-waits"),
        pytest.param((7, 9), "40.00", 100, id="cache-in-use"),
    ],
)
def test_active_page_cache_below_a_limit_is_used_only_while_it_is_in_use(
    tmp_path: Path, events: tuple[int, int], pressure: str, expected_mib: int
) -> None:
    reader, found = MemoryReader(tmp_path), tuple[SignalReading, ...]()
    for count, refaults in zip(events, (0, 500), strict=True):
        files = limited(SLICE, 1000, 1000, active_mib=600)
        stat = f"{files[f'{SLICE}/memory.stat']}workingset_refault_file {refaults}\n"
        changed = {
            f"{SLICE}/memory.stat": stat.replace("inactive_file 52428800", "inactive_file 104857600"),
            f"{SLICE}/memory.events.local": f"low 0\nhigh 0\nmax {count}\noom 0\n",
            f"{SLICE}/memory.pressure": PSI.format(some=pressure),
        }
        read(tmp_path, {**FILES, **V2, **PODS, **files, **changed})
        found, _ = read_signals(SignalPaths(None), StoppedClock(), kernel_estimate=True, memory=reader, root=tmp_path)
    (memory,) = (each for each in found if each.signal is Signal.MEMORY_AVAILABLE)
    assert memory.available == expected_mib * MIB


@pytest.mark.parametrize(("directory", "some"), [(SLICE, 12.5), (TOP, 40.0)], ids=["slice-of-the-machine", "namespace"])
def test_stalls_are_of_the_container_with_the_limit(tmp_path: Path, directory: str, some: float) -> None:
    signals, warnings = read(tmp_path, {**FILES, **V2, **PODS, **limited(directory, 1000, 500)})
    assert signals[Signal.MEMORY_PSI_SOME] == (some, 100)
    assert signals[Signal.IO_PSI_SOME] == (0, 100)
    assert warnings == ()


@pytest.mark.parametrize(
    ("files", "signal", "expected"),
    [
        pytest.param({"pids.max": "500\n", "pids.current": "60\n"}, Signal.PID_AVAILABLE, (440, 500), id="pids"),
        pytest.param({"pids.max": "50\n", "pids.current": "60\n"}, Signal.PID_AVAILABLE, (0, 50), id="pids-exceeded"),
        pytest.param({"pids.max": "max\n"}, Signal.PID_AVAILABLE, (19750, 20000), id="pids-without-limit"),
        pytest.param(
            {"pids.max": "90000\n", "pids.current": "60\n"}, Signal.PID_AVAILABLE, (19750, 20000), id="pids-above"
        ),
        pytest.param(
            {"memory.swap.max": f"{256 << 10}\n", "memory.swap.current": f"{56 << 10}\n"},
            Signal.SWAP_FREE,
            (200 << 10, 256 << 10),
            id="swap",
        ),
        pytest.param({"memory.swap.max": "0\n", "memory.swap.current": "0\n"}, Signal.SWAP_FREE, None, id="no-swap"),
        pytest.param({"memory.swap.max": "max\n"}, Signal.SWAP_FREE, (512 << 10, 1024 << 10), id="swap-unlimited"),
    ],
)
def test_pids_and_swap_are_bounded_by_the_limits_above_the_pods(
    tmp_path: Path, files: dict[str, str], signal: Signal, expected: tuple[int, int] | None
) -> None:
    signals, warnings = read(tmp_path, {**FILES, **V2, **PODS, **{f"{SLICE}/{name}": files[name] for name in files}})
    assert signals.get(signal) == expected
    assert warnings == ()


@pytest.mark.parametrize(
    ("file", "text", "signal"),
    [
        ("memory.max", "lots\n", Signal.MEMORY_AVAILABLE),
        ("memory.current", "lots\n", Signal.MEMORY_AVAILABLE),
        ("memory.stat", "anon 1\n", Signal.MEMORY_AVAILABLE),
        ("pids.max", "lots\n", Signal.PID_AVAILABLE),
    ],
)
def test_signal_with_an_unreadable_limit_is_omitted_with_one_warning(
    tmp_path: Path, file: str, text: str, signal: Signal
) -> None:
    files = {**FILES, **V2, **PODS, **limited(SLICE, 1000, 500)}
    complete, _ = read(tmp_path, files)
    signals, warnings = read(tmp_path, {**files, f"{SLICE}/{file}": text})
    assert complete.keys() - signals.keys() == {signal}
    (warning,) = warnings
    assert f"node.slice/{file}" in warning


def test_allocatable_memory_is_read_from_pods_in_a_slice(tmp_path: Path) -> None:
    pods = f"{SLICE}/node-kubepods.slice"
    signals, _ = read(tmp_path, {**FILES, **PODS, **limited(pods, 800, 300)})
    assert signals[Signal.ALLOCATABLE_MEMORY_AVAILABLE] == (550 * MIB, 800 * MIB)
