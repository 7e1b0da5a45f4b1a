"""Image removal as a transaction on containerd: image names are deleted, and restored if the image is in use.

CreateContainer calls in progress appear in no list, so no check before a removal can detect them. A transaction
therefore leases the content of the images and deletes their names, so that no new creation can start. Only then the
transaction checks for use, and restores the names of images in use. The release of the lease removes all other images
with one garbage collection. See :mod:`nodeagent.runtime.leases` for the log of a transaction and
:mod:`nodeagent.gc.restore` for the recovery of an interrupted transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import (
    NodeAgentError,
    RuntimeRequestError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    RuntimeUnsupportedError,
)
from nodeagent.gc.executor import Outcome, Result, caught
from nodeagent.gc.guard import Settled, Waits, settle
from nodeagent.record import Record
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.leases import ImageName, Restored, holder_of, is_disk_full
from nodeagent.runtime.namespace_lists import SNAPSHOTS
from nodeagent.units import Clock, format_time

if TYPE_CHECKING:
    from nodeagent.gc.pass_state import UndoTerms
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.decision import Decision
    from nodeagent.model.runtime import Image
    from nodeagent.runtime.containerd import StoredImage
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import RemovalRecords, StorageBackend
    from nodeagent.runtime.storage_graph import ImageExtent

WINDOW: Final = timedelta(hours=24)
"""Lifetime of a transaction's lease, after which containerd deletes the lease; the same as containerd's default."""

_UNDO_WITHIN_S: Final = 5.0
LONGEST_DELETION_S: Final = 300.0
"""Maximum time from the creation of the lease to a deletion of names, much shorter than ``LONGEST_REMOVAL``.

A process that was suspended for longer deletes no names: another agent may have restored the names and released the
lease.
"""

LONGEST_REMOVAL: Final = timedelta(minutes=15)
"""Age from which a removal by an unknown process counts as interrupted."""

_LISTED_WITHIN_S: Final = 20.0  # containerd 2's CRI service processes hundreds of deletions with seconds of delay
_FIRST_WAIT_S: Final = 0.02
_LAST_WAIT_S: Final = 1.0


async def poll_images(
    images: CriClient, ids: set[str], remaining: Callable[[set[str], frozenset[str]], set[str]]
) -> set[str]:
    """Return ``ids`` after a bounded wait, reduced by ``remaining`` with each list of image ids until none is left.

    containerd's CRI service changes its list with a delay, from events.
    """
    waited_s, wait_s = 0.0, _FIRST_WAIT_S
    while ids and waited_s < _LISTED_WITHIN_S:
        await asyncio.sleep(wait_s)
        waited_s, wait_s = waited_s + wait_s, min(2 * wait_s, _LAST_WAIT_S)
        ids = remaining(ids, await images.image_ids())
    return ids


class Candidate(Record):
    """An image to remove, with its names before the transaction."""

    decision: Decision
    image: Image
    names: tuple[ImageName, ...]

    @property
    def stored(self) -> tuple[StoredImage, ...]:
        """Records of the names in containerd."""
        return tuple(each.stored for each in self.names)


class OpenedLease(NamedTuple):
    """The lease of a transaction; ``opened_s`` is the monotonic time before its creation."""

    id: str
    opened_s: float


class _Undo(NamedTuple):
    """Undo window of a removed image: its end, ``None`` if the image has no undo, and the detail text of the result."""

    until: datetime | None
    detail: str


_NO_UNDO: Final = _Undo(None, "")


class TransactionServices(Record):
    """Services and settings of all transactions of a remover.

    Attributes:
        names: reads and deletes image names.
        records: the leases and the creations in progress.
        keep_reasons: plans the images again with the current state; returns the reason of each kept image, by id.
        clock: source of time for undo windows and deadlines.
        waits: measures the time in which all transactions are waiting.
        settle_s: maximum wait for creations in progress, once per transaction.
        undo_terms: the undo window of the removals; ``None`` without an undo window.
    """

    names: StorageBackend
    records: RemovalRecords
    keep_reasons: Callable[[Mapping[str, Image], Sequence[Decision]], Awaitable[dict[str, str]]]
    clock: Clock
    waits: Waits
    settle_s: float
    undo_terms: UndoTerms | None


class ImageTransaction:
    """Removal of several leased images: ``delete_names``, ``restore_used`` and ``release``, in this order.

    Attributes:
        results: result of each image, or the error of its removal, by decision id; complete after :meth:`release`.
    """

    def __init__(
        self,
        services: TransactionServices,
        lease: OpenedLease,
        candidates: Sequence[Candidate],
        extents: Mapping[str, ImageExtent],
    ) -> None:
        self.results: dict[str, Result | NodeAgentError] = {}
        self._services = services
        self._lease = lease
        self._candidates = candidates
        self._extents = extents
        self._deleted: dict[str, Candidate] = {}  # candidates whose names are deleted, by image id
        self._keep: dict[str, str] = {}  # keep reasons of candidates whose deletion is undone, by image id
        self._uncertain = False  # whether a deletion timed out, so that it can still take effect
        self._undo: dict[str, _Undo] = {}  # undo windows by image id
        self._undo_lease_id = ""

    async def delete_names(self, stop: asyncio.Event) -> None:
        """Delete the names of the images; once ``stop`` is set, no deletion of a further image starts."""
        await self._undone_if_cancelled(
            run_bounded(lambda each: self._delete_image_names(each, stop), self._candidates)
        )

    async def restore_used(self) -> None:
        """Wait for creations in progress, and restore the names of images in use.

        Raises:
            NodeAgentError: a name could not be restored; the lease is kept, and the next pass restores the name.
        """
        await self._undone_if_cancelled(self._check())

    async def release(self) -> list[Result]:
        """Delete the lease, which commits the removal, and wait for the garbage collection.

        Returns:
            The results of the removed images. The list is empty, and the lease is kept, if a name deletion can still
            take effect: the next pass then restores the name.
        """
        if self._uncertain:
            return []
        removed, leases = self._to_remove, self._services.records.leases
        try:
            final = any(self._undo.get(image_id, _NO_UNDO).until is None for image_id in removed)
            await leases.release(self._lease.id, sync=final)
        except RuntimeTimeoutError:
            if any(each.lease_id == self._lease.id for each in await leases.list_open()):
                raise
        results = []
        for image_id, candidate in removed.items():
            until, detail = self._undo.get(image_id, _NO_UNDO)
            results.append(Result(candidate.decision, Outcome.DONE, detail, undo_until=until))
        self.results |= {each.decision.id: each for each in results}
        return results

    @property
    def _to_remove(self) -> dict[str, Candidate]:
        return {image_id: each for image_id, each in self._deleted.items() if image_id not in self._keep}

    async def _check(self) -> None:
        """Restore the images in use, until a reading finds no further image in use.

        Each restore and each creation of the undo lease is followed by a new reading, since a container creation can
        proceed meanwhile. The release of the lease follows the last reading immediately.
        """
        if self._uncertain:
            self._keep |= dict.fromkeys(self._deleted, "effect of a name deletion unknown")
        await self._restore(list(self._keep))
        if not self._to_remove:
            return
        settled, _ = await asyncio.gather(self._settle(), self._keep_for_undo())
        while used := await self._used(settled):
            self._keep |= used
            await self._restore(used)
            await self._keep_for_undo()

    async def _undone_if_cancelled(self, work: Coroutine[object, object, object]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            await self._restore_all()
            raise

    async def _restore_all(self) -> None:
        """Restore all names, within a bounded time.

        The lease is kept: a cancelled deletion can still take effect, and the next pass restores that name again.
        """
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_UNDO_WITHIN_S):
                await self._services.records.leases.restore(name for each in self._candidates for name in each.names)

    async def _delete_image_names(self, candidate: Candidate, stop: asyncio.Event) -> None:
        """Delete the names of an image, its id last: CRI can create containers from the image until the id is deleted.

        The tags are read again first, since the names of the whole batch were read earlier: containerd before 2.0
        would delete a tag that was moved to another image meanwhile. Digests and ids never move.
        """
        decision, image_id = candidate.decision, candidate.image.id
        if stop.is_set():
            self.results[decision.id] = Result(decision, Outcome.NOT_ATTEMPTED, "pass stopped")
            return
        try:
            tags = [each for each in candidate.stored if "@" not in each.name and each.name != image_id]
            tags = tags or list(candidate.stored)
            current = await self._services.names.get_image_names([each.name for each in tags])
            if set(map(_identity, current)) != set(map(_identity, tags)):
                detail = "kept: pulled, tagged or untagged during the pass"
                self.results[decision.id] = Result(decision, Outcome.CHANGED, detail)
                return
            if self._services.clock.monotonic_s() - self._lease.opened_s > LONGEST_DELETION_S:
                self.results[decision.id] = Result(decision, Outcome.FAILED, "kept: the agent was suspended")
                return
            self._deleted[image_id] = candidate
            await _all_done(self._delete_name(each) for each in candidate.names if not each.is_id)
            await _all_done(self._delete_name(each) for each in candidate.names if each.is_id)
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            self._uncertain = self._uncertain or isinstance(error, RuntimeTimeoutError)
            if image_id in self._deleted:
                self._keep[image_id] = str(error)
            self.results[decision.id] = error

    async def _delete_name(self, name: ImageName) -> None:
        await self._services.names.delete_image(name.stored.name, sync=False, target=name.stored.target)

    async def _settle(self) -> Settled | NodeAgentError:
        services = self._services
        with services.waits.waiting():
            creations = services.records.creations
            return await caught(settle(creations, self._wait_for_writes, services.clock, services.settle_s))

    async def _wait_for_writes(self) -> None:
        await self._services.records.leases.wait_for_writes(self._lease.id)

    async def _used(self, settled: Settled | NodeAgentError) -> dict[str, str]:
        """Return the keep reasons of deleted images in use, by image id; all images if their use is unreadable."""
        images = self._to_remove
        if isinstance(settled, NodeAgentError):
            return dict.fromkeys(images, f"image use unreadable: {settled}")
        if settled.unprepared:
            return dict.fromkeys(images, "a container creation in progress has no snapshot yet")
        used = await caught(self._users_now(images, settled)) if images else {}
        return dict.fromkeys(images, f"image use unreadable: {used}") if isinstance(used, NodeAgentError) else used

    async def _users_now(self, images: Mapping[str, Candidate], settled: Settled) -> dict[str, str]:
        tops = {image_id: self._extents[image_id].tops for image_id in images if image_id in self._extents}
        snapshotters = {node.kind.removeprefix(SNAPSHOTS) for each in tops.values() for node in each}
        # Wait for a garbage collection in progress: it would delay the release, and creations could proceed meanwhile.
        await self._wait_for_writes()
        # Snapshots are read before containers, so that a creation in progress appears in at least one of the readings.
        records = self._services.records
        prepared = await records.creations.prepared(snapshotters, records.snapshotters())
        kept, named = await asyncio.gather(
            self._services.keep_reasons(
                {image_id: each.image for image_id, each in images.items()},
                [each.decision for each in images.values()],
            ),
            records.leases.list_names(),
        )
        targets = {stored.target for stored, _ in named.values()}
        for image_id, candidate in images.items():
            snapshot = next((prepared[node.id] for node in tops.get(image_id, ()) if node.id in prepared), None)
            if snapshot is not None:
                kept.setdefault(image_id, f"container {snapshot[:12]} is being created from the image")
            elif not tops.get(image_id) and settled.others:
                kept.setdefault(image_id, "not unpacked, and the runtime has operations in progress")
            elif any(each.name in named or each.target in targets for each in candidate.stored):
                kept.setdefault(image_id, "pulled or tagged during its removal")
        return kept

    async def _restore(self, image_ids: Iterable[str]) -> None:
        """Restore the names of kept images, before the lease is released.

        Raises:
            NodeAgentError: a name could not be restored; the lease is kept, and the next pass restores the name.
        """
        kept = [self._deleted[image_id] for image_id in image_ids]
        restored = await self._services.records.leases.restore(name for each in kept for name in each.names)
        for candidate in kept:
            image_id, decision = candidate.image.id, candidate.decision
            names = restored[image_id]
            outcome = Outcome.FAILED if names.lost else Outcome.CHANGED
            detail = f"kept: {self._keep[image_id]}; {_restored_text(names)}"
            if names.lost or decision.id not in self.results:
                self.results[decision.id] = Result(decision, outcome, detail)

    async def _keep_for_undo(self) -> None:
        """Lease the content of exactly those images to remove that have an undo window.

        If the lease fails, the images are removed nevertheless: on a full disk no lease can be created.
        """
        terms, leases = self._services.undo_terms, self._services.records.leases
        covered = [each for each in self._to_remove.values() if terms is not None and terms.covers(each.decision)]
        ids = [each.image.id for each in covered]
        if ids == list(self._undo):
            return
        superseded, self._undo_lease_id, self._undo = self._undo_lease_id, "", {}
        if superseded:
            await leases.release(superseded, sync=False)
        if terms is None or not covered:
            return
        until = self._services.clock.now() + terms.window
        extents = [self._extents[each.image.id] for each in covered if each.image.id in self._extents]
        try:
            self._undo_lease_id = await self._services.records.undo.keep(
                [name for each in covered for name in each.names],
                dict.fromkeys(piece for each in extents for piece in each.further),
                pass_id=terms.pass_id,
                window=terms.window,
                size_bytes=sum(each.decision.frees_bytes or 0 for each in covered),
                holder=holder_of(self._lease.id) if len(covered) == len(self._candidates) else None,
            )
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            self._undo = dict.fromkeys(ids, _Undo(None, f"no undo possible: {error}"))
        else:
            self._undo = dict.fromkeys(ids, _Undo(until, f"undo possible until {format_time(until)}"))


def _identity(name: StoredImage) -> tuple[object, ...]:
    return name.name, name.target, name.created, name.updated


async def _all_done(calls: Iterable[Coroutine[object, object, object]]) -> None:
    """Wait for all calls, then raise their most uncertain error: runtime unavailable, timed out, any other.

    Without the wait, a deletion still in progress after another deletion failed could take effect after the restore.
    """
    done = await asyncio.gather(*calls, return_exceptions=True)
    errors = [each for each in done if isinstance(each, BaseException)]
    for kind in (RuntimeUnavailableError, RuntimeTimeoutError, BaseException):
        for each in errors:
            if isinstance(each, kind):
                raise each


def _restored_text(restored: Restored) -> str:
    if restored.lost:
        return f"cannot restore {', '.join(restored.lost[:3])}: content is missing"
    if restored.taken:
        return f"names restored, except {', '.join(restored.taken[:3])}, which refers to another image now"
    return "names restored"


_LONG_WINDOW: Final = timedelta(days=36_500)
RETRY_AFTER_S: Final = (0.1, 0.5)
"""Seconds to wait before each further attempt to create a refused lease."""


class LeaseRefusedError(NodeAgentError):
    """containerd refused the lease of a transaction; nothing was deleted."""


async def begin(
    services: TransactionServices, candidates: Sequence[Candidate], clock: ClockTrust
) -> ImageTransaction | None:
    """Lease the content of images and return the transaction.

    The result is ``None`` if images can only be removed without a transaction: the runtime has no leases, or the disk
    is too full for the record of a lease (container creations then fail too).

    Args:
        services: services of the remover.
        candidates: the images to remove.
        clock: trust in the wall clock at the plan. With an untrusted clock the lease has a very long lifetime, so that
            a clock correction does not end the lease early.

    Raises:
        RuntimeUnavailableError: the runtime is unavailable.
        LeaseRefusedError: containerd refused the lease several times; the images are kept.
        NodeAgentError: containerd is slow; the images are kept rather than removed without a transaction.
    """
    extents = services.records.extents({each.image.id: each.stored for each in candidates})
    further = dict.fromkeys(piece for each in extents.values() for piece in each.further)
    names = [name for each in candidates for name in each.names]
    window = WINDOW if not clock.problem and clock.untrusted_until is None else _LONG_WINDOW
    refused: RuntimeRequestError | None = None
    for wait_s in (0.0, *RETRY_AFTER_S):
        await asyncio.sleep(wait_s)
        opened_s = services.clock.monotonic_s()
        try:
            lease_id = await services.records.leases.open(names, further, window=window)
        except (RuntimeUnavailableError, RuntimeTimeoutError):
            raise
        except RuntimeUnsupportedError:
            return None
        except RuntimeRequestError as error:
            if is_disk_full(error):
                return None
            refused = error
        else:
            return ImageTransaction(services, OpenedLease(lease_id, opened_s), candidates, extents)
    raise LeaseRefusedError(
        f"kept: containerd refused the lease that keeps images restorable during their removal: {refused}; "
        'image_gc.removal = "cri" removes images without it'
    )
