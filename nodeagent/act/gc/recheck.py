"""What the guards read from the runtime, fresh every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.errors import RuntimeNotFoundError
from nodeagent.runtime.containerd_facts import is_pinned, unlisted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model import Container, Image, NodeSnapshot, Sandbox
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.containerd_records import StoredImage
    from nodeagent.runtime.cri import CriClient

_CONCURRENCY = 8


class RuntimeReader:
    """Reads images, containers and sandboxes as they are now.

    What never changes for an id, a sandbox's own image and the images a container mounts, is taken from the plan's
    snapshot where that has it; for ids that came later it is asked for.
    """

    def __init__(
        self, cri: CriClient, containerd: ContainerdClient | None, snapshot: NodeSnapshot, *, mounts_images: bool
    ) -> None:
        self._cri = cri
        self._containerd = containerd
        self._mounts_images = mounts_images
        self._sandbox_images = {each.id: each.image for each in snapshot.sandboxes if each.image}
        self._volume_images = {each.id: each.volume_images for each in snapshot.containers}
        records = snapshot.storage.records if snapshot.storage is not None else {}
        self._names = {image_id: record.names for image_id, record in records.items()}
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def image(self, image_id: str) -> Image | None:
        """Return the image as it is now, ``None`` when it is gone."""
        return (await self.image_and_names(image_id))[0]

    async def image_and_names(self, image_id: str) -> tuple[Image | None, tuple[StoredImage, ...]]:
        """Return the image as it is now, and what each name points at that it is stored under.

        The names the plan knows are asked for together with the image. Without containerd's own services there are
        none.
        """
        if self._containerd is None:
            return await self._cri.image_status(image_id), ()
        known = dict.fromkeys((*self._names.get(image_id, ()), image_id))
        image, stored = await asyncio.gather(
            self._cri.image_status(image_id), asyncio.gather(*(self._containerd.get_image(name) for name in known))
        )
        if image is None:
            return None, ()
        new = [name for name in image.references if name not in known]
        stored += await asyncio.gather(*(self._containerd.get_image(name) for name in new))
        names = tuple(each for each in stored if each is not None)
        return (image if image.pinned else replace(image, pinned=any(map(is_pinned, names)))), names

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image that CRI lists."""
        return frozenset(image.id for image in await self._cri.list_images())

    async def containers(self) -> tuple[Container, ...]:
        """Return all containers, with the images they mount where the runtime can mount any."""
        return (await self.users())[0]

    async def users(self) -> tuple[tuple[Container, ...], tuple[Sandbox, ...]]:
        """Return all containers and all sandboxes; what is listed by one service and not yet by another counts."""
        if self._containerd is None:
            containers, sandboxes = await asyncio.gather(self._cri.list_containers(), self._cri.list_sandboxes())
        else:
            containers, sandboxes, stored = await asyncio.gather(
                self._cri.list_containers(), self._cri.list_sandboxes(), self._containerd.list_containers()
            )
            containers += unlisted(stored, containers, sandboxes)
        if self._mounts_images:
            await self._read_new(
                each.id for each in containers if each.sandbox_id and each.id not in self._volume_images
            )
            containers = tuple(replace(each, volume_images=self._volume_images.get(each.id, ())) for each in containers)
        return containers, await self._with_images(sandboxes)

    async def _read_new(self, container_ids: Iterable[str]) -> None:
        async def read(container_id: str) -> None:
            async with self._slots:
                try:
                    status = await self._cri.container_status(container_id)
                except RuntimeNotFoundError:
                    return
                self._volume_images[container_id] = status.volume_images

        await asyncio.gather(*(read(container_id) for container_id in container_ids))

    async def sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes with their own images."""
        return await self._with_images(await self._cri.list_sandboxes())

    async def _with_images(self, listed: tuple[Sandbox, ...]) -> tuple[Sandbox, ...]:
        for sandbox in listed:
            if sandbox.id not in self._sandbox_images:
                try:
                    status = await self._cri.sandbox_status(sandbox.id)
                except RuntimeNotFoundError:
                    continue
                self._sandbox_images[sandbox.id] = status.image
        return tuple(replace(each, image=self._sandbox_images.get(each.id, "")) for each in listed)

    async def container(self, container_id: str) -> Container | None:
        """Return one container with its details, ``None`` when it is gone."""
        return await self._cri.get_container(container_id)
