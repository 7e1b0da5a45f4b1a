"""Snapshot of the node, the input of the planners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.clock_trust import TRUSTED, ClockTrust
from nodeagent.model.kubelet_traces import Role
from nodeagent.model.pod_images import NO_POD_IMAGES, PodImages
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nodeagent.model.hold import Hold
    from nodeagent.model.logs import ContainerLogLink, PodLogDirectory
    from nodeagent.model.pods import PodList
    from nodeagent.model.runtime import Container, Image, ImageUsage, ListContradiction, Sandbox
    from nodeagent.model.storage import FsObservation, ImageFilesystem, StorageGraph


class RuntimeInfo(Record):
    """Name and version of the runtime. Source: CRI ``VersionResponse``."""

    name: str
    version: str
    api_version: str
    endpoint: str = ""


class NodeSnapshot(Record):
    """Snapshot of the node from one observation, the input of the planners.

    Attributes:
        observed_at: time of the observation by the wall clock, aware UTC.
        clock: trust in that wall clock. An item time that contradicts the wall clock is replaced by the time of the
            item's first observation.
        images: images as listed by the runtime, one entry per image id.
        image_usage: recorded use by image id; an image without an entry counts as first detected now.
        image_use_observed_since: start of the observation of image use without a gap; ``None`` without observation, in
            which case no image is removed because of its age.
        image_sources: repositories from which the content of an image was pulled, by image id, such as
            ``docker.io/library/nginx`` (without port); empty for an imported image. An image without an entry has an
            unknown origin; ``None`` on a runtime that does not report origins.
        sandbox_images: references or ids of the runtime's configured sandbox image; empty if not reported.
        sandboxes_unread: ids of sandboxes whose own image could not be read.
        image_filesystem: the image filesystem of the default snapshotter; ``None`` after a failed reading.
        image_filesystem_error: reason that the image filesystem could not be read; empty normally.
        image_filesystems: all image filesystems of a node with several, the runtime's first one (``image_filesystem``)
            included; empty on a node with one image filesystem.
        storage: the storage graph; ``None`` if only CRI is available, in which case image sizes are upper bounds.
        writable_bytes: size of the writable layer by container id, where known.
        writable_inodes: number of inodes of the writable layer by container id, where known.
        snapshotters: snapshotter of the writable layer by container or sandbox id, as recorded by containerd.
        pod_log_directories: entries of the pod log root, listed before the sandboxes.
        dead_log_links: container log links without a target.
        pod_images: images named by static manifests and by pods bound to this node.
        pod_list: list of the pods bound to this node; ``None`` without a list.
        holds: unexpired image holds of operators.
        holds_error: reason that the holds cannot be read; empty normally.
        booted_at: boot time of the node, by the wall clock of this observation; ``None`` if unknown.
        contradictions: contradictions between the runtime's lists; objects of the affected kinds are not removed.
        warnings: failed readings that only reduce accuracy, for display.
        reading_s: duration of the observation in seconds, part of the duration of its pass.
    """

    observed_at: datetime
    runtime: RuntimeInfo
    role: Role = Role.STANDALONE
    images: tuple[Image, ...] = ()
    containers: tuple[Container, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    image_usage: Mapping[str, ImageUsage] = field(default_factory=dict)
    image_use_observed_since: datetime | None = None
    image_sources: Mapping[str, frozenset[str]] | None = None
    sandbox_images: frozenset[str] = frozenset()
    sandboxes_unread: frozenset[str] = frozenset()
    image_filesystem: FsObservation | None = None
    image_filesystem_error: str = ""
    image_filesystems: tuple[ImageFilesystem, ...] = ()
    storage: StorageGraph | None = None
    writable_bytes: Mapping[str, int] = field(default_factory=dict)
    writable_inodes: Mapping[str, int] = field(default_factory=dict)
    snapshotters: Mapping[str, str] = field(default_factory=dict)
    pod_log_directories: tuple[PodLogDirectory, ...] = ()
    dead_log_links: tuple[ContainerLogLink, ...] = ()
    pod_images: PodImages = NO_POD_IMAGES
    pod_list: PodList | None = None
    holds: tuple[Hold, ...] = ()
    holds_error: str = ""
    booted_at: datetime | None = None
    contradictions: tuple[ListContradiction, ...] = ()
    warnings: tuple[str, ...] = ()
    clock: ClockTrust = TRUSTED
    reading_s: float = 0.0
