"""Resource usage of a daemon and its state directory over time, and the limits of its growth."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.guarded_call import KERNEL_THREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

GROWTH_MIB: Final = 3.0
"""Maximum growth of resident memory, in MiB."""

THREADS_MAX: Final = 12 + KERNEL_THREADS + min(32, (os.cpu_count() or 1) + 4)
"""Maximum number of threads: workers of the event loop, which start on first use, threads of kernel files, eight of
gRPC and the loops, and four of guarded calls.

A larger number up to this maximum does not count as growth: a worker is started when all other workers are busy,
possibly after hours.
"""

WINDOW: Final = 1 / 6
"""Share of the samples in one window: the first window is the start-up, the second window is compared with the last."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of a daemon at one time, or the medians of several samples."""

    rss_mib: float
    descriptors: float
    threads: float
    state_mib: float


def read_usage(pid: int, state: Path) -> Usage:
    """Return the resource usage of a process and the size of its state directory.

    Raises:
        OSError: the process does not exist.
    """
    process = Path(f"/proc/{pid}")
    rss_kib = next(
        int(line.split()[1]) for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:")
    )
    state_bytes = sum(each.stat().st_size for each in state.rglob("*") if each.is_file())
    descriptors, threads = (sum(1 for _ in (process / name).iterdir()) for name in ("fd", "task"))
    return Usage(rss_kib / 2**10, descriptors, threads, state_bytes / 2**20)


def windows(samples: Sequence[Usage]) -> tuple[Usage, Usage]:
    """Return the medians of the samples in the window after the start-up and in the last window.

    Medians are not affected by the descriptors and threads of a pass or request in progress.
    """
    count = max(1, round(len(samples) * WINDOW))
    return _medians(samples[count : 2 * count] or samples[-count:]), _medians(samples[-count:])


def growth(samples: Sequence[Usage], *, state_limit_mib: float) -> list[str]:
    """Return a line of text for each exceeded limit; empty if no limit is exceeded."""
    before, after = windows(samples)
    found = []
    if after.rss_mib - before.rss_mib > GROWTH_MIB:
        found.append(
            f"resident memory grew from {before.rss_mib:.1f} to {after.rss_mib:.1f} MiB (limit {GROWTH_MIB:g})"
        )
    if after.descriptors > before.descriptors:
        found.append(f"descriptors grew from {before.descriptors:g} to {after.descriptors:g}")
    most_threads = max(each.threads for each in samples)
    if after.threads > before.threads and most_threads > THREADS_MAX:
        found.append(
            f"threads grew from {before.threads:g} to {after.threads:g}, and reached {most_threads:g} "
            f"(limit {THREADS_MAX})"
        )
    largest = max(each.state_mib for each in samples)
    if largest > state_limit_mib:
        found.append(f"state reached {largest:.1f} MiB (limit {state_limit_mib:g})")
    return found


def _medians(samples: Sequence[Usage]) -> Usage:
    return Usage(*(statistics.median(getattr(each, field.name) for each in samples) for field in fields(Usage)))
