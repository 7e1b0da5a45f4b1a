"""Completion of image removals that were interrupted: by a kill, a lost runtime, a full disk.

A lease that exists means that the removal was not decided, so the names are restored; see
:mod:`nodeagent.runtime.image_leases`. Restored images can be removed by a later pass, with a check.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.act.gc.image_transaction import LONGEST_REMOVAL
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnsupportedError
from nodeagent.host.lock import lock_identity, process_lock
from nodeagent.units import format_bytes, format_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodeagent.clock import Clock
    from nodeagent.runtime.image_leases import OpenRemoval
    from nodeagent.runtime.storage_backend import RemovalRecords, StorageBackend
    from nodeagent.runtime.undo_leases import UndoableRemoval


_STABLE_S: Final = 3.0
_MAX_ROUNDS: Final = 5


class RemovalRecovery:
    """Restores the images of interrupted removals and ends undo windows; at the daemon's start and before each pass."""

    def __init__(self, storage: StorageBackend, lock_path: Path, clock: Clock, *, stable_s: float = _STABLE_S) -> None:
        """Restore on ``storage``, under the lock of the node's passes.

        ``stable_s`` is the time for which all names have to be present before a lease is released.
        """
        self._stable_s = stable_s
        self._storage = storage
        self._clock = clock
        self._lock_path = lock_path
        self._notices: list[str] = []

    def take_notices(self) -> tuple[str, ...]:
        """Return the notices for operators since the last call."""
        notices, self._notices = tuple(self._notices), []
        return notices

    async def describe(self) -> tuple[str, ...]:
        """Return a sentence for each removal without decision or in its undo window; empty if they cannot be read."""
        records = self._storage.removals
        if records is None:
            return ()
        try:
            found, undoable = await records.leases.list_open(), await records.undo.list_all()
        except NodeAgentError:
            return ()
        own = lock_identity(self._lock_path)
        return *(self._open_sentence(each, own) for each in found), *map(_undo_sentence, undoable)

    async def run(self) -> None:
        """Restore the names of every interrupted removal, and free the space of removals whose undo window has ended.

        A failure is a notice, and the next run retries. While another pass runs, on this node's lock, its removal is in
        progress, not interrupted. So can be that of a pass on another lock, of an agent with another state directory:
        it is left alone until no removal takes that long.
        """
        records = self._storage.removals
        if records is None:
            return
        try:
            if await records.leases.list_open():
                with process_lock(self._lock_path) as unlocked:
                    own = "" if unlocked else lock_identity(self._lock_path)
                    found = await records.leases.list_open()
                    await self._restore_all(records, [each for each in found if self._is_interrupted(each, own)])
            now = self._clock.now()
            over = [each for each in await records.undo.list_all() if each.is_over(now)]
            await records.undo.release(over, collect=True)
        except (PassBusyError, RuntimeUnsupportedError):
            return
        except NodeAgentError as error:
            self._notices.append(f"cannot restore the images of an interrupted removal: {error}; retried before a pass")

    def _is_interrupted(self, removal: OpenRemoval, own: str) -> bool:
        """Return whether the process of a removal has ended; ``own`` is the identity of the lock that is held, if any.

        It has if it was started in an earlier boot, or held the same lock. With another lock or an unknown one it may
        be running, in another container too, where its pid means nothing.
        """
        boot, own_boot = removal.owner.partition(" ")[0], own.partition(" ")[0]
        if (own and removal.owner == own) or (boot and own_boot and boot != own_boot):
            return True
        return removal.opened_at is not None and removal.opened_at <= self._clock.now() - LONGEST_REMOVAL

    def _open_sentence(self, removal: OpenRemoval, own: str) -> str:
        count = len({name.image_id for name in removal.names})
        fate = "the next pass restores them"
        if not self._is_interrupted(removal, own):
            fate = "it is of an agent with another state directory"
            if removal.opened_at is not None:
                fate += f"; passes after {format_time(removal.opened_at + LONGEST_REMOVAL)} restore them"
        until = f"; containerd deletes it after {format_time(removal.expires_at)}" if removal.expires_at else ""
        return (
            f"lease {removal.lease_id} keeps the content of {count} images whose removal is in progress or was "
            f"interrupted; {fate}{until}"
        )

    async def _restore_all(self, records: RemovalRecords, removals: Sequence[OpenRemoval]) -> None:
        """Restore at the same time, since each waits; a failure ends no other, and is raised afterwards."""
        done = await asyncio.gather(*(self._restore(records, each) for each in removals), return_exceptions=True)
        self._notices += [each for each in done if isinstance(each, str)]
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _restore(self, records: RemovalRecords, removal: OpenRemoval) -> str:
        """Restore the names of a removal and release its lease; return a sentence.

        Deletions that the interrupted process had sent can still take effect after its end. The lease is released only
        once all names were present for ``stable_s`` seconds, after those of undo windows of the same images.
        """
        leases = records.leases
        created: dict[str, None] = {}
        for _ in range(_MAX_ROUNDS):
            results = (await leases.restore(removal.names)).values()
            created |= dict.fromkeys(name for each in results for name in each.created)
            await asyncio.sleep(self._stable_s)
            results = (await leases.restore(removal.names)).values()
            again = [name for each in results for name in each.created]
            created |= dict.fromkeys(again)
            if not again:
                break
        else:
            return f"removal {removal.lease_id} was interrupted: image names are deleted again; lease kept"
        if removal.damaged:  # the content remains until the lease expires
            return f"removal {removal.lease_id} was interrupted and its record is damaged; lease kept until it expires"
        names = {each.stored.name for each in removal.names}
        undo = await records.undo.list_all()
        superfluous = [each for each in undo if names.issuperset(name.stored.name for name in each.names)]
        await records.undo.release(superfluous, collect=False)
        await leases.release(removal.lease_id, sync=False)
        lost = [name for each in results for name in each.lost]
        text = (
            f"removal {removal.lease_id} was interrupted: {len(created)} of {len(removal.names)} image names restored"
        )
        return f"{text}; content is missing for {', '.join(lost[:5])}" if lost else text


def _undo_sentence(removal: UndoableRemoval) -> str:
    size = "" if removal.size_bytes is None else f" ({format_bytes(removal.size_bytes)})"
    until = f" until {format_time(removal.expires_at)}" if removal.expires_at is not None else ""
    return (
        f"lease {removal.lease_id} keeps the content of {len(removal.image_ids)} images{size} removed by pass "
        f"{removal.pass_id or 'unknown'} for an undo{until}"
    )
