"""Carrying out a plan: in order, one guarded removal after the other, until told to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.clock import Clock
    from nodeagent.plan.decision import Decision, ItemKind

BATCH: Final = 8
"""How many items a batch remover is given at a time; told to stop, a pass ends after them."""


class Remover(Protocol):
    """Removes one kind of item, after looking once more whether it may."""

    async def remove(self, decision: Decision) -> Result:
        """Remove what ``decision`` names, unless it changed since the plan was made.

        Raises:
            RuntimeUnavailableError: the runtime is gone; nothing more can be done in this pass.
            NodeAgentError: this item could not be removed; others may be.
        """


@runtime_checkable
class BatchRemover(Protocol):
    """A remover of several items at a time, whose work is done only once all of it is known."""

    async def remove_many(self, decisions: Sequence[Decision]) -> Sequence[Result | NodeAgentError]:
        """Remove what ``decisions`` name, but for what changed; return what became of each, in order.

        Raises:
            RuntimeUnavailableError: the runtime is gone; nothing more can be done in this pass.
        """

    async def finish(self) -> Sequence[Result]:
        """Complete what was begun; return the results that turned out otherwise than told.

        Raises:
            RuntimeUnavailableError: the runtime is gone; what it was told it may do when it is back.
            NodeAgentError: it cannot be told whether all of it was done.
        """


class DryRunRemover:
    """Touches nothing and says so."""

    async def remove(self, decision: Decision) -> Result:
        """Answer that this would be removed."""
        return Result(decision, Outcome.DRY_RUN)


class Interrupted(Exception):  # noqa: N818 - not an error: it carries what was done so far
    """The pass ended early.

    Attributes:
        results: one for every decision, those not reached marked as not attempted.
        lost: why the runtime is gone, or empty if the pass was told to stop.
    """

    def __init__(self, results: tuple[Result, ...], lost: str) -> None:
        self.results = results
        self.lost = lost
        super().__init__(lost or "told to stop")


async def carry_out(  # noqa: PLR0913 - what a pass hands down
    decisions: Sequence[Decision],
    removers: Mapping[ItemKind, Remover | BatchRemover],
    *,
    clock: Clock,
    stop: asyncio.Event,
    enough: Callable[[Decision], bool] | None = None,
    on_result: Callable[[Result], None] = lambda _: None,
) -> tuple[Result, ...]:
    """Carry out the removals in order; a failure is recorded and the next is tried.

    Args:
        decisions: removals, in the plan's order.
        removers: who removes which kind.
        clock: for durations.
        stop: when set, no further removal is begun.
        enough: asked before each removal; true means that it is not needed any more.
        on_result: told of each result as it comes.

    Raises:
        Interrupted: told to stop, or the runtime is gone; carries the results so far.
    """
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        on_result(result)

    position = 0
    while position < len(decisions):
        if stop.is_set():
            results = await _finish(results, removers)
            raise Interrupted(_with_rest(results, decisions[position:], "the pass was told to stop"), "")
        if enough is not None and enough(decisions[position]):
            note(Result(decisions[position], Outcome.NOT_NEEDED, "enough was freed by the removals before it"))
            position += 1
            continue
        remover = removers[decisions[position].kind]
        together = _together(decisions, position, removers)
        began_s = clock.monotonic_s()
        try:
            if isinstance(remover, BatchRemover):
                ended = await remover.remove_many(together)
            else:
                ended = [await _one(remover, together[0])]
        except RuntimeUnavailableError as error:
            detail = f"the runtime went away: {error}"
            for decision in together:
                note(Result(decision, Outcome.FAILED, detail, duration_s=clock.monotonic_s() - began_s))
            rest = decisions[position + len(together) :]
            raise Interrupted(_with_rest(results, rest, detail), str(error)) from error
        except NodeAgentError as error:
            ended = [error] * len(together)
        took_s = (clock.monotonic_s() - began_s) / len(together)
        for decision, each in zip(together, ended, strict=True):
            result = each if isinstance(each, Result) else Result(decision, Outcome.FAILED, str(each))
            note(replace(result, duration_s=took_s))
        position += len(together)
    return tuple(await _finish(results, removers))


async def _one(remover: Remover, decision: Decision) -> Result | NodeAgentError:
    try:
        return await remover.remove(decision)
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error


def _together(
    decisions: Sequence[Decision], position: int, removers: Mapping[ItemKind, Remover | BatchRemover]
) -> Sequence[Decision]:
    """Return the next decisions that are carried out at once: several only for a batch remover."""
    kind = decisions[position].kind
    if not isinstance(removers[kind], BatchRemover):
        return decisions[position : position + 1]
    end = position + 1
    while end < len(decisions) and end < position + BATCH and decisions[end].kind is kind:
        end += 1
    return decisions[position:end]


async def _finish(results: list[Result], removers: Mapping[ItemKind, Remover | BatchRemover]) -> list[Result]:
    """Let batches be completed; return the results with what that corrected."""
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
                _key(each): replace(each, detail=detail) for each in results if _in_batch(each, remover, removers)
            }
        results = [corrected.get(_key(each), each) for each in results]
    return results


def _key(result: Result) -> tuple[ItemKind, str]:
    return result.decision.kind, result.decision.id


def _in_batch(
    result: Result, remover: Remover | BatchRemover, removers: Mapping[ItemKind, Remover | BatchRemover]
) -> bool:
    return result.outcome is Outcome.DONE and removers[result.decision.kind] is remover


def _with_rest(results: Sequence[Result], rest: Sequence[Decision], detail: str) -> tuple[Result, ...]:
    return (*results, *(Result(decision, Outcome.NOT_ATTEMPTED, detail) for decision in rest))
