"""Snapshot of the node, the input of the planners, and the traces of a kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.model.runtime import NO_LABELS
from nodeagent.record import Record, Time, field

if TYPE_CHECKING:
    from pathlib import PurePath

    from nodeagent.model.pods import PodList
    from nodeagent.model.runtime import (
        Container,
        FsObservation,
        Image,
        ImageFilesystem,
        ImageUsage,
        LabelReading,
        ListContradiction,
        Sandbox,
        StorageGraph,
    )


class Role(StrEnum):
    """Whether a kubelet manages this node's pods, or the agent alone."""

    BESIDE_KUBELET = "beside-kubelet"
    STANDALONE = "standalone"


class RoleBasis(StrEnum):
    """Type of evidence behind a role decision."""

    CONFIGURED = "configured"
    LIVE_KUBELET = "live-kubelet"
    KUBELET_FILES = "kubelet-files"
    RECENT_KUBELET = "recent-kubelet"
    UNREADABLE = "unreadable"
    NO_TRACE = "no-trace"


class KubeletProcess(Record):
    """One process that runs a kubelet.

    Attributes:
        name: command name, such as ``kubelet`` or ``k3s-server``.
    """

    pid: int
    name: str


class KubeletTraces(Record):
    """One reading of all traces of a kubelet.

    Attributes:
        processes: processes of this PID namespace that run a kubelet, by PID.
        ports: local TCP ports of the kubelet with a listener of an unknown process, ascending; no trace.
        files: absolute paths of a kubelet's state and configuration files.
        unreadable: traces that could not be read, each with its path and cause.
    """

    processes: tuple[KubeletProcess, ...] = ()
    ports: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class Certainty(StrEnum):
    """Whether a value of the kubelet's configuration is in force.

    Attributes:
        IN_FORCE: every source that can set the value was read.
        AT_LEAST: a map whose known entries are in force; a source that was not read can have set others.
        UNKNOWN: a source that was not read can have set the value.
    """

    IN_FORCE = "in force"
    AT_LEAST = "at least"
    UNKNOWN = "unknown"


class LogindLine(Record):
    """One assignment in a configuration file of logind, or in a file of a similar name or place.

    Attributes:
        number: number of the line in the file, from 1.
        section: name of the section; empty outside of a section.
        key: the name; without an equals sign, the whole line.
        value: the value as written; ``None`` without an equals sign.
        delay_us: the valid delay that the line sets, or would set in a hidden file, in microseconds; ``None`` for
            another key or section, for an invalid value and in a file that is unread for another reason.
        unread: reason why logind does not read the file; empty for a file that logind reads.
    """

    path: PurePath
    number: int
    section: str
    key: str
    value: str | None
    delay_us: int | None = None
    unread: str = ""

    @property
    def place(self) -> str:
        """Return the file and the line."""
        return f"{self.path}:{self.number}"


class ContainerdLine(Record):
    """One value in a configuration file of containerd.

    Attributes:
        path: the file, as containerd names it.
        number: first line of the assignment or table header in the file, from 1.
        keys: keys from the top of the document, such as ``("plugins", "io.containerd.grpc.v1.cri", "sandbox_image")``.
        value: the value; an empty mapping for a table header.
    """

    path: PurePath
    number: int
    keys: tuple[str, ...]
    value: object

    @property
    def place(self) -> str:
        """Return the file and the line."""
        return f"{self.path}:{self.number}"


class ContainerdConfig(Record):
    """Configuration files of containerd.

    Attributes:
        files: the main file and the imported files, each as its values in the order of its lines, in the order in
            which containerd merges the files; empty without a main file.
        unread: files beside the main file that no import names.
        faults: reasons why containerd does not start with these files; the values are unknown then.
        changed: paths of files that were changed after the start of containerd, so that it may have read other values.
        unknown: reasons why the agent does not know all values, although containerd may read the files.
    """

    files: tuple[tuple[ContainerdLine, ...], ...] = ()
    unread: tuple[tuple[ContainerdLine, ...], ...] = ()
    faults: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class KubeletConfig(Record):
    """Configuration of a kubelet.

    Attributes:
        fields: KubeletConfiguration fields set by files and flags, without defaults.
        flags: values of the flags without a KubeletConfiguration field, by name, such as ``root-dir``.
        distribution: name of the Kubernetes distribution, such as ``k3s``; empty if not recognised.
        sources: paths of the files that were read, and ``command line``, lowest precedence first.
        unread: sources that cannot be read or parsed, each with the cause.
        unknown: sources that are not understood, such as a script that starts the kubelet.
        certain: names of the fields in force, although a source was not read.
        partial: names of the maps of which the known entries are in force.
    """

    fields: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    distribution: str = ""
    sources: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    certain: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """The sources that can change a value and are not known, for display; empty for a complete configuration."""
        return self.unread + self.unknown

    def certainty(self, name: str) -> Certainty:
        """Return whether the value of a field, or its default if no source sets the field, is in force."""
        if not self.missing or name in self.certain:
            return Certainty.IN_FORCE
        return Certainty.AT_LEAST if name in self.partial else Certainty.UNKNOWN


class RoleDecision(Record):
    """The role of the agent on this node.

    Attributes:
        reason: evidence, for display.
        trace: the strongest trace of a kubelet; empty without a trace.
        warning: contradiction between the configured role and the traces; empty without a contradiction.
    """

    role: Role
    basis: RoleBasis
    reason: str
    trace: str = ""
    warning: str = ""


class LastTrace(Record):
    """The most recent trace of a kubelet.

    Attributes:
        trace: the trace, for display.
        absent_since_s: monotonic time of the first complete reading without the trace; ``None`` while the trace exists.
    """

    trace: str
    absent_since_s: float | None = None


class RoleMemory(Record):
    """Most recent traces of a kubelet in earlier readings, for the hysteresis of the role.

    Attributes:
        live: trace of a running kubelet; ``None`` without a trace in the hysteresis period.
        files: trace in state or configuration files; ``None`` without a trace in the hysteresis period.
    """

    live: LastTrace | None = None
    files: LastTrace | None = None


class PodImages(Record):
    """Images of static manifests and of pods bound to this node, running or not.

    Attributes:
        named: pods that name an image, by image reference, each pod with its source, such as ``shop/web (kubelet)``;
            sorted.
        error: cause of incomplete pod lists, because of which images missing in ``named`` may be in use; empty if the
            lists are complete.
        warnings: failed readings with their consequence, for display.
    """

    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    warnings: tuple[str, ...] = ()


NO_POD_IMAGES = PodImages()
"""Value for a node without a configured pod list."""


class RuntimeInfo(Record):
    """Name and version of the runtime. Source: CRI ``VersionResponse``."""

    name: str
    version: str
    api_version: str
    endpoint: str = ""


class CollectionForecast(Record):
    """Growth of the image filesystem, in bytes per second, by a forecast of the high threshold of image GC.

    Attributes:
        at: wall time of the newest reading of the forecast.
        rate: expected growth.
    """

    at: datetime
    rate: float


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
        label_reading: which labels of the images are known; the labels themselves are part of the images.
        sandbox_images: references or ids of the runtime's configured sandbox image; empty if not reported.
        sandboxes_unread: ids of sandboxes whose own image could not be read.
        image_filesystem: the image filesystem of the default snapshotter; ``None`` after a failed reading.
        image_filesystem_error: reason that the image filesystem could not be read; empty normally.
        image_filesystems: all image filesystems of a node with several, the runtime's first one (``image_filesystem``)
            included; empty on a node with one image filesystem.
        collection_forecast: growth of the image filesystem; ``None`` without a forecast, or without a growth.
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
    label_reading: LabelReading = NO_LABELS
    sandbox_images: frozenset[str] = frozenset()
    sandboxes_unread: frozenset[str] = frozenset()
    image_filesystem: FsObservation | None = None
    image_filesystem_error: str = ""
    image_filesystems: tuple[ImageFilesystem, ...] = ()
    collection_forecast: CollectionForecast | None = None
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


class LogOpeners(StrEnum):
    """Whether a process has a file of a log tree open."""

    NONE = "none"
    READERS = "readers"
    WRITERS = "writers"
    UNKNOWN = "unknown"


class LogSpace(NamedTuple):
    """Space freed by the removal of logs: allocated bytes and inodes of files without another link."""

    size_bytes: int = 0
    inodes: int = 0

    def plus(self, other: LogSpace) -> LogSpace:
        """Return the sum of both values."""
        return LogSpace(self.size_bytes + other.size_bytes, self.inodes + other.inodes)


_NO_SPACE: Final = LogSpace()


class LogTree(Record):
    """One reading of a pod log directory.

    Attributes:
        changed_at: newest change (modification or status change) over all entries and the directory itself.
        digest: digest of the names, inodes, sizes and times of all entries; equal for an unchanged tree.
        problem: reason that the reading is incomplete; empty for a complete reading.
        openers: whether a process has a regular file of the directory open.
        openers_detail: an open file, or the reason that the openers are unknown; empty otherwise.
        unchanged_s: time since the first of the successive readings with this digest; 0 for the first reading.
        size: space freed by the removal of the directory.
        container_logs: space freed by the removal of a container's current and rotated logs, by the path of the current
            log in the directory, such as ``app/0.log``.
    """

    changed_at: datetime
    digest: str
    problem: str = ""
    openers: LogOpeners = LogOpeners.NONE
    openers_detail: str = ""
    unchanged_s: float = 0.0
    size: LogSpace = _NO_SPACE
    container_logs: Mapping[str, LogSpace] = field(default_factory=dict)


class PodLogDirectory(Record):
    """One entry of the pod log root.

    Attributes:
        name: the entry's name, ``NAMESPACE_NAME_UID`` or, in an old form, the plain UID.
        uid: the pod UID in the name; empty if the name has neither form.
        is_directory: whether the entry is a directory; false for a symlink to a directory.
        tree: reading of the directory; ``None`` if not read, such as for a pod with a ready sandbox.
        size_bytes: disk usage of the files in the directory; ``None`` if not measured.
    """

    name: str
    uid: str
    is_directory: bool
    tree: LogTree | None = None
    size_bytes: int | None = None


class ContainerLogLink(Record):
    """One ``*.log`` symlink whose target does not exist.

    Attributes:
        name: the link's name below the container log root.
        container_id: the container id in the link's name; empty if the name contains no id.
        target: target of the link.
        modified_at: modification time of the link itself, which is its creation time.
    """

    name: str
    container_id: str
    target: str
    modified_at: datetime


ALL_IMAGES = ""
LONGEST_HOLD_S = 365 * 86_400.0
"""Maximum duration of a hold; longer exemptions are protection rules of the configuration."""


class Hold(Record):
    """An image hold, which expires.

    Attributes:
        id: identifier of the hold, used to release the hold.
        image: an image's id, reference, digest or a pattern in the form of protection rules; ``ALL_IMAGES`` for every
            image.
        why: the operator's reason.
        by: the operator.
        placed_at: creation time, aware UTC.
        until: time of expiry, aware UTC.
        boot_id: id of the boot in which the hold was placed; empty if unknown.
        placed_s: CLOCK_BOOTTIME at the creation of the hold, in seconds; ``None`` if unknown.
    """

    id: str
    image: str
    why: str
    by: str
    placed_at: Time
    until: Time
    boot_id: str = ""
    placed_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Seconds from the creation to the expiry of the hold."""
        return (self.until - self.placed_at).total_seconds()
