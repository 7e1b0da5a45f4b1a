"""Documents of the images, containers and pods of the runtime, with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from nodeagent.api.common import Document, Filesystem, Part, ReasonDocument, Runtime
from nodeagent.model.decision import Accounting, Decision, Verdict
from nodeagent.pods.plan.status import exit_reason, pod_summary
from nodeagent.record import Time
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from nodeagent.gc.plan import breakdown as layer_sharing
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Container, Image, ImageUsage, Sandbox
    from nodeagent.pods.plan.deletion import PodDeletionStatus
    from nodeagent.pods.plan.status import StatusWord


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
    """A container with its verdict.

    Attributes:
        state: state in CRI.
        exit_reason: reason of the exit in the runtime's words if it states more than the exit code, such as
            ``OOMKilled``; empty otherwise.
        status: ``Running``, ``Completed``, ``Error``, ``OOMKilled``, ``CrashLoop``, ``Created``, ``Exited`` (with an
            unknown exit code) or ``Unknown``; empty from a daemon of an earlier version.
    """

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
    exit_reason: str = ""
    status: str = ""
    verdict: Verdict
    reason: ReasonDocument

    @classmethod
    def of(cls, container: Container, decision: Decision, status: StatusWord) -> ContainerDocument:
        """Return the document form of a container."""
        return cls.from_value(
            container,
            state=container.state.value,
            exit_reason=exit_reason(container),
            status=status.value,
            image=container.image_name or container.image_ref,
            verdict=decision.verdict,
            reason=ReasonDocument.of(decision.reason),
        )


class Containers(ListDocument, frozen=True, kw_only=True, tag=SchemaId.CONTAINERS.value):
    """List of all containers with their verdicts."""

    containers: tuple[ContainerDocument, ...]


class PodContainer(Part, frozen=True, kw_only=True):
    """A container of a sandbox; ``exit_reason`` and ``status`` as in :class:`ContainerDocument`."""

    id: str
    name: str
    state: str
    attempt: int = 0
    exit_code: int | None = None
    exit_reason: str = ""
    status: str = ""


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
        status: worst status of its containers, of each only the newest instance; ``Deleted``; without containers
            ``Created`` with a ready sandbox, otherwise ``NotReady``. Empty from a daemon of an earlier version.
        running: number of running containers.
        expected: number of containers; without the completed ones, such as init containers, unless all are completed.
        restarts: sum of the attempts of the newest instances.
    """

    uid: str
    namespace: str
    name: str
    gone: bool
    how: str
    status: str = ""
    running: int | None = None
    expected: int | None = None
    restarts: int | None = None
    sandboxes: tuple[SandboxDocument, ...]

    @classmethod
    def of(
        cls,
        uid: str,
        sandboxes: Sequence[Sandbox],
        containers: Mapping[str, Sequence[Container]],
        words: Mapping[str, StatusWord],
        deletion: PodDeletionStatus | None,
    ) -> Pod:
        """Return the document form of a pod.

        The keys of ``containers`` are sandbox ids, those of ``words`` container ids.
        """
        gone = deletion is not None and deletion.deleted
        own = [each for sandbox in sandboxes for each in containers.get(sandbox.id, ())]
        summary = pod_summary(sandboxes, own, words, deleted=gone)
        return cls(
            uid=uid,
            namespace=sandboxes[0].namespace,
            name=sandboxes[0].name,
            gone=gone,
            how=deletion.how if deletion else "",
            status=summary.status.value,
            running=summary.running,
            expected=summary.expected,
            restarts=summary.restarts,
            sandboxes=tuple(
                SandboxDocument.from_value(
                    sandbox,
                    containers=tuple(
                        PodContainer.from_value(
                            each, state=each.state.value, exit_reason=exit_reason(each), status=words[each.id].value
                        )
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
