"""Images in use, with the containers and sandboxes that reference each image."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from nodeagent.last_result import keep_last_result
from nodeagent.model import ContainerState
from nodeagent.plan.decision import Reason, ReasonCode
from nodeagent.plan.gc.image_references import ImageIndex
from nodeagent.plan.pods.names import sandbox_name
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodeagent.model import Container, Image, NodeSnapshot, Sandbox

_MARKS = {
    ContainerState.RUNNING: "",
    ContainerState.CREATED: " (created)",
    ContainerState.EXITED: " (dead)",
    ContainerState.UNKNOWN: " (state unknown)",
}
_REFERENCES = attrgetter("image_ref", "image_id", "image_name", "volume_images")
_BY_ID = attrgetter("id")
_RUNNING = ContainerState.RUNNING  # module constant: an enum lookup takes ten times as long
_IN_USE = ReasonCode.IN_USE_BY_CONTAINER
_DEAD = frozenset({ContainerState.CREATED, ContainerState.EXITED})


class ImageUsers(Record):
    """Containers and sandboxes that use the listed images.

    Attributes:
        index: index that resolves references to listed images.
        containers: containers in any state that reference an image, by image id; only images with containers.
        sandboxes: sandboxes that reference an image, by image id; only images with sandboxes.
    """

    index: ImageIndex
    containers: Mapping[str, Sequence[Container]]
    sandboxes: Mapping[str, Sequence[Sandbox]]

    def without(self, removed_containers: frozenset[str], removed_sandboxes: frozenset[str]) -> ImageUsers:
        """Return the users that remain after removal of these containers and sandboxes."""
        containers = {
            image_id: containers_left
            for image_id, members in self.containers.items()
            if (containers_left := [each for each in members if each.id not in removed_containers])
        }
        sandboxes = {
            image_id: sandboxes_left
            for image_id, members in self.sandboxes.items()
            if (sandboxes_left := [each for each in members if each.id not in removed_sandboxes])
        }
        return ImageUsers(self.index, containers, sandboxes)

    @property
    def images(self) -> frozenset[str]:
        """The ids of all images in use."""
        return frozenset(self.containers) | frozenset(self.sandboxes)


def find_users(snapshot: NodeSnapshot) -> ImageUsers:
    """Return the users of the listed images; references to unlisted images are ignored.

    The result is cached for the last lists.
    """
    return _find_users(tuple(snapshot.images), tuple(snapshot.containers), tuple(snapshot.sandboxes))


@keep_last_result
def _index_of(images: tuple[Image, ...]) -> ImageIndex:
    """Return the index of images, cached separately because images change less often than containers."""
    return ImageIndex(images)


@keep_last_result
def _find_users(
    images: tuple[Image, ...], containers: tuple[Container, ...], sandboxes: tuple[Sandbox, ...]
) -> ImageUsers:
    index = _index_of(images)
    by_container: defaultdict[str, list[Container]] = defaultdict(list)
    by_sandbox: defaultdict[str, list[Sandbox]] = defaultdict(list)
    by_references: defaultdict[tuple[str, str, str, tuple[str, ...]], list[Container]] = defaultdict(list)
    for container, references in zip(containers, map(_REFERENCES, containers), strict=True):
        by_references[references].append(container)
    for members in by_references.values():
        for image_id in index.resolve_all(image_references(members[0])):
            by_container[image_id] += members
    for sandbox in sandboxes:
        for image_id in index.resolve(sandbox.image):
            by_sandbox[image_id].append(sandbox)
    return ImageUsers(index, dict(by_container), dict(by_sandbox))


def image_references(container: Container) -> Iterator[str]:
    """Yield every image reference of a container, image volumes included; some may be empty."""
    yield container.image_ref
    yield container.image_id
    yield container.image_name
    yield from container.volume_images


def images_in_use(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the ids of the listed images that a container, in any state, or a sandbox references.

    References are ids, tags, digests and image volumes. The kubelet uses only ids; in nodeagent, after a tag was moved,
    both its former and its current image are in use. Source: kubelet image manager, ``detectImages``; CRI ``Container``
    and ``Mount.image``.
    """
    return find_users(snapshot).images


def in_use_reason(image_id: str, users: ImageUsers) -> Reason:
    """Return the reason to keep an image in use, with the names of its containers, or of its sandboxes if it has none.

    Raises:
        KeyError: the image is not in use.
    """
    containers = users.containers.get(image_id)
    if containers:
        return _used_by_containers(containers)
    names = tuple(sorted(sandbox_name(sandbox) for sandbox in users.sandboxes[image_id]))
    return Reason(ReasonCode.IN_USE_BY_SANDBOX, {"count": len(names), "sandboxes": names, "note": ""})


def _used_by_containers(containers: Sequence[Container]) -> Reason:
    """Return the reason to keep an image, with the names of its containers, running containers first."""
    ordered = sorted(containers, key=_BY_ID)
    running = [each.display_name for each in ordered if each.state is _RUNNING]
    others = [each.display_name + _MARKS[each.state] for each in ordered if each.state is not _RUNNING]
    dead = not running and all(each.state in _DEAD for each in ordered)
    note = "; none is running: removable once they are removed" if dead else ""
    names = (*running, *others)
    return Reason(_IN_USE, {"count": len(names), "containers": names, "note": note})
