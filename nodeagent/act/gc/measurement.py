"""Measurement of the image filesystems during a pass."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.act.freed_space import make_visible
from nodeagent.act.gc.outcomes import MeasuredFilesystem, Outcome
from nodeagent.errors import NodeAgentError
from nodeagent.plan.decision import Accounting, ItemKind
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodeagent.act.gc.progress import PassProgress
    from nodeagent.model import FsObservation, NodeSnapshot

SETTLE_WITHIN_S: Final = 10.0
SETTLE_HURRIED_S: Final = 0.3
SETTLE_STEP_S: Final = 0.1
MEASUREMENT_SLACK_BYTES: Final = 1 << 20

_ON_IMAGEFS = frozenset({ItemKind.IMAGE, ItemKind.BLOB, ItemKind.SNAPSHOT})


class Measurement:
    """Measurement of all image filesystems of one pass."""

    def __init__(
        self,
        progress: PassProgress,
        read_filesystem: Callable[[str], FsObservation],
        stop: asyncio.Event,
        *,
        hurried: bool = False,
    ) -> None:
        """Prepare a measurement; ``stop`` ends its waits when set.

        With ``hurried``, the wait for freed bytes is at most ``SETTLE_HURRIED_S`` seconds and ends when the available
        bytes decrease: the caller (the eviction loop) measures the effect itself.
        """
        self._progress = progress
        self._read_filesystem = read_filesystem
        self._stop = stop
        self._hurried = hurried
        self._before = readings_of(progress.preview.snapshot)

    async def read(self) -> tuple[MeasuredFilesystem, ...]:
        """Measure every image filesystem of the pass.

        Raises:
            NodeAgentError: a filesystem cannot be read.
        """
        return tuple([MeasuredFilesystem(each, await self._settled(each)) for each in self._before])

    async def missing_bytes(self, low: int) -> int:
        """Measure the filesystems with a target and return the bytes still to be freed to reach ``low`` percent usage.

        Bytes that the end of undo windows will free count as freed.

        Raises:
            NodeAgentError: a filesystem cannot be read.
        """
        return self.missing_after(await self.read(), low)

    def missing_after(self, measured: Sequence[MeasuredFilesystem], low: int) -> int:
        """Return the bytes still to be freed to reach the targets of the pass, according to ``measured``."""
        return sum(missing for _, missing in self._shortfalls(measured, low))

    def shortfall_detail(self, measured: Sequence[MeasuredFilesystem], low: int) -> str:
        """Return the shortfall and the number of kept images by reason code, as a sentence; empty for none."""
        found = max(self._shortfalls(measured, low), key=lambda each: each[1], default=None)
        return "" if found is None else self._detail(found[0], low)

    def _shortfalls(self, measured: Sequence[MeasuredFilesystem], low: int) -> list[tuple[MeasuredFilesystem, int]]:
        """Return each measured filesystem that missed its target, with the missing bytes."""
        progress, found = self._progress, []
        targets = {target.path for plan in progress.plans for target in plan.targets}
        if not any(plan.wanted_bytes for plan in progress.plans if plan.kind == "images"):
            return []
        for each in measured:
            if self._several and each.before.path not in targets:
                continue
            missing = max(0, missing_bytes(each.after, low) - self._undo_bytes(each.before.path))
            if missing:
                found.append((each, missing))
        return found

    @property
    def _several(self) -> bool:
        return bool(self._progress.preview.snapshot.image_filesystems)

    def _undo_bytes(self, path: str) -> int:
        if not self._several:
            return self._progress.undo_bytes
        return sum(each.decision.bytes_on(path) for each in self._progress.results if each.undo_until is not None)

    def _predicted_bytes(self, path: str) -> int:
        """Return the predicted bytes of the removals so far on a filesystem."""
        done = [
            result.decision
            for result in self._progress.results
            if result.outcome is Outcome.DONE and result.decision.kind in _ON_IMAGEFS and result.undo_until is None
        ]
        if self._several:
            return sum(decision.bytes_on(path) for decision in done)
        return self._progress.collected_bytes + sum(decision.frees_bytes or 0 for decision in done)

    async def _settled(self, before: FsObservation) -> FsObservation:
        """Measure a filesystem once the freed bytes are available, or after a bounded wait.

        containerd sometimes collects garbage in the background, XFS frees inodes and blocks with a delay, and Btrfs
        frees space with the next commit; after an immediate measurement, a pass would remove more than needed. Without
        exact accounting the freed bytes are unknown, so the filesystem is measured immediately.
        """
        exact = any(plan.accounting is Accounting.LAYERS for plan in self._progress.plans)
        certain_bytes = max(0, self._predicted_bytes(before.path) * 98 // 100 - MEASUREMENT_SLACK_BYTES)
        target_bytes = before.available_bytes + certain_bytes
        waited_s, last_bytes = 0.0, 0
        within_s = min(SETTLE_WITHIN_S, SETTLE_HURRIED_S) if self._hurried else SETTLE_WITHIN_S
        while True:
            measured = self._read_filesystem(before.path)
            settled = not exact or not certain_bytes or measured.available_bytes >= target_bytes
            consumed = self._hurried and measured.available_bytes < last_bytes
            if settled or consumed or waited_s >= within_s or self._stop.is_set():
                return measured
            last_bytes = measured.available_bytes
            if not waited_s:
                await make_visible([before.path])
            waited_s += SETTLE_STEP_S
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_STEP_S):
                    await self._stop.wait()

    def _detail(self, measured: MeasuredFilesystem, low: int) -> str:
        progress, after = self._progress, measured.after
        last = progress.last_plan or next((plan for plan in reversed(progress.plans) if plan.kind == "images"), None)
        removed = progress.removed_ids()
        counts: dict[str, int] = {}
        for decision in last.decisions if last else ():
            if decision.id not in removed:
                counts[decision.reason.code.value] = counts.get(decision.reason.code.value, 0) + 1
        kept = ", ".join(f"{count} {code}" for code, count in sorted(counts.items(), key=lambda item: -item[1]))
        name = f"imagefs {measured.before.path}" if self._several else "imagefs"
        missing = format_bytes(missing_bytes(after, low))
        usage = f"{name} is {after.used_percent}% full, {missing} above the low threshold {low}%"
        return f"{usage}; images kept: {kept}" if kept else f"{usage}; no images remain"


def readings_of(snapshot: NodeSnapshot) -> tuple[FsObservation, ...]:
    """Return the reading of each image filesystem that could be read."""
    if snapshot.image_filesystems:
        return tuple(each.observed for each in snapshot.image_filesystems if each.observed is not None)
    return () if snapshot.image_filesystem is None else (snapshot.image_filesystem,)


def is_relieved(paths: Sequence[str], read_filesystem: Callable[[str], FsObservation], low: int) -> bool:
    """Return whether the usage of each of these filesystems is at most ``low`` percent; false if any is unreadable."""
    try:
        return all(read_filesystem(path).used_percent <= low for path in paths)
    except NodeAgentError:
        return False


def missing_bytes(observed: FsObservation, low: int) -> int:
    """Return the bytes still to be freed to reach the low threshold ``low`` in percent.

    The planner calculates the target in the same way. The usage percentage is not used: it is rounded as in the
    kubelet, so it can be one percent above the threshold although the target is met to the byte.
    """
    return max(0, observed.capacity_bytes * (100 - low) // 100 - observed.available_bytes)
