"""Sandboxes, containers and images of a simulated node, as frozen records that are replaced on a change."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from nodeagent.model.runtime import ContainerState
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class QosClass(StrEnum):
    """Kubernetes' quality-of-service class of a pod."""

    GUARANTEED = "guaranteed"
    BURSTABLE = "burstable"
    BEST_EFFORT = "besteffort"


class SimImage(Record):
    """Image in CRI: all names with the same config.

    Attributes:
        id: digest of the config.
        target_digest: digest of the manifest or index, the target of the names.
        chain_id: key of the topmost snapshot; empty for an image that is not unpacked.
        size_bytes: size in CRI: sum of all compressed blobs, including shared blobs.
        stop_signal: stop signal in the image configuration; empty for none.
    """

    id: str
    target_digest: str
    chain_id: str
    size_bytes: int
    diff_ids: tuple[str, ...]
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    pinned: bool = False
    stop_signal: str = ""


class SimSandbox(Record):
    """Pod sandbox of the simulated node.

    Attributes:
        image: reference of the pause image.
        cgroup_parent: cgroup path in the kubelet's naming scheme, which includes the QoS class.
    """

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    ready: bool
    created_at: datetime
    image: str
    cgroup_parent: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""

    @property
    def log_directory_name(self) -> str:
        """Name of the pod's log directory. Source: kubelet ``BuildPodLogsDirectory``."""
        return f"{self.namespace}_{self.name}_{self.uid}"


class ContainerResources(TypedDict, total=False):
    """Usage and limits of a container at its creation, with the defaults of ``SimContainer``.

    Attributes:
        exit_code: exit code of an exited container.
        writable_bytes: size of the writable layer.
        working_set_bytes: memory usage while running.
        memory_limit_bytes: memory limit; 0 for no limit.
        oom_score_adj: OOM score adjustment in place of the kubelet's value.
        cpu_shares: CPU shares, which the kubelet derives from the CPU request.
    """

    exit_code: int
    writable_bytes: int
    working_set_bytes: int
    memory_limit_bytes: int
    oom_score_adj: int
    cpu_shares: int


class SimContainer(Record):
    """Container of the simulated node.

    Attributes:
        image_name: image reference at creation.
        image_id: image id at creation; the image may have been removed since.
        writable_bytes: size of the writable layer.
        working_set_bytes: memory usage while running.
        volume_images: references of images mounted as volumes.
        pid: process ID while running.
    """

    id: str
    name: str
    sandbox_id: str
    attempt: int
    state: ContainerState
    image_name: str
    image_id: str
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    writable_bytes: int = 0
    working_set_bytes: int = 0
    oom_score_adj: int = 1000
    memory_limit_bytes: int = 0
    cpu_shares: int = 2
    volume_images: tuple[str, ...] = ()
    pid: int = 4712
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the process of the container is running."""
        return self.state is ContainerState.RUNNING

    @property
    def reason(self) -> str:
        """Termination reason in containerd's form; empty before the exit."""
        if self.state is not ContainerState.EXITED:
            return ""
        if self.exit_code == 137:
            return "OOMKilled"
        return "Error" if self.exit_code else "Completed"
