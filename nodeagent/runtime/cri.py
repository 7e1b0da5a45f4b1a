"""The Container Runtime Interface, version 1: what it lists as values of the model, what it removes as plain calls."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import RuntimeNotFoundError, RuntimeUnsupportedError
from nodeagent.model import Container, ContainerState, Image, RuntimeInfo, Sandbox
from nodeagent.model.pods import ContainerTraits
from nodeagent.runtime.connection import Method

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from nodeagent.runtime.connection import RuntimeConnection

_RUNTIME = "/runtime.v1.RuntimeService/"
_IMAGE = "/runtime.v1.ImageService/"
_STATS_S = 30.0
_CHANGE_S = 120.0
_PULL_S = 1800.0
_STOP_MARGIN_S = 30.0

_VERSION = Method(_RUNTIME + "Version", api.VersionRequest, api.VersionResponse, "Version")
_STATUS = Method(_RUNTIME + "Status", api.StatusRequest, api.StatusResponse, "Status")
_CONFIG = Method(_RUNTIME + "RuntimeConfig", api.RuntimeConfigRequest, api.RuntimeConfigResponse, "RuntimeConfig")
_LIST_SANDBOXES = Method(
    _RUNTIME + "ListPodSandbox", api.ListPodSandboxRequest, api.ListPodSandboxResponse, "ListPodSandbox"
)
_SANDBOX_STATUS = Method(
    _RUNTIME + "PodSandboxStatus", api.PodSandboxStatusRequest, api.PodSandboxStatusResponse, "PodSandboxStatus"
)
_STOP_SANDBOX = Method(
    _RUNTIME + "StopPodSandbox",
    api.StopPodSandboxRequest,
    api.StopPodSandboxResponse,
    "StopPodSandbox",
    _CHANGE_S,
    changes=True,
)
_REMOVE_SANDBOX = Method(
    _RUNTIME + "RemovePodSandbox",
    api.RemovePodSandboxRequest,
    api.RemovePodSandboxResponse,
    "RemovePodSandbox",
    _CHANGE_S,
    changes=True,
)
_LIST_CONTAINERS = Method(
    _RUNTIME + "ListContainers", api.ListContainersRequest, api.ListContainersResponse, "ListContainers"
)
_CONTAINER_STATUS = Method(
    _RUNTIME + "ContainerStatus", api.ContainerStatusRequest, api.ContainerStatusResponse, "ContainerStatus"
)
_STOP_CONTAINER = Method(
    _RUNTIME + "StopContainer",
    api.StopContainerRequest,
    api.StopContainerResponse,
    "StopContainer",
    _STOP_MARGIN_S,
    changes=True,
)
_REMOVE_CONTAINER = Method(
    _RUNTIME + "RemoveContainer",
    api.RemoveContainerRequest,
    api.RemoveContainerResponse,
    "RemoveContainer",
    _CHANGE_S,
    changes=True,
)
_CONTAINER_STATS = Method(
    _RUNTIME + "ListContainerStats",
    api.ListContainerStatsRequest,
    api.ListContainerStatsResponse,
    "ListContainerStats",
    _STATS_S,
)
_SANDBOX_STATS = Method(
    _RUNTIME + "ListPodSandboxStats",
    api.ListPodSandboxStatsRequest,
    api.ListPodSandboxStatsResponse,
    "ListPodSandboxStats",
    _STATS_S,
)
_EVENTS = Method(
    _RUNTIME + "GetContainerEvents", api.GetEventsRequest, api.ContainerEventResponse, "GetContainerEvents", None
)
_LIST_IMAGES = Method(_IMAGE + "ListImages", api.ListImagesRequest, api.ListImagesResponse, "ListImages")
_IMAGE_STATUS = Method(_IMAGE + "ImageStatus", api.ImageStatusRequest, api.ImageStatusResponse, "ImageStatus")
_FS_INFO = Method(_IMAGE + "ImageFsInfo", api.ImageFsInfoRequest, api.ImageFsInfoResponse, "ImageFsInfo")
_REMOVE_IMAGE = Method(
    _IMAGE + "RemoveImage", api.RemoveImageRequest, api.RemoveImageResponse, "RemoveImage", _CHANGE_S, changes=True
)
_PULL_IMAGE = Method(
    _IMAGE + "PullImage", api.PullImageRequest, api.PullImageResponse, "PullImage", _PULL_S, changes=True
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTAINER_STATES = {
    api.CONTAINER_CREATED: ContainerState.CREATED,
    api.CONTAINER_RUNNING: ContainerState.RUNNING,
    api.CONTAINER_EXITED: ContainerState.EXITED,
}


class CgroupDriver(StrEnum):
    """Who manages the cgroups of containers. Source: CRI ``CgroupDriver``."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


class ContainerEventKind(StrEnum):
    """What happened to a container. Source: CRI ``ContainerEventType``."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


_EVENT_KINDS = {
    api.CONTAINER_CREATED_EVENT: ContainerEventKind.CREATED,
    api.CONTAINER_STARTED_EVENT: ContainerEventKind.STARTED,
    api.CONTAINER_STOPPED_EVENT: ContainerEventKind.STOPPED,
    api.CONTAINER_DELETED_EVENT: ContainerEventKind.DELETED,
}


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What the runtime says of itself.

    Attributes:
        ready: the condition ``RuntimeReady``.
        problems: every condition that does not hold, as ``Type: Reason: Message``.
        sandbox_image: the configured sandbox (pause) image; ``None`` where it is not told (containerd 2.x).
        snapshotter: the configured snapshotter; ``None`` where it is not told (containerd 2.x, other runtimes).
        root_dir: containerd's root directory as it sees it; ``None`` where it is not told.

    Source: CRI ``StatusResponse``; the last three from the JSON under ``info["config"]``.
    """

    ready: bool
    problems: tuple[str, ...] = ()
    sandbox_image: str | None = None
    snapshotter: str | None = None
    root_dir: str | None = None


@dataclass(frozen=True, slots=True)
class FilesystemUsage:
    """A filesystem the runtime names, with what it says is used; ``None`` where it did not tell."""

    mountpoint: str
    used_bytes: int | None = None
    inodes_used: int | None = None
    observed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ImageFsInfo:
    """Where images and writable layers lie.

    Attributes:
        images: the filesystems of images.
        containers: those of writable layers; empty on runtimes that do not tell them apart.

    Source: CRI ``ImageFsInfoResponse``.
    """

    images: tuple[FilesystemUsage, ...] = ()
    containers: tuple[FilesystemUsage, ...] = ()

    @property
    def image_mountpoints(self) -> tuple[str, ...]:
        """Paths on the filesystems of images, each once."""
        return tuple(dict.fromkeys(each.mountpoint for each in self.images))

    @property
    def container_mountpoints(self) -> tuple[str, ...]:
        """Paths on the filesystems of writable layers, each once; those of images where none are told."""
        told = tuple(dict.fromkeys(each.mountpoint for each in self.containers))
        return told or self.image_mountpoints


@dataclass(frozen=True, slots=True)
class SandboxDetails:
    """A sandbox and what only the verbose status tells.

    Attributes:
        sandbox: with its own image and log directory filled where told.
        cgroup_parent: as the kubelet gave it; empty where not told.
        snapshot_key: of its root filesystem; empty where not told.
        snapshotter: that holds it; empty where not told.
        cgroups_path: of the sandbox's own process; empty where not told.
    """

    sandbox: Sandbox
    cgroup_parent: str = ""
    snapshot_key: str = ""
    snapshotter: str = ""
    cgroups_path: str = ""


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """Limits of a container; ``None`` where not set or not told. Source: CRI ``LinuxContainerResources``."""

    memory_limit_bytes: int | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    oom_score_adj: int | None = None
    unified: Mapping[str, str] = field(default_factory=dict)


_NO_TRAITS = ContainerTraits()


@dataclass(frozen=True, slots=True)
class ContainerDetails:
    """A container and what only its status tells.

    Attributes:
        container: with every field of the model filled where told.
        started_at: ``None`` while it was not started.
        resources: ``None`` on runtimes that do not tell (before CRI had them) or where none are set.
        traits: what a verbose status tells besides, on old runtimes as well; all unknown in a plain one.
    """

    container: Container
    started_at: datetime | None = None
    reason: str = ""
    message: str = ""
    resources: ContainerResources | None = None
    traits: ContainerTraits = _NO_TRAITS


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """Measured usage of a running container; ``None`` where not told. Source: CRI ``ContainerStats``."""

    container_id: str
    writable_bytes: int | None = None
    writable_inodes: int | None = None
    working_set_bytes: int | None = None
    cpu_nanocores: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """Measured usage of a ready sandbox; ``None`` where not told. Source: CRI ``PodSandboxStats``."""

    sandbox_id: str
    pod_uid: str
    working_set_bytes: int | None = None
    cpu_nanocores: int | None = None
    process_count: int | None = None
    containers: tuple[ContainerUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """One event. Source: CRI ``ContainerEventResponse``."""

    container_id: str
    kind: ContainerEventKind
    occurred_at: datetime | None
    sandbox_id: str


class CriClient:
    """Calls on one runtime. Every method raises what :meth:`RuntimeConnection.unary` does.

    Removals and stops of what is already gone succeed.
    """

    def __init__(self, connection: RuntimeConnection) -> None:
        self._connection = connection

    async def version(self) -> RuntimeInfo:
        """Return who answers. Source: CRI ``VersionResponse``."""
        got = await self._connection.unary(_VERSION, api.VersionRequest())
        return RuntimeInfo(got.runtime_name, got.runtime_version, got.runtime_api_version, self._connection.endpoint)

    async def status(self) -> RuntimeStatus:
        """Return the runtime's conditions and the part of its configuration it tells."""
        return _status(await self._connection.unary(_STATUS, api.StatusRequest(verbose=True)))

    async def runtime_config(self) -> CgroupDriver | None:
        """Return the cgroup driver, ``None`` on runtimes that do not tell (containerd before 2.0).

        Source: CRI ``RuntimeConfigResponse.linux.cgroup_driver``.
        """
        try:
            got = await self._connection.unary(_CONFIG, api.RuntimeConfigRequest())
        except RuntimeUnsupportedError:
            return None
        if not got.HasField("linux"):
            return None
        return CgroupDriver.SYSTEMD if got.linux.cgroup_driver == api.SYSTEMD else CgroupDriver.CGROUPFS

    async def list_images(self) -> tuple[Image, ...]:
        """Return all images in the runtime's order, each id once."""
        got = await self._connection.unary(_LIST_IMAGES, api.ListImagesRequest())
        images: dict[str, Image] = {}
        for message in got.images:
            image = _image(message)
            known = images.get(image.id)
            images[image.id] = image if known is None else _merged(known, image)
        return tuple(images.values())

    async def image_status(self, reference: str) -> Image | None:
        """Return the image a reference or id resolves to, ``None`` when there is none."""
        request = api.ImageStatusRequest(image=api.ImageSpec(image=reference))
        try:
            got = await self._connection.unary(_IMAGE_STATUS, request, target=reference)
        except RuntimeNotFoundError:
            return None
        return _image(got.image) if got.HasField("image") else None

    async def image_fs_info(self) -> ImageFsInfo:
        """Return where images and writable layers lie."""
        got = await self._connection.unary(_FS_INFO, api.ImageFsInfoRequest())
        return ImageFsInfo(
            tuple(map(_filesystem, got.image_filesystems)), tuple(map(_filesystem, got.container_filesystems))
        )

    async def remove_image(self, reference: str) -> None:
        """Remove an image with all its names; containerd collects garbage before it answers."""
        request = api.RemoveImageRequest(image=api.ImageSpec(image=reference))
        try:
            await self._connection.unary(_REMOVE_IMAGE, request, target=reference)
        except RuntimeNotFoundError:
            return

    async def pull_image(self, reference: str) -> str:
        """Pull an image; return what the runtime resolved it to."""
        request = api.PullImageRequest(image=api.ImageSpec(image=reference))
        return (await self._connection.unary(_PULL_IMAGE, request, target=reference)).image_ref

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes in the runtime's order, without their own images."""
        got = await self._connection.unary(_LIST_SANDBOXES, api.ListPodSandboxRequest())
        return tuple(map(_sandbox, got.items))

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        """Return one sandbox with its own image and log directory as far as told."""
        return (await self.sandbox_details(sandbox_id)).sandbox

    async def sandbox_details(self, sandbox_id: str) -> SandboxDetails:
        """Return one sandbox with all that its verbose status tells."""
        request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return _sandbox_details(await self._connection.unary(_SANDBOX_STATUS, request, target=sandbox_id))

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox and every container in it."""
        request = api.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
        try:
            await self._connection.unary(_STOP_SANDBOX, request, target=sandbox_id)
        except RuntimeNotFoundError:
            return

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox and every container in it."""
        request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
        try:
            await self._connection.unary(_REMOVE_SANDBOX, request, target=sandbox_id)
        except RuntimeNotFoundError:
            return

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers in any state, in the runtime's order, without what only the status tells."""
        got = await self._connection.unary(_LIST_CONTAINERS, api.ListContainersRequest())
        return tuple(map(_container, got.containers))

    async def container_status(self, container_id: str) -> Container:
        """Return one container with its end, log path and mounted images.

        The status does not name the sandbox, so ``sandbox_id`` is empty, and containerd gives a repository digest as
        ``image_ref`` where the list gives the image id.
        """
        return (await self.container_details(container_id)).container

    async def get_container(self, container_id: str) -> Container | None:
        """Return one container with everything its listing and its status tell, ``None`` when it is gone."""
        request = api.ListContainersRequest(filter=api.ContainerFilter(id=container_id))
        got = await self._connection.unary(_LIST_CONTAINERS, request, target=container_id)
        listed = next((_container(each) for each in got.containers if each.id == container_id), None)
        if listed is None:
            return None
        try:
            known = await self.container_status(container_id)
        except RuntimeNotFoundError:
            return None
        return replace(
            listed,
            state=known.state,
            finished_at=known.finished_at,
            exit_code=known.exit_code,
            log_path=known.log_path,
            volume_images=known.volume_images,
        )

    async def container_details(self, container_id: str, *, verbose: bool = False) -> ContainerDetails:
        """Return one container with all that its status tells, with ``verbose`` its traits as well."""
        request = api.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        return _container_details(await self._connection.unary(_CONTAINER_STATUS, request, target=container_id))

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop a container: TERM, and KILL after ``timeout_s``; waits that long and a margin."""
        request = api.StopContainerRequest(container_id=container_id, timeout=timeout_s)
        try:
            await self._connection.unary(
                _STOP_CONTAINER, request, target=container_id, deadline_s=timeout_s + _STOP_MARGIN_S
            )
        except RuntimeNotFoundError:
            return

    async def remove_container(self, container_id: str) -> None:
        """Remove a container; a running one is killed by containerd, so look before."""
        request = api.RemoveContainerRequest(container_id=container_id)
        try:
            await self._connection.unary(_REMOVE_CONTAINER, request, target=container_id)
        except RuntimeNotFoundError:
            return

    async def list_container_stats(self) -> tuple[ContainerUsage, ...]:
        """Return the usage of containers; some runtimes leave out those that do not run."""
        got = await self._connection.unary(_CONTAINER_STATS, api.ListContainerStatsRequest())
        return tuple(map(_container_usage, got.stats))

    async def list_sandbox_stats(self) -> tuple[SandboxUsage, ...]:
        """Return the usage of ready sandboxes."""
        got = await self._connection.unary(_SANDBOX_STATS, api.ListPodSandboxStatsRequest())
        return tuple(map(_sandbox_usage, got.stats))

    async def container_events(self) -> AsyncIterator[ContainerEvent]:
        """Yield events; a hint only. A server may begin with old ones it had queued, and lose others.

        Raises:
            RuntimeUnsupportedError: containerd before 1.7.
        """
        async with aclosing(self._connection.stream(_EVENTS, api.GetEventsRequest())) as events:
            async for event in events:
                kind = _EVENT_KINDS.get(event.container_event_type)
                if kind is not None:
                    yield ContainerEvent(event.container_id, kind, _at(event.created_at), event.pod_sandbox_status.id)


def _at(nanoseconds: int) -> datetime | None:
    """Return the instant; ``None`` for 0 and for the year 1, which is how Go's zero time comes out."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds > 0 else None


def _image(message: api.Image) -> Image:
    return Image(
        message.id, tuple(message.repo_tags), tuple(message.repo_digests), message.size or None, message.pinned
    )


def _merged(first: Image, second: Image) -> Image:
    return Image(
        first.id,
        _union(first.repo_tags, second.repo_tags),
        _union(first.repo_digests, second.repo_digests),
        first.size_bytes or second.size_bytes,
        first.pinned or second.pinned,
    )


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _sandbox(message: api.PodSandbox | api.PodSandboxStatus) -> Sandbox:
    metadata = message.metadata
    return Sandbox(
        id=message.id,
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        ready=message.state == api.SANDBOX_READY,
        attempt=metadata.attempt,
        created_at=_at(message.created_at),
        labels=dict(message.labels),
        annotations=dict(message.annotations),
        runtime_handler=message.runtime_handler,
    )


def _sandbox_details(message: api.PodSandboxStatusResponse) -> SandboxDetails:
    info = _document(message.info.get("info", ""))
    listed = _sandbox(message.status)
    sandbox = replace(
        listed,
        runtime_handler=listed.runtime_handler or _text(info, "runtimeHandler"),
        image=_text(info, "image"),
        log_directory=_text(info, "config", "log_directory") or None,
    )
    return SandboxDetails(
        sandbox,
        cgroup_parent=_text(info, "config", "linux", "cgroup_parent"),
        snapshot_key=_text(info, "snapshotKey"),
        snapshotter=_text(info, "snapshotter"),
        cgroups_path=_text(info, "runtimeSpec", "linux", "cgroupsPath"),
    )


def _container(message: api.Container) -> Container:
    metadata = message.metadata
    return Container(
        message.id,
        metadata.name,
        message.pod_sandbox_id,
        _CONTAINER_STATES.get(message.state, ContainerState.UNKNOWN),
        metadata.attempt,
        _at(message.created_at),
        message.image_ref,
        message.image_id,
        message.image.image,
        dict(message.labels),
        dict(message.annotations),
    )


def _container_details(message: api.ContainerStatusResponse) -> ContainerDetails:
    status = message.status
    state = _CONTAINER_STATES.get(status.state, ContainerState.UNKNOWN)
    finished_at = _at(status.finished_at)
    container = Container(
        id=status.id,
        name=status.metadata.name,
        sandbox_id="",
        state=state,
        attempt=status.metadata.attempt,
        created_at=_at(status.created_at),
        image_ref=status.image_ref,
        image_id=status.image_id,
        image_name=status.image.image,
        labels=dict(status.labels),
        annotations=dict(status.annotations),
        finished_at=finished_at,
        exit_code=status.exit_code if state is ContainerState.EXITED else None,
        log_path=status.log_path or None,
        volume_images=_volume_images(status.mounts),
    )
    resources = _resources(status.resources)
    return ContainerDetails(
        container,
        _at(status.started_at),
        status.reason,
        status.message,
        resources,
        _traits(_document(message.info.get("info", "")), resources),
    )


def _traits(info: object, resources: ContainerResources | None) -> ContainerTraits:
    """Return what a verbose status tells.

    The score comes from the configuration the container was made with where that is told, since a runtime that may
    not lower it writes another into the specification; there a field of 0 is left out.
    """
    if not isinstance(info, dict):
        return _NO_TRAITS
    asked = _at_path(info, "config", "linux", "resources")
    limit = _int(info, "runtimeSpec", "linux", "resources", "memory", "limit")
    if isinstance(asked, dict):
        score: int | None = _int(asked, "oom_score_adj") or 0
        limit = limit or _int(asked, "memory_limit_in_bytes") or 0
    else:
        score = _int(info, "runtimeSpec", "process", "oomScoreAdj")
        if resources is not None and score is None:
            score = resources.oom_score_adj
    if resources is not None:
        limit = resources.memory_limit_bytes or 0
    elif limit is None and _at_path(info, "runtimeSpec", "linux", "resources") is not None:
        limit = 0
    return ContainerTraits(score, limit, _text(info, "runtimeSpec", "linux", "cgroupsPath"), _int(info, "pid") or None)


def _volume_images(mounts: Iterable[api.Mount]) -> tuple[str, ...]:
    references = (name for mount in mounts for name in (mount.image.image, mount.image.image_ref) if name)
    return tuple(dict.fromkeys(references))


def _resources(message: api.ContainerResources) -> ContainerResources | None:
    """Return the limits; 0 means not set to a runtime, and no field set at all that it does not tell."""
    linux = message.linux
    if not linux.ByteSize():
        return None
    return ContainerResources(
        memory_limit_bytes=linux.memory_limit_in_bytes or None,
        cpu_shares=linux.cpu_shares or None,
        cpu_quota_us=linux.cpu_quota or None,
        cpu_period_us=linux.cpu_period or None,
        oom_score_adj=linux.oom_score_adj,
        unified=dict(linux.unified),
    )


def _filesystem(message: api.FilesystemUsage) -> FilesystemUsage:
    return FilesystemUsage(
        message.fs_id.mountpoint,
        message.used_bytes.value if message.HasField("used_bytes") else None,
        message.inodes_used.value if message.HasField("inodes_used") else None,
        _at(message.timestamp),
    )


def _container_usage(message: api.ContainerStats) -> ContainerUsage:
    """Return the usage of a container.

    containerd measures layers every ten seconds and reports 0 at time 0 until then: such a layer is unmeasured, not
    empty.
    """
    layer, memory, cpu = _filesystem(message.writable_layer), message.memory, message.cpu
    if not layer.used_bytes and layer.observed_at is None:
        layer = FilesystemUsage(layer.mountpoint)
    return ContainerUsage(
        message.attributes.id,
        layer.used_bytes,
        layer.inodes_used,
        memory.working_set_bytes.value if memory.HasField("working_set_bytes") else None,
        cpu.usage_nano_cores.value if cpu.HasField("usage_nano_cores") else None,
        dict(message.attributes.labels),
    )


def _sandbox_usage(message: api.PodSandboxStats) -> SandboxUsage:
    memory, cpu, process = message.linux.memory, message.linux.cpu, message.linux.process
    return SandboxUsage(
        message.attributes.id,
        message.attributes.metadata.uid,
        memory.working_set_bytes.value if memory.HasField("working_set_bytes") else None,
        cpu.usage_nano_cores.value if cpu.HasField("usage_nano_cores") else None,
        process.process_count.value if process.HasField("process_count") else None,
        tuple(map(_container_usage, message.linux.containers)),
    )


def _status(message: api.StatusResponse) -> RuntimeStatus:
    conditions = message.status.conditions
    config = _document(message.info.get("config", ""))
    return RuntimeStatus(
        ready=any(condition.type == "RuntimeReady" and condition.status for condition in conditions),
        problems=tuple(
            ": ".join(filter(None, (condition.type, condition.reason, condition.message)))
            for condition in conditions
            if not condition.status
        ),
        sandbox_image=_text(config, "sandboxImage") or _text(config, "pinned_images", "sandbox") or None,
        snapshotter=_text(config, "containerd", "snapshotter") or None,
        root_dir=_text(config, "containerdRootDir") or None,
    )


def _document(text: str) -> object:
    """Return a verbose answer's JSON; ``None`` for what is no JSON, as its shape is promised by nobody."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _at_path(document: object, *path: str) -> object:
    """Return what is at a path of keys; ``None`` where there is nothing."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _text(document: object, *path: str) -> str:
    """Return the text at a path of keys; empty where there is none."""
    found = _at_path(document, *path)
    return found if isinstance(found, str) else ""


def _int(document: object, *path: str) -> int | None:
    """Return the whole number at a path of keys; ``None`` where there is none."""
    found = _at_path(document, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
