"""Sandboxes, containers and images of a simulated node, as frozen records that are replaced when they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.model import ContainerState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class QosClass(StrEnum):
    """Kubernetes' quality-of-service class of a pod."""

    GUARANTEED = "guaranteed"
    BURSTABLE = "burstable"
    BEST_EFFORT = "besteffort"


class EventKind(StrEnum):
    """What happened to a container or sandbox. Source: CRI ``ContainerEventType``."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class SimImage:
    """An image as CRI sees it: all names that lead to one config.

    Attributes:
        id: digest of the config.
        target_digest: what the names point at.
        chain_id: the topmost snapshot; empty where nothing was unpacked.
        size_bytes: CRI's size: all compressed blobs, the shared ones too.
    """

    id: str
    target_digest: str
    chain_id: str
    size_bytes: int
    diff_ids: tuple[str, ...]
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class SimSandbox:
    """One sandbox.

    Attributes:
        image: the pause image's reference.
        cgroup_parent: as the kubelet names it, which tells the QoS class.
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


@dataclass(frozen=True, slots=True)
class SimContainer:
    """One container.

    Attributes:
        image_name: the reference it was made from.
        image_id: what that meant then; the image may be gone since.
        writable_bytes: what it wrote into its own layer.
        working_set_bytes: memory while it runs.
        volume_images: references of images mounted as volumes.
        pid: of its process, while it runs.
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
        """Whether its process is there."""
        return self.state is ContainerState.RUNNING

    @property
    def reason(self) -> str:
        """Why it is where it is, in the runtime's word; empty while it has not exited."""
        if self.state is not ContainerState.EXITED:
            return ""
        if self.exit_code == 137:
            return "OOMKilled"
        return "Error" if self.exit_code else "Completed"


@dataclass(frozen=True, slots=True)
class SimEvent:
    """Something a listener may want to know at once."""

    kind: EventKind
    container_id: str
    sandbox_id: str
    at: datetime
