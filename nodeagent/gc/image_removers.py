"""Removal of images by their names: in transactions where the content can be leased, through CRI otherwise.

Every CRI RemoveImage runs a separate garbage collection, and each collection walks all of containerd's metadata. A
single collection for all images would be the least work, but would take longer: the deletion of names and the
collection both write to disk sequentially. Therefore a batch has several transactions. Each transaction deletes its
names while the previous transaction waits and collects, and creates its lease while the previous transaction deletes
names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.gc.executor import Outcome, Result, caught
from nodeagent.gc.guard import DEFAULT_SETTLE_S, CurrentReader, Waits
from nodeagent.gc.removers import ImageRemover, changed_since
from nodeagent.gc.transaction import (
    Candidate,
    ImageTransaction,
    LeaseRefusedError,
    TransactionServices,
    begin,
    poll_images,
)
from nodeagent.record import replace
from nodeagent.runtime.leases import MAX_LABELS_BYTES, ImageName
from nodeagent.runtime.storage_graph import with_labels

if TYPE_CHECKING:
    from nodeagent.gc.pass_state import UndoTerms
    from nodeagent.gc.plan.policy import ImageGCPolicy
    from nodeagent.model.decision import Decision
    from nodeagent.model.node import Hold, NodeSnapshot
    from nodeagent.model.runtime import Image
    from nodeagent.runtime.containerd import StoredImage
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import RemovalRecords, StorageBackend
    from nodeagent.units import Clock


def names_by_image(
    images: Collection[Image], stored: Mapping[str, tuple[StoredImage, bytes]]
) -> dict[str, tuple[ImageName, ...]]:
    """Return all names of each image, by image id: every name with the same target as a CRI name of the image.

    These include names that CRI cannot parse. Each remaining name would prevent the removal of the content.
    """
    by_target: dict[str, list[tuple[StoredImage, bytes]]] = {}
    for each in stored.values():
        by_target.setdefault(each[0].target, []).append(each)
    found = {}
    for image in images:
        targets = {stored[name][0].target for name in (*image.references, image.id) if name in stored}
        own = [each for target in sorted(targets) for each in by_target[target]]
        found[image.id] = tuple(ImageName(image.id, name, encoded) for name, encoded in own)
    return found


def owners_by_target(
    images: Iterable[Image], stored: Mapping[str, tuple[StoredImage, bytes]]
) -> dict[str, frozenset[str]]:
    """Return, by target digest, the ids of the images to which CRI attributes a name with that target."""
    owners: dict[str, set[str]] = {}
    for image in images:
        for name in (*image.references, image.id):
            if name in stored:
                owners.setdefault(stored[name][0].target, set()).add(image.id)
    for name, (record, _) in stored.items():
        if name.startswith("sha256:"):  # an image that CRI stores, but does not list yet
            owners.setdefault(record.target, set()).add(name)
    return {target: frozenset(each) for target, each in owners.items()}


def conflict(image_id: str, own: Sequence[ImageName], owners: Mapping[str, frozenset[str]]) -> str:
    """Return the reason to keep an image after one of its names was moved to another image; otherwise empty.

    CRI processes a moved tag with a delay, and attributes the tag to the old image until then. Names with the new
    target of the tag are names of the other image, which can be in use.
    """
    for each in own:
        others = owners.get(each.stored.target, frozenset()) - {image_id}
        if others:
            return f"{each.stored.name} refers to image {min(others)[:19]} as well, or was moved to it"
    return ""


T = TypeVar("T")

BATCH: Final = 200
"""Maximum number of images per call."""

PARTS: Final = (15, 35, 75)
"""Maximum number of images of the first transactions of a batch; the last number is also for all later transactions.

A small first transaction starts the first collection sooner, and larger ones cause fewer collections.
"""


class _Queue(NamedTuple):
    """Order of the transactions of a batch.

    Attributes:
        start: held while a transaction creates its lease and waits for ``deletion``, by one transaction at most.
        deletion: held while a transaction deletes its names.
    """

    start: asyncio.Lock
    deletion: asyncio.Lock


class TransactionalImageRemover(ImageRemover):
    """Remover of images by name, many per transaction, each after the checks of :class:`ImageRemover`.

    Images are removed one by one through CRI if the runtime has no leases, or if the disk is too full for the record of
    a lease. After any other refusal of a lease, the remaining images are kept.

    Attributes:
        batch_size: maximum number of images per call of :meth:`remove_many`.
    """

    batch_size = BATCH

    def __init__(  # noqa: PLR0913 - the guard's arguments and the image service
        self,
        reader: CurrentReader,
        actions: CriClient,
        policy: ImageGCPolicy,
        template: NodeSnapshot,
        *,
        clock: Clock,
        read_holds: Callable[[], tuple[Hold, ...]],
        names: StorageBackend,
        records: RemovalRecords,
        settle_s: float = DEFAULT_SETTLE_S,
        undo: UndoTerms | None = None,
    ) -> None:
        """Compose the remover; see :class:`ImageRemover` for the guard's arguments.

        ``names`` reads and deletes image names, ``records`` has the leases and the creations in progress. ``settle_s``
        is the maximum wait in seconds for creations in progress, once per transaction. ``undo`` is the undo window of
        the removals; ``None`` without an undo window.
        """
        super().__init__(reader, actions, policy, template, clock=clock, read_holds=read_holds)
        self._services = TransactionServices(
            names=names,
            records=records,
            keep_reasons=self._keep_reasons,
            clock=clock,
            waits=Waits(clock),
            settle_s=settle_s,
            undo_terms=undo,
        )
        self._unconfirmed: list[Result] = []
        self._refused: LeaseRefusedError | None = None

    @property
    def settled_s(self) -> float:
        """Seconds so far in which all transactions were waiting for creations in progress."""
        return self._services.waits.total_s

    async def remove_many(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        """Remove several images in transactions; skip images that are already removed, in use or kept by another rule.

        Args:
            decisions: the removals.
            stop: when set, no removal of a further image starts; started transactions are completed.

        Returns:
            The result of each image, or the error of its removal, in order.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable; the next pass restores the images of open transactions.
        """
        chosen = await caught(self._candidates(decisions))
        if isinstance(chosen, NodeAgentError):  # one retry, since the error fails the whole batch
            chosen = await caught(self._candidates(decisions))
        if isinstance(chosen, NodeAgentError):
            return [chosen] * len(decisions)
        results, candidates = chosen
        if candidates:
            results |= await self._transact_all(candidates, stop)
        return [results[each.id] for each in decisions]

    async def _transact_all(
        self, candidates: Sequence[Candidate], stop: asyncio.Event
    ) -> dict[str, Result | NodeAgentError]:
        """Run the transactions of a batch concurrently; only their name deletions run one after another.

        Raises:
            RuntimeUnavailableError: the runtime became unavailable in every transaction. If any transaction completed,
                the error is returned as the result of the images of the interrupted transactions instead.
        """
        parts = list(_parts(candidates))
        queue = _Queue(asyncio.Lock(), asyncio.Lock())
        ended = await asyncio.gather(*(_caught_all(self._transact(part, stop, queue)) for part in parts))
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
    ) -> tuple[dict[str, Result | NodeAgentError], list[Candidate]]:
        """Return the results of images without a transaction, and the candidates for transactions with their names."""
        images_now, stored = await asyncio.gather(
            self._actions.list_images(), self._services.records.leases.list_names()
        )
        listed = {image.id: image for image in images_now}
        names = names_by_image([listed[each.id] for each in decisions if each.id in listed], stored)
        images = {
            image_id: with_labels(listed[image_id], (each.stored for each in own)) for image_id, own in names.items()
        }
        kept = await self._keep_reasons(images, decisions) if images else {}
        owners = owners_by_target(listed.values(), stored)
        results: dict[str, Result | NodeAgentError] = {}
        candidates: list[Candidate] = []
        for decision in decisions:
            image = images.get(decision.id)
            if image is None:
                results[decision.id] = Result(decision, Outcome.GONE, "already removed")
                continue
            own = names[image.id]
            reason = (
                kept.get(image.id)
                or changed_since(self._template.observed_at, (each.stored for each in own), self._clock.now())
                or conflict(image.id, own, owners)
            )
            if reason:
                results[decision.id] = Result(decision, Outcome.CHANGED, f"kept: {reason}")
            elif _recorded_bytes(own) > MAX_LABELS_BYTES:
                results[decision.id] = Result(
                    decision, Outcome.CHANGED, "kept: too many names for the record of a removal"
                )
            elif not any(each.is_id for each in own):
                results[decision.id] = await caught(self.remove(decision))  # no id among the names: not stored by CRI
            else:
                candidates.append(Candidate(decision, image, own))
        return results, candidates

    async def _transact(
        self, candidates: Sequence[Candidate], stop: asyncio.Event, queue: _Queue
    ) -> dict[str, Result | NodeAgentError]:
        """Remove images in one transaction, in queue order; return the result of each image, by decision id."""
        decisions = [each.decision for each in candidates]
        with self._services.waits.working():
            async with queue.start:
                transaction = None if stop.is_set() else await self._begin(candidates)
                await queue.deletion.acquire()
            try:
                if transaction is None:
                    removed = await self._through_cri(decisions, stop)
                    return {decision.id: each for decision, each in zip(decisions, removed, strict=True)}
                await transaction.delete_names(stop)
            finally:
                queue.deletion.release()
            await transaction.restore_used()
            removals = await transaction.release()
            self._unconfirmed.extend(removals)
            return transaction.results

    async def _begin(self, candidates: Sequence[Candidate]) -> ImageTransaction | None:
        if self._refused is not None:
            raise self._refused
        try:
            return await begin(self._services, candidates, self._template.clock)
        except LeaseRefusedError as error:
            self._refused = error
            raise

    async def _through_cri(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        return [
            Result(each, Outcome.NOT_ATTEMPTED, "pass stopped") if stop.is_set() else await caught(self.remove(each))
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
        return tuple([await self._remove_listed(each) for each in unconfirmed if each.decision.id in listed])

    async def _still_listed(self, deleted: set[str]) -> frozenset[str]:
        """Return the ids that CRI still lists after a bounded wait, or lists again.

        containerd's CRI service processes deletions from events, so it lists deleted images for a while. Images that
        have a name again are returned without a wait.
        """
        listed = deleted & await self._actions.image_ids()
        named = {each.name for each in await self._services.names.get_image_names(sorted(listed))}
        return frozenset(named | await poll_images(self._actions, listed - named, set.intersection))

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


def _parts(candidates: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Yield the candidates of each transaction, bounded by ``PARTS`` and by the size of their records."""
    maximums = iter(PARTS)
    maximum = next(maximums)
    part: list[Candidate] = []
    size_bytes = 0
    for each in candidates:
        own_bytes = _recorded_bytes(each.names)
        if part and (len(part) == maximum or size_bytes + own_bytes > MAX_LABELS_BYTES):
            yield part
            part, size_bytes = [], 0
            maximum = next(maximums, maximum)
        part.append(each)
        size_bytes += own_bytes
    if part:
        yield part


def _recorded_bytes(names: Iterable[ImageName]) -> int:
    """Return the size in bytes of names recorded as base64 in the labels of a lease."""
    return sum(len(each.encoded) for each in names) * 4 // 3


async def _caught_all(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return the result of ``work`` or its error, including RuntimeUnavailableError."""
    try:
        return await work
    except NodeAgentError as error:
        return error
