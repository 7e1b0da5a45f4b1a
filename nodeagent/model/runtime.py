"""Images, containers and sandboxes as listed by the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec.structs import force_setattr

from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.record import KeyedRecord, Record, field


class Image(Record, gc=False):
    """One image in the runtime's list.

    Attributes:
        id: the CRI image id, for containerd the digest of the image's config.
        repo_tags: references with a tag, such as ``registry.k8s.io/pause:3.9``.
        repo_digests: references with a digest, such as ``registry.k8s.io/pause@sha256:...``.
        size_bytes: size reported by CRI, on containerd the size of the compressed content, with shared layers counted
            in every image; ``None`` if not reported.
        pinned: whether the runtime exempts the image from garbage collection; false if not reported.

    Source: CRI ``Image``.
    """

    id: str
    repo_tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    size_bytes: int | None = None
    pinned: bool = False

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


class ImageUsage(KeyedRecord, gc=False):
    """Recorded use of an image; comparisons use only the first two attributes.

    Attributes:
        first_detected: time of the first detection on this node, or of the detection of a later pull.
        last_used: time of the last observation of a container with this image; ``None`` if never observed.
        pulled_at: creation time of the newest name of the image in the runtime; ``None`` if not reported. Used only to
            order images with equal times, because the time may be by another clock.
        present_since: start of the minimum age: the time of an earlier pull that no other fact contradicts; ``None``
            if the minimum age starts at ``first_detected``.
    """

    first_detected: datetime
    last_used: datetime | None = None
    pulled_at: datetime | None = None
    present_since: datetime | None = None

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
