"""History record of a garbage collection pass: planned removals, then each outcome, written in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.gc.executor import PassEnd, PassReport, PassTrigger, Result
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import Decision, ItemKind
from nodeagent.record import Record, equal_fields, replace
from nodeagent.store.history import PLANNED, RUNNING, History, PastAction, PastPass, Retention

if TYPE_CHECKING:
    from nodeagent.gc.pass_state import PassProgress, Preview
    from nodeagent.gc.restore import UndoReport
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.units import Clock

UNDO: Final = "undo"
"""Reason of an undo in the history."""


def past_pass(report: PassReport, snapshot: NodeSnapshot, plan_id: str) -> PastPass:
    """Return the history record of a pass with every planned removal; image names are from ``snapshot``."""
    removed = {result.decision.id for result in report.results}
    names = {image.id: image.references for image in snapshot.images if image.id in removed} if removed else {}
    fields = equal_fields(
        PastPass,
        report,
        plan_id=plan_id,
        result=report.end.value,
        detail=report.end_detail,
        percent_before=report.before.used_percent if report.before else None,
        percent_after=report.after.used_percent if report.after else None,
        actions=tuple(past_action(result, names) for result in report.results),
    )
    return PastPass(**fields)


def past_undo(report: UndoReport) -> PastPass:
    """Return the history record of an undo."""
    failed = len(report.failed)
    detail = f"undo of pass {report.pass_id}"
    actions = [
        PastAction(
            kind=ItemKind.IMAGE.value,
            item_id=each.id,
            name=next(iter(each.names), each.id),
            references=each.names,
            outcome=each.outcome.value,
            detail=each.detail,
            reason=UNDO,
            sentence=detail,
        )
        for each in report.results
    ]
    return PastPass(
        id=report.id,
        started_at=report.started_at,
        duration_s=report.duration_s,
        trigger=PassTrigger.UNDO,
        scope=Scope.IMAGES.value,
        plan_id="",
        dry_run=False,
        result="failed" if failed else PassEnd.COMPLETE.value,
        detail=f"{detail}: {failed} of {len(report.results)} images not restored" if failed else detail,
        actions=tuple(actions),
    )


def planned_action(decision: Decision, names: Mapping[str, tuple[str, ...]]) -> PastAction:
    """Return the history record of a planned removal without an outcome; ``names`` are image names by image id."""
    return PastAction(
        kind=decision.kind.value,
        item_id=decision.id,
        name=decision.name,
        references=names.get(decision.id, ()) if decision.kind is ItemKind.IMAGE else (),
        outcome=PLANNED,
        detail="",
        reason=decision.reason.code.value,
        sentence=decision.reason.sentence,
        frees_bytes=decision.frees_bytes,
    )


def past_action(result: Result, names: Mapping[str, tuple[str, ...]]) -> PastAction:
    """Return the history record of a removal with its outcome."""
    planned = planned_action(result.decision, names)
    return replace(planned, outcome=result.outcome.value, detail=result.detail, duration_s=result.duration_s)


class PassStart(Record):
    """Start of a pass, reported before the first removal; the attributes are the fields of its log event.

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


@dataclass(eq=False)
class HistoryRecorder:
    """Recorder of one pass in the history, which also reports the start of the pass.

    Attributes:
        writer: writes to the history; ``None`` to only report the start.
        clock: measures the duration of the pass.
        plan_id: id of the first plan.
        on_start: called once the first round is recorded, before its first removal.
    """

    writer: HistoryWriter | None
    clock: Clock
    _: KW_ONLY
    plan_id: str
    on_start: Callable[[PassStart], None]
    _pass_id: str = field(default="", init=False)
    _names: Mapping[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _position: int = field(default=0, init=False)
    _began_s: float = field(default=0.0, init=False)

    async def begin_round(self, progress: PassProgress, current: Preview) -> None:
        """Record the planned removals of a round; report the start of the pass in the first round."""
        self._names = {image.id: image.references for image in current.snapshot.images}
        self._position = len(progress.results)
        planned = tuple(planned_action(each, self._names) for each in current.removals)
        if self._pass_id:
            if self.writer is not None:
                await self.writer.extend(self._pass_id, planned)
            return
        self._pass_id, self._began_s = progress.id, self.clock.monotonic_s() - current.snapshot.reading_s
        before = current.snapshot.image_filesystem
        past = PastPass(
            id=progress.id,
            started_at=progress.started_at,
            duration_s=0.0,
            trigger=progress.trigger,
            scope=current.scope.value,
            plan_id=self.plan_id,
            dry_run=False,
            result=RUNNING,
            percent_before=before.used_percent if before else None,
            actions=planned,
        )
        if self.writer is not None:
            await self.writer.begin(past)
        self.on_start(
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
        if self.writer is None or not self._pass_id:
            return
        duration_s = self.clock.monotonic_s() - self._began_s
        self.writer.update(self._pass_id, self._position, past_action(result, self._names), duration_s)
        self._position += 1

    def abandon(self, cause: str) -> None:
        """Record a started pass as interrupted, with a cause such as ``cancelled``."""
        if self.writer is not None and self._pass_id:
            self.writer.interrupt(self._pass_id, cause)


WRITTEN_WITHIN_S: Final = 5.0
"""Maximum wait of a pass for a history write; a slow disk does not delay removals for longer."""
_MAX_QUEUED: Final = 500


@dataclass(eq=False)
class HistoryWriter:
    """Writer of the passes of one agent to the history. The methods never raise an error of the history.

    Attributes:
        history: the history of the node.
        retention: limits on the age and number of passes.
        clock: measures the duration of a write.
        clock_trusted: whether ages by the wall clock are valid; otherwise no pass is deleted by age.
    """

    history: History
    retention: Retention
    clock: Clock
    clock_trusted: Callable[[], bool] = lambda: True
    _queue: deque[tuple[Callable[[], Callable[[], None]], asyncio.Future[None]]] = field(
        default_factory=deque, init=False
    )
    _outcomes: dict[str, tuple[dict[int, PastAction], float]] = field(default_factory=dict, init=False)
    _worker: asyncio.Future[None] | None = field(default=None, init=False)
    _writing_since_s: float | None = field(default=None, init=False)
    _bug: str = field(default="", init=False)

    @property
    def problem(self) -> str:
        """Reason that passes cannot be written to the history; empty if they can."""
        if self._is_stuck():
            return f"cannot write history: a write has not ended after {WRITTEN_WITHIN_S:g} s; passes continue"
        return self._bug or self.history.problem

    async def begin(self, past: PastPass, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Write and sync a pass with its planned removals; wait for the write, at most ``within_s`` seconds.

        A write that takes longer is completed in the background.
        """
        await self._wait(self._submit(past.id, lambda: lambda: self.history.begin(past)), within_s)

    async def extend(self, pass_id: str, actions: Sequence[PastAction]) -> None:
        """Write the planned removals of a further round as :meth:`begin` does."""
        await self._wait(self._submit(pass_id, lambda: lambda: self.history.extend(pass_id, actions)))

    def update(self, pass_id: str, position: int, action: PastAction, duration_s: float) -> None:
        """Queue the outcome of a removal without a wait; outcomes queued during a write share the next write."""
        queued = pass_id in self._outcomes
        outcomes, _ = self._outcomes.get(pass_id, ({}, 0.0))
        outcomes[position] = action
        self._outcomes[pass_id] = outcomes, duration_s
        if queued:
            return

        def prepare() -> Callable[[], None]:
            outcomes, duration_s = self._outcomes.pop(pass_id)
            return lambda: self.history.update(pass_id, outcomes, duration_s)

        self._submit(pass_id, prepare)

    async def finish(self, past: PastPass, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Write a finished pass and prune the history; wait as in :meth:`begin`."""
        trusted = self.clock_trusted()
        work = self._submit(past.id, lambda: lambda: self.history.add(past, self.retention, clock_trusted=trusted))
        await self._wait(work, within_s)

    def interrupt(self, pass_id: str, cause: str) -> None:
        """Record an unfinished pass as interrupted, without a wait; see :meth:`History.interrupt`."""
        trusted = self.clock_trusted()
        self._submit(
            pass_id,
            lambda: lambda: self.history.interrupt(pass_id, cause, self.retention, clock_trusted=trusted),
        )

    def _is_stuck(self) -> bool:
        since_s = self._writing_since_s
        return since_s is not None and self.clock.monotonic_s() - since_s > WRITTEN_WITHIN_S

    async def _wait(self, work: asyncio.Future[None], within_s: float = WRITTEN_WITHIN_S) -> None:
        if not self._is_stuck():
            await asyncio.wait({work}, timeout=within_s)

    def _submit(self, pass_id: str, prepare: Callable[[], Callable[[], None]]) -> asyncio.Future[None]:
        """Queue a write; ``prepare`` is called at the start of the write and returns the function that writes."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._queue) >= _MAX_QUEUED:
            self.history.drop(f"pass {pass_id}", "too many writes wait for the disk")
            self._outcomes.pop(pass_id, None)
            done.set_result(None)
            return done
        self._queue.append((prepare, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return done

    async def _work(self) -> None:
        while self._queue:
            prepare, done = self._queue.popleft()
            self._writing_since_s = self.clock.monotonic_s()
            try:
                await asyncio.to_thread(prepare())
                self._bug = ""
            except Exception as error:  # noqa: BLE001 - an unexpected error in the history must not fail a pass
                self._bug = f"cannot write history: {error!r}; this is a bug"
            finally:
                self._writing_since_s = None
                if not done.done():
                    done.set_result(None)
