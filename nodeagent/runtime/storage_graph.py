"""Disk usage of images and the references to each blob and snapshot: builds the model's :class:`StorageGraph`.

A deletion frees the blobs and snapshots that become unreferenced. The graph is therefore containerd's own reference
graph (:mod:`nodeagent.runtime.namespace_lists`), reduced to the pieces referenced by images that CRI lists. Sizes are
the bytes freed on the filesystem: a blob's bytes in whole blocks; for a snapshot the usage recorded by its snapshotter,
the directories not included in that usage, and the inodes if they take space from the same filesystem.

Names, blobs and snapshots are listed again for a build unless the revision of containerd's database is unchanged; only
usage requires one call per snapshot.

Containers created by other clients in the same namespace also use images, and containerd 1.6 does not report pinned
images through CRI. These containers and pins are read from containerd's own services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError, RuntimeTimeoutError
from nodeagent.guarded_call import compute
from nodeagent.last_result import keep_last_result
from nodeagent.model.runtime import (
    Container,
    ContainerState,
    Image,
    ImageRecord,
    ReferenceKind,
    Sandbox,
    Space,
    StorageGraph,
    StoredPiece,
    UnlistedContent,
    UnreferencedPiece,
)
from nodeagent.record import Record, replace
from nodeagent.runtime import namespace_lists
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.containerd import (
    Blob,
    LeasedResource,
    Snapshot,
    SnapshotKind,
    Stamp,
    StoredContainer,
    StoredImage,
    is_pinned,
    is_undo,
)
from nodeagent.runtime.held_content import being_written, held_content, read_other_namespaces, unlisted_nodes
from nodeagent.runtime.namespace_lists import (
    CONTENT,
    DEFAULT_SNAPSHOTTER,
    IMAGES,
    SNAPSHOTS,
    GraphNode,
    Inventory,
    Stored,
    space_by_store,
)
from nodeagent.units import Clock, SystemClock

if TYPE_CHECKING:
    from nodeagent.runtime.containerd import ContainerdClient


@keep_last_result
def unlisted_containers(
    stored: Sequence[StoredContainer], containers: Sequence[Container], sandboxes: Sequence[Sandbox]
) -> tuple[Container, ...]:
    """Return the stored containers not listed by CRI, in unknown state and without creation time."""
    if not stored:
        return ()
    listed = {each.id for each in containers} | {each.id for each in sandboxes}
    return tuple(
        Container(
            id=each.id,
            name=each.id,
            sandbox_id="",
            state=ContainerState.UNKNOWN,
            image_name=each.image,
            labels=each.labels,
        )
        for each in stored
        if each.id not in listed
    )


@keep_last_result
def snapshotters_by_container(stored: Sequence[StoredContainer]) -> Mapping[str, str]:
    """Return the snapshotter of each stored container by id."""
    return {each.id: each.snapshotter for each in stored}


def with_labels(image: Image, names: Iterable[StoredImage]) -> Image:
    """Return the image with the labels of its names; one name that pins the image suffices."""
    stored = tuple(names)
    labels = {label for name in stored for key, value in name.labels.items() for label in ((key, value), (key, None))}
    return replace(image, pinned=image.pinned or any(map(is_pinned, stored)), labels=image.labels | labels)


def with_pins(images: Sequence[Image], storage: StorageGraph) -> tuple[Image, ...]:
    """Return the images with pins from containerd's labels added; a pin on any of an image's names counts.

    The same tuple is returned if no pin is added.
    """
    pinned = {image_id for image_id, record in storage.records.items() if record.pinned}
    if not any(image.id in pinned and not image.pinned for image in images):
        return tuple(images)
    return tuple(replace(image, pinned=True) if image.id in pinned and not image.pinned else image for image in images)


def pull_times(images: Iterable[Image], storage: StorageGraph | None) -> dict[str, datetime | None]:
    """Return the time of the last pull by image id; ``None`` if the runtime does not report the time."""
    if storage is None:
        return dict.fromkeys([image.id for image in images])
    records = [(image.id, storage.records.get(image.id)) for image in images]
    return {image_id: record.pulled_at if record is not None else None for image_id, record in records}


class ResolvedImage(Record):
    """Records of one CRI image in containerd.

    Attributes:
        names: every name of the image.
        nodes: the existing blobs and snapshots that the image references.
        complete: whether every referenced blob and snapshot exists.
        pinned: whether a label of one of its names pins the image.
        sources: repositories from which the targets of the names were pulled; ``None`` if unknown.
    """

    names: tuple[str, ...]
    nodes: tuple[GraphNode, ...]
    complete: bool
    pinned: bool
    sources: frozenset[str] | None


class ImageExtent(Record):
    """Snapshots and other pieces of an image that its removal must take into account.

    Attributes:
        tops: the topmost snapshots, on which the writable snapshots of containers are prepared.
        further: pieces that the names reference, but that are not reachable from the targets of the names.
    """

    tops: frozenset[GraphNode]
    further: tuple[LeasedResource, ...]


def image_extent(inventory: Inventory, names: Sequence[StoredImage]) -> ImageExtent:
    """Return the extent of the image with these names."""
    existing = inventory.stored.existing
    pieces = [node for node in inventory.referenced_by_images(names) if node in existing]
    leased = inventory.closure(dict.fromkeys(GraphNode(CONTENT, each.target) for each in names))
    snapshots = {node for node in pieces if node.kind != CONTENT}
    parents = {parent for node in snapshots for parent in inventory.stored.edges.get(node, ())}
    return ImageExtent(
        frozenset(snapshots - parents),
        tuple(LeasedResource(node.id, node.kind) for node in pieces if node not in leased),
    )


def resolve_images(images: Iterable[Image], inventory: Inventory) -> dict[str, ResolvedImage]:
    """Return each CRI image's names and pieces; images without a stored name are omitted.

    CRI stores an image under its id, its tags and its digests. Names that CRI does not list are found by their target.
    """
    by_name = {image.name: image for image in inventory.images}
    by_target: dict[str, list[StoredImage]] = {}
    for image in inventory.images:
        by_target.setdefault(image.target, []).append(image)
    existing = inventory.stored.existing
    resolved = {}
    for listed in images:
        own = [by_name[name] for name in (*listed.references, listed.id) if name in by_name]
        aliases = [each for target in dict.fromkeys(each.target for each in own) for each in by_target[target]]
        stored = {each.name: each for each in (*own, *aliases)}
        if stored:
            referenced = inventory.referenced_by_images(stored.values())
            nodes = tuple(node for node in referenced if node in existing)
            complete, pinned = _is_complete(referenced, inventory.stored), any(map(is_pinned, stored.values()))
            sources = _image_sources(stored.values(), inventory.stored.blobs)
            resolved[listed.id] = ResolvedImage(tuple(stored), nodes, complete, pinned, sources)
    return resolved


def _image_sources(names: Iterable[StoredImage], blobs: Mapping[str, Blob]) -> frozenset[str] | None:
    """Return the repositories from which the targets of these names were pulled; ``None`` if a target is missing.

    The result is empty if a target was imported, since a name of the image then has no repository.
    """
    targets = {each.target for each in names}
    found = [blobs[target].sources for target in targets if target in blobs]
    if len(found) < len(targets):
        return None
    return frozenset().union(*found) if all(found) else frozenset()


def _is_complete(referenced: Iterable[GraphNode], stored: Stored) -> bool:
    """Return whether every referenced blob and snapshot exists, with at least one snapshot for an image with layers."""
    unpacked = layered = False
    for node in referenced:
        if node in stored.existing:
            unpacked = unpacked or node.kind != CONTENT
            layered = layered or node in stored.with_layers
        elif node.kind != IMAGES and node not in stored.optional:
            return False
    return unpacked or not layered


_FOREIGN = ReferenceKind.OTHER_NAMESPACE


class _Layout(Record):
    """A graph with the references of images only, and its inputs; valid while the inputs are unchanged.

    Attributes:
        index: position of the piece by node.
        names: every name of the images in the graph.
        whole: whether the usage of every snapshot was read.
    """

    stored: Stored
    snapshotter: str
    images: tuple[Image, ...]
    stored_images: tuple[StoredImage, ...]
    graph: StorageGraph
    index: Mapping[GraphNode, int]
    names: frozenset[str]
    whole: bool


class _Inputs(NamedTuple):
    """Inputs of a graph other than the usage of snapshots."""

    images: tuple[Image, ...]
    containers: tuple[StoredContainer, ...]
    snapshotter: str | None
    lists: namespace_lists.StorageLists


class SnapshotUsageStore(Protocol):
    """Persistent store of the usage of committed snapshots. Its methods block and never raise."""

    def read(self) -> Mapping[GraphNode, tuple[Stamp, Space]]:
        """Return the usage of each recorded snapshot, with the creation time of the snapshot."""

    def write(self, read: Mapping[GraphNode, tuple[Stamp, Space]], removed: Collection[GraphNode]) -> None:
        """Record the usage of ``read`` and delete the records of ``removed``."""


class LayerCache:
    """Builder of storage graphs, which caches the parts that are unchanged since the last build.

    The usage of a committed snapshot never changes, and is read only once.
    """

    def __init__(
        self,
        disk: namespace_lists.DiskFormat | None = None,
        clock: Clock | None = None,
        usage_store: SnapshotUsageStore | None = None,
    ) -> None:
        """Create a cache; the first build loads ``usage_store``. ``disk`` defaults to ext4 with 4 KiB blocks."""
        self._disk = disk or namespace_lists.DiskFormat()
        self._stores = namespace_lists.NO_STORES
        self._clock = clock or SystemClock()
        self._usage: dict[GraphNode, tuple[Stamp, Space]] = {}
        self._layout: _Layout | None = None
        self._usage_store = usage_store
        self._targets: dict[str, tuple[str, Stamp]] = {}
        self._stored: frozenset[GraphNode] | None = None
        self._missing: frozenset[tuple[str, str]] = frozenset()
        self._listed: namespace_lists.Listed | None = None
        self._built: tuple[_Inputs, StorageGraph] | None = None

    async def build(
        self,
        client: ContainerdClient,
        images: Sequence[Image],
        *,
        snapshotter: str | None = None,
        containers: tuple[StoredContainer, ...] | None = None,
        lists: namespace_lists.StorageLists | None = None,
    ) -> StorageGraph:
        """Return the storage graph of ``images``; the graph of the last build if its inputs are unchanged.

        An image without stored names, or with a snapshot whose usage cannot be read, has no entry in ``by_image``;
        pieces that such an image shares with other images count as referenced by an unlisted image.

        Args:
            client: client of containerd, in CRI's namespace.
            images: images as listed by CRI before this call.
            snapshotter: the configured snapshotter; ``None`` selects the snapshotter used by most images.
            containers: the container records; ``None`` to list the records, the longest call with many containers.
            lists: the lists of the namespace, if read together with CRI's lists; read again if they lack an image name
                or a container's snapshot that the lists of the last build did not lack.

        Raises:
            RuntimeUnavailableError: no connection.
            RuntimeRequestError: a listing failed; an incomplete listing would make the graph wrong.
        """
        await self._load_usage()
        if containers is None:
            containers = await client.list_containers()
        self._stores = lists.stores if lists is not None else namespace_lists.NO_STORES
        inputs = None if lists is None else _Inputs(tuple(images), containers, snapshotter, lists)
        if inputs is not None and self._built is not None and self._built[0] == inputs:
            return self._built[1]
        namespace = await self._current(client, images, containers, lists)
        inventory = await namespace_lists.make_inventory(client, namespace, snapshotter, containers)
        images = sorted(images, key=lambda each: each.id)  # containerd lists the same images in changing order
        layout = self._layout
        if layout is None or not _is_valid(layout, inventory, images):
            layout = self._layout = await self._lay_out(client, inventory, tuple(images))
        count = len(containers)
        others = await compute(count, _other_references, layout, inventory)
        unreferenced = inventory.stored.existing.difference(
            layout.index, *(nodes for kind, nodes in others if kind is not _FOREIGN)
        )
        usage = await self._read_usage(client, inventory, sorted(unreferenced)) if unreferenced else {}
        undoable = inventory.referenced_by_leases(is_undo) & unreferenced
        freed = {
            node: self._piece(node, inventory, usage)
            for node in unreferenced
            if node in usage or (node.kind == CONTENT and node.id not in inventory.foreign)
        }
        graph = replace(
            _with_references(layout, others),
            by_container=await compute(count, inventory.references_by_container, layout.index),
            pending=space_by_store(piece for node, piece in freed.items() if node not in undoable),
            undo=space_by_store(piece for node, piece in freed.items() if node in undoable),
            store_paths=self._stores.paths,
        )
        is_measured = layout.whole and all(n.kind == CONTENT or self._is_cached(n, inventory) for n in unreferenced)
        is_reusable = inputs is not None and inputs.lists.namespace is namespace and is_measured
        self._built = (inputs, graph) if inputs is not None and is_reusable else None
        return graph

    async def find_unlisted(
        self,
        client: ContainerdClient,
        images: Sequence[Image],
        *,
        snapshotter: str | None = None,
        content_path: str = "",
    ) -> UnlistedContent:
        """Return the content that no listed image references, by holder (see ``held_content``) and by piece.

        Pieces with a ``containerd.io/gc.root`` label are unreferenced and marked. A blob that also exists in another
        namespace is unreferenced with that reference: its deletion removes the record and frees no bytes.

        Args:
            client: client of containerd, in CRI's namespace.
            images: images as listed by CRI.
            snapshotter: the configured snapshotter; ``None`` selects the snapshotter used by most images.
            content_path: directory of the content store; empty if unknown.
        """
        lists, containers = await asyncio.gather(self.list_namespace(client), client.list_containers())
        inventory = await namespace_lists.make_inventory(client, lists, snapshotter, containers)
        others = await read_other_namespaces(client, inventory.stored.snapshots, self.space_of)
        nodes = unlisted_nodes(inventory, images)
        usage = await self._read_usage(client, inventory, sorted(nodes))
        pieces = {node: self._piece(node, inventory, usage) for node in nodes if node.kind == CONTENT or node in usage}
        held = await asyncio.to_thread(held_content, inventory, images, pieces, others, content_path)
        downloads = map(being_written, await client.list_ingests())
        return UnlistedContent((*held, *downloads), await self._unreferenced(client, inventory, pieces))

    async def _unreferenced(
        self, client: ContainerdClient, inventory: Inventory, pieces: Mapping[GraphNode, StoredPiece]
    ) -> tuple[UnreferencedPiece, ...]:
        """Return the pieces without reference from an image, container, lease, ingest or other piece."""
        referenced = set().union(
            inventory.referenced_by_images(inventory.images),
            inventory.referenced_by_containers(),
            inventory.referenced_by_leases(),
            inventory.referenced_by_ingests(),
            inventory.referenced_by_unknown_labels(),
        )
        rooted = inventory.closure(sorted(inventory.stored.rooted - referenced))
        found = []
        for node in sorted(pieces.keys() - referenced):
            piece, is_rooted = pieces[node], node in rooted
            if node.kind == CONTENT:
                created = inventory.stored.blobs[node.id].created
                if created.at is None:  # containerd 1.6 omits creation times in lists
                    with suppress(RuntimeRequestError):
                        blob = await client.get_blob(node.id)
                        created = blob.created if blob is not None else created
                if node.id in inventory.foreign:
                    piece = replace(piece, references=(_FOREIGN,))
                found.append(UnreferencedPiece(piece, "", created.at, rooted=is_rooted))
            else:
                snapshot = _snapshot(inventory, node)
                piece = replace(piece, key=node.id)
                found.append(
                    UnreferencedPiece(
                        piece, piece.snapshotter, snapshot.created.at, rooted=is_rooted, parent=snapshot.parent
                    )
                )
        return tuple(found)

    @property
    def snapshotters(self) -> tuple[str, ...]:
        """Snapshotters of the last graph; the default snapshotter before the first graph."""
        return tuple(self._layout.stored.snapshots) if self._layout is not None else (DEFAULT_SNAPSHOTTER,)

    def extents(self, names: Mapping[str, Sequence[StoredImage]]) -> dict[str, ImageExtent]:
        """Return the extent of images by id, from the last graph; an image with new or changed names has no entry.

        Args:
            names: the current names of each image.
        """
        layout = self._layout
        if layout is None:
            return {}
        inventory = Inventory(layout.stored)
        known = {each.name: each.target for each in layout.stored_images}
        return {
            image_id: image_extent(inventory, own)
            for image_id, own in names.items()
            if all(known.get(each.name) == each.target for each in own)
        }

    async def list_namespace(
        self, client: ContainerdClient, revision: Hashable = None
    ) -> namespace_lists.NamespaceLists:
        """Return the lists of the namespace; entries unchanged since the last graph are shared with it.

        Args:
            client: client of containerd, in the namespace to list.
            revision: revision of the database, read before this call; ``None`` if unknown. With the revision of the
                last lists, these are returned, without expired leases and with the current ingests.

        Raises:
            RuntimeUnavailableError: no connection.
            RuntimeRequestError: a list failed.
        """
        known = self._layout.stored if self._layout else None
        now, listed = self._clock.now(), self._listed
        if revision is not None and listed is not None and listed.revision == revision and listed.at <= now:
            return await namespace_lists.updated(client, listed.lists, now=now, known=known)
        lists = await namespace_lists.list_namespace(client, now=now, known=known)
        self._listed = None if revision is None else namespace_lists.Listed(revision, now, lists)
        return lists

    async def _current(
        self,
        client: ContainerdClient,
        images: Sequence[Image],
        containers: Sequence[StoredContainer],
        lists: namespace_lists.StorageLists | None,
    ) -> namespace_lists.NamespaceLists:
        """Return the lists of the namespace, read again if they lack an object that the last build did not lack."""
        namespace = lists.namespace if lists is not None else await self.list_namespace(client)
        missing = namespace.missing(images, containers)
        if lists is not None and missing - self._missing:
            namespace = await self.list_namespace(client)
            missing = namespace.missing(images, containers)
        self._missing = missing
        return namespace

    async def _load_usage(self) -> None:
        if self._usage_store is not None and self._stored is None:
            self._usage.update(await asyncio.to_thread(self._usage_store.read))
            self._stored = frozenset(self._usage)

    async def _save_usage(self, read: Iterable[GraphNode]) -> None:
        if self._usage_store is None or self._stored is None:
            return
        changed = {node: self._usage[node] for node in read}
        removed = self._stored - self._usage.keys()
        if changed or removed:
            await asyncio.to_thread(self._usage_store.write, changed, removed)
        self._stored = frozenset(self._usage)

    async def _lay_out(self, client: ContainerdClient, inventory: Inventory, images: tuple[Image, ...]) -> _Layout:
        resolved = await asyncio.to_thread(resolve_images, images, inventory)  # takes seconds for thousands of images
        referenced = dict.fromkeys(node for each in resolved.values() for node in each.nodes)
        before = dict(self._usage)
        usage = await self._read_usage(client, inventory, referenced)
        self._discard_removed(inventory)
        await self._save_usage(node for node, entry in self._usage.items() if before.get(node) != entry)
        sized = {image_id: each for image_id, each in resolved.items() if _all_sized(each.nodes, usage)}
        nodes = dict.fromkeys(node for each in sized.values() for node in each.nodes)
        index = {node: position for position, node in enumerate(nodes)}
        times = self._pull_times(inventory.images)
        graph = StorageGraph(
            pieces=tuple(self._piece(node, inventory, usage) for node in nodes),
            by_image={image_id: tuple(index[node] for node in each.nodes) for image_id, each in sized.items()},
            records={
                image_id: ImageRecord(
                    each.names,
                    max(times[name] for name in each.names).at,
                    each.complete,
                    each.pinned,
                    each.sources,
                )
                for image_id, each in resolved.items()
            },
        )
        return _Layout(
            inventory.stored,
            inventory.snapshotter,
            images,
            inventory.images,
            graph,
            index,
            frozenset(name for each in sized.values() for name in each.names),
            whole=len(sized) == len(resolved),
        )

    def _pull_times(self, names: Iterable[StoredImage]) -> dict[str, Stamp]:
        """Return the time of the latest pull by name: its creation, or its update if the target has changed.

        The target is compared with the last build. An update without a changed target is no pull, since a label change
        also updates the name.
        """
        times: dict[str, tuple[str, Stamp]] = {}
        for each in names:
            target, at = self._targets.get(each.name, (each.target, each.created))
            times[each.name] = each.target, max(each.created, at if target == each.target else each.updated)
        self._targets = times
        return {name: at for name, (_, at) in times.items()}

    async def _read_usage(
        self, client: ContainerdClient, inventory: Inventory, nodes: Iterable[GraphNode]
    ) -> dict[GraphNode, Space]:
        """Return the usage of the snapshots in ``nodes``; snapshots of a failing snapshotter are omitted."""
        snapshots = [node for node in nodes if node.kind != CONTENT]
        missing = [node for node in snapshots if not self._is_cached(node, inventory)]
        read = await run_bounded(lambda node: _snapshot_usage(client, node), missing)
        fresh = {node: usage for node, usage in zip(missing, read, strict=True) if usage is not None}
        for node, usage in fresh.items():
            snapshot = _snapshot(inventory, node)
            if snapshot.kind is SnapshotKind.COMMITTED:
                self._usage[node] = (snapshot.created, usage)
        return fresh | {node: self._usage[node][1] for node in snapshots if self._is_cached(node, inventory)}

    def _is_cached(self, node: GraphNode, inventory: Inventory) -> bool:
        """Return whether the usage of a snapshot is cached; an entry of an earlier snapshot with its key is ignored."""
        cached = self._usage.get(node)
        return cached is not None and cached[0] == _snapshot(inventory, node).created

    def _discard_removed(self, inventory: Inventory) -> None:
        """Discard the usage of removed snapshots; the remaining entries share the node objects of the inventory."""
        usage = self._usage
        self._usage = {node: usage[node] for node in inventory.stored.existing if node in usage}

    def space_of(self, snapshotter: str, usage: Space) -> Space:
        """Return the space of a snapshot on its filesystem, by the allocation sizes read with the last graph."""
        return namespace_lists.snapshot_space(snapshotter, usage, self._stores.formats.get(snapshotter, self._disk))

    def _piece(self, node: GraphNode, inventory: Inventory, usage: Mapping[GraphNode, Space]) -> StoredPiece:
        return namespace_lists.stored_piece(node, inventory, usage, self._disk, self._stores.formats)


async def _snapshot_usage(client: ContainerdClient, node: GraphNode) -> Space | None:
    """Return a snapshot's usage: 0 for a snapshot removed since the listing, ``None`` if the snapshotter fails."""
    try:
        return await client.snapshot_usage(node.kind.removeprefix(SNAPSHOTS), node.id)
    except RuntimeNotFoundError:
        return Space()
    except RuntimeTimeoutError:
        raise
    except RuntimeRequestError:
        return None


def _is_valid(layout: _Layout, inventory: Inventory, images: Sequence[Image]) -> bool:
    return (
        layout.whole
        and layout.stored is inventory.stored
        and layout.snapshotter == inventory.snapshotter
        and layout.stored_images == inventory.images
        and layout.images == tuple(images)
    )


def _all_sized(nodes: Iterable[GraphNode], usage: Mapping[GraphNode, Space]) -> bool:
    return all(node.kind == CONTENT or node in usage for node in nodes)


def _snapshot(inventory: Inventory, node: GraphNode) -> Snapshot:
    return inventory.stored.snapshots[node.kind.removeprefix(SNAPSHOTS)][node.id]


def _with_references(layout: _Layout, others: Iterable[tuple[ReferenceKind, Iterable[GraphNode]]]) -> StorageGraph:
    """Return the layout's graph with the current references of containers, leases and other objects."""
    pieces = list(layout.graph.pieces)
    for kind, nodes in others:
        for node in nodes:
            index = layout.index.get(node)
            if index is not None:
                pieces[index] = replace(pieces[index], references=(*pieces[index].references, kind))
    return replace(layout.graph, pieces=tuple(pieces))


def _other_references(layout: _Layout, inventory: Inventory) -> tuple[tuple[ReferenceKind, Iterable[GraphNode]], ...]:
    """Return the nodes referenced other than by listed images, by kind; a ``gc.root`` label counts as a lease."""
    rooted = inventory.stored.rooted
    below = inventory.closure(sorted(rooted)).keys() - rooted
    parents = {node for node in below if node.kind != CONTENT}
    unlisted = [image for image in inventory.images if image.name not in layout.names]
    leased = inventory.referenced_by_leases(lambda lease: not is_undo(lease))  # GC releases undo windows for space
    return (
        (ReferenceKind.CONTAINER, inventory.referenced_by_containers()),
        (ReferenceKind.LEASE, leased | rooted | (below - parents)),
        (ReferenceKind.SNAPSHOT_CHILD, parents),
        (ReferenceKind.OTHER_NAMESPACE, [GraphNode(CONTENT, digest) for digest in inventory.foreign]),
        (ReferenceKind.INGEST, inventory.referenced_by_ingests()),
        (ReferenceKind.GC_LABEL, inventory.referenced_by_unknown_labels()),
        (ReferenceKind.UNLISTED_IMAGE, inventory.referenced_by_images(unlisted)),
    )
