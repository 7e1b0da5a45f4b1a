"""Client of the Container Runtime Interface, version 1: images, sandboxes, containers and their usage."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Final

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.model import Container, Image, RuntimeInfo, Sandbox
from nodeagent.record import replace
from nodeagent.runtime import cri_messages
from nodeagent.runtime.connection import Method, Request, Response, RuntimeConnection, run_bounded
from nodeagent.runtime.decode_cache import DecodeCache
from nodeagent.runtime.long_lists import LongList, PrefixList, is_too_large

_RUNTIME = "/runtime.v1.RuntimeService/"
_IMAGE = "/runtime.v1.ImageService/"
_STATS_S = 30.0
_LIST_S = 30.0
_CHANGE_S = 120.0
_STOP_MARGIN_S = 30.0
_IMAGES_OF: Final = attrgetter("images")
_SANDBOXES_OF: Final = attrgetter("items")
_CONTAINERS_OF: Final = attrgetter("containers")

_VERSION = Method(_RUNTIME + "Version", api.VersionRequest, api.VersionResponse)
_STATUS = Method(_RUNTIME + "Status", api.StatusRequest, api.StatusResponse)
_LIST_SANDBOXES = Method(_RUNTIME + "ListPodSandbox", api.ListPodSandboxRequest, api.ListPodSandboxResponse, _LIST_S)
_STREAM_SANDBOXES = Method(
    _RUNTIME + "StreamPodSandboxes", api.ListPodSandboxRequest, api.ListPodSandboxResponse, _LIST_S
)
_SANDBOX_STATUS = Method(_RUNTIME + "PodSandboxStatus", api.PodSandboxStatusRequest, api.PodSandboxStatusResponse)
_STOP_SANDBOX = Method(
    _RUNTIME + "StopPodSandbox", api.StopPodSandboxRequest, api.StopPodSandboxResponse, _CHANGE_S, changes=True
)
_REMOVE_SANDBOX = Method(
    _RUNTIME + "RemovePodSandbox", api.RemovePodSandboxRequest, api.RemovePodSandboxResponse, _CHANGE_S, changes=True
)
_LIST_CONTAINERS = Method(_RUNTIME + "ListContainers", api.ListContainersRequest, api.ListContainersResponse, _LIST_S)
_STREAM_CONTAINERS = Method(
    _RUNTIME + "StreamContainers", api.ListContainersRequest, api.ListContainersResponse, _LIST_S
)
_CONTAINER_STATUS = Method(_RUNTIME + "ContainerStatus", api.ContainerStatusRequest, api.ContainerStatusResponse)
_STOP_CONTAINER = Method(
    _RUNTIME + "StopContainer", api.StopContainerRequest, api.StopContainerResponse, _STOP_MARGIN_S, changes=True
)
_REMOVE_CONTAINER = Method(
    _RUNTIME + "RemoveContainer", api.RemoveContainerRequest, api.RemoveContainerResponse, _CHANGE_S, changes=True
)
_CONTAINER_STATS = Method(
    _RUNTIME + "ListContainerStats", api.ListContainerStatsRequest, api.ListContainerStatsResponse, _STATS_S
)
_LIST_IMAGES = Method(_IMAGE + "ListImages", api.ListImagesRequest, api.ListImagesResponse, _LIST_S)
_STREAM_IMAGES = Method(_IMAGE + "StreamImages", api.ListImagesRequest, api.ListImagesResponse, _LIST_S)
_IMAGE_STATUS = Method(_IMAGE + "ImageStatus", api.ImageStatusRequest, api.ImageStatusResponse)
_FS_INFO = Method(_IMAGE + "ImageFsInfo", api.ImageFsInfoRequest, api.ImageFsInfoResponse)
_REMOVE_IMAGE = Method(_IMAGE + "RemoveImage", api.RemoveImageRequest, api.RemoveImageResponse, _CHANGE_S, changes=True)


class CriClient:
    """CRI client of one runtime. Every method raises the errors of :meth:`RuntimeConnection.unary`.

    Removing or stopping an absent object succeeds.
    """

    def __init__(self, connection: RuntimeConnection, *, reuses_lists: bool = True) -> None:
        """Create a client; ``reuses_lists`` is whether decoded lists are cached, see :class:`DecodeCache`."""
        self._connection = connection
        self._images = LongList(connection, _LIST_IMAGES, _STREAM_IMAGES)
        sandboxes = PrefixList(self._find_sandbox, self._list_sandbox, _sandbox_ids)
        containers = PrefixList(self._find_container, self._list_container, _container_ids)
        self._sandboxes = LongList(connection, _LIST_SANDBOXES, _STREAM_SANDBOXES, sandboxes.read)
        self._containers = LongList(connection, _LIST_CONTAINERS, _STREAM_CONTAINERS, containers.read)
        self._decoded_images = DecodeCache(_IMAGES_OF, cri_messages.decode_image, reuses=reuses_lists)
        self._decoded_sandboxes = DecodeCache(_SANDBOXES_OF, cri_messages.decode_sandbox, reuses=reuses_lists)
        self._decoded_containers = DecodeCache(_CONTAINERS_OF, cri_messages.decode_container, reuses=reuses_lists)

    async def version(self) -> RuntimeInfo:
        """Return the runtime's name and version. Source: CRI ``VersionResponse``."""
        got = await self._connection.unary(_VERSION, api.VersionRequest())
        return RuntimeInfo(got.runtime_name, got.runtime_version, got.runtime_api_version, self._connection.endpoint)

    async def status(self) -> cri_messages.RuntimeStatus:
        """Return the runtime's conditions and the reported part of its configuration."""
        return cri_messages.decode_status(await self._connection.unary(_STATUS, api.StatusRequest(verbose=True)))

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images in the runtime's order, one per id; the previous tuple if only the order changed."""
        return cri_messages.merge_images(await self._decoded_images.read(self._images.read(api.ListImagesRequest())))

    async def image_ids(self) -> frozenset[str]:
        """Return the id of every image."""
        return frozenset(image.id for image in await self.list_images())

    async def image_status(self, reference: str) -> Image | None:
        """Return the image of a reference or id; ``None`` if absent."""
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference))
        try:
            got = await self._connection.unary(_IMAGE_STATUS, request, target=reference)
        except RuntimeNotFoundError:
            return None
        return cri_messages.decode_image(got.image) if got.HasField("image") else None

    async def stop_signal(self, reference: str) -> str:
        """Return the stop signal in an image's configuration; empty if not configured or not reported by the runtime.

        Source: OCI image configuration, ``StopSignal``; containerd and CRI-O report the configuration in the verbose
        ``ImageStatus``.
        """
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference), verbose=True)
        return cri_messages.decode_stop_signal(await self._connection.unary(_IMAGE_STATUS, request, target=reference))

    async def image_fs_info(self) -> cri_messages.ImageFsInfo:
        """Return the filesystems of images and writable layers."""
        got = await self._connection.unary(_FS_INFO, api.ImageFsInfoRequest())
        return cri_messages.ImageFsInfo(
            tuple(map(cri_messages.decode_filesystem, got.image_filesystems)),
            tuple(map(cri_messages.decode_filesystem, got.container_filesystems)),
        )

    async def remove_image(self, reference: str) -> None:
        """Remove an image with all its names; containerd collects garbage before returning."""
        request = api.RemoveImageRequest(image=api.ImageSpec(image=reference))
        await self._change(_REMOVE_IMAGE, request, reference)

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes, without their own images.

        The sandboxes are in the runtime's order. On a large node, the previous tuple is returned if only the order has
        changed.
        """
        return await self._decoded_sandboxes.read(self._sandboxes.read(api.ListPodSandboxRequest()))

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        """Return one sandbox with its own image and log directory, if reported."""
        return (await self.sandbox_details(sandbox_id)).sandbox

    async def sandbox_details(self, sandbox_id: str) -> cri_messages.SandboxDetails:
        """Return one sandbox with the fields of its verbose status."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return cri_messages.decode_sandbox_details(
            await self._connection.unary(_SANDBOX_STATUS, request, target=sandbox_id)
        )

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and its containers."""
        await self._change(_STOP_SANDBOX, api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and its containers."""
        await self._change(_REMOVE_SANDBOX, api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id), sandbox_id)

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers in any state, without the fields of their status.

        The containers are in the runtime's order. On a large node, the previous tuple is returned if only the order has
        changed.
        """
        return await self._decoded_containers.read(self._containers.read(api.ListContainersRequest()))

    async def container_status(self, container_id: str) -> Container:
        """Return one container with its finish time, log path and mounted images.

        A status does not include the sandbox, so ``sandbox_id`` is empty. containerd sets ``image_ref`` to a repository
        digest, whereas the list has the image id.
        """
        return (await self.container_details(container_id)).container

    async def get_container(self, container_id: str) -> Container | None:
        """Return one container with the fields of both its list entry and its status; ``None`` if absent."""
        got = await self._list_container(container_id)
        listed = next((cri_messages.decode_container(each) for each in got.containers if each.id == container_id), None)
        if listed is None:
            return None
        try:
            status = await self.container_status(container_id)
        except RuntimeNotFoundError:
            return None
        return replace(
            listed,
            state=status.state,
            finished_at=status.finished_at,
            exit_code=status.exit_code,
            log_path=status.log_path,
            volume_images=status.volume_images,
        )

    async def container_details(self, container_id: str, *, verbose: bool = False) -> cri_messages.ContainerDetails:
        """Return one container with the fields of its status; with ``verbose`` also its traits."""
        request = api.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return cri_messages.decode_container_details(
            await self._connection.unary(_CONTAINER_STATUS, request, target=container_id)
        )

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL after ``timeout_s``. The call ends 30 seconds later at the latest."""
        request = api.StopContainerRequest(container_id=container_id, timeout=timeout_s)
        await self._change(_STOP_CONTAINER, request, container_id, timeout_s + _STOP_MARGIN_S)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. containerd kills a running container, so that callers check the state first."""
        await self._change(_REMOVE_CONTAINER, api.RemoveContainerRequest(container_id=container_id), container_id)

    async def list_container_stats(
        self, only: Collection[str] | None = None
    ) -> tuple[cri_messages.ContainerUsage, ...]:
        """Return the usage of containers; some runtimes omit containers that are not running.

        ``only`` restricts the result to these ids; ``None`` for all.
        """
        try:
            answers = [await self._connection.unary(_CONTAINER_STATS, api.ListContainerStatsRequest())]
        except RuntimeRequestError as error:
            if not is_too_large(error):
                raise
            ids = [each.id for each in await self.list_containers()] if only is None else sorted(only)
            answers = await run_bounded(self._list_stats, ids)
        usages = (cri_messages.decode_container_usage(each) for answer in answers for each in answer.stats)
        return tuple(each for each in usages if only is None or each.container_id in only)

    async def _change(
        self, method: Method[Request, Response], request: Request, target: str, deadline_s: float | None = None
    ) -> None:
        """Stop or remove an object; an absent object is no error."""
        with suppress(RuntimeNotFoundError):
            await self._connection.unary(method, request, target=target, deadline_s=deadline_s)

    async def _find_sandbox(self, prefix: str) -> str:
        request = api.PodSandboxStatusRequest(pod_sandbox_id=prefix)
        return (await self._connection.unary(_SANDBOX_STATUS, request, target=prefix)).status.id

    async def _find_container(self, prefix: str) -> str:
        request = api.ContainerStatusRequest(container_id=prefix)
        return (await self._connection.unary(_CONTAINER_STATUS, request, target=prefix)).status.id

    async def _list_sandbox(self, sandbox_id: str) -> api.ListPodSandboxResponse:
        request = api.ListPodSandboxRequest(filter=api.PodSandboxFilter(id=sandbox_id))
        return await self._connection.unary(_LIST_SANDBOXES, request, target=sandbox_id)

    async def _list_container(self, container_id: str) -> api.ListContainersResponse:
        request = api.ListContainersRequest(filter=api.ContainerFilter(id=container_id))
        return await self._connection.unary(_LIST_CONTAINERS, request, target=container_id)

    async def _list_stats(self, container_id: str) -> api.ListContainerStatsResponse:
        request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(id=container_id))
        return await self._connection.unary(_CONTAINER_STATS, request, target=container_id)


def _sandbox_ids(answer: api.ListPodSandboxResponse) -> Iterable[str]:
    return [each.id for each in answer.items]


def _container_ids(answer: api.ListContainersResponse) -> Iterable[str]:
    return [each.id for each in answer.containers]


_VERSION_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


def mounts_images(info: RuntimeInfo) -> bool:
    """Return whether this runtime may mount images as volumes, so that the mounts of containers must be read.

    containerd 2.1 and CRI-O 1.31 or newer mount images; an unknown runtime is assumed to mount images.
    """
    match = _VERSION_NUMBER.match(info.version)
    if match is None:
        return True
    version = (int(match[1]), int(match[2]))
    first = {"containerd": (2, 1), "cri-o": (1, 31)}.get(info.name.lower())
    return first is None or version >= first
