"""What the guards read from the runtime, fresh every time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.errors import RuntimeNotFoundError
from nodeagent.runtime.beyond_cri import pinned_now, unlisted_containers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model import Container, Image, NodeSnapshot, Sandbox
    from nodeagent.runtime.containerd import ContainerdClient
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
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def image(self, image_id: str) -> Image | None:
        """Return the image as it is now, ``None`` when it is gone."""
        image = await self._cri.image_status(image_id)
        if image is None or image.pinned or self._containerd is None:
            return image
        return replace(image, pinned=await pinned_now(self._containerd, image))

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image that CRI lists."""
        return frozenset(image.id for image in await self._cri.list_images())

    async def containers(self) -> tuple[Container, ...]:
        """Return all containers, with the images they mount where the runtime can mount any."""
        listed = await self._cri.list_containers()
        if self._containerd is not None:
            listed += await unlisted_containers(self._containerd, listed, await self._cri.list_sandboxes())
        if not self._mounts_images:
            return listed
        await self._read_new(each.id for each in listed if each.sandbox_id and each.id not in self._volume_images)
        return tuple(replace(each, volume_images=self._volume_images.get(each.id, ())) for each in listed)

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
        listed = await self._cri.list_sandboxes()
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
