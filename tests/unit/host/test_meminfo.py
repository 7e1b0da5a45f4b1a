"""Memory of the node from kernel files: optional files, and reclaim between two readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.host.meminfo import MemoryReader, parse_arcstats, parse_zoneinfo
from nodeagent.model.pressure import ArcSize, MemorySource, NodeMemory, PodsMemory, ReclaimActivity

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB, PAGE = 1 << 10, 1 << 20, 4096
MEMINFO = """\
MemTotal:        4194304 kB
MemFree:          204800 kB
MemAvailable:     {available} kB
Buffers:            1024 kB
Cached:           512000 kB
Active(file):     102400 kB
Inactive(file):   204800 kB
AnonPages:       1024000 kB
SUnreclaim:        51200 kB
HugePages_Total:     100
Hugepagesize:       2048 kB
"""
VMSTAT = """\
nr_zspages 10
workingset_refault_anon 1
workingset_refault_file {refaults}
allocstall_normal 5
allocstall_movable {stalls}
pgscan_kswapd {scanned}
pgscan_direct 7
pgscan_direct_throttle 3
pgscan_khugepaged 99
"""
ZONEINFO = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 9
  pages free     3840
        boost    0
        min      10
        low      12
        high     20
        managed  3840
        protection: (0, 1000, 2000)
Node 0, zone   Normal
  pages free     5000
        min      100
        low      125
        high     150
        managed  100000
        protection: (0, 0, 0)
  pagesets
    cpu: 0
              high:  378
"""
ARC = """\
9 1 0x01 147 39984 5107120993 214912887003921
name                            type data
c_min                           4    1048576
size                            4    9437184
data_size                       4    7340032
metadata_size                   4    1048576
mru_evictable_data              4    3145728
mfu_evictable_metadata          4    1048576
mru_ghost_evictable_data        4    999999999
"""
STAT = "anon 1048576000\nfile 525336576\ninactive_file 209715200\n"
FILES = {
    "proc/meminfo": MEMINFO.format(available=400000),
    "proc/vmstat": VMSTAT.format(refaults=1, stalls=1, scanned=1),
    "proc/zoneinfo": ZONEINFO,
    "sys/fs/cgroup/memory.stat": STAT,
    "proc/spl/kstat/zfs/arcstats": ARC,
    "sys/fs/cgroup/kubepods.slice/memory.current": "1000\n",
    "sys/fs/cgroup/kubepods.slice/memory.stat": "anon 900\nfile 30\nshmem 20\nkernel_stack 3\nslab_unreclaimable 4\n",
}

KNOWN_WITHOUT = {
    "proc/meminfo",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/kubepods.slice/memory.current",
}


def write(root: Path, **files: str) -> None:
    names = {"arc": "proc/spl/kstat/zfs/arcstats", "pods": "sys/fs/cgroup/memory/kubepods/memory.stat"}
    for name, text in files.items():
        path = root / names.get(name, f"proc/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def reading(reader: MemoryReader, now_s: float = 0.0) -> NodeMemory:
    return reader.read(MemorySource.WORKING_SET, now_s, kernel_estimate=True, stall_percent=None)[0]


def test_parts_are_read_from_all_files(root: Path) -> None:
    counters = reading(MemoryReader(root)).counters
    assert counters is not None
    assert (counters.huge_pages, counters.compressed_swap) == (200 * MIB, 10 * PAGE)
    assert counters.pods == PodsMemory(anonymous=900, shared=20, kernel=7, other=63)
    assert counters.arc == ArcSize(size=9 * MIB, data=8 * MIB, minimum=MIB, evictable=4 * MIB)
    assert (counters.minimum_free, counters.reserve_free) == ((2010 + 100) * PAGE, (2020 + 150) * PAGE)


@pytest.mark.parametrize("missing", [each for each in FILES if each not in KNOWN_WITHOUT])
def test_missing_file_leaves_its_parts_unknown(root: Path, missing: str) -> None:
    (root / missing).unlink()
    counters = reading(MemoryReader(root)).counters
    assert counters is not None
    unknown = [counters.compressed_swap, counters.reserve_free, counters.arc, counters.pods]
    assert unknown.count(None) == 1


def test_memory_of_pods_is_read_from_cgroup_v1(root: Path) -> None:
    (root / "sys/fs/cgroup/kubepods.slice/memory.stat").unlink()
    write(root, pods="total_rss 70\ntotal_shmem 8\n")
    counters = reading(MemoryReader(root)).counters
    assert counters is not None
    assert counters.pods == PodsMemory(anonymous=70, shared=8)


def test_reclaim_is_computed_from_the_oldest_reading_within_the_window(root: Path) -> None:
    reader = MemoryReader(root)
    assert reading(reader, 0).activity is None
    write(root, vmstat=VMSTAT.format(refaults=5, stalls=3, scanned=11))
    write(root, meminfo=MEMINFO.format(available=390000).replace("204800 kB\nMemA", "194800 kB\nMemA"))
    assert reading(reader, 5).activity == ReclaimActivity(10, 2, 4, 10000 * KIB, 10000 * KIB)
    assert reading(reader, 10).activity == ReclaimActivity(10, 2, 4, 10000 * KIB, 10000 * KIB)
    assert reading(reader, 15).activity == ReclaimActivity(0, 0, 0, 0, 0)
    assert reading(reader, 60).activity is None


def test_missing_zfs_cache_is_looked_for_once_a_minute(root: Path) -> None:
    (root / "proc/spl/kstat/zfs/arcstats").unlink()
    reader = MemoryReader(root)
    found = []
    for now_s in (0, 59, 60):
        counters = reading(reader, now_s).counters
        assert counters is not None
        found.append(counters.arc)
        write(root, arc=ARC)
    assert [each is not None for each in found] == [False, False, True]


@pytest.mark.parametrize("near", [True, False])
def test_optional_files_are_read_only_near_a_threshold(root: Path, *, near: bool) -> None:
    asked: list[tuple[float, float]] = []

    def is_near(estimate: float, capacity: float) -> bool:
        asked.append((estimate, capacity))
        return near

    counters = reading(MemoryReader(root, is_near)).counters
    assert counters is not None
    assert (counters.arc is not None) is near
    assert asked == [(400000 * KIB, 4 << 30)]


@pytest.mark.parametrize("text", ["", "size 4 100\n", "c_min 4 many\nsize 4 1\n", "size\n"])
def test_arcstats_without_size_or_minimum_are_unknown(text: str) -> None:
    assert parse_arcstats(text) is None


def test_zoneinfo_without_a_zone_is_unknown() -> None:
    assert parse_zoneinfo("Node 0\n") is None
