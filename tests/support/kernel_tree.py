"""Fake kernel files: cgroup v2 and the ``/proc`` files that the agent reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

GIB = 1 << 30
# All lines are in the kernel's order, so that tests detect a reader of the wrong line.
_STAT = """\
anon 1048576
file {file}
kernel 2195456
kernel_stack 98304
slab 1200000
shmem 0
file_mapped 3244032
inactive_anon 1000000
active_anon 100
inactive_file {inactive}
active_file 4096
unevictable 0
workingset_refault_file 17
pgfault 8123
"""
UNUSED_MEMORY = "Buffers: 0 kB\nCached: 0 kB\nShmem: 0 kB\nActive: 0 kB\nInactive: 0 kB\n"
"""Lines of ``meminfo`` that psutil expects of every kernel, and that the agent does not use."""
VMSTAT = "pswpin 0\npswpout 0\n"
_EVENTS = "low 0\nhigh 0\nmax 0\noom {kills}\noom_kill {kills}\noom_group_kill 0\n"


def make_tree(root: Path, *, memory_bytes: int = 16 * GIB, controllers: str = "cpuset cpu io memory pids") -> Path:
    """Write the kernel files of a node with ``memory_bytes`` of memory; return the root cgroup directory."""
    base = root / "sys/fs/cgroup"
    base.mkdir(parents=True)
    (base / "cgroup.controllers").write_text(f"{controllers}\n")
    (root / "proc").mkdir()
    memory = f"MemTotal: {memory_bytes // 1024} kB\nMemFree: 1 kB\n{UNUSED_MEMORY}SwapTotal: 0 kB\nSwapFree: 0 kB\n"
    (root / "proc/meminfo").write_text(memory)
    (root / "proc/vmstat").write_text(VMSTAT)
    return base


def add_cgroup(
    root: Path,
    path: str,
    *,
    memory_bytes: int = 1 << 20,
    inactive_bytes: int = 0,
    swap_bytes: int = 0,
    pids: int = 1,
    min_bytes: int = 0,
    kills: int = 0,
    processes: Iterable[int] = (),
) -> Path:
    """Write the files of one cgroup; return its directory."""
    directory = root / "sys/fs/cgroup" / path.strip("/")
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "memory.current": f"{memory_bytes}\n",
        "memory.stat": _STAT.format(file=inactive_bytes + 4096, inactive=inactive_bytes),
        "memory.swap.current": f"{swap_bytes}\n",
        "memory.min": f"{min_bytes}\n",
        "memory.events": _EVENTS.format(kills=kills),
        "pids.current": f"{pids}\n",
        "cgroup.procs": "".join(f"{pid}\n" for pid in processes),
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory
