"""Reading of the runtime's lists with cross-checks.

Further evidence confirms or resolves a suspicion. A second listing resolves changes between two calls. The status of an
object proves a list wrong that lacks the object. The records of containerd and the kernel's cgroups prove that an
object exists. An explained mismatch, such as the forced removal of an image in use, is recorded, so that the mismatch
does not cause a second listing in every pass.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from nodeagent.errors import NodeAgentError, RuntimeNotFoundError, RuntimeRequestError
from nodeagent.gc.plan.consistency import ListedIds, RuntimeLists, Suspicion, SuspicionKind, find_suspicions, persistent
from nodeagent.gc.plan.image_users import bare_id
from nodeagent.guarded_call import compute
from nodeagent.last_result import keep_last_result
from nodeagent.model.runtime import Container, Image, ListContradiction, Sandbox
from nodeagent.record import replace
from nodeagent.runtime.connection import gather_all

if TYPE_CHECKING:
    from nodeagent.runtime.containerd import StoredContainer
    from nodeagent.runtime.cri import ContainerUsage
    from nodeagent.runtime.namespace_lists import StorageLists


FindRunning = Callable[[Collection[str]], tuple[frozenset[str], bool]]


CONFIRM_S: Final = 1.0
"""Seconds between a suspicious listing and the second listing."""

MAX_STATUS_CALLS: Final = 200
"""Maximum number of status calls for vanished objects, evenly distributed over the objects."""

MAX_MISSING: Final = 10_000
"""Maximum number of vanished containers, and of sandboxes, that are checked again after a contradiction."""

_CONCURRENCY: Final = 16
_ABSENT: Final = re.compile(
    "not found|no such", re.IGNORECASE
)  # error texts of runtimes that return UNKNOWN instead of NOT_FOUND
KIND_LABEL: Final = "io.cri-containerd.kind"
"""Label of the containerd records of CRI's containers and sandboxes."""


class ListCalls(Protocol):
    """Runtime calls of the check. Each method raises RuntimeRequestError if the call fails."""

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images."""

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers."""

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes."""

    async def container_status(self, container_id: str) -> Container:
        """Return one container. Raises RuntimeNotFoundError if the container does not exist."""

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        """Return one sandbox. Raises RuntimeNotFoundError if the sandbox does not exist."""

    async def image_status(self, reference: str) -> Image | None:
        """Return one image; ``None`` if the image does not exist."""

    async def list_container_stats(self, only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        """Return the usage of running containers."""


class CheckedLists(NamedTuple):
    """Lists of one reading, with the confirmed contradictions between them.

    Attributes:
        lists: the lists of CRI.
        stored: containerd's own container records; ``None`` without containerd's own services.
        records: containerd's other records, or the error of a failed list; ``None`` if not read.
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
    """Return the union of the ids; ``second`` itself if ``first`` has no ids."""
    if first is None or not any(first):
        return second
    return ListedIds(*(one | other for one, other in zip(first, second, strict=True)))


@dataclass(eq=False)
class ListCheck:
    """Reader of the runtime's lists, which checks the lists against each other and against the previous reading.

    The state consists of the ids of the previous reading, and of objects that its lists lack although the runtime
    reports their status; a one-shot command has no state.

    Attributes:
        runtime: the runtime.
        find_running: returns the ids of running containers by the kernel's cgroups, and whether the cgroups include
            containers of its argument; blocking.
        list_stored: returns containerd's container records; ``None`` without containerd's own services.
        list_records: returns containerd's other records, or the error of a failed list; ``None`` without
            containerd's own services.
        confirm_s: time in seconds before a second listing.
    """

    runtime: ListCalls
    find_running: FindRunning
    list_stored: Callable[[], Awaitable[tuple[StoredContainer, ...] | None]]
    list_records: Callable[[], Awaitable[StorageLists | NodeAgentError | None]]
    _: KW_ONLY
    confirm_s: float = CONFIRM_S
    _known: ListedIds | None = field(default=None, init=False)
    _present: frozenset[str] = field(default_factory=frozenset, init=False)
    _explained: frozenset[tuple[SuspicionKind, str]] = field(default_factory=frozenset, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY), init=False)

    async def read(self, *, with_images: bool) -> CheckedLists:
        """Return the lists and their contradictions.

        Images are listed before containers, so that a container created between the two lists counts as an image user.

        Raises:
            NodeAgentError: a list cannot be read.
        """
        known = (
            self._known
        )  # the previous reading when this reading starts, since a concurrent reading may store newer objects
        reading = await self._list(with_images=with_images)
        suspicions = await self._unexplained(reading)
        if suspicions:
            known = _union(known, reading.ids)
            await asyncio.sleep(self.confirm_s)
            reading = await self._list(with_images=with_images)
            suspicions = persistent(suspicions, await self._unexplained(reading))
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
        reading, records = await gather_all(self._list_objects(with_images=True), self.list_records())
        return reading._replace(records=records)

    async def _list_objects(self, *, with_images: bool) -> _Reading:
        images = await self.runtime.list_images() if with_images else None
        containers, sandboxes = await gather_all(self.runtime.list_containers(), self.runtime.list_sandboxes())
        stored = await self.list_stored()
        lists = RuntimeLists(images, containers, sandboxes)
        ids = await compute(len(containers), ListedIds.of, lists)
        existing, running_known = await asyncio.to_thread(self.find_running, ids.containers | ids.sandboxes)
        if stored is not None:  # records of other clients are users of images, but not objects of CRI
            of_cri, of_others = _ids_by_client(stored)
            existing = (existing - of_others) | of_cri
        elif not running_known and self._known is None:
            existing |= await self._with_stats()
        lists = replace(lists, existing=existing, running_known=running_known or stored is not None)
        return _Reading(lists, ids, stored, None)

    async def _with_stats(self) -> frozenset[str]:
        """Return the container ids in ListContainerStats; empty if the call fails."""
        try:
            return frozenset(each.container_id for each in await self.runtime.list_container_stats())
        except RuntimeRequestError:
            return frozenset()

    async def _unexplained(self, reading: _Reading) -> tuple[Suspicion, ...]:
        found = await compute(len(reading.lists.containers), find_suspicions, reading.lists, reading.ids)
        return tuple(each for each in found if (each.kind, each.id) not in self._explained)

    async def _confirm(self, reading: _Reading, suspicions: Sequence[Suspicion]) -> list[ListContradiction]:
        """Return the contradictions that no object status explains: at most one for images, and one for other objects.

        Explained suspicions are recorded.
        """
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
        """Return the evidence against the lists; ``None`` if the lists are correct and the mismatch exists on the node.

        A running container that CRI does not report is ignored only if containerd's records also lack the container:
        with CRI alone, the container may be of another client, and use an image.
        """
        if suspicion.kind is SuspicionKind.SANDBOX_UNLISTED:
            return await self._evidence(self.runtime.sandbox_status(suspicion.id))
        if suspicion.kind is SuspicionKind.OBJECT_UNLISTED:
            status = await self._evidence(self.runtime.container_status(suspicion.id))
            status = status or await self._evidence(self.runtime.sandbox_status(suspicion.id))
            return status if status or reading.stored is not None else ""
        if suspicion.kind is SuspicionKind.IMAGE_UNLISTED:
            try:
                image = await self.runtime.image_status(suspicion.id)
            except RuntimeRequestError as error:
                return f", and its status cannot be read: {error}"
            if image is None or bare_id(image.id) in set(map(bare_id, reading.ids.images)):
                return None
            return ", but its status is reported"
        return ""

    async def _evidence(self, status: Awaitable[object]) -> str | None:
        """Return the evidence from the status of an object; ``None`` if the object does not exist."""
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

        Also return the vanished objects whose removal is not confirmed: still existing, or without a status call.
        During a persistent contradiction only these objects are remembered, not all objects that were ever listed.
        """
        if known is None:
            return [], None
        gone_containers, gone_sandboxes = known.containers - current.containers, known.sandboxes - current.sandboxes
        containers, sandboxes = _sample(gone_containers, self._present), _sample(gone_sandboxes, self._present)
        evidence = await asyncio.gather(
            *(self._evidence(self.runtime.container_status(each)) for each in containers),
            *(self._evidence(self.runtime.sandbox_status(each)) for each in sandboxes),
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
        Also return the vanished images with a status; without an image list, all images of the previous list.
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
        """Return the evidence from the status of an image; ``None`` if the image does not exist."""
        async with self._slots:
            try:
                image = await self.runtime.image_status(image_id)
            except RuntimeRequestError as error:
                return f", and its status cannot be read: {error}"
        is_reported = image is not None and bare_id(image.id) == bare_id(image_id)
        return ", but its status is reported" if is_reported else None

    def _remember(self, missing: ListedIds | None, reading: _Reading, images: frozenset[str]) -> None:
        """Store the listed ids, and the ids missing in a contradictory reading, for the next check.

        ``images`` are the ids of missing images, or of all images in the previous list if this reading has no images.
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


@keep_last_result
def _ids_by_client(stored: tuple[StoredContainer, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of CRI's container records, and the ids of the records of other clients."""
    of_cri = frozenset([each.id for each in stored if KIND_LABEL in each.labels])
    return of_cri, frozenset([each.id for each in stored if KIND_LABEL not in each.labels])


def _sample(ids: frozenset[str], present: Collection[str]) -> list[str]:
    """Return at most ``MAX_STATUS_CALLS`` ids: first the ids in ``present``, then an even distribution of the rest."""
    first = sorted(each for each in ids if each in present)[:MAX_STATUS_CALLS]
    others = sorted(ids.difference(first))
    free = MAX_STATUS_CALLS - len(first)
    return first + (others[:: max(1, -(-len(others) // free))] if free else [])


def _bounded(missing: frozenset[str], present: Collection[str]) -> frozenset[str]:
    """Return at most ``MAX_MISSING`` of the missing ids, ids in ``present`` first."""
    if len(missing) <= MAX_MISSING:
        return missing
    return frozenset(sorted(missing, key=lambda each: (each not in present, each))[:MAX_MISSING])
