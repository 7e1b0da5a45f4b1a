"""Reading of the runtime's lists with cross-checks.

A suspicion is confirmed or resolved by evidence from outside the lists: a second listing, for objects that changed
between two calls; the status of the object in question, since a list is wrong if it lacks an object with a reported
status; the records of containerd; and the kernel's cgroups. An explained mismatch, such as the forced removal of an
image in use, is recorded, so that it does not cause a second listing in every pass.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model import ListContradiction
from nodeagent.plan.gc.consistency import (
    ListedIds,
    RuntimeLists,
    Suspicion,
    SuspicionKind,
    find_suspicions,
    persistent,
)
from nodeagent.plan.gc.image_references import bare_id
from nodeagent.record import replace
from nodeagent.runtime.bounded_calls import gather_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from nodeagent.errors import NodeAgentError
    from nodeagent.model import Container, Image, Sandbox
    from nodeagent.runtime.containerd_records import StoredContainer
    from nodeagent.runtime.cri_messages import ContainerUsage
    from nodeagent.runtime.namespace_lists import StorageLists

CONFIRM_S: Final = 1.0
"""Time between a suspicious listing and the second one."""

MAX_STATUS_CALLS: Final = 200
"""Maximum number of status calls for vanished objects, evenly distributed over them."""

MAX_MISSING: Final = 10_000
"""Maximum number of vanished containers, and of sandboxes, that are checked again after a contradiction."""

_CONCURRENCY: Final = 16
_ABSENT: Final = re.compile(
    "not found|no such", re.IGNORECASE
)  # error texts of runtimes that return UNKNOWN instead of NOT_FOUND
KIND_LABEL: Final = "io.cri-containerd.kind"
"""Label of the containerd records of CRI's containers and sandboxes."""


class RuntimeReader(Protocol):
    """Calls of the check. Each raises RuntimeRequestError if the call fails."""

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images."""

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers."""

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes."""

    async def container_status(self, container_id: str) -> Container:
        """Return one container. Raises RuntimeNotFoundError if it does not exist."""

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        """Return one sandbox. Raises RuntimeNotFoundError if it does not exist."""

    async def image_status(self, reference: str) -> Image | None:
        """Return one image; ``None`` if it does not exist."""

    async def list_container_stats(self, only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        """Return the usage of running containers."""


class FindRunning(Protocol):
    """Finds running containers by the kernel; blocking."""

    def __call__(self, known: Collection[str], /) -> tuple[frozenset[str], bool]:
        """Return the ids of running containers, and whether the known ones are visible to the kernel."""


class ListStored(Protocol):
    """Lists the container records of containerd."""

    async def __call__(self) -> tuple[StoredContainer, ...] | None:
        """Return every record; ``None`` without containerd's own services."""


class ListRecords(Protocol):
    """Lists the other records of containerd."""

    async def __call__(self) -> StorageLists | NodeAgentError | None:
        """Return the records, or the error of a failed list; ``None`` without containerd's own services."""


class CheckedLists(NamedTuple):
    """Lists of one reading, with the confirmed contradictions between them.

    Attributes:
        lists: the lists of CRI.
        stored: containerd's own records; ``None`` without its own services.
        records: its other records, read at the same time.
        contradictions: the confirmed contradictions.
    """

    lists: RuntimeLists
    stored: tuple[StoredContainer, ...] | None
    records: StorageLists | NodeAgentError | None
    contradictions: tuple[ListContradiction, ...] = ()


class _Reading(NamedTuple):
    """Lists of one reading, with their ids and containerd's own records of containers."""

    lists: RuntimeLists
    ids: ListedIds
    stored: tuple[StoredContainer, ...] | None
    records: StorageLists | NodeAgentError | None


def _union(first: ListedIds | None, second: ListedIds) -> ListedIds:
    """Return the ids of both; the second itself if the first adds none to it."""
    if first is None or not any(first):
        return second
    return ListedIds(*(one | other for one, other in zip(first, second, strict=True)))


class ListCheck:
    """Reads the lists and checks them against each other and against the previous reading.

    The state is the ids of the previous reading, and those missing in its lists although their status was reported; a
    one-shot command has none.
    """

    def __init__(
        self,
        runtime: RuntimeReader,
        find_running: FindRunning,
        list_stored: ListStored,
        list_records: ListRecords,
        *,
        confirm_s: float = CONFIRM_S,
    ) -> None:
        """Compose the check; ``confirm_s`` is the time before a second listing."""
        self._runtime = runtime
        self._find_running = find_running
        self._list_stored = list_stored
        self._list_records = list_records
        self._confirm_s = confirm_s
        self._known: ListedIds | None = None
        self._present: frozenset[str] = frozenset()
        self._explained: frozenset[tuple[SuspicionKind, str]] = frozenset()
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def read(self, *, with_images: bool) -> CheckedLists:
        """Return the lists and their contradictions.

        Images are listed before containers, so that a container created between both counts as a user.

        Raises:
            NodeAgentError: a list cannot be read.
        """
        known = (
            self._known
        )  # the ids of a reading that ended before this one started, since a later reading has newer objects
        reading = await self._list(with_images=with_images)
        suspicions = self._unexplained(reading)
        if suspicions:
            known = _union(known, reading.ids)
            await asyncio.sleep(self._confirm_s)
            reading = await self._list(with_images=with_images)
            suspicions = persistent(suspicions, self._unexplained(reading))
        contradictions = await self._confirm(reading, suspicions)
        vanished, missing = await self._check_vanished(known, reading.ids)
        contradictions += vanished
        images, missing_images = await self._check_vanished_images(known, reading)
        contradictions += images
        self._remember(missing if contradictions else None, reading, missing_images)
        return CheckedLists(reading.lists, reading.stored, reading.records, tuple(contradictions))

    async def _list(self, *, with_images: bool) -> _Reading:
        if not with_images:
            return await self._list_objects(with_images=False)
        reading, records = await gather_all(self._list_objects(with_images=True), self._list_records())
        return reading._replace(records=records)

    async def _list_objects(self, *, with_images: bool) -> _Reading:
        images = await self._runtime.list_images() if with_images else None
        containers, sandboxes = await gather_all(self._runtime.list_containers(), self._runtime.list_sandboxes())
        stored = await self._list_stored()
        lists = RuntimeLists(images, containers, sandboxes)
        ids = ListedIds.of(lists)
        existing, running_known = await asyncio.to_thread(self._find_running, ids.containers | ids.sandboxes)
        if stored is not None:  # records of other clients are users of images, but not objects of CRI
            existing -= {each.id for each in stored if KIND_LABEL not in each.labels}
            existing |= {each.id for each in stored if KIND_LABEL in each.labels}
        elif not running_known and self._known is None:
            existing |= await self._with_stats()
        lists = replace(lists, existing=existing, running_known=running_known or stored is not None)
        return _Reading(lists, ids, stored, None)

    async def _with_stats(self) -> frozenset[str]:
        """Return the ids that ListContainerStats reports, another CRI call; none if it fails."""
        try:
            return frozenset(each.container_id for each in await self._runtime.list_container_stats())
        except RuntimeRequestError:
            return frozenset()

    def _unexplained(self, reading: _Reading) -> tuple[Suspicion, ...]:
        found = find_suspicions(reading.lists, reading.ids)
        return tuple(each for each in found if (each.kind, each.id) not in self._explained)

    async def _confirm(self, reading: _Reading, suspicions: Sequence[Suspicion]) -> list[ListContradiction]:
        """Return the suspicions not explained by the status of the object, one of each effect."""
        explained: set[tuple[SuspicionKind, str]] = set()
        contradictions: dict[bool, ListContradiction] = {}
        for each in suspicions:
            images_only = each.kind is SuspicionKind.IMAGE_UNLISTED
            if images_only in contradictions:
                continue
            evidence = await self._explain(reading, each)
            if evidence is None:
                explained.add((each.kind, each.id))
            else:
                contradictions[images_only] = ListContradiction(f"{each.detail}{evidence}", images_only)
        self._explained |= explained
        return list(contradictions.values())

    async def _explain(self, reading: _Reading, suspicion: Suspicion) -> str | None:
        """Return the evidence against the lists; ``None`` if the mismatch is real.

        A running container that CRI does not report is ignored only if containerd's records lack it too: with CRI alone
        it may be the container of another client, and a user of an image.
        """
        if suspicion.kind is SuspicionKind.SANDBOX_UNLISTED:
            return await self._evidence(self._runtime.sandbox_status(suspicion.id))
        if suspicion.kind is SuspicionKind.OBJECT_UNLISTED:
            status = await self._evidence(self._runtime.container_status(suspicion.id))
            status = status or await self._evidence(self._runtime.sandbox_status(suspicion.id))
            return status if status or reading.stored is not None else ""
        if suspicion.kind is SuspicionKind.IMAGE_UNLISTED:
            try:
                image = await self._runtime.image_status(suspicion.id)
            except RuntimeRequestError as error:
                return f", and its status cannot be read: {error}"
            if image is None or bare_id(image.id) in set(map(bare_id, reading.ids.images)):
                return None
            return ", but its status is reported"
        return ""

    async def _evidence(self, status: Awaitable[object]) -> str | None:
        """Return the evidence from the status of an object; ``None`` if it does not exist."""
        async with self._slots:
            try:
                await status
            except RuntimeNotFoundError:
                return None
            except RuntimeRequestError as error:
                if _ABSENT.search(str(error)):
                    return None
                return f", and its status cannot be read: {error}"
        return ", but its status is reported"

    async def _check_vanished(
        self, known: ListedIds | None, current: ListedIds
    ) -> tuple[list[ListContradiction], ListedIds | None]:
        """Return a contradiction if an object of the previous reading vanished from its list and still exists.

        Also return the vanished objects that are not known to be removed: with evidence, or without a status call. In
        a persistent contradiction only these are remembered, not everything that was ever listed.
        """
        if known is None:
            return [], None
        gone_containers, gone_sandboxes = known.containers - current.containers, known.sandboxes - current.sandboxes
        containers, sandboxes = _sample(gone_containers, self._present), _sample(gone_sandboxes, self._present)
        evidence = await asyncio.gather(
            *(self._evidence(self._runtime.container_status(each)) for each in containers),
            *(self._evidence(self._runtime.sandbox_status(each)) for each in sandboxes),
        )
        removed = {each for each, text in zip((*containers, *sandboxes), evidence, strict=True) if not text}
        self._present = frozenset({*containers, *sandboxes} - removed)
        missing = ListedIds(
            _bounded(gone_containers - removed, self._present),
            _bounded(gone_sandboxes - removed, self._present),
            frozenset(),
        )
        names = [f"container {each[:12]}" for each in containers] + [f"sandbox {each[:12]}" for each in sandboxes]
        found = [f"{name} is no longer listed{text}" for name, text in zip(names, evidence, strict=True) if text]
        if not found:
            return [], missing
        more = f" ({len(found)} such objects)" if len(found) > 1 else ""
        return [ListContradiction(f"{found[0]}{more}")], missing

    async def _check_vanished_images(
        self, known: ListedIds | None, reading: _Reading
    ) -> tuple[list[ListContradiction], frozenset[str]]:
        """Return a contradiction if an image of the previous list vanished and its status is still reported.

        An image that is pulled again between the list and the status call delays image removal to the next reading.
        Also return these images, and those of the previous list if images were not listed now.
        """
        if known is None:
            return [], frozenset()
        if reading.lists.images is None:
            return [], known.images
        vanished = _sample(known.images - reading.ids.images, ())
        evidence = await asyncio.gather(*(self._image_evidence(each) for each in vanished))
        found = {each: text for each, text in zip(vanished, evidence, strict=True) if text}
        if not found:
            return [], frozenset()
        first, more = next(iter(found)), f" ({len(found)} such images)" if len(found) > 1 else ""
        detail = f"image {bare_id(first)[:12]} is no longer listed{found[first]}{more}"
        return [ListContradiction(detail, images_only=True)], frozenset(found)

    async def _image_evidence(self, image_id: str) -> str | None:
        """Return the evidence from the status of an image; ``None`` if it does not exist."""
        async with self._slots:
            try:
                image = await self._runtime.image_status(image_id)
            except RuntimeRequestError as error:
                return f", and its status cannot be read: {error}"
        is_reported = image is not None and bare_id(image.id) == bare_id(image_id)
        return ", but its status is reported" if is_reported else None

    def _remember(self, missing: ListedIds | None, reading: _Reading, images: frozenset[str]) -> None:
        """Store the listed ids, and those missing in a contradictory reading, for the next check.

        ``images`` are the missing ones, all of the previous list if images were not listed now.
        """
        with_images = reading.lists.images is not None
        self._known = _union(ListedIds(frozenset(), frozenset(), images), _union(missing, reading.ids))
        if self._explained:
            present = {(each.kind, each.id) for each in find_suspicions(reading.lists, reading.ids)}
            self._explained = frozenset(
                each
                for each in self._explained
                if each in present or (each[0] is SuspicionKind.IMAGE_UNLISTED and not with_images)
            )


def _sample(ids: frozenset[str], present: Collection[str]) -> list[str]:
    """Return at most ``MAX_STATUS_CALLS`` of the ids: the present ones first, the others evenly distributed."""
    first = sorted(each for each in ids if each in present)[:MAX_STATUS_CALLS]
    others = sorted(ids.difference(first))
    free = MAX_STATUS_CALLS - len(first)
    return first + (others[:: max(1, -(-len(others) // free))] if free else [])


def _bounded(missing: frozenset[str], present: Collection[str]) -> frozenset[str]:
    """Return at most ``MAX_MISSING`` of the ids, those with a reported status first."""
    if len(missing) <= MAX_MISSING:
        return missing
    return frozenset(sorted(missing, key=lambda each: (each not in present, each))[:MAX_MISSING])
