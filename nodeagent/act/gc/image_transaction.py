"""Image removal as a transaction on containerd: names are deleted, and restored if the image turns out to be used.

CreateContainer calls in progress appear in no list, so no check before a removal can see them. Here the content of the
images is leased, their names are deleted, and the check comes afterwards: from then on no creation can begin. Images in
use by then get their names back; for the others the release of the lease is the removal, with one garbage collection
for all. See :mod:`nodeagent.runtime.image_leases` for the log of a transaction and
:mod:`nodeagent.act.gc.removal_recovery` for an interrupted one.

Every CRI RemoveImage runs a garbage collection of its own, and each collection walks all of containerd's metadata. One
for all images would be the shortest work, but not the shortest time: a collection removes the snapshots one after the
other, each with a write to the disk, and so does the deletion of the names before it. So a batch has several
transactions, and each deletes its names during the wait and the collection of the one before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nodeagent.act.gc.name_owners import conflict, names_by_image, owners_by_target
from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.act.gc.removers import FreshReader, ImageRemover, changed_since
from nodeagent.act.gc.settling import DEFAULT_SETTLE_S, Settled, Waits, settle
from nodeagent.errors import NodeAgentError, RuntimeRequestError, RuntimeTimeoutError, RuntimeUnavailableError
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.containerd_facts import is_pinned
from nodeagent.runtime.image_leases import MAX_LABELS_BYTES, holder_of
from nodeagent.runtime.metadata_graph import SNAPSHOTS
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime

    from nodeagent.act.gc.removers import RuntimeActions
    from nodeagent.act.gc.undo_terms import UndoTerms
    from nodeagent.clock import Clock
    from nodeagent.model import Hold, Image, NodeSnapshot
    from nodeagent.plan.decision import Decision
    from nodeagent.plan.gc.images import ImageGCPolicy
    from nodeagent.runtime.containerd_records import StoredImage
    from nodeagent.runtime.image_leases import ImageName, Restored
    from nodeagent.runtime.image_records import ImageExtent
    from nodeagent.runtime.storage_backend import RemovalRecords

T = TypeVar("T")

BATCH: Final = 200
"""Maximum number of images per call."""

PART: Final = 50
"""Maximum number of images per transaction."""

WINDOW: Final = timedelta(hours=24)
"""Lifetime of the lease of an interrupted transaction, as for containerd's own operations."""

_LONG_WINDOW: Final = timedelta(days=36_500)
_UNDO_WITHIN_S: Final = 5.0
_LISTED_WITHIN_S: Final = 20.0  # containerd 2's CRI service processes hundreds of deletions with seconds of delay
_FIRST_WAIT_S: Final = 0.02
_LAST_WAIT_S: Final = 1.0


class NameActions(Protocol):
    """Changes to image names, provided by the storage backend. Source: containerd ``images.v1.Images``."""

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete a name with that target digest; return whether it existed."""

    async def get_image_names(self, names: Sequence[str]) -> tuple[StoredImage, ...]:
        """Return the existing ones of these image names."""


class TransactionReader(FreshReader, Protocol):
    """Readings for transactions."""

    async def listed_images(self) -> Mapping[str, Image]:
        """Return the images that CRI lists, by id."""

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image that CRI lists."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An image to remove, with its names before the transaction."""

    decision: Decision
    image: Image
    names: tuple[ImageName, ...]

    @property
    def stored(self) -> tuple[StoredImage, ...]:
        return tuple(each.stored for each in self.names)


@dataclass(slots=True)
class _Transaction:
    """State of a transaction.

    Attributes:
        images: number of candidates.
        deleted: candidates whose names are deleted, by image id.
        keep: image id to the reason of candidates whose deletion began and is undone.
        uncertain: whether a deletion timed out, so that it can still take effect.
    """

    lease_id: str
    images: int
    extents: Mapping[str, ImageExtent]
    deleted: dict[str, _Candidate] = field(default_factory=dict)
    keep: dict[str, str] = field(default_factory=dict)
    uncertain: bool = False
    results: dict[str, Result | NodeAgentError] = field(default_factory=dict)


class TransactionalImageRemover(ImageRemover):
    """Removes images by their names, many per transaction, each behind the guard of :class:`ImageRemover`.

    Without a lease, or if CRI still lists removed images, the remaining images are removed through CRI, one by one.

    Attributes:
        batch_size: maximum number of images per call of :meth:`remove_many`.
    """

    batch_size = BATCH

    def __init__(  # noqa: PLR0913 - the guard's arguments and the image service
        self,
        reader: TransactionReader,
        actions: RuntimeActions,
        policy: ImageGCPolicy,
        template: NodeSnapshot,
        *,
        clock: Clock,
        read_holds: Callable[[], tuple[Hold, ...]],
        names: NameActions,
        records: RemovalRecords,
        settle_s: float = DEFAULT_SETTLE_S,
        undo: UndoTerms | None = None,
    ) -> None:
        """Compose the remover; see :class:`ImageRemover` for the guard's arguments.

        ``names`` deletes names, ``records`` has the leases and the creations in progress; ``settle_s`` is the maximum
        wait for these, once per transaction; ``undo`` is the undo window of the removals, if any.
        """
        super().__init__(reader, actions, policy, template, clock=clock, read_holds=read_holds)
        self._transaction_reader = reader
        self._names = names
        self._records = records
        self._settle_s = settle_s
        self._undo_terms = undo
        self._clock = clock
        self._unconfirmed: list[Result] = []
        self._works = True
        self._waits = Waits(clock)

    @property
    def settled_s(self) -> float:
        """Time so far in which every transaction waited for creations in progress, in seconds."""
        return self._waits.total_s

    async def remove_many(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        """Remove several images in transactions; skip images that are by now removed, in use or otherwise kept.

        Args:
            decisions: the removals.
            stop: when set, no further image is begun; the transactions are completed for the others.

        Returns:
            The result of each image, or the error of its removal, in order.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable; an open transaction is restored by the next pass.
        """
        if not self._works:
            return await self._through_cri(decisions, stop)
        chosen = await _catch(self._candidates(decisions))
        if isinstance(chosen, NodeAgentError):  # once more: it would fail the whole batch
            chosen = await _catch(self._candidates(decisions))
        if isinstance(chosen, NodeAgentError):
            return [chosen] * len(decisions)
        results, candidates = chosen
        if candidates:
            results |= await self._transact_all(candidates, stop)
        return [results[each.id] for each in decisions]

    async def _transact_all(
        self, candidates: Sequence[_Candidate], stop: asyncio.Event
    ) -> dict[str, Result | NodeAgentError]:
        """Run the transactions of a batch; each begins when the one before has deleted its names.

        Raises:
            RuntimeUnavailableError: the runtime became unavailable in every transaction. After other transactions the
                result of their images is exact; the error is then that of the images of the interrupted ones.
        """
        parts = [candidates[start : start + PART] for start in range(0, len(candidates), PART)]
        turn = asyncio.Lock()
        ended = await asyncio.gather(*(_caught(self._transact(part, stop, turn)) for part in parts))
        lost = [each for each in ended if isinstance(each, RuntimeUnavailableError)]
        if len(lost) == len(parts):
            raise lost[0]
        results: dict[str, Result | NodeAgentError] = {}
        for part, each in zip(parts, ended, strict=True):
            ids = [candidate.decision.id for candidate in part]
            results |= dict.fromkeys(ids, each) if isinstance(each, NodeAgentError) else each
        return results

    async def _candidates(
        self, decisions: Sequence[Decision]
    ) -> tuple[dict[str, Result | NodeAgentError], list[_Candidate]]:
        """Return the results of images that are not removed, and the others with their names."""
        listed, stored = await asyncio.gather(
            self._transaction_reader.listed_images(), self._records.leases.list_names()
        )
        names = names_by_image([listed[each.id] for each in decisions if each.id in listed], stored)
        images = {
            image_id: replace(listed[image_id], pinned=listed[image_id].pinned or any(is_pinned(n.stored) for n in own))
            for image_id, own in names.items()
        }
        kept = await self._keep_reasons(images, decisions) if images else {}
        owners = owners_by_target(listed.values(), stored)
        results: dict[str, Result | NodeAgentError] = {}
        candidates: list[_Candidate] = []
        recorded_bytes = 0
        for decision in decisions:
            image = images.get(decision.id)
            if image is None:
                results[decision.id] = Result(decision, Outcome.GONE, "already removed")
                continue
            own = names[image.id]
            recorded_bytes += sum(len(each.encoded) for each in own) * 4 // 3
            reason = (
                kept.get(image.id)
                or changed_since(self._template.observed_at, (each.stored for each in own), self._clock.now())
                or conflict(image.id, own, owners)
            )
            if reason:
                results[decision.id] = Result(decision, Outcome.CHANGED, f"kept: {reason}")
            elif not any(each.is_id for each in own) or recorded_bytes > MAX_LABELS_BYTES:
                results[decision.id] = await _catch(self.remove(decision))  # not as CRI stores images, or too large
            else:
                candidates.append(_Candidate(decision, image, own))
        return results, candidates

    async def _transact(
        self, candidates: Sequence[_Candidate], stop: asyncio.Event, turn: asyncio.Lock
    ) -> dict[str, Result | NodeAgentError]:
        """Remove images in one transaction; ``turn`` is held until their names are deleted."""
        names = [name for each in candidates for name in each.names]
        decisions = [each.decision for each in candidates]
        with self._waits.working():
            async with turn:
                transaction = await self._begin(candidates, names) if self._works and not stop.is_set() else None
                if transaction is None:
                    removed = await self._through_cri(decisions, stop)
                    return {decision.id: each for decision, each in zip(decisions, removed, strict=True)}
                deletions = run_bounded(lambda each: self._delete_names(transaction, each, stop), candidates)
                await self._undone_if_cancelled(deletions, names)
            await self._undone_if_cancelled(self._check(transaction), names)
            if not transaction.uncertain:  # else the lease remains: the next pass restores a name that is deleted late
                await self._release(transaction)
            return transaction.results

    async def _begin(self, candidates: Sequence[_Candidate], names: Sequence[ImageName]) -> _Transaction | None:
        """Lease the content; return ``None`` if that is impossible, such as on a full disk.

        Raises:
            RuntimeTimeoutError: containerd is slow; the images are kept rather than removed without a transaction.
        """
        extents = self._records.extents({each.image.id: each.stored for each in candidates})
        further = dict.fromkeys(piece for each in extents.values() for piece in each.further)
        try:
            lease_id = await self._records.leases.open(names, further, window=self._window)
        except (RuntimeUnavailableError, RuntimeTimeoutError):
            raise
        except RuntimeRequestError:  # nothing was deleted yet
            self._works = False
            return None
        return _Transaction(lease_id, len(candidates), extents)

    async def _check(self, transaction: _Transaction) -> None:
        """Wait for creations in progress, and restore the names of images in use."""
        if transaction.uncertain:
            transaction.keep |= dict.fromkeys(transaction.deleted, "effect of a name deletion unknown")
        elif transaction.deleted:
            transaction.keep |= await self._used(transaction)
        await self._restore(transaction)

    async def _undone_if_cancelled(self, work: Coroutine[object, object, object], names: Sequence[ImageName]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            await self._undo(names)
            raise

    @property
    def _window(self) -> timedelta:
        """The lifetime of a lease; it must not end early by a correction of an implausible wall clock."""
        clock = self._template.clock
        return WINDOW if not clock.problem and clock.untrusted_until is None else _LONG_WINDOW

    async def _undo(self, names: Sequence[ImageName]) -> None:
        """Restore all names, within a bounded time.

        The lease remains: a cancelled deletion can still take effect, and the next pass restores its name again.
        """
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_UNDO_WITHIN_S):
                await self._records.leases.restore(names)

    async def _delete_names(self, transaction: _Transaction, candidate: _Candidate, stop: asyncio.Event) -> None:
        """Delete an image's names, its id last: until then CRI can create containers from it.

        Its tags are read again first, since the names of the whole batch were read earlier: containerd before 2.0
        would delete a tag that was moved to another image meanwhile. Digests and ids are not moved.
        """
        decision, image_id = candidate.decision, candidate.image.id
        if stop.is_set():
            transaction.results[decision.id] = Result(decision, Outcome.NOT_ATTEMPTED, "pass stopped")
            return
        try:
            tags = [each for each in candidate.stored if "@" not in each.name and each.name != image_id]
            tags = tags or list(candidate.stored)
            current = await self._names.get_image_names([each.name for each in tags])
            if set(map(_identity, current)) != set(map(_identity, tags)):
                detail = "kept: pulled, tagged or untagged during the pass"
                transaction.results[decision.id] = Result(decision, Outcome.CHANGED, detail)
                return
            transaction.deleted[image_id] = candidate
            await asyncio.gather(*(self._delete_name(each) for each in candidate.names if not each.is_id))
            await asyncio.gather(*(self._delete_name(each) for each in candidate.names if each.is_id))
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            transaction.uncertain = transaction.uncertain or isinstance(error, RuntimeTimeoutError)
            if image_id in transaction.deleted:
                transaction.keep[image_id] = str(error)
            transaction.results[decision.id] = error

    async def _delete_name(self, name: ImageName) -> None:
        await self._names.delete_image(name.stored.name, sync=False, target=name.stored.target)

    async def _used(self, transaction: _Transaction) -> dict[str, str]:
        """Return the reasons to keep deleted images after a wait for creations in progress; all if unreadable."""
        deleted = transaction.deleted
        try:
            with self._waits.waiting():
                settled = await settle(self._records.creations, self._settle_s)
            return await self._users_now(transaction, settled)
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return dict.fromkeys(deleted, f"image use unreadable: {error}")

    async def _users_now(self, transaction: _Transaction, settled: Settled) -> dict[str, str]:
        deleted = transaction.deleted
        if settled.unprepared:
            return dict.fromkeys(deleted, "a container creation in progress has no snapshot yet")
        tops = {image_id: transaction.extents[image_id].tops for image_id in deleted if image_id in transaction.extents}
        snapshotters = {node.kind.removeprefix(SNAPSHOTS) for each in tops.values() for node in each}
        # Snapshots before containers: a creation that proceeds meanwhile is then seen as one or the other.
        prepared = await self._records.creations.prepared(snapshotters)
        kept, named = await asyncio.gather(
            self._keep_reasons(
                {image_id: each.image for image_id, each in deleted.items()},
                [each.decision for each in deleted.values()],
            ),
            self._records.leases.list_names(),
        )
        targets = {stored.target for stored, _ in named.values()}
        for image_id, candidate in deleted.items():
            snapshot = next((prepared[node] for node in tops.get(image_id, ()) if node in prepared), None)
            if snapshot is not None:
                kept.setdefault(image_id, f"container {snapshot[:12]} is being created from it")
            elif not tops.get(image_id) and settled.others:
                kept.setdefault(image_id, "not unpacked, and the runtime has operations in progress")
            elif any(each.name in named or each.target in targets for each in candidate.stored):
                kept.setdefault(image_id, "pulled or tagged during its removal")
        return kept

    async def _restore(self, transaction: _Transaction) -> None:
        """Restore the names of kept images, before the lease is released.

        Raises:
            NodeAgentError: a name could not be restored; the lease remains, and the next pass restores from it.
        """
        kept = [transaction.deleted[image_id] for image_id in transaction.keep]
        restored = await self._records.leases.restore(name for each in kept for name in each.names)
        for candidate in kept:
            image_id, decision = candidate.image.id, candidate.decision
            names = restored[image_id]
            outcome = Outcome.FAILED if names.lost else Outcome.CHANGED
            detail = f"kept: {transaction.keep[image_id]}; {_restored_text(names)}"
            if names.lost or decision.id not in transaction.results:
                transaction.results[decision.id] = Result(decision, outcome, detail)

    async def _release(self, transaction: _Transaction) -> None:
        """Delete the lease, which decides the removal, and wait for the garbage collection."""
        removed = [each for image_id, each in transaction.deleted.items() if image_id not in transaction.keep]
        undo = await self._keep_for_undo(transaction, removed)
        try:
            await self._records.leases.release(transaction.lease_id, sync=len(undo) < len(removed))
        except RuntimeTimeoutError:
            if any(each.lease_id == transaction.lease_id for each in await self._records.leases.list_open()):
                raise
        for candidate in removed:
            until = undo.get(candidate.image.id)
            detail = f"undo possible until {format_time(until)}" if until is not None else ""
            result = Result(candidate.decision, Outcome.DONE, detail, undo_until=until)
            transaction.results[candidate.decision.id] = result
            self._unconfirmed.append(result)

    async def _keep_for_undo(self, transaction: _Transaction, removed: Sequence[_Candidate]) -> Mapping[str, datetime]:
        """Keep the content of removed images that have an undo window; return its end by image id.

        An image without it is removed nevertheless: on a full disk no lease can be created.
        """
        terms = self._undo_terms
        covered = [each for each in removed if terms is not None and terms.covers(each.decision)]
        if terms is None or not covered:
            return {}
        until = self._clock.now() + terms.window
        extents = [transaction.extents[each.image.id] for each in covered if each.image.id in transaction.extents]
        try:
            await self._records.undo.keep(
                [name for each in covered for name in each.names],
                dict.fromkeys(piece for each in extents for piece in each.further),
                pass_id=terms.pass_id,
                window=terms.window,
                size_bytes=sum(each.decision.frees_bytes or 0 for each in covered),
                holder=holder_of(transaction.lease_id) if len(covered) == transaction.images else None,
            )
        except RuntimeUnavailableError:
            raise
        except NodeAgentError:
            return {}
        return {each.image.id: until for each in covered}

    async def _through_cri(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        return [
            Result(each, Outcome.NOT_ATTEMPTED, "pass stopped") if stop.is_set() else await _catch(self.remove(each))
            for each in decisions
        ]

    async def finish(self) -> tuple[Result, ...]:
        """Verify that CRI no longer lists the removed images.

        Returns:
            The results of images that CRI still listed, after their removal through CRI.
        """
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        if not unconfirmed:
            return ()
        listed = await self._still_listed({result.decision.id for result in unconfirmed})
        if not listed:
            return ()
        self._works = False
        return tuple([await self._remove_listed(each) for each in unconfirmed if each.decision.id in listed])

    async def _still_listed(self, deleted: set[str]) -> frozenset[str]:
        """Return the ids that CRI still lists after a bounded wait, or lists again.

        containerd's CRI service processes deletions from events, so it lists images for a while. There is no wait for
        images that have a name again.
        """
        listed = deleted & await self._transaction_reader.image_ids()
        named = {each.name for each in await self._names.get_image_names(sorted(listed))}
        stale, waited_s, wait_s = listed - named, 0.0, _FIRST_WAIT_S
        while stale and waited_s < _LISTED_WITHIN_S:
            await asyncio.sleep(wait_s)
            waited_s, wait_s = waited_s + wait_s, min(2 * wait_s, _LAST_WAIT_S)
            stale &= await self._transaction_reader.image_ids()
        return frozenset(stale | named)

    async def _remove_listed(self, result: Result) -> Result:
        """Return the result of an image that CRI still lists: kept if pulled again, else removed through CRI."""
        try:
            image, names = await self._reader.image_and_names(result.decision.id)
            if image is None:
                return result
            if names:
                return replace(result, outcome=Outcome.CHANGED, detail="kept: named again during the removal")
            removed = await self.remove(result.decision)
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return replace(result, outcome=Outcome.FAILED, detail=str(error))
        detail = removed.detail or "still listed by CRI after its names were deleted; removed through CRI"
        return replace(removed, detail=detail, duration_s=result.duration_s)


def _identity(name: StoredImage) -> tuple[object, ...]:
    return name.name, name.target, name.created, name.updated


def _restored_text(restored: Restored) -> str:
    if restored.lost:
        return f"cannot restore {', '.join(restored.lost[:3])}: content is missing"
    if restored.taken:
        return f"names restored, except {', '.join(restored.taken[:3])}, which refers to another image now"
    return "names restored"


async def _catch(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return the result of ``work``, or its error unless the runtime is unavailable."""
    try:
        return await work
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error


async def _caught(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return the result of ``work``, or its error."""
    try:
        return await work
    except NodeAgentError as error:
        return error
