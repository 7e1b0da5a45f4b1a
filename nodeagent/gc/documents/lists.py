"""Documents of the images, containers and pods of the runtime, with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from nodeagent.api.common import Document, Filesystem, Part, ReasonDocument, Runtime
from nodeagent.model.decision import Accounting, Decision, Verdict
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.gc.plan import breakdown as layer_sharing
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Container, Image, ImageUsage, Sandbox
    from nodeagent.pods.plan.deletion import PodDeletionStatus


class ListDocument(Document, frozen=True, kw_only=True):
    """Base of every list."""

    observed_at: Time
    runtime: Runtime
    imagefs: Filesystem | None
    warnings: tuple[str, ...]

    @classmethod
    def of_snapshot(cls, snapshot: NodeSnapshot, **rows: Any) -> Self:  # noqa: ANN401 - the rows of a subclass
        """Return the list of rows made from a snapshot."""
        imagefs = Filesystem.of_optional(snapshot.image_filesystem)
        return cls.from_value(snapshot, runtime=Runtime.of(snapshot), imagefs=imagefs, **rows)


class ImageDocument(Part, frozen=True, kw_only=True):
    """An image with its verdict.

    Attributes:
        first_detected: time of the first detection, equal to ``observed_at`` of the list if this reading is the first;
            ``None`` if not observed.
        last_used: time of the last observed use; ``None`` if no use was observed.
        origin: ``pulled``, ``unknown``, or why the image cannot be pulled again.
    """

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size_bytes: int | None
    frees_bytes: int | None
    frees_inodes: int | None
    accounting: Accounting
    pinned: bool
    first_detected: Time | None
    last_used: Time | None
    origin: str = ""
    verdict: Verdict
    reason: ReasonDocument

    @classmethod
    def of(
        cls,
        image: Image,
        decision: Decision,
        usage: ImageUsage | None,
        accounting: Accounting,
        origin: str,
    ) -> ImageDocument:
        """Return the document form of an image."""
        return cls.from_value(
            image,
            frees_bytes=decision.frees_bytes,
            frees_inodes=decision.frees_inodes,
            accounting=accounting,
            first_detected=usage.first_detected if usage else None,
            last_used=usage.last_used if usage else None,
            origin=origin,
            verdict=decision.verdict,
            reason=ReasonDocument.of(decision.reason),
        )


class Images(ListDocument, frozen=True, kw_only=True, tag=SchemaId.IMAGES.value):
    """List of all images with their verdicts."""

    images: tuple[ImageDocument, ...]


class LayerStack(Part, frozen=True, kw_only=True):
    """A stack of shared layers, with the images of exactly these layers; ``derived`` stacks have further layers."""

    images: tuple[str, ...]
    layers: int
    bytes: int
    images_in_all: int
    derived: tuple[LayerStack, ...]

    @classmethod
    def of(cls, stack: layer_sharing.Stack) -> LayerStack:
        """Return the document form of a stack."""
        return cls(
            images=tuple(image.name for image in stack.images),
            layers=stack.layers,
            bytes=stack.size_bytes,
            images_in_all=stack.image_count,
            derived=tuple(map(LayerStack.of, stack.derived)),
        )


class ImageTree(
    ListDocument, frozen=True, kw_only=True, tag=SchemaId.IMAGE_TREE.value, rename={"image_tree": "image-tree"}
):
    """List of all images by shared layers."""

    image_tree: tuple[LayerStack, ...]


class ContainerDocument(Part, frozen=True, kw_only=True):
    """A container with its verdict."""

    id: str
    name: str
    attempt: int
    pod_namespace: str
    pod_name: str
    pod_uid: str
    sandbox_id: str
    state: str
    image: str
    created_at: Time | None
    finished_at: Time | None
    exit_code: int | None
    verdict: Verdict
    reason: ReasonDocument

    @classmethod
    def of(cls, container: Container, decision: Decision) -> ContainerDocument:
        """Return the document form of a container."""
        return cls.from_value(
            container,
            state=container.state.value,
            image=container.image_name or container.image_ref,
            verdict=decision.verdict,
            reason=ReasonDocument.of(decision.reason),
        )


class Containers(ListDocument, frozen=True, kw_only=True, tag=SchemaId.CONTAINERS.value):
    """List of all containers with their verdicts."""

    containers: tuple[ContainerDocument, ...]


class PodContainer(Part, frozen=True, kw_only=True):
    """A container of a sandbox."""

    id: str
    name: str
    state: str


class SandboxDocument(Part, frozen=True, kw_only=True):
    """A sandbox of a pod with its containers."""

    id: str
    ready: bool
    attempt: int
    created_at: Time | None
    containers: tuple[PodContainer, ...]


class Pod(Part, frozen=True, kw_only=True):
    """A pod of the runtime.

    Attributes:
        gone: whether the pod counts as deleted.
        how: evidence of its deletion; empty without evidence.
    """

    uid: str
    namespace: str
    name: str
    gone: bool
    how: str
    sandboxes: tuple[SandboxDocument, ...]

    @classmethod
    def of(
        cls,
        uid: str,
        sandboxes: Sequence[Sandbox],
        containers: Mapping[str, Sequence[Container]],
        status: PodDeletionStatus | None,
    ) -> Pod:
        """Return the document form of a pod; the keys of ``containers`` are sandbox ids."""
        return cls(
            uid=uid,
            namespace=sandboxes[0].namespace,
            name=sandboxes[0].name,
            gone=status.deleted if status else False,
            how=status.how if status else "",
            sandboxes=tuple(
                SandboxDocument.from_value(
                    sandbox,
                    containers=tuple(
                        PodContainer(id=each.id, name=each.name, state=each.state.value)
                        for each in containers.get(sandbox.id, ())
                    ),
                )
                for sandbox in sandboxes
            ),
        )


class Pods(ListDocument, frozen=True, kw_only=True, tag=SchemaId.PODS.value):
    """List of all pods of the runtime, with their sandboxes."""

    pods: tuple[Pod, ...]


def image_order(image: Image) -> tuple[str, str]:
    """Return the sort key of an image in lists: its name and id."""
    return image.name, image.id


def container_order(container: Container) -> tuple[str, str, str, int]:
    """Return the sort key of a container in lists: its pod and name, the newest attempt first."""
    return container.pod_namespace, container.pod_name, container.name, -container.attempt


def pod_order(sandbox: Sandbox) -> tuple[str, str, str]:
    """Return the sort key of the pod of a sandbox in lists: its namespace, name and UID."""
    return sandbox.namespace, sandbox.name, sandbox.uid
