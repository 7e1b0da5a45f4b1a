"""Execution of a plan: guarded removals in order, until finished or stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.gc.outcomes import Outcome, Result
from nodeagent.record import replace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.clock import Clock
    from nodeagent.model.decision import Decision, ItemKind

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
    """

    def __init__(self, results: tuple[Result, ...], lost: str) -> None:
        self.results = results
        self.lost = lost
        super().__init__(lost or "stopped")


async def carry_out(  # noqa: PLR0913 - the collaborators of one pass
    decisions: Sequence[Decision],
    removers: Mapping[ItemKind, Remover | BatchRemover],
    *,
    clock: Clock,
    stop: asyncio.Event,
    enough: Callable[[Decision], bool] | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> tuple[Result, ...]:
    """Carry out the removals in order; a failure is recorded and the next removal is tried.

    Args:
        decisions: removals, in the plan's order.
        removers: the remover of each kind of item.
        clock: measures durations.
        stop: event; once set, no further removal starts.
        enough: called before each removal; returns whether the removal is skipped as ``not-needed``.
        on_result: called with each result.

    Raises:
        Interrupted: the pass was stopped, or the runtime is unavailable; carries the results so far.
    """
    results: list[Result] = []

    def record(result: Result) -> None:
        results.append(result)
        on_result(result)

    position = 0
    while position < len(decisions):
        if stop.is_set():
            results = await _finish(results, removers)
            raise Interrupted(_with_rest(results, decisions[position:], "pass stopped"), "")
        if enough is not None and enough(decisions[position]):
            record(Result(decisions[position], Outcome.NOT_NEEDED, "earlier removals freed enough"))
            position += 1
            continue
        remover = removers[decisions[position].kind]
        batch = _next_batch(decisions, position, removers)
        started_s = clock.monotonic_s()
        try:
            if isinstance(remover, BatchRemover):
                ended = await remover.remove_many(batch, stop)
            else:
                ended = [await _remove_one(remover, batch[0])]
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


async def _remove_one(remover: Remover, decision: Decision) -> Result | NodeAgentError:
    try:
        return await remover.remove(decision)
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error


def _next_batch(
    decisions: Sequence[Decision], position: int, removers: Mapping[ItemKind, Remover | BatchRemover]
) -> Sequence[Decision]:
    """Return the next decisions on one kind of item: up to a batch for a batch remover, otherwise one decision."""
    kind = decisions[position].kind
    remover = removers[kind]
    if not isinstance(remover, BatchRemover):
        return decisions[position : position + 1]
    end = position + 1
    while end < len(decisions) and end < position + remover.batch_size and decisions[end].kind is kind:
        end += 1
    return decisions[position:end]


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
