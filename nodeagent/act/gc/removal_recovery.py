"""Recovery of image removals that were interrupted by a kill of the agent, a runtime failure or a full disk.

An existing lease proves that the removal was not committed, so the image names are restored; see
:mod:`nodeagent.runtime.image_leases`. A later pass can remove the restored images after a new check.
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
    """Recovery of interrupted removals and release of expired undo windows, at daemon start and before each pass."""

    def __init__(self, storage: StorageBackend, lock_path: Path, clock: Clock, *, stable_s: float = _STABLE_S) -> None:
        """Prepare the recovery; ``lock_path`` is the node's pass lock file.

        ``stable_s`` is the time in seconds for which all names must exist before a lease is released.
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
        """Return a sentence for each uncommitted removal and each removal in its undo window; empty if unreadable."""
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

        A failure is added to the notices, and the next run retries. A removal by a running pass with the same pass lock
        is in progress, and is skipped. A removal with another lock (an agent with another state directory) may also be
        in progress, and is skipped until its age exceeds ``LONGEST_REMOVAL``.
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
        """Return whether a removal counts as interrupted; ``own`` is the identity of the held pass lock, or empty.

        The process of the removal has ended if it ran in an earlier boot, or held the same lock. A process with another
        or an unknown lock may be running in another PID namespace; its removal counts as interrupted from the age
        ``LONGEST_REMOVAL``.
        """
        boot, own_boot = removal.owner.partition(" ")[0], own.partition(" ")[0]
        if (own and removal.owner == own) or (boot and own_boot and boot != own_boot):
            return True
        return removal.opened_at is not None and removal.opened_at <= self._clock.now() - LONGEST_REMOVAL

    def _open_sentence(self, removal: OpenRemoval, own: str) -> str:
        count = len({name.image_id for name in removal.names})
        fate = "the next pass restores the images"
        if not self._is_interrupted(removal, own):
            fate = "the removal is of an agent with another state directory"
            if removal.opened_at is not None:
                fate += f"; passes after {format_time(removal.opened_at + LONGEST_REMOVAL)} restore the images"
        until = f"; containerd deletes it after {format_time(removal.expires_at)}" if removal.expires_at else ""
        if removal.is_collection:
            return (
                f"lease {removal.lease_id} is of a garbage collection that is in progress or was interrupted; the next "
                f"pass deletes the lease{until}"
            )
        return (
            f"lease {removal.lease_id} keeps the content of {count} images whose removal is in progress or was "
            f"interrupted; {fate}{until}"
        )

    async def _restore_all(self, records: RemovalRecords, removals: Sequence[OpenRemoval]) -> None:
        """Restore interrupted removals concurrently, since each restore waits; raise the first error last."""
        done = await asyncio.gather(*(self._restore(records, each) for each in removals), return_exceptions=True)
        self._notices += [each for each in done if isinstance(each, str) and each]
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _restore(self, records: RemovalRecords, removal: OpenRemoval) -> str:
        """Restore the names of a removal and release its lease; return the result as a sentence, empty without names.

        Name deletions sent by the interrupted process can still take effect after its end. The lease is released only
        after all names have existed for ``stable_s`` seconds, and after the undo leases on the same images.
        """
        leases = records.leases
        if removal.is_collection:
            await leases.release(removal.lease_id, sync=False)
            return ""
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
