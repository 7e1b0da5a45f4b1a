"""Containers and sandboxes as the runtime lists them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

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


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the runtime's list, in any state.

    Attributes:
        image_ref: what the runtime resolved the image to; an id on containerd, an id or a digest elsewhere.
        image_id: the image id where the runtime fills it (newer CRI), else empty.
        image_name: the reference the container was made from.
        created_at: ``None`` if the runtime gave none.
        finished_at: when it exited; ``None`` while it has not, or where it was not asked for.
        exit_code: ``None`` where not known.
        log_path: absolute path of the current log; ``None`` where not known.
        volume_images: references of images mounted into it as volumes.

    Source: CRI ``Container``; the fields not in it come from ``ContainerStatus``.
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

    @property
    def pod_uid(self) -> str:
        """UID of the pod it belongs to; empty without a kubelet label."""
        return self.labels.get(LABEL_POD_UID, "")

    @property
    def pod_name(self) -> str:
        """Name of the pod it belongs to; empty without a kubelet label."""
        return self.labels.get(LABEL_POD_NAME, "")

    @property
    def pod_namespace(self) -> str:
        """Namespace of the pod it belongs to; empty without a kubelet label."""
        return self.labels.get(LABEL_POD_NAMESPACE, "")

    @property
    def has_kubelet_labels(self) -> bool:
        """Whether pod UID and container name are labelled the way the kubelet does it."""
        return bool(self.labels.get(LABEL_POD_UID)) and bool(self.labels.get(LABEL_CONTAINER_NAME))


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One pod sandbox of the runtime's list.

    Attributes:
        ready: whether the runtime calls it READY.
        image: reference or id of the sandbox's own (pause) image; empty where it could not be read.
        log_directory: where the pod's logs go; ``None`` where not known.

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
        """Whether its annotation says that the pod came from an API server. Source: kubelet ``config.source``."""
        return self.annotations.get(ANNOTATION_SOURCE) == "api"

    @property
    def has_kubelet_labels(self) -> bool:
        """Whether the pod's UID is labelled the way the kubelet does it."""
        return bool(self.labels.get(LABEL_POD_UID))
