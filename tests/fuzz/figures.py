"""Figures of a fuzzing run (time and memory), and their limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

STALL_S: Final = 1.0
GROWTH_MIB: Final = 64


@dataclass(slots=True)
class Figures:
    """Figures of a fuzzing run; times are CPU times, since other processes share the machine."""

    target: str
    engine: str
    inputs: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    rss_mib: float = 0.0
    rss_growth_mib: float = 0.0
    defect: str = ""
    slowest_input: str = field(default="", repr=False)


def rss_mib(process: str) -> float:
    """Return the resident memory of a process in MiB; 0 if the process has no memory, as a zombie."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
