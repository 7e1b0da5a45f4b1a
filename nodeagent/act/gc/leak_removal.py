"""Deleting blobs and snapshots that nothing holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.leaks import piece_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nodeagent.clock import Clock
    from nodeagent.model import UnreferencedPiece
    from nodeagent.plan.decision import Decision


class PieceActions(Protocol):
    """The calls on containerd's stores. Source: containerd ``content.v1.Content``, ``snapshots.v1.Snapshots``."""

    async def delete_content(self, digest: str) -> bool:
        """Delete a blob's record; return whether it was there."""

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Remove a snapshot that nothing lies on; return whether it was there."""

    async def collect_garbage(self, clock: Clock) -> None:
        """Make containerd collect garbage and wait for it."""


class LeakRemover:
    """Deletes pieces a few at a time, after looking once more at everything that could hold them."""

    def __init__(
        self,
        find_unreferenced: Callable[[], Awaitable[tuple[UnreferencedPiece, ...]]],
        actions: PieceActions,
        clock: Clock,
    ) -> None:
        self._find_loose = find_unreferenced
        self._actions = actions
        self._clock = clock
        self._deleted = False

    async def remove_many(self, decisions: Sequence[Decision]) -> list[Result | NodeAgentError]:
        """Delete what is still loose; the order of the plan is kept, as a snapshot goes after those on it.

        Raises:
            RuntimeUnavailableError: the runtime is gone.
        """
        loose = {piece_name(each): each for each in await self._find_loose()}
        ended: list[Result | NodeAgentError] = []
        for decision in decisions:
            try:
                ended.append(await self._delete(decision, loose.get(decision.name)))
            except RuntimeUnavailableError:
                raise
            except NodeAgentError as error:
                ended.append(error)
        return ended

    async def _delete(self, decision: Decision, found: UnreferencedPiece | None) -> Result:
        if found is None:
            return Result(decision, Outcome.CHANGED, "kept: it is gone, or something holds it now")
        if found.rooted and not decision.reason.details.get("rooted"):
            return Result(decision, Outcome.CHANGED, "kept: a label of its own keeps it now")
        if decision.kind is ItemKind.BLOB:
            there = await self._actions.delete_content(decision.id)
        else:
            there = await self._actions.remove_snapshot(found.snapshotter, decision.id)
        self._deleted = self._deleted or there
        return Result(decision, Outcome.DONE if there else Outcome.GONE)

    async def finish(self) -> tuple[Result, ...]:
        """Let containerd remove from the disk what was deleted from its records."""
        if self._deleted:
            await self._actions.collect_garbage(self._clock)
        return ()
