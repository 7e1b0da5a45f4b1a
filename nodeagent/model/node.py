"""Snapshot of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.clock_trust import TRUSTED, ClockTrust
from nodeagent.model.kubelet_traces import Role
from nodeagent.model.pod_images import NO_POD_IMAGES, PodImages
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nodeagent.model.filesystem import FsObservation, ImageFilesystem
    from nodeagent.model.hold import Hold
    from nodeagent.model.image import Image, ImageUsage
    from nodeagent.model.list_contradiction import ListContradiction
    from nodeagent.model.logs import ContainerLogLink, PodLogDirectory
    from nodeagent.model.pod_list import PodList
    from nodeagent.model.storage import StorageGraph
    from nodeagent.model.workload import Container, Sandbox


class RuntimeInfo(Record):
    """Name and version of the runtime. Source: CRI ``VersionResponse``."""

    name: str
    version: str
    api_version: str
    endpoint: str = ""


class NodeSnapshot(Record):
    """Input of the planners, from one observation.

    Attributes:
        observed_at: time of the observation by the wall clock, aware UTC.
        clock: trust in that clock. All times of the snapshot are by it: a contradictory time is replaced by the first
            observation of the item.
        images: as listed, one entry per image id.
        image_usage: image id to its recorded use; an image without an entry counts as first detected now.
        image_use_observed_since: begin of the observation of image use without a gap; ``None`` without observation:
            then no image is removed by age.
        image_sources: image id to the repositories that its content was pulled from, such as
            ``docker.io/library/nginx`` (without port); none for an imported image. An image without an entry has an
            unknown origin; ``None`` on a runtime that does not report origins.
        sandbox_images: references or ids of the runtime's configured sandbox image; empty if not reported.
        sandboxes_unread: ids of sandboxes whose own image could not be read.
        image_filesystem: the image filesystem of the default snapshotter; ``None`` if it could not be read.
        image_filesystem_error: reason that the image filesystem could not be read; empty normally.
        image_filesystems: every image filesystem of a node with several, of which ``image_filesystem`` is the one that
            the runtime reports first; empty on a node with one.
        storage: the storage graph; ``None`` with CRI alone, where sizes are upper bounds.
        writable_bytes: container id to the size of its writable layer, where known.
        snapshotters: id of a container or sandbox to the snapshotter of its writable layer, as recorded by containerd.
        pod_log_directories: entries of the pod log root, listed before the sandboxes.
        dead_log_links: container log links without a target.
        pod_images: images named by static manifests and by pods bound to this node.
        pod_list: a list of the pods bound to this node; ``None`` without one.
        holds: operators' holds on images that are in force.
        holds_error: reason that the holds cannot be read; empty normally.
        booted_at: the boot of the node, by the wall clock of this observation; ``None`` if unknown.
        contradictions: contradictions between the lists; the affected kinds are kept.
        warnings: failed readings that only reduce accuracy, for display.
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
