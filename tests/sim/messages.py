"""CRI messages built from the records of a simulated node.

List items are built once per record: records are frozen and replaced on a change, so that the message of an unchanged
record is reused. Without the reuse, lists of 20,000 containers would be slow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.model.runtime import ContainerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.sim.node import SimNode
    from tests.sim.profiles import Profile
    from tests.sim.workload import SimContainer, SimImage, SimSandbox

Record = TypeVar("Record")
Built = TypeVar("Built")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_STATES: Final = {
    ContainerState.CREATED: api.CONTAINER_CREATED,
    ContainerState.RUNNING: api.CONTAINER_RUNNING,
    ContainerState.EXITED: api.CONTAINER_EXITED,
    ContainerState.UNKNOWN: api.CONTAINER_UNKNOWN,
}


def nanoseconds(at: datetime | None) -> int:
    """Return a time as a CRI timestamp, nanoseconds since 1970; 0 for ``None``."""
    return 0 if at is None else (at - _EPOCH) // _MICROSECOND * 1000


class Memo(Generic[Record, Built]):
    """Cache of messages by record id; a message is valid while its record is the same object."""

    def __init__(self, build: Callable[[Record], Built]) -> None:
        self._build = build
        self._cache: dict[str, tuple[Record, Built]] = {}

    def all(self, records: Mapping[str, Record]) -> list[Built]:
        """Return the message of each record, in order; drop the messages of removed records."""
        current: dict[str, tuple[Record, Built]] = {}
        for key, record in records.items():
            known = self._cache.get(key)
            current[key] = known if known is not None and known[0] is record else (record, self._build(record))
        self._cache = current
        return [built for _, built in current.values()]


class Messages:
    """Builder of the CRI messages of one node, with the behaviour of one runtime version."""

    def __init__(self, node: SimNode, profile: Profile) -> None:
        self._node = node
        self._profile = profile

    def image_id(self, image_id: str) -> str:
        """Return an image id in the format of the simulated runtime."""
        return image_id.removeprefix("sha256:") if self._profile.bare_ids else image_id

    def image(self, image: SimImage) -> api.Image:
        """Return an item of ``ListImages``."""
        return api.Image(
            id=self.image_id(image.id),
            repo_tags=image.repo_tags,
            repo_digests=image.repo_digests,
            size=image.size_bytes,
            pinned=image.pinned and self._profile.reports_pinned,
        )

    def sandbox(self, sandbox: SimSandbox) -> api.PodSandbox:
        """Return an item of ``ListPodSandbox``."""
        return api.PodSandbox(
            id=sandbox.id,
            metadata=_sandbox_metadata(sandbox),
            state=_sandbox_state(sandbox),
            created_at=nanoseconds(sandbox.created_at),
            labels=sandbox.labels,
            annotations=sandbox.annotations,
            runtime_handler=sandbox.runtime_handler,
        )

    def sandbox_status(self, sandbox: SimSandbox) -> api.PodSandboxStatus:
        """Return the status field of a ``PodSandboxStatus`` response."""
        return api.PodSandboxStatus(
            id=sandbox.id,
            metadata=_sandbox_metadata(sandbox),
            state=_sandbox_state(sandbox),
            created_at=nanoseconds(sandbox.created_at),
            labels=sandbox.labels,
            annotations=sandbox.annotations,
            runtime_handler=sandbox.runtime_handler,
        )

    def container(self, container: SimContainer) -> api.Container:
        """Return an item of ``ListContainers``."""
        image_id = self.image_id(container.image_id)
        return api.Container(
            id=container.id,
            pod_sandbox_id=container.sandbox_id,
            metadata=api.ContainerMetadata(name=container.name, attempt=container.attempt),
            image=api.ImageSpec(image=container.image_name),
            image_ref=image_id,
            state=_STATES[container.state],
            created_at=nanoseconds(container.created_at),
            labels=container.labels,
            annotations=container.annotations,
            image_id=image_id if self._profile.reports_image_id else "",
        )

    def container_status(self, container: SimContainer) -> api.ContainerStatus:
        """Return the status field of a ``ContainerStatus`` response.

        containerd reports the current first tag and digest of the image. Only after the removal of the image it reports
        the reference in the container's configuration.
        """
        image = self._node.images.get(container.image_id)
        name, reference = container.image_name, self.image_id(container.image_id)
        if image is not None and not self._profile.bare_ids:
            name = image.repo_tags[0] if image.repo_tags else name
            reference = image.repo_digests[0] if image.repo_digests else reference
        volumes = container.volume_images if self._profile.reports_image_volumes else ()
        return api.ContainerStatus(
            id=container.id,
            metadata=api.ContainerMetadata(name=container.name, attempt=container.attempt),
            state=_STATES[container.state],
            created_at=nanoseconds(container.created_at),
            started_at=nanoseconds(container.started_at),
            finished_at=nanoseconds(container.finished_at),
            exit_code=container.exit_code,
            image=api.ImageSpec(image=name),
            image_ref=reference,
            reason=container.reason,
            labels=container.labels,
            annotations=container.annotations,
            mounts=[_volume(number, volume) for number, volume in enumerate(volumes)],
            log_path=self._node.log_path(container),
            resources=_resources(container) if self._profile.reports_resources else None,
            image_id=self.image_id(container.image_id) if self._profile.reports_image_id else "",
        )

    def container_stats(self, container: SimContainer) -> api.ContainerStats:
        """Return an item of ``ListContainerStats``; only a running container has CPU and memory usage."""
        at = nanoseconds(self._node.now)
        layer = self._node.store.snapshots.get(container.id)
        stats = api.ContainerStats(
            attributes=api.ContainerAttributes(
                id=container.id,
                metadata=api.ContainerMetadata(name=container.name, attempt=container.attempt),
                labels=container.labels,
                annotations=container.annotations,
            ),
            writable_layer=self.usage(
                self._node.imagefs_path, layer.size_bytes if layer else 0, layer.inodes if layer else 0
            ),
        )
        if container.running:
            stats.cpu.CopyFrom(api.CpuUsage(timestamp=at, usage_nano_cores=api.UInt64Value(value=1_000_000)))
            stats.memory.CopyFrom(_memory(at, container.working_set_bytes))
        return stats

    def usage(self, mountpoint: str, used_bytes: int, inodes_used: int) -> api.FilesystemUsage:
        """Return a CRI ``FilesystemUsage`` message with the current time of the node."""
        return api.FilesystemUsage(
            timestamp=nanoseconds(self._node.now),
            fs_id=api.FilesystemIdentifier(mountpoint=mountpoint),
            used_bytes=api.UInt64Value(value=used_bytes),
            inodes_used=api.UInt64Value(value=inodes_used),
        )


def _sandbox_metadata(sandbox: SimSandbox) -> api.PodSandboxMetadata:
    return api.PodSandboxMetadata(
        name=sandbox.name, uid=sandbox.uid, namespace=sandbox.namespace, attempt=sandbox.attempt
    )


def _sandbox_state(sandbox: SimSandbox) -> api.PodSandboxState.ValueType:
    return api.SANDBOX_READY if sandbox.ready else api.SANDBOX_NOTREADY


def _memory(at: int, working_set_bytes: int) -> api.MemoryUsage:
    value = api.UInt64Value(value=working_set_bytes)
    return api.MemoryUsage(timestamp=at, working_set_bytes=value, usage_bytes=value, rss_bytes=value)


def _resources(container: SimContainer) -> api.ContainerResources:
    return api.ContainerResources(
        linux=api.LinuxContainerResources(
            cpu_period=100_000,
            cpu_shares=container.cpu_shares,
            memory_limit_in_bytes=container.memory_limit_bytes,
            oom_score_adj=container.oom_score_adj,
        )
    )


def _volume(number: int, image: str) -> api.Mount:
    return api.Mount(
        container_path=f"/volumes/{number}",
        host_path=f"/var/lib/volumes/{number}",
        readonly=True,
        image=api.ImageSpec(image=image),
    )
