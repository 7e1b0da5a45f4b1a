"""Record of a garbage collection pass: its planned removals before the first of them, then each outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.act.gc.history_record import past_action, planned_action
from nodeagent.record import Record
from nodeagent.store.history import PastPass
from nodeagent.store.write_ahead import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.act.gc.outcomes import Result
    from nodeagent.act.gc.preview import Preview
    from nodeagent.act.gc.progress import PassProgress
    from nodeagent.act.history_writer import HistoryWriter
    from nodeagent.clock import Clock


class PassStart(Record):
    """A pass before its first removal.

    Attributes:
        planned: number of planned removals.
        predicted_bytes: predicted bytes of these removals, without unknown ones.
        pending_bytes: unreferenced bytes, collected first by the runtime.
    """

    pass_id: str
    scope: str
    trigger: str
    planned: int
    predicted_bytes: int
    pending_bytes: int


class PassRecorder(Protocol):
    """Records a pass while it runs."""

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Record the removals of a round before the first of them."""

    def record(self, result: Result) -> None:
        """Record the outcome of the next removal of the round."""


class NoRecorder:
    """Recorder without effect."""

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Do nothing."""

    def record(self, result: Result) -> None:
        """Do nothing."""


class HistoryRecorder:
    """Records one pass in the history, and reports its start."""

    def __init__(
        self, writer: HistoryWriter | None, clock: Clock, *, plan_id: str, on_start: Callable[[PassStart], None]
    ) -> None:
        """Prepare the record of a pass.

        Args:
            writer: writes to the history; ``None`` to only report the start.
            clock: for the duration of the pass.
            plan_id: id of the first plan.
            on_start: called once the first round is recorded, before its first removal.
        """
        self._writer = writer
        self._clock = clock
        self._plan_id = plan_id
        self._on_start = on_start
        self._pass_id = ""
        self._names: Mapping[str, tuple[str, ...]] = {}
        self._position = 0
        self._began_s = 0.0

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Record the removals of a round, and report the start of the pass."""
        self._names = {image.id: image.references for image in current.snapshot.images}
        self._position = len(progress.results)
        planned = tuple(planned_action(each, self._names) for each in current.removals)
        if self._pass_id:
            if self._writer is not None:
                await self._writer.extend(self._pass_id, planned)
            return
        self._pass_id, self._began_s = progress.id, self._clock.monotonic_s()
        before = current.snapshot.image_filesystem
        past = PastPass(
            id=progress.id,
            started_at=progress.started_at,
            duration_s=0.0,
            trigger=progress.trigger,
            scope=current.scope.value,
            plan_id=self._plan_id,
            dry_run=False,
            result=RUNNING,
            detail="",
            predicted_bytes=0,
            freed_bytes=None,
            percent_before=before.used_percent if before else None,
            percent_after=None,
            actions=planned,
        )
        if self._writer is not None:
            await self._writer.begin(past)
        self._on_start(
            PassStart(
                progress.id,
                past.scope,
                past.trigger,
                len(planned),
                sum(each.frees_bytes or 0 for each in planned),
                current.pending_bytes,
            )
        )

    def record(self, result: Result) -> None:
        """Record an outcome; outcomes are reported in the order of the plan."""
        if self._writer is None or not self._pass_id:
            return
        duration_s = self._clock.monotonic_s() - self._began_s
        self._writer.update(self._pass_id, self._position, past_action(result, self._names), duration_s)
        self._position += 1

    def abandon(self, cause: str) -> None:
        """Record the pass as interrupted, such as ``cancelled``, unless it removes nothing."""
        if self._writer is not None and self._pass_id:
            self._writer.interrupt(self._pass_id, cause)
