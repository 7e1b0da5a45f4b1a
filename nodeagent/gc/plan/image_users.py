"""Images in use, with the containers and sandboxes that reference each image.

Image references: their parts, their normal form, and their resolution to listed images.

A container references its image in many forms: by id with or without ``sha256:``, by tag with or without registry, by
digest, or by a shortened id. Every form is resolved to all possible images, so that no image in use appears unused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nodeagent.last_result import keep_last_result
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.model.runtime import Container, ContainerState, Image, Sandbox
from nodeagent.pods.plan.facts import sandbox_name
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

DOCKER_HUB: Final = "docker.io"
_CACHED_SPELLINGS: Final = 4096  # covers the image names of a large node
_HEX: Final = frozenset("0123456789abcdef")


def repository_of(reference: str) -> str:
    """Return a reference without its tag and digest, with the registry port if given.

    Source: reference grammar of the distribution project; a tag contains no slash.
    """
    name = reference.partition("@")[0]
    colon = name.rfind(":")
    return name[:colon] if colon > name.rfind("/") else name


def digest_of(reference: str) -> str:
    """Return the digest of a reference, such as ``sha256:...``; empty for a reference without a digest."""
    return reference.partition("@")[2]


def normalise(reference: str) -> str:
    """Return a reference in normal form: with registry, and with the tag ``latest`` if tag and digest are missing.

    ``nginx`` becomes ``docker.io/library/nginx:latest``. Source: ``ParseDockerRef`` of the distribution project.
    """
    first, slash, rest = reference.partition("/")
    if not slash:
        full = f"{DOCKER_HUB}/library/{reference}"
    elif first == "index.docker.io":
        full = normalise(rest)
    elif first == DOCKER_HUB and "/" not in rest:
        full = f"{DOCKER_HUB}/library/{rest}"
    elif "." in first or ":" in first or first == "localhost":
        full = reference
    else:
        full = f"{DOCKER_HUB}/{reference}"
    if "@" in full or ":" in full[full.rindex("/") :]:
        return full
    return f"{full}:latest"


def is_named_like_pause(reference: str) -> bool:
    """Return whether the last path component of a repository is the name of a pause image.

    The component is ``pause``, starts with ``pause-`` or ends with ``-pause``, as in ``rancher/mirrored-pause:3.6``.
    """
    last = repository_of(reference).rpartition("/")[2]
    return last == "pause" or last.startswith("pause-") or last.endswith("-pause")


def bare_id(image_id: str) -> str:
    """Return an image id without the prefix ``sha256:``, which only some runtimes include."""
    return image_id.removeprefix("sha256:")


@lru_cache(_CACHED_SPELLINGS)
def spellings(reference: str) -> frozenset[str]:
    """Return all forms in which the runtime may list a named image reference."""
    full = normalise(reference)
    found = {reference, full}
    if full.startswith("docker.io/"):
        short = full.removeprefix("docker.io/")
        found |= {short, short.removeprefix("library/"), f"index.docker.io/{short}"}
    return frozenset(found | {each.removesuffix(":latest") for each in found})


class ImageIndex:
    """Index that resolves references to ids of listed images, in constant time except for shortened ids."""

    def __init__(self, images: Sequence[Image]) -> None:
        """Index the images by id and by name; the index by digest is created on first use."""
        self._images = images
        self._by_id = {bare_id(image.id): image.id for image in images}
        self._by_name = _Multimap((tag, image.id) for image in images for tag in image.repo_tags)
        self._resolved: dict[str, tuple[str, ...]] = {}

    def resolve(self, reference: str) -> tuple[str, ...]:
        """Return the ids of all listed images that match ``reference``; empty without a match.

        ``reference`` is an id with or without ``sha256:``, a name with or without registry and tag, a digest, or a name
        with a digest, which matches any image with this digest. A reference that matches in none of these forms is
        matched as a shortened id: the prefix of image ids.
        """
        known = self._resolved.get(reference)
        if known is None:
            known = self._resolved[reference] = tuple(sorted(self._find(reference))) if reference else ()
        return known

    def resolve_named(self, reference: str) -> tuple[str, ...]:
        """Return the ids of all listed images that match the image reference of a pod; empty without a match.

        Unlike :meth:`resolve`, shortened ids do not match, since a pod cannot use them: a tenant could otherwise keep
        every image by pods with the image references ``a``, ``b`` and so on.
        """
        return tuple(sorted(self._find(reference, shortened=False))) if reference else ()

    def resolve_all(self, references: Iterable[str]) -> set[str]:
        """Return the ids of all listed images that match any of the references."""
        return {image_id for reference in references for image_id in self.resolve(reference)}

    def _find(self, reference: str, *, shortened: bool = True) -> set[str]:
        bare = bare_id(reference)
        by_id = self._by_id.get(bare)
        if by_id is not None:
            return {by_id}
        name, at, digest = reference.partition("@")
        if at:
            by_digest = {*self._by_digest.get(digest)} or self._find(digest, shortened=shortened)
            return by_digest or self._named(name)
        # A digest contains no slash, most names do: the index by digest is rarely created.
        as_digest = () if "/" in reference else self._by_digest.get(reference)
        named = {*as_digest} or self._named(reference)
        return named or (self.with_id_prefix(reference) if shortened else set())

    def _named(self, reference: str) -> set[str]:
        return {image_id for each in spellings(reference) for image_id in self._by_name.get(each)}

    @cached_property
    def _by_digest(self) -> _Multimap:
        return _Multimap((digest_of(reference), image.id) for image in self._images for reference in image.repo_digests)

    @cached_property
    def _sorted_ids(self) -> list[str]:
        return sorted(self._by_id)

    def with_id_prefix(self, prefix: str) -> set[str]:
        """Return the ids of all listed images that begin with ``prefix``, with or without ``sha256:``."""
        prefix = bare_id(prefix)
        if not prefix or not _HEX.issuperset(prefix):
            return set()
        start = end = bisect_left(self._sorted_ids, prefix)
        while end < len(self._sorted_ids) and self._sorted_ids[end].startswith(prefix):
            end += 1
        return {self._by_id[bare] for bare in self._sorted_ids[start:end]}


_MOST_SIMILAR: Final = 3


def similar_names(images: Iterable[Image], name: str) -> tuple[str, ...]:
    """Return the tags that end with ``/name``, such as ``registry.example/web:v1`` for ``web:v1``; at most three."""
    found = [each for image in images for each in image.repo_tags if each.endswith(f"/{name}")]
    return tuple(found[:_MOST_SIMILAR])


class _Multimap:
    """Map from text to image ids; a list is created only for a second id, since most texts map to one id."""

    def __init__(self, entries: Iterable[tuple[str, str]]) -> None:
        self._first: dict[str, str] = {}
        self._more: dict[str, list[str]] = {}
        set_first = self._first.setdefault
        for key, image_id in entries:
            if set_first(key, image_id) != image_id:
                self._more.setdefault(key, []).append(image_id)

    def get(self, key: str) -> tuple[str, ...]:
        first = self._first.get(key)
        return () if first is None else (first, *self._more.get(key, ()))


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
