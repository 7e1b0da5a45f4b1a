"""The node at one instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.model.kubelet_traces import Role

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nodeagent.model.filesystem import FsObservation
    from nodeagent.model.hold import Hold
    from nodeagent.model.image import Image, ImageUsage
    from nodeagent.model.logs import ContainerLogLink, PodLogDirectory
    from nodeagent.model.storage import StorageGraph
    from nodeagent.model.workload import Container, Sandbox


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Who answers on the runtime socket. Source: CRI ``VersionResponse``."""

    name: str
    version: str
    api_version: str
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything a planner may know, read once.

    Attributes:
        observed_at: the pass's one instant, aware UTC.
        images: as listed, one entry per image id.
        image_usage: image id to memory of its use; an image without an entry counts as first seen now.
        image_use_observed_since: since when image use has been observed without a gap; ``None`` if it is not, and then
            no image is removed by age.
        sandbox_images: references or ids of the runtime's configured sandbox image; empty if it does not tell.
        sandboxes_unread: ids of sandboxes whose own image could not be read.
        image_filesystem: the filesystem images lie on; ``None`` where it could not be read (then
            ``image_filesystem_error`` says why).
        storage: what images really occupy; ``None`` where only CRI answers, so sizes are upper bounds.
        writable_bytes: container id to bytes of its writable layer, as far as known.
        pod_log_directories: entries of the pod log root, listed before the sandboxes were.
        dead_log_links: container log links without a target.
        live_pod_uids: UIDs a pod source other than CRI says exist; ``None`` when there is no such source.
        holds: what operators want to stay for a while.
        holds_error: why the holds cannot be told; empty normally.
        booted_at: wall time of the node's boot; ``None`` if unknown.
        warnings: what an operator should know about this reading.
    """

    observed_at: datetime
    runtime: RuntimeInfo
    role: Role = Role.STANDALONE
    images: tuple[Image, ...] = ()
    containers: tuple[Container, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    image_usage: Mapping[str, ImageUsage] = field(default_factory=dict)
    image_use_observed_since: datetime | None = None
    sandbox_images: frozenset[str] = frozenset()
    sandboxes_unread: frozenset[str] = frozenset()
    image_filesystem: FsObservation | None = None
    image_filesystem_error: str = ""
    storage: StorageGraph | None = None
    writable_bytes: Mapping[str, int] = field(default_factory=dict)
    pod_log_directories: tuple[PodLogDirectory, ...] = ()
    dead_log_links: tuple[ContainerLogLink, ...] = ()
    live_pod_uids: frozenset[str] | None = None
    holds: tuple[Hold, ...] = ()
    holds_error: str = ""
    booted_at: datetime | None = None
    warnings: tuple[str, ...] = ()
