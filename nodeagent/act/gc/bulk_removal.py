"""Removing many images at once through containerd's own image service.

CRI's RemoveImage lets containerd collect garbage for every image, and each collection walks everything there is. Here
only the names of an image are deleted, and containerd collects once at the end. An image is gone from CRI's list when
its last name is: tags, digests, and the id under which CRI stores it.
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

_NOTICED_WITHIN_S: Final = 20.0  # containerd 2 tells CRI of hundreds of deletions with seconds of delay
_FIRST_WAIT_S: Final = 0.02
_LAST_WAIT_S: Final = 1.0


class NameActions(Protocol):
    """The calls on containerd's image names. Source: containerd ``images.v1.Images``."""

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete a name; return whether it was there."""

    async def collect_garbage(self, clock: Clock) -> None:
        """Make containerd collect garbage and wait for it."""


class BulkReader(FreshReader, Protocol):
    """What is read besides."""

    async def image_and_names(self, image_id: str) -> tuple[Image | None, tuple[StoredImage, ...]]:
        """Return the image as it is now, and what each name points at that it is stored under."""

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image that CRI lists."""


class BulkImageRemover(ImageRemover):
    """Removes images by their names, each behind the same guard, and collects once.

    Whatever does not go as it should makes it go on through CRI, image by image.
    """

    def __init__(  # noqa: PLR0913 - it composes the guard
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
        """Take what the guard needs, and containerd's own services."""
        super().__init__(reader, actions, policy, template, clock=clock, read_holds=read_holds)
        self._bulk_reader = reader
        self._names = names
        self._begun: list[Result] = []
        self._trusted = True

    async def remove_many(self, decisions: Sequence[Decision]) -> list[Result | NodeAgentError]:
        """Remove a few images at once, each unless it is gone, in use or otherwise kept by now.

        Who uses what is read once for all of them, after everything else and right before their names are deleted.

        Returns:
            What became of each, or why it could not be removed, in order.

        Raises:
            RuntimeUnavailableError: the runtime is gone.
        """
        if not self._trusted:
            return [await _caught(self.remove(each)) for each in decisions]
        read = await asyncio.gather(*(_caught(self._bulk_reader.image_and_names(each.id)) for each in decisions))
        images = {each[0].id: each[0] for each in read if not isinstance(each, NodeAgentError) and each[0] is not None}
        kept = await self._kept_because(images, decisions) if images else {}
        return await asyncio.gather(
            *(_caught(self._remove(each, told, kept)) for each, told in zip(decisions, read, strict=True))
        )

    async def _remove(
        self,
        decision: Decision,
        told: tuple[Image | None, tuple[StoredImage, ...]] | NodeAgentError,
        kept: Mapping[str, str],
    ) -> Result:
        """Delete the names of an image that the guard has looked at."""
        if isinstance(told, NodeAgentError):
            raise told
        image, names = told
        if image is None:
            return Result(decision, Outcome.GONE, "already gone")
        if image.id in kept:
            return Result(decision, Outcome.CHANGED, f"kept: {kept[image.id]}")
        try:
            deleted = await self._delete_names(image, names)
        except RuntimeUnavailableError:
            raise
        except RuntimeRequestError:
            deleted = 0
        if not deleted:  # an image that CRI lists has a name; if it cannot be found, this is not understood
            self._trusted = False
            return await self.remove(decision)
        result = Result(decision, Outcome.DONE)
        self._begun.append(result)
        return result

    async def _delete_names(self, image: Image, names: Sequence[StoredImage]) -> int:
        """Delete an image's names, its id last; return how many there were.

        What CRI says is a name of it goes. A further name, one that CRI cannot parse, goes if it points where one of
        those does: it would keep everything otherwise.
        """
        said = {*image.references, image.id}
        targets = {each.target for each in names if each.name in said}
        going = [each for each in names if each.target in targets]
        await asyncio.gather(*(self._delete_name(each) for each in going if each.name != image.id))
        await asyncio.gather(*(self._delete_name(each) for each in going if each.name == image.id))
        return len(going)

    async def _delete_name(self, stored: StoredImage) -> None:
        await self._names.delete_image(stored.name, sync=False, target=stored.target)

    async def finish(self) -> tuple[Result, ...]:
        """Let containerd collect, and make sure that CRI lists none of the images any more.

        Returns:
            The results of those that CRI still listed and that were removed, or not, through CRI.
        """
        begun, self._begun = self._begun, []
        if not begun:
            return ()
        await self._names.collect_garbage(self._clock)
        left = await self._still_listed({result.decision.id for result in begun})
        if not left:
            return ()
        self._trusted = False
        return tuple([await self._again(result) for result in begun if result.decision.id in left])

    async def _still_listed(self, gone: set[str]) -> frozenset[str]:
        """Return which of the images CRI still lists once it had time to notice; it is told by events.

        Those that have a name again are not waited for.
        """
        listed = gone & await self._bulk_reader.image_ids()
        told = await asyncio.gather(*(_caught(self._bulk_reader.image_and_names(each)) for each in listed))
        back = {each for each, one in zip(listed, told, strict=True) if not isinstance(one, NodeAgentError) and one[1]}
        stale, waited_s, wait_s = listed - back, 0.0, _FIRST_WAIT_S
        while stale and waited_s < _NOTICED_WITHIN_S:
            await asyncio.sleep(wait_s)
            waited_s, wait_s = waited_s + wait_s, min(2 * wait_s, _LAST_WAIT_S)
            stale &= await self._bulk_reader.image_ids()
        return frozenset(stale | back)

    async def _again(self, result: Result) -> Result:
        """Look at an image that CRI still lists: pulled anew it stays; without any name it goes through CRI."""
        try:
            image, names = await self._bulk_reader.image_and_names(result.decision.id)
            if image is None:
                return result
            if names:
                return replace(result, outcome=Outcome.CHANGED, detail="kept: it was given a name meanwhile")
            again = await self.remove(result.decision)
        except RuntimeUnavailableError:
            raise
        except NodeAgentError as error:
            return replace(result, outcome=Outcome.FAILED, detail=str(error))
        detail = again.detail or "its names were gone and CRI still listed it; removed through CRI"
        return replace(again, detail=detail, duration_s=result.duration_s)


async def _caught(work: Coroutine[object, object, T]) -> T | NodeAgentError:
    """Return what work gives, or the error that concerns only it."""
    try:
        return await work
    except RuntimeUnavailableError:
        raise
    except NodeAgentError as error:
        return error
