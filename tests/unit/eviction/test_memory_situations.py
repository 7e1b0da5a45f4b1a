"""Evaluations of memory thresholds on recorded kernel files, with the kubelet's answer and the document's table.

Each file in ``tests/data/memory`` contains the kernel files of one node (the output of ``tail -n +1``), some with files
of a reading five seconds earlier.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.memory_model import is_disputed, kept_by_evictions, memory_parts
from nodeagent.eviction.plan.planner import plan_eviction
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import EvictionSignalReader, SignalLayout
from nodeagent.host.meminfo import parse_meminfo, parse_zoneinfo
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.units import format_bytes
from tests.support.manual_clock import ManualClock
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import POLICY, pod, thresholds, victim

if TYPE_CHECKING:
    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.model.pressure import MemoryCounters, NodeMemory

pytestmark = pytest.mark.usefixtures("proc")
DATA: Final = Path(__file__).parents[2] / "data/memory"
DOCUMENT: Final = Path(__file__).parents[3] / "nodeagent/docs/eviction.md"
EARLIER: Final = ", 5 s earlier"
MET, NOT_MET, REPORTED = "met", "not met", "not met; reported"


class Situation(NamedTuple):
    """A recorded node: the threshold, the answer of the agent, and the reason."""

    name: str
    threshold: str
    answer: str
    reason: str


DEFAULT: Final = "memory.available<100Mi"
SITUATIONS: Final = (
    Situation(
        "page-cache-idle",
        "memory.available<5%",
        REPORTED,
        "The formula counts active page cache as used; the kernel frees it, and no task waits.",
    ),
    Situation(
        "page-cache-in-use",
        "memory.available<5%",
        MET,
        "Reclaimed cache is read again at once, and tasks wait for memory: the cache is in use.",
    ),
    Situation("page-cache-streaming", DEFAULT, NOT_MET, "Both estimates count inactive page cache as available."),
    Situation("slab-reclaimable", DEFAULT, NOT_MET, "Both estimates count dentries and inodes as available."),
    Situation("slab-leak", DEFAULT, MET, "Unreclaimable slab is used, although the formula counts it as available."),
    Situation("zfs-arc", DEFAULT, REPORTED, "The ZFS cache above its minimum shrinks; MemAvailable omits it."),
    Situation(
        "zfs-arc-pod-at-its-limit",
        DEFAULT,
        REPORTED,
        "As above; a pod stalls at its own limit, and the node reclaims nothing.",
    ),
    Situation("zfs-arc-in-use", DEFAULT, MET, "Buffers of the ZFS cache that are in use do not shrink."),
    Situation(
        "zfs-arc-near-oom",
        DEFAULT,
        MET,
        "Tasks wait for memory at the watermarks: the ZFS cache does not shrink fast enough.",
    ),
    Situation("huge-pages", "memory.available<500Mi", MET, "Reserved huge pages are used, even without a user."),
    Situation("tmpfs", "memory.available<500Mi", MET, "Both estimates count tmpfs as used."),
    Situation("swap", "memory.available<50Mi", MET, "Neither estimate counts free swap."),
    Situation("zram-full", DEFAULT, MET, "Compressed swap is used, although the formula counts it as available."),
    Situation(
        "unexplained",
        DEFAULT,
        REPORTED,
        "56 GiB without a reading, such as of a driver, while nothing grows and no task waits.",
    ),
    Situation(
        "unexplained-growing-pod",
        DEFAULT,
        MET,
        "The same memory while a pod grows by 180 MiB in 5 s: memory without a reading does not count.",
    ),
    Situation(
        "near-oom", "memory.available<50Mi", MET, "The kernel is at its watermarks; the formula omits kernel memory."
    ),
)
BY_NAME: Final = pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)


def files_of(name: str) -> dict[str, str]:
    text = (DATA / f"{name}.txt").read_text(encoding="ascii")
    parts = (part.partition(" <==\n") for part in re.split(r"^==> /?", text, flags=re.MULTILINE)[1:])
    return {path: content.rstrip("\n") + "\n" for path, _, content in parts}


async def evaluated(root: Path, situation: Situation, *, soft: bool = False) -> Evaluation:
    """Return the evaluation of the threshold after readings of the earlier and of the later files."""
    listed = (
        thresholds("", soft=situation.threshold, soft_grace_period="memory.available=1s")
        if soft
        else thresholds(situation.threshold)
    )
    clock = ManualClock()
    reader = EvictionSignalReader(
        EvictionSettings(thresholds=listed), clock, pod_log_root=root, root=root, all_memory_parts=False
    )
    layout = SignalLayout(SignalPaths(None), FilesystemLayout.SINGLE, listed)
    files, state = files_of(situation.name), EvictionState()
    later = {name: text for name, text in files.items() if not name.endswith(EARLIER)}
    earlier = {name.removesuffix(EARLIER): text for name, text in files.items() if name.endswith(EARLIER)}
    for current in ({**later, **earlier}, later):
        for name, text in current.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        clock.at_s += 5
        found = (await reader.evaluate(layout, state)).evaluation
        state = found.state
    return found


def answer(evaluation: Evaluation) -> str:
    (status,) = evaluation.statuses
    return MET if status.met else REPORTED if is_disputed(status) else NOT_MET


def memory_of(evaluation: Evaluation) -> tuple[NodeMemory, MemoryCounters]:
    reading = evaluation.statuses[0].observation
    assert reading is not None
    assert reading.memory is not None
    assert reading.memory.counters is not None
    return reading.memory, reading.memory.counters


@pytest.mark.difference("kernel-memory", "active-page-cache", "zfs-cache")
@BY_NAME
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
async def test_threshold_is_met_by_memory_that_is_used(tmp_path: Path, situation: Situation, *, soft: bool) -> None:
    found = await evaluated(tmp_path, situation, soft=soft)
    assert answer(found) == situation.answer


@pytest.mark.difference("zfs-cache")
async def test_no_pod_is_evicted_for_a_shrinkable_zfs_cache(tmp_path: Path) -> None:
    (situation,) = (each for each in SITUATIONS if each.name == "zfs-arc")
    found = await evaluated(tmp_path, situation)
    plan = plan_eviction(found, [pod("web")], POLICY, layout=FilesystemLayout.SINGLE, now=found.at)
    assert victim(plan) is None
    memory, _ = memory_of(found)
    assert memory.kernel_available == 70 * MIB
    assert memory.formula is not None
    assert format_bytes(int(memory.formula)) == "57.7 GiB"


@BY_NAME
async def test_parts_of_the_memory_have_the_sum_of_the_memory(tmp_path: Path, situation: Situation) -> None:
    _, counters = memory_of(await evaluated(tmp_path, situation))
    assert sum(size for _, size in memory_parts(counters)) == counters.total
    if (kept := kept_by_evictions(counters)) is not None:
        assert 0 <= kept <= counters.total - counters.free


@BY_NAME
def test_recorded_files_are_consistent(situation: Situation) -> None:
    """``MemAvailable`` is computed as by the kernel's ``si_mem_available``."""
    files = files_of(situation.name)
    info, watermarks = parse_meminfo(files["proc/meminfo"]), parse_zoneinfo(files["proc/zoneinfo"])
    assert watermarks is not None
    low = 4096 * sum(map(int, re.findall(r"^ +low +(\d+)", files["proc/zoneinfo"], re.MULTILINE)))
    cache, slab = info["Active(file)"] + info["Inactive(file)"], info["KReclaimable"]
    available = info["MemFree"] - watermarks.reserve + cache - min(cache // 2, low) + slab - min(slab // 2, low)
    assert max(0, available) == pytest.approx(info["MemAvailable"], abs=4 * MIB)


@BY_NAME
async def test_document_shows_the_situation(tmp_path: Path, situation: Situation) -> None:
    found = await evaluated(tmp_path, situation)
    memory, counters = memory_of(found)
    assert memory.formula is not None
    assert memory.kernel_available is not None
    limit = found.statuses[0].threshold.limit(counters.total)
    cells = (
        situation.name,
        f"`{found.statuses[0].threshold.text}`",
        format_bytes(int(memory.formula)),
        format_bytes(int(memory.kernel_available)),
        MET if memory.formula < limit else NOT_MET,
        situation.answer,
        situation.reason,
    )
    assert f"| {' | '.join(cells)} |" in DOCUMENT.read_text(encoding="utf-8").splitlines()
