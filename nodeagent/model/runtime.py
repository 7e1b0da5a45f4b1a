"""Images, containers and sandboxes as listed by the runtime, and the snapshots and blobs of images.

Images with a common base reference the same snapshots and blobs, so the bytes freed by a removal depend on the
remaining images. The graph contains every piece once, so a planner can count marginal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec.structs import force_setattr

from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.record import KeyedRecord, Record, field

Label = tuple[str, str | None]
"""Key of an image label and its value; with the value ``None`` the label has any value."""


class Image(Record, gc=False):
    """One image in the runtime's list.

    Attributes:
        id: the CRI image id, for containerd the digest of the image's config.
        repo_tags: references with a tag, such as ``registry.k8s.io/pause:3.9``.
        repo_digests: references with a digest, such as ``registry.k8s.io/pause@sha256:...``.
        size_bytes: size reported by CRI, on containerd the size of the compressed content, with shared layers counted
            in every image; ``None`` if not reported.
        pinned: whether the runtime exempts the image from garbage collection; false if not reported.
        labels: labels in its config or of its names in containerd, as far as a rule, a hold or a user names them.

    Source: CRI ``Image``.
    """

    id: str
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    size_bytes: int | None = None
    pinned: bool = False
    labels: frozenset[Label] = frozenset()

    @property
    def references(self) -> tuple[str, ...]:
        """All references of the image, tags first."""
        return self.repo_tags + self.repo_digests

    @property
    def name(self) -> str:
        """Display name: the first tag, else the first digest reference, else the id."""
        if self.repo_tags:
            return self.repo_tags[0]
        return self.repo_digests[0] if self.repo_digests else self.id


class LabelReading(Record):
    """Which labels of the listed images are known.

    Attributes:
        asked: the labels that were read; all other labels are unknown.
        unread: cause of the failed reading by id, for images whose labels are unknown.
    """

    asked: frozenset[Label] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)


NO_LABELS: Final = LabelReading()
"""Value for an observation in which no label is asked for."""


class ImageUsage(KeyedRecord, gc=False):
    """Recorded use of an image; comparisons use only the first two attributes.

    Attributes:
        first_detected: time of the first detection on this node, or of the detection of a later pull.
        last_used: time of the last observation of a container with this image; ``None`` if never observed.
        pulled_at: creation time of the newest name of the image in the runtime; ``None`` if not reported. Used only to
            order images with equal times, because the time may be by another clock.
        present_since: start of the minimum age: the time of an earlier pull that no other fact contradicts; ``None``
            if the minimum age starts at ``first_detected``.
        pauses_s: recent pauses between two uses in seconds, newest first, each observed; see ``store.past_uses``.
    """

    first_detected: datetime
    last_used: datetime | None = None
    pulled_at: datetime | None = None
    present_since: datetime | None = None
    pauses_s: tuple[float, ...] = ()

    @property
    def equality_key(self) -> tuple[object, ...]:
        """The compared attributes."""
        return self.first_detected, self.last_used


class GapCause(StrEnum):
    """Cause of a gap in the observation of image use. The values are part of the JSON output."""

    AGENT_DOWN = "agent-down"
    REBOOT = "reboot"
    STATE_LOST = "state-lost"
    RUNTIME_UNAVAILABLE = "runtime-unavailable"
    NO_PASS = "no-pass"


class ObservationGap(Record):
    """A gap in the observation of image use.

    Attributes:
        started_at: time of the last detection before the gap; ``None`` if not recorded.
        ended_at: time of the first detection after the gap.
    """

    started_at: datetime | None
    ended_at: datetime
    cause: GapCause


class ImageUseRecord(Record):
    """Image use as recorded after one detection.

    Attributes:
        usage: one entry for each listed image, by image id.
        observed_since: start of the observation without a gap, aware UTC, by the wall clock of this detection; ``None``
            without observation, such as while the state database is unavailable.
        clock: trust in the wall clock of this detection.
    """

    usage: Mapping[str, ImageUsage]
    observed_since: datetime | None
    clock: ClockTrust = TRUSTED


LABEL_POD_NAME = "io.kubernetes.pod.name"
LABEL_POD_NAMESPACE = "io.kubernetes.pod.namespace"
LABEL_POD_UID = "io.kubernetes.pod.uid"
LABEL_CONTAINER_NAME = "io.kubernetes.container.name"
ANNOTATION_SOURCE = "kubernetes.io/config.source"


class ContainerState(StrEnum):
    """The state of a container. Source: CRI ``ContainerState``."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class Container(Record, gc=False):
    """One container in the runtime's list, in any state.

    Attributes:
        image_ref: the image as resolved by the runtime: an id on containerd, an id or a digest elsewhere.
        image_id: the image id if reported (newer CRI versions), else empty.
        image_name: the image reference in the container's configuration.
        created_at: ``None`` if not reported.
        finished_at: time of exit; ``None`` before the exit, or if the status was not read.
        exit_code: ``None`` if unknown.
        exit_reason: reason of the exit, such as ``OOMKilled``; empty if unknown.
        log_path: absolute path of the current log; ``None`` if unknown.
        volume_images: references of images mounted as volumes.
        display_name: ``namespace/pod/container``; without kubelet labels the container's name, else its id. Computed.
        pod_uid: UID of the pod; empty without the kubelet's label. Computed.
        has_kubelet_labels: whether the container has the kubelet's labels for pod UID and container name. Computed.

    Source: CRI ``Container``; the other fields from ``ContainerStatus``.
    """

    id: str
    name: str
    sandbox_id: str
    state: ContainerState
    attempt: int = 0
    created_at: datetime | None = None
    image_ref: str = ""
    image_id: str = ""
    image_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finished_at: datetime | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    log_path: str | None = None
    volume_images: tuple[str, ...] = ()
    display_name: str = ""
    pod_uid: str = ""
    has_kubelet_labels: bool = False

    def __post_init__(self) -> None:
        """Compute the attributes from the labels once, because most containers are unchanged between two listings."""
        labels, name = self.labels, self.name or self.id
        if LABEL_POD_NAME in labels:
            name = f"{labels.get(LABEL_POD_NAMESPACE, '')}/{labels[LABEL_POD_NAME]}/{self.name}"
        uid = labels.get(LABEL_POD_UID, "")
        force_setattr(self, "display_name", name)
        force_setattr(self, "pod_uid", uid)
        force_setattr(self, "has_kubelet_labels", bool(uid and labels.get(LABEL_CONTAINER_NAME)))

    @property
    def pod_name(self) -> str:
        """Name of the container's pod; empty without the kubelet's label."""
        return self.labels.get(LABEL_POD_NAME, "")

    @property
    def pod_namespace(self) -> str:
        """Namespace of the container's pod; empty without the kubelet's label."""
        return self.labels.get(LABEL_POD_NAMESPACE, "")


class Sandbox(Record, gc=False):
    """One pod sandbox in the runtime's list.

    Attributes:
        ready: whether the state of the sandbox is ``SANDBOX_READY``.
        image: reference or id of the sandbox's own (pause) image; empty after a failed reading.
        log_directory: directory of the pod's logs; ``None`` if unknown.

    Source: CRI ``PodSandbox``; ``image`` and ``log_directory`` from the verbose ``PodSandboxStatus``.
    """

    id: str
    name: str
    namespace: str
    uid: str
    ready: bool
    attempt: int = 0
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""
    image: str = ""
    log_directory: str | None = None

    @property
    def from_api_server(self) -> bool:
        """Whether the config source annotation names the API server. Source: kubelet ``config.source``."""
        return self.annotations.get(ANNOTATION_SOURCE) == "api"

    @property
    def has_kubelet_labels(self) -> bool:
        """Whether the sandbox has the kubelet's label for the pod UID."""
        return bool(self.labels.get(LABEL_POD_UID))


class ListContradiction(Record):
    """One contradiction in an observation, confirmed by a second listing or by the status of an object.

    Attributes:
        detail: the objects and the evidence, for display.
        images_only: whether only the image list is wrong; otherwise pods and users of images are unknown as well.
    """

    detail: str
    images_only: bool = False


class PieceKind(StrEnum):
    """Kind of a stored piece."""

    SNAPSHOT = "snapshot"
    BLOB = "blob"


class ReferenceKind(StrEnum):
    """Kind of a reference to a piece other than from a listed image. The values are part of the JSON output."""

    CONTAINER = "container"
    LEASE = "lease"
    SNAPSHOT_CHILD = "snapshot-child"
    OTHER_NAMESPACE = "other-namespace"
    INGEST = "ingest"
    UNLISTED_IMAGE = "unlisted-image"
    GC_LABEL = "gc-label"


class StoredPiece(Record):
    """A snapshot or a blob.

    Attributes:
        key: the snapshot's key (for images its chain id) or the blob's digest.
        size_bytes: its disk usage, in whole allocation units of the filesystem where known.
        inodes: number of inodes freed by the removal of the piece.
        references: references other than from listed images; empty if only images reference the piece.
        snapshotter: snapshotter of a snapshot; empty for a blob.
    """

    key: str
    kind: PieceKind
    size_bytes: int
    inodes: int
    references: tuple[ReferenceKind, ...] = ()
    snapshotter: str = ""


class ImageRecord(Record):
    """Records of one CRI image in the runtime's own image service.

    Attributes:
        names: every name of the image (tags, digests, the config digest); removal of the last name removes the image.
        pulled_at: time of the latest pull, at which a name was created or its target changed; ``None`` if unknown.
        complete: whether every blob and snapshot that the image references exists.
        pinned: whether a label of one of the names pins the image.
        sources: repositories from which the content of the image was pulled; ``None`` if unknown.
    """

    names: tuple[str, ...]
    pulled_at: datetime | None = None
    complete: bool = True
    pinned: bool = False
    sources: frozenset[str] | None = None


class Space(NamedTuple):
    """Bytes and inodes of stored content, such as of one snapshot without its parents."""

    size_bytes: int = 0
    inodes: int = 0


def total_space(spaces: Iterable[Space]) -> Space:
    """Return the sum of all spaces."""
    found = tuple(spaces)
    return Space(sum(each.size_bytes for each in found), sum(each.inodes for each in found))


class StorageGraph(Record):
    """Every stored piece once, and the pieces referenced by each image.

    Attributes:
        pieces: all pieces referenced by a listed image.
        by_image: CRI image id to indexes into ``pieces``, each index once per image. An image without an entry
            could not be resolved; its size is unknown.
        by_container: id of a container or sandbox to indexes into ``pieces``; these pieces have a container reference.
        pending: space of the unreferenced pieces, freed by the runtime's next garbage collection, by snapshotter, with
            the empty name for blobs.
        records: CRI image id to its records in the image service.
        undo: space of the pieces that are kept only for the undo windows of removed images, by snapshotter as above.
        store_paths: directory by snapshotter, with the blobs under the empty name; unknown directories are omitted.
    """

    pieces: tuple[StoredPiece, ...] = ()
    by_image: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_container: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    records: Mapping[str, ImageRecord] = field(default_factory=dict)
    pending: Mapping[str, Space] = field(default_factory=dict)
    undo: Mapping[str, Space] = field(default_factory=dict)
    store_paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def stores(self) -> frozenset[str]:
        """The snapshotters with pieces, and the empty name for blobs."""
        return frozenset({piece.snapshotter for piece in self.pieces}).union(self.pending, self.undo)


class UnreferencedPiece(Record):
    """A blob or a snapshot without reference from an image, container, lease, ingest or other piece.

    Attributes:
        piece: kind, size and key of the piece; the key does not include the snapshotter.
        snapshotter: snapshotter of a snapshot; empty for a blob.
        created_at: creation time; ``None`` if not reported.
        rooted: whether a ``containerd.io/gc.root`` label of the piece or of a child exempts the piece from garbage
            collection.
        parent: key of the parent snapshot; empty without a parent.
    """

    piece: StoredPiece
    snapshotter: str
    created_at: datetime | None
    rooted: bool = False
    parent: str = ""


class HeldContent(Record):
    """Stored content that no listed image references, kept by one object.

    Attributes:
        kind: kind of the object; ``None`` for content that nothing references.
        name: name or id of the object: image name, container, lease, namespace, blob being written; otherwise the
            digest of the blob or the key of the snapshot.
        size_bytes: disk usage.
        created_at: creation time of an image name or a lease; ``None`` if not reported.
        detail: further fact about the object; may be empty.
        is_stuck: whether nothing but an operator frees the content: the name of an image with missing blobs that no
            container and no lease references, or a lease of another program without expiry.
        inodes: number of its files and directories.
        names: all names of an image that CRI does not list; empty for other objects.
        target: digest to which these names refer; empty for other objects.
    """

    kind: ReferenceKind | None
    name: str
    size_bytes: int
    created_at: datetime | None = None
    detail: str = ""
    is_stuck: bool = False
    inodes: int = 0
    names: tuple[str, ...] = ()
    target: str = ""


class UnlistedContent(Record):
    """Stored content that no listed image references.

    Attributes:
        held: the content by holder, pieces without a reference included.
        unreferenced: the pieces without a reference other than ``containerd.io/gc.root`` labels.
    """

    held: tuple[HeldContent, ...] = ()
    unreferenced: tuple[UnreferencedPiece, ...] = ()


class FsObservation(Record):
    """One plausible reading of a filesystem; the reader rejects implausible readings.

    Attributes:
        path: the path that was passed to statvfs.
        device_id: device id of the filesystem, equal for all its subvolumes and bind mounts.
        capacity_bytes: size, always positive.
        available_bytes: bytes available to unprivileged users, from 0 to the capacity.
        inodes: total inodes; 0 on filesystems without a fixed number.
        inodes_free: free inodes.
        observed_at: wall time of the reading.

    Source: statvfs(3), ``f_blocks`` and ``f_bavail`` times ``f_frsize``, ``f_files`` and ``f_ffree``.
    """

    path: str
    device_id: int
    capacity_bytes: int
    available_bytes: int
    inodes: int
    inodes_free: int
    observed_at: datetime

    @property
    def used_percent(self) -> int:
        """Usage in whole percent, rounded up by truncating the available share, as the kubelet does."""
        return 100 - self.available_bytes * 100 // self.capacity_bytes

    @property
    def inodes_used_percent(self) -> int:
        """Used inodes in whole percent, rounded as ``used_percent``; 0 without a fixed number of inodes."""
        return 100 - self.inodes_free * 100 // self.inodes if self.inodes else 0

    def bytes_until(self, percent: int) -> int:
        """Return the least further usage in bytes at which ``used_percent`` is ``percent``; 0 from there on."""
        return max(0, self.available_bytes - ((101 - percent) * self.capacity_bytes - 1) // 100)


class ImageFilesystem(Record):
    """One image filesystem of a node with several image filesystems.

    Attributes:
        path: a path on the filesystem: the mount point reported by the runtime, else the directory of a snapshotter.
        stores: names of the snapshotters on the filesystem, and the empty name for the content store.
        observed: reading of the filesystem; ``None`` after a failed reading.
        error: cause of the failed reading; empty after a successful reading.
    """

    path: str
    stores: frozenset[str] = frozenset()
    observed: FsObservation | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """Names of the snapshotters, for display, such as ``native``; the path of a filesystem without snapshotter."""
        return ",".join(sorted(self.stores - {""})) or self.path
