"""History record of a garbage collection pass: planned removals before the first removal, then each outcome."""

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
    """Start of a pass, reported before the first removal.

    Attributes:
        planned: number of planned removals.
        predicted_bytes: predicted bytes of the removals of known size.
        pending_bytes: unreferenced bytes that the runtime collects before the first removal.
    """

    pass_id: str
    scope: str
    trigger: str
    planned: int
    predicted_bytes: int
    pending_bytes: int


class PassRecorder(Protocol):
    """Recorder of a running pass."""

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Record the planned removals of a round, before its first removal."""

    def record(self, result: Result) -> None:
        """Record the outcome of the next removal of the round."""


class NoRecorder:
    """Recorder without effect, for passes that are not recorded."""

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Do nothing."""

    def record(self, result: Result) -> None:
        """Do nothing."""


class HistoryRecorder:
    """Recorder of one pass in the history, which also reports the start of the pass."""

    def __init__(
        self, writer: HistoryWriter | None, clock: Clock, *, plan_id: str, on_start: Callable[[PassStart], None]
    ) -> None:
        """Prepare the record of a pass.

        Args:
            writer: writes to the history; ``None`` to only report the start.
            clock: measures the duration of the pass.
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
        """Record the planned removals of a round; report the start of the pass in the first round."""
        self._names = {image.id: image.references for image in current.snapshot.images}
        self._position = len(progress.results)
        planned = tuple(planned_action(each, self._names) for each in current.removals)
        if self._pass_id:
            if self._writer is not None:
                await self._writer.extend(self._pass_id, planned)
            return
        self._pass_id, self._began_s = progress.id, self._clock.monotonic_s() - current.snapshot.reading_s
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
        """Record the outcome of the next planned removal."""
        if self._writer is None or not self._pass_id:
            return
        duration_s = self._clock.monotonic_s() - self._began_s
        self._writer.update(self._pass_id, self._position, past_action(result, self._names), duration_s)
        self._position += 1

    def abandon(self, cause: str) -> None:
        """Record a started pass as interrupted, with a cause such as ``cancelled``."""
        if self._writer is not None and self._pass_id:
            self._writer.interrupt(self._pass_id, cause)
