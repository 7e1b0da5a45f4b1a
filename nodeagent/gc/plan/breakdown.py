"""Usage breakdown of the image filesystem: each used byte and inode belongs to one category.

The last category is the part that no reading explains, such as the filesystem's own metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_users import find_users
from nodeagent.model.runtime import (
    ContainerState,
    FsObservation,
    HeldContent,
    Image,
    PieceKind,
    ReferenceKind,
    Space,
    StorageGraph,
    total_space,
)
from nodeagent.pods.plan.facts import sandbox_name
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

NO_PODS: Final[Mapping[str, str]] = MappingProxyType({})
_MAYBE_RUNNING: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class UsageCategory(StrEnum):
    """Category of usage of the image filesystem. The values are part of the JSON output."""

    IMAGES_IN_USE = "images-in-use"
    IMAGES_UNUSED = "images-unused"
    IMAGES_UNLISTED = "images-unlisted"
    LEASED = "leased"
    BEING_WRITTEN = "being-written"
    OTHER_NAMESPACES = "other-namespaces"
    UNREFERENCED = "unreferenced"
    WRITABLE_RUNNING = "writable-layers-running"
    WRITABLE_DEAD = "writable-layers-dead"
    RUNTIME_DATA = "runtime-data"
    RUNTIME_METADATA = "runtime-metadata"
    POD_LOGS = "pod-logs"
    POD_VOLUMES = "pod-volumes"
    DELETED_FILES = "deleted-files"
    HOST_FILES = "host-files"
    RESERVED = "reserved-for-root"
    UNEXPLAINED = "unexplained"


class MeasuredTree(Record):
    """Disk usage of a directory tree.

    Attributes:
        path: root of the tree.
        size_bytes: disk usage of the files in the tree, without other filesystems.
        complete: whether the whole tree was read in time; otherwise ``size_bytes`` and ``inodes`` are lower bounds.
        inodes: number of its files and directories.
        pod: ``NAMESPACE/NAME`` of its pod, if known from another source than the path.
    """

    path: str
    size_bytes: int
    complete: bool = True
    inodes: int = 0
    pod: str = ""


_HELD: Final[Mapping[ReferenceKind | None, UsageCategory]] = {
    ReferenceKind.UNLISTED_IMAGE: UsageCategory.IMAGES_UNLISTED,
    ReferenceKind.CONTAINER: UsageCategory.IMAGES_IN_USE,
    ReferenceKind.LEASE: UsageCategory.LEASED,
    ReferenceKind.GC_LABEL: UsageCategory.LEASED,
    ReferenceKind.INGEST: UsageCategory.BEING_WRITTEN,
    ReferenceKind.OTHER_NAMESPACE: UsageCategory.OTHER_NAMESPACES,
    None: UsageCategory.UNREFERENCED,
}
"""Category of stored content that no listed image references, by the kind of its holder."""


class MeasuredUsage(Record):
    """Disk usage measured in addition to the snapshot.

    Attributes:
        held: stored content that no listed image references, by holder; ``None`` if not measured.
        writable: usage of the writable layer by container or sandbox id; ``None`` if not measured.
        incomplete_layers: ids of containers whose writable layer was read in part.
        logs: log directories of pods on the image filesystem, and large files in these directories.
        volumes: pod volume directories on the image filesystem, and large files in these directories.
        metadata: the runtime's own directories and files, other than images and layers.
        runtime_data: all data of a runtime that does not answer; otherwise ``None``.
        deleted: deleted files that are open, with the name of the process as path.
        unread_processes: number of processes whose deleted files are unknown.
        host: all other directories and files on the image filesystem; ``None`` if directories were not walked.
        largest: the largest directories and files of ``host``.
        reserved_bytes: free space that only root can use.
    """

    held: Sequence[HeldContent] | None = ()
    writable: Mapping[str, Space] | None = None
    incomplete_layers: Collection[str] = ()
    logs: Sequence[MeasuredTree] = ()
    volumes: Sequence[MeasuredTree] = ()
    metadata: Sequence[MeasuredTree] = ()
    runtime_data: MeasuredTree | None = None
    deleted: Sequence[MeasuredTree] = ()
    unread_processes: int = 0
    host: MeasuredTree | None = None
    largest: Sequence[MeasuredTree] = ()
    reserved_bytes: int = 0


class Member(Record):
    """One item of a category.

    Attributes:
        name: name of the image, the container or another object, or a path.
        size_bytes: bytes of the category that belong to the item.
        inodes: inodes of the category that belong to the item; 0 if unknown.
        pod: ``NAMESPACE/NAME`` of the pod that wrote the data; for an image the pods that use it. Empty if not known.
        detail: further facts; may be empty.
    """

    name: str
    size_bytes: int
    inodes: int = 0
    pod: str = ""
    detail: str = ""


class Share(Record):
    """Usage of one category with its members, largest first; a lower bound or estimate unless ``exact``."""

    part: UsageCategory
    size_bytes: int
    inodes: int = 0
    members: tuple[Member, ...] = ()
    exact: bool = True


class Breakdown(Record):
    """Usage of the image filesystem by category; the shares add up to the used bytes, unless estimates exceed them.

    Attributes:
        filesystem: capacity and available bytes of the filesystem.
        shares: usage of each category, in a fixed order.
        exact: whether image usage is the size of layers; otherwise it is the sum of the image sizes reported by CRI.
        warnings: parts that could not be read, as sentences.
    """

    filesystem: FsObservation
    shares: tuple[Share, ...]
    exact: bool
    warnings: tuple[str, ...] = ()


def break_down(snapshot: NodeSnapshot, filesystem: FsObservation, measured: MeasuredUsage) -> Breakdown:
    """Return the usage of the image filesystem by category.

    A layer shared by used and unused images counts as used. The last category is the used bytes minus all other
    categories: 0 if these exceed the used bytes, as upper-bound sizes can, and not exact unless stored content and all
    directories were read. Deleted files of unreadable processes are a part of it. The inodes of the last category are
    calculated in the same way.
    """
    users = find_users(snapshot)
    storage = snapshot.storage
    shares = (
        _image_shares(snapshot, storage, users.images, users_by_image(snapshot))
        if storage is not None
        else _image_shares_by_size(snapshot, users.images)
    )
    shares = _with_held(shares, measured.held or (), snapshot)
    shares += _writable_shares(snapshot, measured.writable or {}, measured.incomplete_layers)
    pods = _pods_by_key(snapshot)
    if measured.runtime_data is not None:
        shares = [_of_trees(UsageCategory.RUNTIME_DATA, [measured.runtime_data])]
    if measured.metadata:
        shares.append(replace(_of_trees(UsageCategory.RUNTIME_METADATA, measured.metadata), members=()))
    if measured.logs:
        shares.append(_of_trees(UsageCategory.POD_LOGS, measured.logs, pods))
    if measured.volumes:
        shares.append(_of_trees(UsageCategory.POD_VOLUMES, measured.volumes, pods))
    if measured.deleted or measured.unread_processes:
        share = _of_trees(UsageCategory.DELETED_FILES, measured.deleted)
        shares.append(replace(share, exact=not measured.unread_processes))
    host = measured.host
    if host is not None:
        largest = _of_trees(UsageCategory.HOST_FILES, measured.largest)
        shares.append(replace(largest, size_bytes=host.size_bytes, inodes=host.inodes, exact=host.complete))
    shares.append(Share(UsageCategory.RESERVED, measured.reserved_bytes))
    used_bytes = filesystem.capacity_bytes - filesystem.available_bytes
    rest_bytes = max(0, used_bytes - sum(share.size_bytes for share in shares))
    rest_inodes = max(0, filesystem.inodes - filesystem.inodes_free - sum(share.inodes for share in shares))
    is_read = all(share.exact or share.part is UsageCategory.DELETED_FILES for share in shares)
    is_exact = is_read and host is not None and (measured.held is not None or measured.runtime_data is not None)
    shares.append(Share(UsageCategory.UNEXPLAINED, rest_bytes, rest_inodes, exact=is_exact))
    unread = f"deleted files that are open: a lower bound, unreadable processes: {measured.unread_processes}"
    return Breakdown(filesystem, tuple(shares), storage is not None, (unread,) if measured.unread_processes else ())


def users_by_image(snapshot: NodeSnapshot) -> dict[str, str]:
    """Return the names of up to three pods that use an image, as text, by image id."""
    users = find_users(snapshot)
    users_of = {}
    for image in snapshot.images:
        containers, sandboxes = users.containers.get(image.id, ()), users.sandboxes.get(image.id, ())
        pods = {f"{each.pod_namespace}/{each.pod_name}" if each.pod_name else each.name for each in containers}
        pods |= {f"{each.namespace}/{each.name}" for each in sandboxes}
        if pods:
            named = sorted(pods)
            users_of[image.id] = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return users_of


def _image_shares(
    snapshot: NodeSnapshot, storage: StorageGraph, in_use: frozenset[str], users: Mapping[str, str]
) -> list[Share]:
    """Return the usage of used images and of unused images, each piece counted once."""
    names = {image.id: image.name for image in snapshot.images}
    counted: set[int] = set()
    shares = []
    for part, used in ((UsageCategory.IMAGES_IN_USE, True), (UsageCategory.IMAGES_UNUSED, False)):
        members = []
        for image_id, indexes in storage.by_image.items():
            if (image_id in in_use) is not used:
                continue
            own = [storage.pieces[index] for index in indexes if index not in counted]
            counted.update(indexes)
            space = total_space(Space(each.size_bytes, each.inodes) for each in own)
            members.append(Member(names.get(image_id, image_id), *space, pod=users.get(image_id, "")))
        shares.append(_of_members(part, members))
    return shares


def _with_held(shares: Sequence[Share], held: Iterable[HeldContent], snapshot: NodeSnapshot) -> list[Share]:
    """Return the shares of images completed by the content that no listed image references."""
    owners = _owners(snapshot)
    members: dict[UsageCategory, list[Member]] = {share.part: list(share.members) for share in shares}
    for each in held:
        since = f"since {each.created_at:%Y-%m-%d}" if each.created_at else ""
        facts = ", ".join(filter(None, (each.detail, since)))
        name, pod = owners.get(each.name, (each.name, ""))
        members.setdefault(_HELD[each.kind], []).append(Member(name, each.size_bytes, each.inodes, pod, facts))
    exact = {share.part: share.exact for share in shares}
    return [_of_members(part, members[part], exact=exact.get(part, True)) for part in UsageCategory if part in members]


def _owners(snapshot: NodeSnapshot) -> dict[str, tuple[str, str]]:
    """Return the name and the pod of each container and sandbox, by id."""
    owners = {each.id: ("sandbox", sandbox_name(each)) for each in snapshot.sandboxes}
    for each in snapshot.containers:
        pod = f"{each.pod_namespace}/{each.pod_name}" if each.pod_name else ""
        owners[each.id] = (each.name if pod else each.display_name, pod)
    return owners


def pods_by_id(snapshot: NodeSnapshot) -> dict[str, str]:
    """Return ``NAMESPACE/NAME`` of the pod by id of its sandboxes and containers."""
    return {key: pod for key, (_, pod) in _owners(snapshot).items() if pod}


def _pods_by_key(snapshot: NodeSnapshot) -> dict[str, str]:
    """Return ``NAMESPACE/NAME`` of each pod, by its UID and by the ids of its sandboxes and containers."""
    pods = pods_by_id(snapshot)
    uids = {each.uid: pods[each.id] for each in snapshot.sandboxes}
    uids |= {each.pod_uid: pods[each.id] for each in snapshot.containers if each.id in pods}
    return {key: pod for key, pod in (pods | uids).items() if key}


def _image_shares_by_size(snapshot: NodeSnapshot, in_use: frozenset[str]) -> list[Share]:
    shares = []
    for part, used in ((UsageCategory.IMAGES_IN_USE, True), (UsageCategory.IMAGES_UNUSED, False)):
        members = [
            Member(image.name, image.size_bytes or 0) for image in snapshot.images if (image.id in in_use) is used
        ]
        shares.append(_of_members(part, members, exact=False))
    return shares


def _writable_shares(snapshot: NodeSnapshot, writable: Mapping[str, Space], incomplete: Collection[str]) -> list[Share]:
    """Return the usage of the writable layers of running and of dead containers, with their sandboxes.

    A share is a lower bound if a layer was read in part, or not at all although containerd has its snapshot.
    """
    owners = _owners(snapshot)
    running = {each.id for each in snapshot.containers if each.state in _MAYBE_RUNNING}
    running |= {each.id for each in snapshot.sandboxes if each.ready}
    members: dict[bool, list[Member]] = {True: [], False: []}
    for container_id, space in writable.items():
        name, pod = owners.get(container_id, (container_id[:12], ""))
        runs = container_id in running or container_id not in owners  # a container that CRI does not list
        members[runs].append(Member(name, *space, pod=pod))
    unknown = {*incomplete, *(owners.keys() - writable.keys() if snapshot.storage is not None else ())}
    return [
        replace(_of_members(UsageCategory.WRITABLE_RUNNING, members[True]), exact=unknown.isdisjoint(running)),
        replace(_of_members(UsageCategory.WRITABLE_DEAD, members[False]), exact=unknown <= running),
    ]


def _of_trees(part: UsageCategory, trees: Sequence[MeasuredTree], pods: Mapping[str, str] = NO_PODS) -> Share:
    """Return the share of these trees; ``pods`` has pods by UID or id, the end of a directory's name after ``_``."""
    members = [Member(each.path, each.size_bytes, each.inodes, each.pod or _pod_of(each, pods)) for each in trees]
    return _of_members(part, members, exact=all(each.complete for each in trees))


def _pod_of(tree: MeasuredTree, pods: Mapping[str, str]) -> str:
    """Return the pod of a directory; the uppermost directory decides, since the pod writes the names of the others."""
    found = (pods.get(name.rpartition("_")[2]) for name in tree.path.split("/")) if pods else ()
    return next(filter(None, found), "")


def _of_members(part: UsageCategory, members: Iterable[Member], *, exact: bool = True) -> Share:
    found = tuple(sorted(members, key=lambda each: (-each.size_bytes, each.name, each.pod)))
    space = total_space(Space(each.size_bytes, each.inodes) for each in found)
    return Share(part, *space, found, exact)


def describe(breakdown: Breakdown) -> dict[str, int]:
    """Return the bytes by category for a log line, without empty categories."""
    return {share.part.value: share.size_bytes for share in breakdown.shares if share.size_bytes}


@dataclass(slots=True)
class Stack:
    """A sequence of layers contained in the same images, with the stacks on top of the sequence.

    Attributes:
        images: images whose top layer is the last layer of this stack.
        layers: number of layers in this stack.
        size_bytes: unpacked size of the layers in this stack.
        derived: stacks on top of this stack.
    """

    images: list[Image] = field(default_factory=list)
    layers: int = 0
    size_bytes: int = 0
    derived: list[Stack] = field(default_factory=list)

    @property
    def image_count(self) -> int:
        """Number of images that contain the layers of this stack."""
        return len(self.images) + sum(stack.image_count for stack in self.derived)


@dataclass(slots=True)
class _Layer:
    children: dict[int, _Layer] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)


def sharing_tree(images: Iterable[Image], storage: StorageGraph) -> tuple[tuple[Stack, ...], tuple[Image, ...]]:
    """Return the bottom stacks of the tree, and the images without known layers.

    Adjacent layers contained in the same images form one stack. Stacks are ordered by number of images, then by size,
    both descending, then by name.
    """
    root, unknown = _Layer(), []
    for image in images:
        indexes = storage.by_image.get(image.id, ())
        chain = [index for index in reversed(indexes) if storage.pieces[index].kind is PieceKind.SNAPSHOT]
        if not chain:
            unknown.append(image)
            continue
        layer = root
        for index in chain:
            layer = layer.children.setdefault(index, _Layer())
        layer.images.append(image)
    return _stacks(root, storage), tuple(unknown)


def _stacks(root: _Layer, storage: StorageGraph) -> tuple[Stack, ...]:
    stacks = []
    for first, start in root.children.items():
        stack, layer, index = Stack(), start, first
        while True:
            stack.layers += 1
            stack.size_bytes += storage.pieces[index].size_bytes
            if layer.images or len(layer.children) != 1:
                break
            ((index, layer),) = layer.children.items()
        stack.images = sorted(layer.images, key=lambda image: image.name)
        stack.derived = list(_stacks(layer, storage))
        stacks.append(stack)
    return tuple(sorted(stacks, key=lambda each: (-each.image_count, -each.size_bytes, _first_name(each))))


def _first_name(stack: Stack) -> str:
    return stack.images[0].name if stack.images else ""
