"""Execution of a plan: guarded removals in order, until finished or stopped, and their outcomes.

A dry run removes nothing, so every pass plans the same removals again. Only changes between successive dry runs of one
loop are logged and recorded. An item with a changed reason code counts as newly planned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.model.decision import ReasonCode
from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    import asyncio

    from nodeagent.model.decision import Decision, ItemKind, Plan
    from nodeagent.model.runtime import FsObservation
    from nodeagent.units import Clock

T = TypeVar("T")


class Outcome(StrEnum):
    """Outcome of one planned removal. The values are part of the JSON output and of logs."""

    DONE = "done"
    GONE = "gone"
    CHANGED = "changed"
    FAILED = "failed"
    DRY_RUN = "dry-run"
    NOT_NEEDED = "not-needed"
    NOT_ATTEMPTED = "not-attempted"


class PassTrigger(StrEnum):
    """Cause of a pass. The values are part of the JSON output, of logs and of the history.

    ``TRIGGER`` is a request to run a loop now, ``ONCE`` a run of every loop by ``run --once``, ``COMMAND`` a pass of
    a command on its own, ``CONTROL`` a pass of the daemon for a client. ``COLLECT_AHEAD`` is a pass by the interval
    that collects ahead of the forecast.
    """

    INTERVAL = "interval"
    COLLECT_AHEAD = "collect-ahead"
    TRIGGER = "trigger"
    ONCE = "once"
    COMMAND = "command"
    CONTROL = "control"
    APPLY = "apply"
    LEAKS = "leaks"
    UNDO = "undo"
    EVICTION = "eviction"


class PassEnd(StrEnum):
    """End of a pass. The values are part of the JSON output and of logs."""

    COMPLETE = "complete"
    NOTHING_TO_DO = "nothing-to-do"
    SHORTFALL = "shortfall"
    CANCELLED = "cancelled"
    RUNTIME_LOST = "runtime-lost"
    REFUSED = "refused"


class Result(Record):
    """One planned removal with its outcome.

    Attributes:
        detail: cause of the outcome; empty for an outcome without a cause.
        freed_bytes: bytes confirmed as freed by this item; ``None`` if not measured.
        duration_s: duration of the removal.
        undo_until: end of its undo window, which frees its space; ``None`` without an undo window.
    """

    decision: Decision
    outcome: Outcome
    detail: str = ""
    freed_bytes: int | None = None
    duration_s: float = 0.0
    undo_until: datetime | None = None


class MeasuredFilesystem(Record):
    """Readings of an image filesystem before and after a pass."""

    before: FsObservation
    after: FsObservation

    @property
    def freed_bytes(self) -> int | None:
        """Increase of its available bytes, writes and deletions of other processes included.

        ``None`` if another filesystem was mounted during the pass, or if other processes wrote more than was freed.
        """
        freed_bytes = self.after.available_bytes - self.before.available_bytes
        return freed_bytes if self.before.device_id == self.after.device_id and freed_bytes >= 0 else None


class PassReport(Record):
    """Plans, results and effect of one pass.

    Attributes:
        plans: the plans of all rounds; a pass has several rounds if items failed or less was freed than planned.
        before: the image filesystem in the first plan's snapshot.
        after: the image filesystem after the last removal; ``None`` in a dry run and after a failed measurement.
        duration_s: seconds of the first observation and of the removals, without the wait for a confirmation.
        collected_bytes: size of the unreferenced content collected by the runtime on request.
        settled_s: part of ``duration_s`` spent waiting for container creations in progress.
        end_detail: the cause of an incomplete pass, as a sentence; empty if complete.
        filesystems: each image filesystem of a node with several, if measured; ``before`` and ``after`` are the first.
    """

    id: str
    scope: str
    trigger: str
    started_at: datetime
    duration_s: float
    dry_run: bool
    plans: tuple[Plan, ...]
    results: tuple[Result, ...]
    end: PassEnd
    end_detail: str = ""
    before: FsObservation | None = None
    after: FsObservation | None = None
    warnings: tuple[str, ...] = field(default=())
    collected_bytes: int = 0
    settled_s: float = 0.0
    filesystems: tuple[MeasuredFilesystem, ...] = ()

    @property
    def removed(self) -> tuple[Result, ...]:
        """Results of removed items, including items removed by another process."""
        return tuple(result for result in self.results if result.outcome in (Outcome.DONE, Outcome.GONE))

    @property
    def failed(self) -> tuple[Result, ...]:
        """Results of failed removals."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAILED)

    @property
    def predicted_bytes(self) -> int:
        """Predicted bytes of removed items without an undo window, plus ``collected_bytes``."""
        freed = [each.decision.frees_bytes or 0 for each in self.removed if each.undo_until is None]
        return self.collected_bytes + sum(freed)

    @property
    def undo_until(self) -> datetime | None:
        """Latest end of the undo windows of the removals; ``None`` without an undo window."""
        return max((each.undo_until for each in self.results if each.undo_until is not None), default=None)

    @property
    def undo_bytes(self) -> int:
        """Predicted bytes that the end of the undo windows will free."""
        return bytes_in_undo_windows(self.results)

    @property
    def freed_bytes(self) -> int | None:
        """Increase of the available bytes of all image filesystems.

        ``None`` if not measured, and if nothing was removed except images in their undo window, which free space later.
        """
        if not self.collected_bytes and all(each.undo_until is not None for each in self.removed):
            return None
        if self.filesystems:
            known = [each.freed_bytes for each in self.filesystems if each.freed_bytes is not None]
            return sum(known) if known else None
        if self.before is None or self.after is None:
            return None
        return MeasuredFilesystem(self.before, self.after).freed_bytes


def bytes_in_undo_windows(results: Iterable[Result]) -> int:
    """Return the predicted bytes of removed images in their undo window."""
    return sum(each.decision.frees_bytes or 0 for each in results if each.undo_until is not None)


_GONE = "it no longer exists"
_Key = tuple["ItemKind", str]


class Dropped(Record):
    """An item that the previous dry run planned to remove and the current one does not.

    Attributes:
        why: reason that the removal is no longer planned, as text.
    """

    kind: ItemKind
    id: str
    name: str
    why: str


class Changes(Record):
    """Changes between the previous dry run and the current dry run.

    Attributes:
        planned: the newly planned removals, in order.
        dropped: the removals that are no longer planned.
        since: id of the last dry run with a change, whose record has the removals; empty for the first dry run.
    """

    planned: tuple[Result, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    since: str = ""

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.planned or self.dropped)


class DryRunWatch:
    """Comparison of the successive dry runs of one loop.

    Attributes:
        last: changes of the last dry run.
    """

    def __init__(self) -> None:
        """Start without a previous dry run, so that the first report has new removals only."""
        self.last = Changes()
        self._planned: Mapping[_Key, tuple[str, ReasonCode]] = {}
        self._changed_in = ""

    def compare(self, report: PassReport) -> Changes:
        """Return the changes since the last dry run; none for a pass without a complete plan."""
        if any(plan.blocked for plan in report.plans):
            self.last = Changes(since=self._changed_in)
            return self.last
        results = [each for each in report.results if each.outcome is Outcome.DRY_RUN]
        now = {(each.decision.kind, each.decision.id): each.decision for each in results}
        planned = tuple(each for each in results if self._is_new(each.decision))
        missing = {key: name for key, (name, _) in self._planned.items() if key not in now}
        kept = _decisions(report, missing) if missing else {}
        dropped = tuple(
            Dropped(*key, name, kept[key].reason.sentence if key in kept else _GONE) for key, name in missing.items()
        )
        self._planned = {key: (each.name, each.reason.code) for key, each in now.items()}
        self.last = Changes(planned, dropped, self._changed_in)
        if self.last:
            self._changed_in = report.id
        return self.last

    def _is_new(self, decision: Decision) -> bool:
        before = self._planned.get((decision.kind, decision.id))
        return before is None or before[1] is not decision.reason.code


def _decisions(report: PassReport, keys: Container[_Key]) -> dict[_Key, Decision]:
    """Return the decisions of a pass on the items with these keys, by key."""
    decided = ((each.kind, each.id, each) for plan in report.plans for each in plan.decisions)
    return {(kind, item_id): each for kind, item_id, each in decided if (kind, item_id) in keys}


BATCH: Final = 8
"""Number of items per call of a batch remover that handles a stop request between calls only."""


class Remover(Protocol):
    """Remover of one kind of item, which re-reads the state of an item before its removal."""

    async def remove(self, decision: Decision) -> Result:
        """Remove the item of ``decision`` unless it changed since the plan was made.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable; the pass ends.
            NodeAgentError: this item could not be removed; the pass continues.
        """


@runtime_checkable
class BatchRemover(Protocol):
    """Remover of several items per call; the removals are complete only after :meth:`finish`."""

    @property
    def batch_size(self) -> int:
        """Maximum number of items per call."""

    @property
    def settled_s(self) -> float:
        """Seconds so far spent waiting for container creations in progress."""

    async def remove_many(
        self, decisions: Sequence[Decision], stop: asyncio.Event
    ) -> Sequence[Result | NodeAgentError]:
        """Remove the items of ``decisions`` that are unchanged; return the result or error of each, in order.

        When ``stop`` is set, no further removal starts; the results of the remaining items are ``not-attempted``.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable; the pass ends.
        """

    async def finish(self) -> Sequence[Result]:
        """Complete the removals; return the results that differ from the results of :meth:`remove_many`.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable; the runtime may complete the removals after a restart.
            NodeAgentError: the removals could not be confirmed.
        """


class DryRunRemover:
    """Remover without effect on the node, for dry runs."""

    async def remove(self, decision: Decision) -> Result:
        """Return the outcome ``dry-run``."""
        return Result(decision, Outcome.DRY_RUN)


class Interrupted(Exception):  # noqa: N818 - not an error: carries the results so far
    """The pass was stopped, or the runtime became unavailable.

    Attributes:
        results: result of every decision; ``not-attempted`` for decisions that were not reached.
        lost: reason that the runtime is unavailable; empty if the pass was stopped.
        reason: reason that no further removal started.
    """

    def __init__(self, results: tuple[Result, ...], lost: str, reason: str = "") -> None:
        self.results = results
        self.lost = lost
        self.reason = reason
        super().__init__(lost or "stopped")


async def carry_out(  # noqa: PLR0913 - the collaborators of one pass
    decisions: Sequence[Decision],
    removers: Mapping[ItemKind, Remover | BatchRemover],
    *,
    clock: Clock,
    stop: asyncio.Event,
    enough: Callable[[Decision], bool] | None = None,
    busy: Callable[[], Awaitable[str]] | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> tuple[Result, ...]:
    """Carry out the removals in order; a failure is recorded and the next removal is tried.

    Args:
        decisions: removals, in the plan's order.
        removers: the remover of each kind of item.
        clock: measures durations.
        stop: event; once set, no further removal starts.
        enough: called before each removal; returns whether the removal is skipped as ``not-needed``.
        busy: awaited before each removal ahead of a forecast; returns the reason to leave this and all later removals
            to a later pass, else an empty text.
        on_result: called with each result.

    Raises:
        Interrupted: the pass was stopped or postponed, or the runtime is unavailable; carries the results so far.
    """
    results: list[Result] = []

    def record(result: Result) -> None:
        results.append(result)
        on_result(result)

    position = 0
    while position < len(decisions):
        if not stop.is_set() and enough is not None and enough(decisions[position]):
            record(Result(decisions[position], Outcome.NOT_NEEDED, "earlier removals freed enough"))
            position += 1
            continue
        if reason := await _reason_to_end(stop, busy if _is_ahead(decisions[position]) else None):
            results = await _finish(results, removers)
            raise Interrupted(_with_rest(results, decisions[position:], reason), "", reason)
        remover = removers[decisions[position].kind]
        batch = _next_batch(decisions, position, remover)
        started_s = clock.monotonic_s()
        try:
            if isinstance(remover, BatchRemover):
                ended = await remover.remove_many(batch, stop)
            else:
                ended = [await caught(remover.remove(batch[0]))]
        except RuntimeUnavailableError as error:
            detail = f"runtime unavailable: {error}"
            for decision in batch:
                record(Result(decision, Outcome.FAILED, detail, duration_s=clock.monotonic_s() - started_s))
            rest = decisions[position + len(batch) :]
            raise Interrupted(_with_rest(results, rest, detail), str(error)) from error
        except NodeAgentError as error:
            ended = [error] * len(batch)
        duration_s = (clock.monotonic_s() - started_s) / len(batch)
        for decision, each in zip(batch, ended, strict=True):
            result = each if isinstance(each, Result) else Result(decision, Outcome.FAILED, str(each))
            record(replace(result, duration_s=duration_s))
        position += len(batch)
    return _unless_stopped(await _finish(results, removers), stop)


def _unless_stopped(results: Sequence[Result], stop: asyncio.Event) -> tuple[Result, ...]:
    """Return the results; raise Interrupted if a stop request prevented removals of the last batch."""
    if stop.is_set() and any(each.outcome is Outcome.NOT_ATTEMPTED for each in results):
        raise Interrupted(tuple(results), "")
    return tuple(results)


async def caught(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return the result of ``work`` or its error; raise RuntimeUnavailableError."""
    try:
        return await work
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error


async def _reason_to_end(stop: asyncio.Event, busy: Callable[[], Awaitable[str]] | None) -> str:
    if not stop.is_set() and busy is not None and (reason := await busy()):
        return reason
    return "pass stopped" if stop.is_set() else ""


def _is_ahead(decision: Decision) -> bool:
    return decision.reason.code is ReasonCode.COLLECT_AHEAD


def _next_batch(decisions: Sequence[Decision], position: int, remover: Remover | BatchRemover) -> Sequence[Decision]:
    """Return the next decisions on one kind of item: up to a batch for a batch remover, otherwise one decision.

    A removal ahead of a forecast is never in a batch.
    """
    first = decisions[position]
    if not isinstance(remover, BatchRemover) or _is_ahead(first):
        return (first,)
    batch = decisions[position : position + remover.batch_size]
    return tuple(takewhile(lambda each: each.kind is first.kind and not _is_ahead(each), batch))


async def _finish(results: list[Result], removers: Mapping[ItemKind, Remover | BatchRemover]) -> list[Result]:
    """Complete the batches; return the results, corrected by the final results of the batch removers."""
    for remover in {id(each): each for each in removers.values()}.values():
        if not isinstance(remover, BatchRemover):
            continue
        try:
            corrected = {_key(each): each for each in await remover.finish()}
        except RuntimeUnavailableError as error:
            raise Interrupted(tuple(results), str(error)) from error
        except NodeAgentError as error:
            detail = f"not confirmed: {error}"
            corrected = {
                _key(each): replace(each, detail=detail) for each in results if _is_removed_by(each, remover, removers)
            }
        results = [corrected.get(_key(each), each) for each in results]
    return results


def _key(result: Result) -> tuple[ItemKind, str]:
    return result.decision.kind, result.decision.id


def _is_removed_by(
    result: Result, remover: Remover | BatchRemover, removers: Mapping[ItemKind, Remover | BatchRemover]
) -> bool:
    return result.outcome is Outcome.DONE and removers[result.decision.kind] is remover


def _with_rest(results: Sequence[Result], rest: Sequence[Decision], detail: str) -> tuple[Result, ...]:
    return (*results, *(Result(decision, Outcome.NOT_ATTEMPTED, detail) for decision in rest))
