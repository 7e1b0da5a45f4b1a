"""Restored images: undo of removals within their window, and recovery of interrupted removals.

An undo first creates a lease like that of an uncommitted removal on the content. If the undo is interrupted,
recovery therefore restores the names.

A removal that was interrupted by a kill of the agent, a runtime failure or a full disk is recovered: an existing lease
proves that the removal was not committed, so the image names are restored; see
:mod:`nodeagent.runtime.leases`. A later pass can remove the restored images after a new check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError, RuntimeUnsupportedError, UsageError
from nodeagent.gc.pass_state import new_pass_id
from nodeagent.gc.transaction import LONGEST_REMOVAL, WINDOW, poll_images
from nodeagent.host.lock import lock_identity, process_lock
from nodeagent.record import Record
from nodeagent.units import Clock, format_bytes, format_time

if TYPE_CHECKING:
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.leases import ImageName, OpenRemoval, Restored, UndoableRemoval
    from nodeagent.runtime.storage_backend import RemovalRecords, StorageBackend

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


_IMPOSSIBLE: Final = "image removals cannot be undone: CRI's RemoveImage deletes immediately"


class UndoOutcome(StrEnum):
    """Outcome of the undo for one image. The values are part of the JSON output and of the history."""

    RESTORED = "restored"
    PRESENT = "present"
    FAILED = "failed"


class UndoResult(Record):
    """One removed image with the outcome of its undo.

    Attributes:
        names: the names of the image before its removal, without its id.
        outcome: ``restored``, ``present`` (all its names existed again before the undo) or ``failed``.
        detail: cause of the outcome; empty for an outcome without a cause.
    """

    id: str
    names: tuple[str, ...]
    outcome: UndoOutcome
    detail: str


class UndoReport(Record):
    """Outcome of an undo.

    Attributes:
        id: id of the undo in the history.
        pass_id: id of the pass whose removals were undone.
    """

    id: str
    pass_id: str
    started_at: datetime
    duration_s: float
    results: tuple[UndoResult, ...]

    @property
    def failed(self) -> tuple[UndoResult, ...]:
        """Results of images whose undo failed."""
        return tuple(each for each in self.results if each.outcome is UndoOutcome.FAILED)


class NotUndoableError(UsageError):
    """No image removal of a pass is in its undo window."""


class ImageUndo(Record):
    """Service that lists image removals in their undo window, undoes them and ends undo windows.

    Attributes:
        storage: records of the removals.
        images: lists the images of the runtime.
        lock_path: pass lock file of the node.
        clock: ends undo windows and measures durations.
        window: configured undo window.
    """

    storage: StorageBackend
    images: CriClient
    lock_path: Path
    clock: Clock
    window: timedelta

    async def list_undoable(self) -> tuple[UndoableRemoval, ...]:
        """Return the removals that can be undone, newest first; empty without the containerd API.

        Raises:
            NodeAgentError: containerd cannot list leases.
        """
        records = self.storage.removals
        try:
            found = await records.undo.list_all() if records is not None else ()
        except RuntimeUnsupportedError:
            return ()
        now = self.clock.now()
        return tuple(each for each in found if not each.is_over(now))

    async def end_all(self) -> bool:
        """End all undo windows, without a garbage collection; return whether any window was open."""
        records = self.storage.removals
        if records is None:
            return False
        try:
            found = await records.undo.list_all()
        except RuntimeUnsupportedError:
            return False
        await records.undo.release(found, collect=False)
        return bool(found)

    async def undo(self, pass_id: str) -> UndoReport:
        """Restore the images removed by a pass; names that exist again are not changed.

        Args:
            pass_id: id of the pass or a prefix of the id; empty for the newest pass that can be undone.

        Raises:
            NotUndoableError: no removal of the pass can be undone.
            UsageError: ``pass_id`` is a prefix of several pass ids.
            PassBusyError: another pass runs on this node.
            RuntimeUnavailableError: the runtime is unavailable; the next pass completes an undo that has begun.
            NodeAgentError: the runtime cannot undo removals.
        """
        records = self.storage.removals
        if records is None:
            raise NodeAgentError(f"{_IMPOSSIBLE}: runtime.containerd_api is off")
        with process_lock(self.lock_path):
            started_at, started_s = self.clock.now(), self.clock.monotonic_s()
            try:
                found = await records.undo.list_all()
            except RuntimeUnsupportedError as error:
                raise NodeAgentError(f"{_IMPOSSIBLE}: this runtime is not containerd") from error
            chosen = _chosen([each for each in found if not each.is_over(started_at)], pass_id)
            results: list[UndoResult] = []
            for each in chosen:
                results += await self._undo(records, each)
            results = await self._listed(results)
            duration_s = self.clock.monotonic_s() - started_s
            return UndoReport(new_pass_id(started_at), chosen[0].pass_id, started_at, duration_s, tuple(results))

    async def _undo(self, records: RemovalRecords, removal: UndoableRemoval) -> list[UndoResult]:
        """Restore the names of one transaction; return the result of each image, ``failed`` after an error."""
        try:
            lease_id = await records.undo.reopen(removal, window=WINDOW)
            restored = await records.leases.restore(removal.names)
            await records.undo.release([removal], collect=False)
            await records.leases.release(lease_id, sync=False)
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return [UndoResult(*each, UndoOutcome.FAILED, str(error)) for each in by_image(removal.names)]
        return [_result(image_id, names, restored[image_id]) for image_id, names in by_image(removal.names)]

    async def _listed(self, results: list[UndoResult]) -> list[UndoResult]:
        """Wait for a bounded time until CRI lists the restored images; return the results, failed if unlisted.

        CRI adds restored images to its list with a delay, from containerd's events.
        """
        missing = {each.id for each in results if each.outcome is UndoOutcome.RESTORED}
        missing = await poll_images(self.images, missing - await self.images.image_ids(), set.difference)
        return [
            UndoResult(each.id, each.names, UndoOutcome.FAILED, "names restored, but CRI does not list the image")
            if each.id in missing
            else each
            for each in results
        ]


def _chosen(undoable: Sequence[UndoableRemoval], pass_id: str) -> tuple[UndoableRemoval, ...]:
    """Return the transactions of one pass.

    Raises:
        NotUndoableError: no removal of the pass can be undone.
        UsageError: ``pass_id`` is a prefix of several pass ids.
    """
    if not undoable:
        raise NotUndoableError("nothing to undo: no image removal is in its undo window")
    found = [each for each in undoable if each.pass_id.startswith(pass_id)] if pass_id else [undoable[0]]
    passes = list(dict.fromkeys(each.pass_id for each in found))
    if not passes:
        others = ", ".join(dict.fromkeys(each.pass_id for each in undoable))
        raise NotUndoableError(f"nothing to undo in pass {pass_id}; passes that can be undone: {others}")
    if len(passes) > 1 and pass_id not in passes:
        raise UsageError(f"{pass_id} is a prefix of several pass ids: {', '.join(passes)}")
    name = pass_id if pass_id in passes else passes[0]
    return tuple(each for each in undoable if each.pass_id == name)


def by_image(names: Iterable[ImageName]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each image id with the names of the image other than its id."""
    found: dict[str, list[str]] = {}
    for each in names:
        own = found.setdefault(each.image_id, [])
        if not each.is_id:
            own.append(each.stored.name)
    for image_id, own in found.items():
        yield image_id, tuple(own)


def _result(image_id: str, names: tuple[str, ...], restored: Restored) -> UndoResult:
    if restored.lost:
        detail = f"cannot restore {', '.join(restored.lost[:3])}: content is missing"
        return UndoResult(image_id, names, UndoOutcome.FAILED, detail)
    detail = f"kept as pulled since: {', '.join(restored.taken[:3])}" if restored.taken else ""
    if not restored.created:
        return UndoResult(image_id, names, UndoOutcome.PRESENT, detail or "all names exist: image was pulled since")
    return UndoResult(image_id, names, UndoOutcome.RESTORED, detail)
