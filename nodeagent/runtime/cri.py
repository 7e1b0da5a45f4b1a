"""Client of the Container Runtime Interface, version 1: images, sandboxes, containers and their usage.

Protobuf messages become values of :mod:`nodeagent.model`, or of this module if only one reader uses the values. Equal
texts in many objects of a list share one object, which saves memory and is compared by identity.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.guarded_call import compute
from nodeagent.model.node import RuntimeInfo
from nodeagent.model.pods import ContainerTraits
from nodeagent.model.runtime import Container, ContainerState, Image, Sandbox
from nodeagent.parsing import parse_json
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import Method, Request, Response, RuntimeConnection, run_bounded
from nodeagent.runtime.lists import DecodeCache, LongList, PrefixList, is_too_large, shared_text, shared_texts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTAINER_STATES = {
    api.CONTAINER_CREATED: ContainerState.CREATED,
    api.CONTAINER_RUNNING: ContainerState.RUNNING,
    api.CONTAINER_EXITED: ContainerState.EXITED,
}
_NO_TRAITS = ContainerTraits()
_ID = attrgetter("id")


class RuntimeStatus(Record):
    """Status and configuration reported by the runtime.

    Attributes:
        ready: the condition ``RuntimeReady``.
        problems: every condition that is false, as ``Type: Reason: Message``.
        sandbox_image: the configured sandbox (pause) image; ``None`` where not reported (containerd 2.x).
        snapshotter: the configured snapshotter; ``None`` where not reported (containerd 2.x, other runtimes).
        snapshotters: the configured snapshotter and the snapshotters of the runtime handlers, where reported.
        state_directory: directory with the state of running sandboxes and containers; empty where not reported.

    Source: CRI ``StatusResponse``; the last four from the JSON under ``info["config"]``.
    """

    ready: bool
    problems: tuple[str, ...] = ()
    sandbox_image: str | None = None
    snapshotter: str | None = None
    snapshotters: tuple[str, ...] = ()
    state_directory: str = ""


class FilesystemUsage(Record):
    """A filesystem named by the runtime, with its reported usage; ``None`` where not reported."""

    mountpoint: str
    used_bytes: int | None = None
    inodes_used: int | None = None
    observed_at: datetime | None = None


class ImageFsInfo(Record):
    """Filesystems of images and writable layers.

    Attributes:
        images: the image filesystems.
        containers: the filesystems of writable layers; empty if the runtime reports no separate filesystems.

    Source: CRI ``ImageFsInfoResponse``.
    """

    images: tuple[FilesystemUsage, ...] = ()
    containers: tuple[FilesystemUsage, ...] = ()

    @property
    def image_mountpoints(self) -> tuple[str, ...]:
        """Distinct mount points of the image filesystems."""
        return tuple(dict.fromkeys(each.mountpoint for each in self.images))

    @property
    def container_mountpoints(self) -> tuple[str, ...]:
        """Distinct mount points of the container filesystems; of the image filesystems if not reported separately."""
        separate = tuple(dict.fromkeys(each.mountpoint for each in self.containers))
        return separate or self.image_mountpoints


class SandboxDetails(Record):
    """A sandbox with the fields of its verbose status.

    Attributes:
        sandbox: the sandbox, with its own image and log directory where reported.
        cgroup_parent: cgroup parent as set by the kubelet; empty where not reported.
        cgroups_path: cgroup path of the sandbox's own process; empty where not reported.
    """

    sandbox: Sandbox
    cgroup_parent: str = ""
    cgroups_path: str = ""


class ContainerDetails(Record):
    """A container with the fields of its status.

    Attributes:
        container: the container, with every field that the status reports.
        traits: traits in a verbose status, also of old runtimes; all unknown for a plain status.
    """

    container: Container
    traits: ContainerTraits = _NO_TRAITS


class ContainerUsage(Record):
    """Measured usage of a container; ``None`` where not reported. Source: CRI ``ContainerStats``."""

    container_id: str
    writable_bytes: int | None = None
    writable_inodes: int | None = None
    working_set_bytes: int | None = None


def decode_status(message: api.StatusResponse) -> RuntimeStatus:
    """Return the conditions and the part of the configuration that the runtime reports."""
    conditions = message.status.conditions
    config = _parse_json(message.info.get("config", ""))
    return RuntimeStatus(
        ready=any(condition.type == "RuntimeReady" and condition.status for condition in conditions),
        problems=tuple(
            ": ".join(filter(None, (condition.type, condition.reason, condition.message)))
            for condition in conditions
            if not condition.status
        ),
        sandbox_image=_text(config, "sandboxImage") or _text(config, "pinned_images", "sandbox") or None,
        snapshotter=_text(config, "containerd", "snapshotter") or None,
        snapshotters=_snapshotters(config),
        state_directory=_text(config, "stateDir").rpartition("/")[0],  # the CRI plugin has a directory in it
    )


def _snapshotters(config: object) -> tuple[str, ...]:
    """Return the snapshotters of a configuration. Source: containerd ``runtimes.NAME.snapshotter``, since 1.7."""
    handlers = _at_path(config, "containerd", "runtimes")
    own = [_text(handler, "snapshotter") for handler in handlers.values()] if isinstance(handlers, dict) else []
    return tuple(dict.fromkeys(filter(None, (_text(config, "containerd", "snapshotter"), *own))))


def merge_images(listed: Iterable[Image]) -> tuple[Image, ...]:
    """Return the images in the runtime's order, one per id; names of repeated entries are merged.

    The same tuple is returned if no id is repeated.
    """
    whole = tuple(listed)
    if len(frozenset(map(_ID, whole))) == len(whole):
        return whole
    images: dict[str, Image] = {}
    for image in whole:
        known = images.get(image.id)
        images[image.id] = image if known is None else _merge(known, image)
    return tuple(images.values())


def decode_image(message: api.Image) -> Image:
    """Return one image; a reported size of 0 is unknown."""
    return Image(
        message.id, tuple(message.repo_tags), tuple(message.repo_digests), message.size or None, message.pinned
    )


def _merge(first: Image, second: Image) -> Image:
    return Image(
        first.id,
        _union(first.repo_tags, second.repo_tags),
        _union(first.repo_digests, second.repo_digests),
        first.size_bytes or second.size_bytes,
        first.pinned or second.pinned,
    )


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def decode_sandbox(message: api.PodSandbox | api.PodSandboxStatus) -> Sandbox:
    """Return a sandbox without its own image and log directory."""
    metadata = message.metadata
    return Sandbox(
        id=shared_text(message.id),
        name=metadata.name,
        namespace=shared_text(metadata.namespace),
        uid=shared_text(metadata.uid),
        ready=message.state == api.SANDBOX_READY,
        attempt=metadata.attempt,
        created_at=_instant(message.created_at),
        labels=shared_texts(message.labels),
        annotations=shared_texts(message.annotations),
        runtime_handler=shared_text(message.runtime_handler),
    )


def decode_sandbox_details(message: api.PodSandboxStatusResponse) -> SandboxDetails:
    """Return a sandbox with the fields of its verbose status."""
    info = _parse_json(message.info.get("info", ""))
    listed = decode_sandbox(message.status)
    sandbox = replace(
        listed,
        runtime_handler=listed.runtime_handler or _text(info, "runtimeHandler"),
        image=_text(info, "image"),
        log_directory=_text(info, "config", "log_directory") or None,
    )
    return SandboxDetails(
        sandbox,
        cgroup_parent=_text(info, "config", "linux", "cgroup_parent"),
        cgroups_path=_text(info, "runtimeSpec", "linux", "cgroupsPath"),
    )


def labels_in_config(config: object) -> dict[str, str] | None:
    """Return the labels in the config of an image; ``None`` if they are malformed, or the JSON is no config.

    Source: OCI image configuration, ``config.Labels``.
    """
    if not isinstance(config, dict) or "schemaVersion" in config:  # a manifest or an index
        return None
    labels = _at_path(config, "config", "Labels")
    if labels is None:
        return {}
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        return None
    return labels


def decode_stop_signal(message: api.ImageStatusResponse) -> str:
    """Return the stop signal in the verbose status of an image; empty without a stop signal."""
    return _text(_parse_json(message.info.get("info", "")), "imageSpec", "config", "StopSignal")


def decode_container(message: api.Container) -> Container:
    """Return a container without the fields of its status."""
    metadata = message.metadata
    return Container(
        message.id,
        shared_text(metadata.name),
        shared_text(message.pod_sandbox_id),
        _CONTAINER_STATES.get(message.state, ContainerState.UNKNOWN),
        metadata.attempt,
        _instant(message.created_at),
        shared_text(message.image_ref),
        shared_text(message.image_id),
        shared_text(message.image.image),
        shared_texts(message.labels),
        shared_texts(message.annotations),
    )


def decode_container_details(message: api.ContainerStatusResponse) -> ContainerDetails:
    """Return a container with the fields of its status; a status has no sandbox id."""
    status = message.status
    state = _CONTAINER_STATES.get(status.state, ContainerState.UNKNOWN)
    container = Container(
        id=status.id,
        name=status.metadata.name,
        sandbox_id="",
        state=state,
        attempt=status.metadata.attempt,
        created_at=_instant(status.created_at),
        image_ref=status.image_ref,
        image_id=status.image_id,
        image_name=status.image.image,
        labels=dict(status.labels),
        annotations=dict(status.annotations),
        finished_at=_instant(status.finished_at),
        exit_code=status.exit_code if state is ContainerState.EXITED else None,
        exit_reason=status.reason if state is ContainerState.EXITED else "",
        log_path=status.log_path or None,
        volume_images=_volume_images(status.mounts),
    )
    info = _parse_json(message.info.get("info", ""))
    return ContainerDetails(container, _traits(info, status.resources.linux, container.id))


def _traits(info: object, resources: api.LinuxContainerResources, container_id: str) -> ContainerTraits:
    """Return the traits in a verbose status.

    The OOM score is read from the container's CRI configuration, where reported: a runtime without permission to lower
    the score writes a different score into the runtime specification. The CRI configuration omits fields with the
    value 0. A resources message without fields counts as not reported, as by runtimes older than this CRI field.
    """
    if not isinstance(info, dict):
        return _NO_TRAITS
    reported = bool(resources.ByteSize())
    configured = _at_path(info, "config", "linux", "resources")
    limit = _int(info, "runtimeSpec", "linux", "resources", "memory", "limit")
    if isinstance(configured, dict):
        score: int | None = _int(configured, "oom_score_adj") or 0
        limit = limit or _int(configured, "memory_limit_in_bytes") or 0
    else:
        score = _int(info, "runtimeSpec", "process", "oomScoreAdj")
        if reported and score is None:
            score = resources.oom_score_adj
    if reported:
        limit = resources.memory_limit_in_bytes
    elif limit is None and _at_path(info, "runtimeSpec", "linux", "resources") is not None:
        limit = 0
    path, pid = _text(info, "runtimeSpec", "linux", "cgroupsPath"), _int(info, "pid") or None
    sources = _mount_sources(info)
    files, volumes = _sandbox_files(info, sources), _image_volumes(container_id, sources)
    return ContainerTraits(score, limit, path, pid, _text(info, "snapshotter"), files, volumes)


def _mount_sources(info: Mapping[str, object]) -> tuple[str, ...]:
    """Return the sources of all mounts, without duplicates."""
    mounts = _at_path(info, "runtimeSpec", "mounts")
    found = (_text(each, "source") for each in (mounts if isinstance(mounts, list) else ()) if isinstance(each, dict))
    return tuple(dict.fromkeys(found))


def _sandbox_files(info: Mapping[str, object], sources: Iterable[str]) -> tuple[str, ...]:
    """Return the mount sources that are in a directory with the sandbox id as its name.

    Source: containerd, ``hostname``, ``hosts`` and ``resolv.conf`` in ``sandboxes/ID`` of the CRI plugin's directory.
    """
    sandbox = _text(info, "sandboxID")
    return tuple(each for each in sources if sandbox and each.split("/")[-2:-1] == [sandbox])


def _image_volumes(container_id: str, sources: Iterable[str]) -> tuple[str, ...]:
    """Return the mount sources that are in the volume directory of a container.

    Source: containerd, ``containers/ID/volumes`` of the CRI plugin's directory.
    """
    parent = ["containers", container_id, "volumes"]
    return tuple(each for each in sources if container_id and each.split("/")[-4:-1] == parent)


def _volume_images(mounts: Iterable[api.Mount]) -> tuple[str, ...]:
    references = (name for mount in mounts for name in (mount.image.image, mount.image.image_ref) if name)
    return tuple(dict.fromkeys(references))


def decode_filesystem(message: api.FilesystemUsage) -> FilesystemUsage:
    """Return a filesystem's usage; a field that is absent in the message is ``None``, not 0."""
    return FilesystemUsage(
        message.fs_id.mountpoint,
        message.used_bytes.value if message.HasField("used_bytes") else None,
        message.inodes_used.value if message.HasField("inodes_used") else None,
        _instant(message.timestamp),
    )


def decode_container_usage(message: api.ContainerStats) -> ContainerUsage:
    """Return the usage of a container.

    containerd measures layers every ten seconds. Before the first measurement, containerd reports 0 bytes at time 0:
    the layer is unmeasured, not empty.
    """
    layer, memory = decode_filesystem(message.writable_layer), message.memory
    if not layer.used_bytes and layer.observed_at is None:
        layer = FilesystemUsage(layer.mountpoint)
    return ContainerUsage(
        message.attributes.id,
        layer.used_bytes,
        layer.inodes_used,
        memory.working_set_bytes.value if memory.HasField("working_set_bytes") else None,
    )


def _instant(nanoseconds: int) -> datetime | None:
    """Return the time as aware UTC; ``None`` for 0 and for the year 1, the encoding of Go's zero time."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds > 0 else None


def _parse_json(text: str) -> object:
    """Return the decoded JSON of a verbose status; ``None`` if invalid, since CRI does not specify the format."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def _at_path(document: object, *path: str) -> object:
    """Return the value at a path of keys; ``None`` if absent."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _text(document: object, *path: str) -> str:
    """Return the string at a path of keys; empty if absent."""
    found = _at_path(document, *path)
    return found if isinstance(found, str) else ""


def _int(document: object, *path: str) -> int | None:
    """Return the integer at a path of keys; ``None`` if absent."""
    found = _at_path(document, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


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


class DecodedLists:
    """Decoded values of the last lists, shared by the clients of one runtime.

    Attributes:
        reuses: whether decoded values are kept for the next list, see :class:`DecodeCache`.
    """

    def __init__(self, *, reuses: bool = True) -> None:
        """Create empty caches; ``reuses`` is false for a process that lists once."""
        self.reuses = reuses
        self.images = DecodeCache(_IMAGES_OF, decode_image, reuses=reuses)
        self.sandboxes = DecodeCache(_SANDBOXES_OF, decode_sandbox, reuses=reuses)
        self.containers = DecodeCache(_CONTAINERS_OF, decode_container, reuses=reuses)


class CriClient:
    """CRI client of one runtime. Every method raises the errors of :meth:`RuntimeConnection.unary`.

    Removing or stopping an absent object succeeds.
    """

    def __init__(self, connection: RuntimeConnection, lists: DecodedLists | None = None) -> None:
        """Create a client with the caches of its lists, by default its own."""
        self._connection = connection
        self._images = LongList(connection, _LIST_IMAGES, _STREAM_IMAGES)
        sandboxes = PrefixList(self._find_sandbox, self._list_sandbox, _sandbox_ids)
        containers = PrefixList(self._find_container, self._list_container, _container_ids)
        self._sandboxes = LongList(connection, _LIST_SANDBOXES, _STREAM_SANDBOXES, sandboxes.read)
        self._containers = LongList(connection, _LIST_CONTAINERS, _STREAM_CONTAINERS, containers.read)
        self._decoded = lists or DecodedLists()

    @property
    def socket(self) -> str:
        """Path of the runtime's socket."""
        return self._connection.socket

    async def version(self) -> RuntimeInfo:
        """Return the runtime's name and version. Source: CRI ``VersionResponse``."""
        got = await self._connection.unary(_VERSION, api.VersionRequest())
        return RuntimeInfo(got.runtime_name, got.runtime_version, got.runtime_api_version, self._connection.endpoint)

    async def status(self) -> RuntimeStatus:
        """Return the runtime's conditions and the reported part of its configuration."""
        return decode_status(await self._connection.unary(_STATUS, api.StatusRequest(verbose=True)))

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images in the runtime's order, one per id; the previous tuple if only the order changed."""
        return merge_images(await self._decoded.images.read(self._images.read(api.ListImagesRequest())))

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
        return decode_image(got.image) if got.HasField("image") else None

    async def stop_signal(self, reference: str) -> str:
        """Return the stop signal in an image's configuration; empty if not configured or not reported by the runtime.

        Source: OCI image configuration, ``StopSignal``; containerd and CRI-O report the configuration in the verbose
        ``ImageStatus``.
        """
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference), verbose=True)
        return decode_stop_signal(await self._connection.unary(_IMAGE_STATUS, request, target=reference))

    async def image_config(self, reference: str) -> object:
        """Return the config in the verbose status of an image; ``None`` if not reported by the runtime."""
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference), verbose=True)
        status = await self._connection.unary(_IMAGE_STATUS, request, target=reference)
        return _at_path(_parse_json(status.info.get("info", "")), "imageSpec")

    async def image_fs_info(self) -> ImageFsInfo:
        """Return the filesystems of images and writable layers."""
        got = await self._connection.unary(_FS_INFO, api.ImageFsInfoRequest())
        return ImageFsInfo(
            tuple(map(decode_filesystem, got.image_filesystems)),
            tuple(map(decode_filesystem, got.container_filesystems)),
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
        return await self._decoded.sandboxes.read(self._sandboxes.read(api.ListPodSandboxRequest()))

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        """Return one sandbox with its own image and log directory, if reported."""
        return (await self.sandbox_details(sandbox_id)).sandbox

    async def sandbox_details(self, sandbox_id: str) -> SandboxDetails:
        """Return one sandbox with the fields of its verbose status."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return decode_sandbox_details(await self._connection.unary(_SANDBOX_STATUS, request, target=sandbox_id))

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
        return await self._decoded.containers.read(self._containers.read(api.ListContainersRequest()))

    async def container_status(self, container_id: str) -> Container:
        """Return one container with its finish time, log path and mounted images.

        A status does not include the sandbox, so ``sandbox_id`` is empty. containerd sets ``image_ref`` to a repository
        digest, whereas the list has the image id.
        """
        return (await self.container_details(container_id)).container

    async def get_container(self, container_id: str) -> Container | None:
        """Return one container with the fields of both its list entry and its status; ``None`` if absent."""
        got = await self._list_container(container_id)
        listed = next((decode_container(each) for each in got.containers if each.id == container_id), None)
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
            exit_reason=status.exit_reason,
            log_path=status.log_path,
            volume_images=status.volume_images,
        )

    async def container_details(self, container_id: str, *, verbose: bool = False) -> ContainerDetails:
        """Return one container with the fields of its status; with ``verbose`` also its traits."""
        request = api.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return decode_container_details(await self._connection.unary(_CONTAINER_STATUS, request, target=container_id))

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop a container: SIGTERM, then SIGKILL after ``timeout_s``. The call ends 30 seconds later at the latest."""
        request = api.StopContainerRequest(container_id=container_id, timeout=timeout_s)
        await self._change(_STOP_CONTAINER, request, container_id, timeout_s + _STOP_MARGIN_S)

    async def remove_container(self, container_id: str) -> None:
        """Remove a container. containerd kills a running container, so that callers check the state first."""
        await self._change(_REMOVE_CONTAINER, api.RemoveContainerRequest(container_id=container_id), container_id)

    async def list_container_stats(self, only: Collection[str] | None = None) -> tuple[ContainerUsage, ...]:
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
        stats = [each for answer in answers for each in answer.stats]
        usages = await compute(len(stats), lambda: tuple(map(decode_container_usage, stats)))
        return usages if only is None else tuple(each for each in usages if each.container_id in only)

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
