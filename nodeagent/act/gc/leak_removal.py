"""Removal of unreferenced blobs and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.act.gc.executor import BATCH
from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.leaks import piece_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from nodeagent.model import UnreferencedPiece
    from nodeagent.plan.decision import Decision
    from nodeagent.runtime.storage_backend import StorageBackend


class LeakRemover:
    """Remover of unreferenced blobs and snapshots in batches; all references are read again before each batch."""

    batch_size = BATCH

    def __init__(
        self, find_unreferenced: Callable[[], Awaitable[tuple[UnreferencedPiece, ...]]], storage: StorageBackend
    ) -> None:
        self._find_unreferenced = find_unreferenced
        self._storage = storage
        self._deleted = False

    async def remove_many(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        """Delete the blobs and snapshots that are still unreferenced, in plan order: a snapshot after its children.

        A stop request takes effect after the batch.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable.
        """
        del stop
        unreferenced = {piece_name(each): each for each in await self._find_unreferenced()}
        results: list[Result | NodeAgentError] = []
        for decision in decisions:
            try:
                results.append(await self._delete(decision, unreferenced.get(decision.name)))
            except RuntimeUnavailableError:
                raise
            except NodeAgentError as error:
                results.append(error)
        return results

    async def _delete(self, decision: Decision, found: UnreferencedPiece | None) -> Result:
        if found is None:
            return Result(decision, Outcome.CHANGED, "kept: already removed, or referenced again")
        if found.rooted and not decision.reason.details.get("rooted"):
            return Result(decision, Outcome.CHANGED, "kept: labelled containerd.io/gc.root since the plan")
        if decision.kind is ItemKind.BLOB:
            existed = await self._storage.delete_content(decision.id)
        else:
            existed = await self._storage.remove_snapshot(found.snapshotter, decision.id)
        self._deleted = self._deleted or existed
        return Result(decision, Outcome.DONE if existed else Outcome.GONE)

    async def finish(self) -> tuple[Result, ...]:
        """Run the runtime's garbage collection, which removes the data of deleted records from disk."""
        if self._deleted:
            await self._storage.collect_garbage()
        return ()
