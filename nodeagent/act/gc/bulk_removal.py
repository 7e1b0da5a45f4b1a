"""Bulk image removal through containerd's image service.

Every CRI RemoveImage runs a garbage collection, and each collection walks all of containerd's metadata. Here only the
names of an image are deleted, with one collection at the end. CRI no longer lists an image after the deletion of its
last name (tags, digests, and the id used by CRI).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.act.gc.removers import FreshReader, ImageRemover
from nodeagent.errors import NodeAgentError, RuntimeRequestError, RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from nodeagent.act.gc.removers import RuntimeActions
    from nodeagent.clock import Clock
    from nodeagent.model import Hold, Image, NodeSnapshot
    from nodeagent.plan.decision import Decision
    from nodeagent.plan.gc.images import ImageGCPolicy
    from nodeagent.runtime.containerd_records import StoredImage

T = TypeVar("T")

_LISTED_WITHIN_S: Final = 20.0  # containerd 2's CRI service processes hundreds of deletions with seconds of delay
_FIRST_WAIT_S: Final = 0.02
_LAST_WAIT_S: Final = 1.0


class NameActions(Protocol):
    """Changes to image names, provided by the storage backend. Source: containerd ``images.v1.Images``."""

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete a name with that target digest; return whether it existed."""

    async def collect_garbage(self) -> None:
        """Run the runtime's garbage collection and wait for it."""


class BulkReader(FreshReader, Protocol):
    """Readings for bulk removal."""

    async def image_and_names(self, image_id: str) -> tuple[Image | None, tuple[StoredImage, ...]]:
        """Return the current image and its stored names, each with its target."""

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image listed by CRI."""


class BulkImageRemover(ImageRemover):
    """Removes images by their names, each behind the guard of :class:`ImageRemover`, and collects garbage once.

    After an unexpected result the remaining images are removed through CRI, one by one.
    """

    def __init__(  # noqa: PLR0913 - the guard's arguments and the image service
        self,
        reader: BulkReader,
        actions: RuntimeActions,
        policy: ImageGCPolicy,
        template: NodeSnapshot,
        *,
        clock: Clock,
        read_holds: Callable[[], tuple[Hold, ...]],
        names: NameActions,
    ) -> None:
        """Compose the remover; see :class:`ImageRemover` for the guard's arguments."""
        super().__init__(reader, actions, policy, template, clock=clock, read_holds=read_holds)
        self._bulk_reader = reader
        self._names = names
        self._unconfirmed: list[Result] = []
        self._bulk_works = True

    async def remove_many(self, decisions: Sequence[Decision]) -> list[Result | NodeAgentError]:
        """Remove several images; skip images that are by now removed, in use or kept by another rule.

        Image use is read once for all of them, last, immediately before their names are deleted.

        Returns:
            The result of each image, or the error of its removal, in order.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable.
        """
        if not self._bulk_works:
            return [await _catch(self.remove(each)) for each in decisions]
        read = await asyncio.gather(*(_catch(self._bulk_reader.image_and_names(each.id)) for each in decisions))
        images = {each[0].id: each[0] for each in read if not isinstance(each, NodeAgentError) and each[0] is not None}
        kept = await self._keep_reasons(images, decisions) if images else {}
        return await asyncio.gather(
            *(_catch(self._remove(each, found, kept)) for each, found in zip(decisions, read, strict=True))
        )

    async def _remove(
        self,
        decision: Decision,
        found: tuple[Image | None, tuple[StoredImage, ...]] | NodeAgentError,
        kept: Mapping[str, str],
    ) -> Result:
        """Delete the names of an image unless the guard keeps it."""
        if isinstance(found, NodeAgentError):
            raise found
        image, names = found
        if image is None:
            return Result(decision, Outcome.GONE, "already removed")
        if image.id in kept:
            return Result(decision, Outcome.CHANGED, f"kept: {kept[image.id]}")
        try:
            deleted = await self._delete_names(image, names)
        except RuntimeUnavailableError:
            raise
        except RuntimeRequestError:
            deleted = 0
        if not deleted:  # unexpected records: every image listed by CRI has a stored name
            self._bulk_works = False
            return await self.remove(decision)
        result = Result(decision, Outcome.DONE)
        self._unconfirmed.append(result)
        return result

    async def _delete_names(self, image: Image, names: Sequence[StoredImage]) -> int:
        """Delete an image's names, its id last; return their number.

        Names that CRI cannot parse and therefore omits are deleted too if they have the image's target: a remaining
        name would keep the content.
        """
        listed = {*image.references, image.id}
        targets = {each.target for each in names if each.name in listed}
        deleted = [each for each in names if each.target in targets]
        await asyncio.gather(*(self._delete_name(each) for each in deleted if each.name != image.id))
        await asyncio.gather(*(self._delete_name(each) for each in deleted if each.name == image.id))
        return len(deleted)

    async def _delete_name(self, stored: StoredImage) -> None:
        await self._names.delete_image(stored.name, sync=False, target=stored.target)

    async def finish(self) -> tuple[Result, ...]:
        """Collect garbage and verify that CRI no longer lists the images.

        Returns:
            The results of images that CRI still listed, after their removal through CRI.
        """
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        if not unconfirmed:
            return ()
        await self._names.collect_garbage()
        listed = await self._still_listed({result.decision.id for result in unconfirmed})
        if not listed:
            return ()
        self._bulk_works = False
        return tuple([await self._remove_listed(each) for each in unconfirmed if each.decision.id in listed])

    async def _still_listed(self, deleted: set[str]) -> frozenset[str]:
        """Return the ids that CRI still lists after a bounded wait.

        containerd's CRI service updates its list by events, so that deleted images are listed for some seconds. There
        is no wait for images with a new name.
        """
        listed = deleted & await self._bulk_reader.image_ids()
        read = await asyncio.gather(*(_catch(self._bulk_reader.image_and_names(each)) for each in listed))
        named = {
            each for each, found in zip(listed, read, strict=True) if not isinstance(found, NodeAgentError) and found[1]
        }
        stale, waited_s, wait_s = listed - named, 0.0, _FIRST_WAIT_S
        while stale and waited_s < _LISTED_WITHIN_S:
            await asyncio.sleep(wait_s)
            waited_s, wait_s = waited_s + wait_s, min(2 * wait_s, _LAST_WAIT_S)
            stale &= await self._bulk_reader.image_ids()
        return frozenset(stale | named)

    async def _remove_listed(self, result: Result) -> Result:
        """Return the result of an image that CRI still lists: kept if pulled again, else removed through CRI."""
        try:
            image, names = await self._bulk_reader.image_and_names(result.decision.id)
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


async def _catch(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return the result of ``work``, or its error unless the runtime is unavailable."""
    try:
        return await work
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error
