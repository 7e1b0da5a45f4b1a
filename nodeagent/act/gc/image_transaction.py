"""Image removal as a transaction on containerd: names are deleted, and restored if the image turns out to be used.

CreateContainer calls in progress appear in no list, so no check before a removal can see them. Here the content of the
images is leased, their names are deleted, and the check comes afterwards: from then on no creation can begin. Images in
use by then get their names back; for the others the release of the lease is the removal, with one garbage collection
for all. See :mod:`nodeagent.runtime.image_leases` for the log of a transaction and
:mod:`nodeagent.act.gc.removal_recovery` for an interrupted one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.act.gc.settling import Settled, settle
from nodeagent.errors import NodeAgentError, RuntimeTimeoutError, RuntimeUnavailableError
from nodeagent.record import Record
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.image_leases import holder_of
from nodeagent.runtime.metadata_graph import SNAPSHOTS
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
    from datetime import datetime

    from nodeagent.act.gc.settling import Waits
    from nodeagent.act.gc.undo_terms import UndoTerms
    from nodeagent.clock import Clock
    from nodeagent.model import Image
    from nodeagent.plan.decision import Decision
    from nodeagent.runtime.containerd_records import StoredImage
    from nodeagent.runtime.image_leases import ImageName, Restored
    from nodeagent.runtime.image_records import ImageExtent
    from nodeagent.runtime.storage_backend import RemovalRecords

WINDOW: Final = timedelta(hours=24)
"""Lifetime of the lease of an interrupted transaction, as for containerd's own operations."""

_UNDO_WITHIN_S: Final = 5.0
LONGEST_DELETION_S: Final = 300.0
"""Time after the creation of the lease in which names are deleted, much shorter than ``LONGEST_REMOVAL``.

A process that was suspended for longer deletes none: another agent can have restored them and released the lease.
"""

LONGEST_REMOVAL: Final = timedelta(minutes=15)
"""Age at which a removal whose process is unknown is taken for interrupted."""


class NameActions(Protocol):
    """Changes to image names, provided by the storage backend. Source: containerd ``images.v1.Images``."""

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete a name with that target digest; return whether it existed."""

    async def get_image_names(self, names: Sequence[str]) -> tuple[StoredImage, ...]:
        """Return the existing ones of these image names."""


class Candidate(Record):
    """An image to remove, with its names before the transaction."""

    decision: Decision
    image: Image
    names: tuple[ImageName, ...]

    @property
    def stored(self) -> tuple[StoredImage, ...]:
        """The stored names."""
        return tuple(each.stored for each in self.names)


class OpenedLease(NamedTuple):
    """The lease of a transaction; ``opened_s`` is the monotonic time before its creation."""

    id: str
    opened_s: float


class _Undo(NamedTuple):
    """Undo of a removal: the end of its window, ``None`` without one, and the detail of its result."""

    until: datetime | None
    detail: str


_NO_UNDO: Final = _Undo(None, "")


class TransactionServices(Record):
    """Services and settings of all transactions of a remover.

    Attributes:
        names: deletes names.
        records: the leases and the creations in progress.
        keep_reasons: plans images again on fresh state; returns the reason by image id, for kept images only.
        clock: for the end of undo windows.
        waits: measures the time in which all transactions wait.
        settle_s: maximum wait for creations in progress, once per transaction.
        undo_terms: the undo window of the removals; ``None`` without one.
    """

    names: NameActions
    records: RemovalRecords
    keep_reasons: Callable[[Mapping[str, Image], Sequence[Decision]], Awaitable[dict[str, str]]]
    clock: Clock
    waits: Waits
    settle_s: float
    undo_terms: UndoTerms | None


class ImageTransaction:
    """A removal of several images whose content is leased, in three steps in this order.

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
        self._keep: dict[str, str] = {}  # image id to the reason of candidates whose deletion began and is undone
        self._uncertain = False  # whether a deletion timed out, so that it can still take effect
        self._undo: dict[str, _Undo] = {}  # of the images that have an undo window, by image id
        self._undo_lease_id = ""

    async def delete_names(self, stop: asyncio.Event) -> None:
        """Delete the names of the images; ``stop`` prevents the deletion for images that are not begun."""
        await self._undone_if_cancelled(
            run_bounded(lambda each: self._delete_image_names(each, stop), self._candidates)
        )

    async def restore_used(self) -> None:
        """Wait for creations in progress, and restore the names of images in use.

        Raises:
            NodeAgentError: a name could not be restored; the lease remains, and the next pass restores from it.
        """
        await self._undone_if_cancelled(self._check())

    async def release(self) -> list[Result]:
        """Delete the lease, which decides the removal, and wait for the garbage collection.

        Returns:
            The results of the removed images. None, with the lease in place, if a deletion can still take effect: the
            next pass restores a name that is deleted late.
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
        """Restore the images in use, until a reading finds no further one; the release follows that reading at once.

        Restores and the creation of the undo lease take time, in which a creation can proceed.
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

        The lease remains: a cancelled deletion can still take effect, and the next pass restores its name again.
        """
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_UNDO_WITHIN_S):
                await self._services.records.leases.restore(name for each in self._candidates for name in each.names)

    async def _delete_image_names(self, candidate: Candidate, stop: asyncio.Event) -> None:
        """Delete an image's names, its id last: until then CRI can create containers from it.

        Its tags are read again first, since the names of the whole batch were read earlier: containerd before 2.0
        would delete a tag that was moved to another image meanwhile. Digests and ids are not moved.
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
        try:
            with self._services.waits.waiting():
                services = self._services
                return await settle(
                    services.records.creations, self._wait_for_writes, services.clock, services.settle_s
                )
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return error

    async def _wait_for_writes(self) -> None:
        await self._services.records.leases.wait_for_writes(self._lease.id)

    async def _used(self, settled: Settled | NodeAgentError) -> dict[str, str]:
        """Return the reasons to keep further deleted images; all if unreadable."""
        images = self._to_remove
        if isinstance(settled, NodeAgentError):
            return dict.fromkeys(images, f"image use unreadable: {settled}")
        if settled.unprepared:
            return dict.fromkeys(images, "a container creation in progress has no snapshot yet")
        try:
            return await self._users_now(images, settled) if images else {}
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return dict.fromkeys(images, f"image use unreadable: {error}")

    async def _users_now(self, images: Mapping[str, Candidate], settled: Settled) -> dict[str, str]:
        tops = {image_id: self._extents[image_id].tops for image_id in images if image_id in self._extents}
        snapshotters = {node.kind.removeprefix(SNAPSHOTS) for each in tops.values() for node in each}
        # A collection delays the release that follows, and the creations that could proceed until then.
        await self._wait_for_writes()
        # Snapshots before containers: a creation that proceeds meanwhile is then seen as one or the other.
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
                kept.setdefault(image_id, f"container {snapshot[:12]} is being created from it")
            elif not tops.get(image_id) and settled.others:
                kept.setdefault(image_id, "not unpacked, and the runtime has operations in progress")
            elif any(each.name in named or each.target in targets for each in candidate.stored):
                kept.setdefault(image_id, "pulled or tagged during its removal")
        return kept

    async def _restore(self, image_ids: Iterable[str]) -> None:
        """Restore the names of kept images, before the lease is released.

        Raises:
            NodeAgentError: a name could not be restored; the lease remains, and the next pass restores from it.
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
        """Keep the content of the images to be removed that have an undo window, in a lease of exactly these.

        An image without it is removed nevertheless: on a full disk no lease can be created.
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

    Without the wait, a deletion still in progress after the error of another one could take effect after the restore.
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
