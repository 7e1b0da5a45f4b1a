"""containerd's metadata of one namespace as a graph of what keeps what.

The edges are those its garbage collector follows: an image name keeps the blob it points at, a blob what its labels
name (a manifest its config and layers, a config the snapshot unpacked from it), a snapshot its parent, a container its
snapshot, a lease its resources. Reading manifests and computing chain ids would give the same edges where all is
well; where it is not (a label missing, a blob removed, another snapshotter, an artifact of whatever form) the labels
are what deletes and keeps, so they are what counts here. It also needs no blob to be read.

Source: containerd ``docs/garbage-collection.md``, labels ``containerd.io/gc.*``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nodeagent.errors import RuntimeRequestError
from nodeagent.runtime.containerd_records import GC_LABELS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.containerd_records import (
        Blob,
        Lease,
        LeasedResource,
        Snapshot,
        StoredContainer,
        StoredImage,
    )

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_CALLS = 8
DEFAULT_SNAPSHOTTER = "overlayfs"

CONTENT = "content"
IMAGES = "images"
CONTAINERS = "containers"
INGESTS = "ingests"
SNAPSHOTS = "snapshots/"

_GC = GC_LABELS
_CONTENT_REF = "containerd.io/gc.ref.content"
_IMAGE_REF = "containerd.io/gc.ref.image"
_SNAPSHOT_REF = "containerd.io/gc.ref.snapshot."
_BACK_REF = "containerd.io/gc.bref."
_ROOT = "containerd.io/gc.root"
_EXPIRE = "containerd.io/gc.expire"
_FLAT = "containerd.io/gc.flat"
_LAYER_REF = "containerd.io/gc.ref.content.l."
_PLATFORM_REF = "containerd.io/gc.ref.content.m."


class Node(NamedTuple):
    """One thing containerd keeps; ``kind`` is spelt as a lease's resource type (``snapshots/NAME`` with the name)."""

    kind: str
    id: str


class References(NamedTuple):
    """What an object's labels say: what it keeps, what keeps it, and whether it stays by itself."""

    to: tuple[Node, ...] = ()
    back: tuple[Node, ...] = ()
    optional: tuple[Node, ...] = ()
    root: bool = False
    has_layers: bool = False


_NO_REFERENCES = References()


class Stored:
    """Every blob and snapshot there is, and what they keep. Never changed once made.

    Attributes:
        blobs: by digest.
        snapshots: by snapshotter and key.
        edges: from a node to what it keeps.
        existing: every blob and snapshot.
        optional: manifests that an index names; that one is missing means that its platform was not pulled.
        with_layers: manifests that name blobs of layers.
        rooted: what stays by its own label.
        snapshotters: how often labels name each snapshotter.
    """

    def __init__(self, blobs: Mapping[str, Blob], snapshots: Mapping[str, Mapping[str, Snapshot]]) -> None:
        self.blobs = blobs
        self.snapshots = snapshots
        self.edges: dict[Node, tuple[Node, ...]] = {}
        self.existing: set[Node] = set()
        self.optional: set[Node] = set()
        self.with_layers: set[Node] = set()
        self.rooted: set[Node] = set()
        self.snapshotters: Counter[str] = Counter()
        self._one: dict[Node, Node] = {}
        for digest, blob in blobs.items():
            self._add(Node(CONTENT, digest), (), blob.labels)
        for name, listed in snapshots.items():
            kind = SNAPSHOTS + name
            for key, snapshot in listed.items():
                self._add(Node(kind, key), (Node(kind, snapshot.parent),) if snapshot.parent else (), snapshot.labels)
        self._one.clear()

    def _add(self, node: Node, kept: tuple[Node, ...], labels: Mapping[str, str]) -> None:
        said = references(labels) if labels else _NO_REFERENCES
        node = self._one.setdefault(node, node)
        self.existing.add(node)
        if kept or said.to:
            # Equal nodes are one object: there are tens of thousands, and each is named several times.
            named = (self._one.setdefault(each, each) for each in (*kept, *said.to))
            self.edges[node] = (*self.edges.get(node, ()), *named)
        if said is _NO_REFERENCES:
            return
        self.snapshotters.update(_snapshotters(each.kind for each in said.to))
        self.optional.update(said.optional)
        if said.has_layers:
            self.with_layers.add(node)
        if said.root:
            self.rooted.add(node)
        for keeper in said.back:
            self.edges[keeper] = (*self.edges.get(keeper, ()), node)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one namespace holds, as read.

    Attributes:
        leases: those not expired, each with what it holds.
        expected: digests that are being written.
        foreign: digests of blobs that other namespaces have too; the bytes on disk are common.
        snapshotter: the one images are unpacked into.
    """

    stored: Stored
    images: tuple[StoredImage, ...] = ()
    containers: tuple[StoredContainer, ...] = ()
    leases: tuple[tuple[Lease, tuple[LeasedResource, ...]], ...] = ()
    expected: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    snapshotter: str = DEFAULT_SNAPSHOTTER

    def closure(self, starts: Iterable[Node]) -> dict[Node, None]:
        """Return everything that ``starts`` keep, themselves included, existing or not, in a fixed order."""
        edges, seen = self.stored.edges, dict.fromkeys(starts)
        stack = list(reversed(seen))
        while stack:
            for node in edges.get(stack.pop(), ()):
                if node not in seen:
                    seen[node] = None
                    stack.append(node)
        return seen

    def kept_by_images(self, images: Iterable[StoredImage]) -> dict[Node, None]:
        """Return everything that image names keep."""
        starts: list[Node] = []
        for image in images:
            starts += (Node(CONTENT, image.target), Node(IMAGES, image.name), *references(image.labels).to)
        return self.closure(starts)

    def kept_by_containers(self) -> dict[Node, None]:
        """Return everything that containers keep: the snapshot each writes to, and those under it."""
        starts: list[Node] = []
        for container in self.containers:
            starts += (Node(CONTAINERS, container.id), *references(container.labels).to)
            if container.snapshotter:
                starts.append(Node(SNAPSHOTS + container.snapshotter, container.snapshot_key))
        return self.closure(starts)

    def kept_by_leases(self) -> set[Node]:
        """Return everything that leases keep; a flat lease keeps its blobs without what those name.

        Source: containerd label ``containerd.io/gc.flat``.
        """
        kept: set[Node] = set()
        for lease, resources in self.leases:
            nodes = [Node(resource.type, resource.id) for resource in resources]
            flat = {node for node in nodes if node.kind == CONTENT and _FLAT in lease.labels}
            kept.update(flat, self.closure(node for node in nodes if node not in flat))
        return kept

    def kept_by_ingests(self) -> dict[Node, None]:
        """Return everything that writes under way expect to find or make."""
        return self.closure(Node(CONTENT, digest) for digest in sorted(self.expected))


async def read_inventory(
    client: ContainerdClient, snapshotter: str | None, *, now: datetime, known: Stored | None = None
) -> Inventory:
    """Read a namespace with at most :data:`MAX_CALLS` calls at a time.

    Args:
        client: where to read.
        snapshotter: the configured one; ``None`` takes the one most images are unpacked into.
        now: leases that expire before it are left out.
        known: an earlier reading; the same object comes back where nothing in it has changed.
    """
    images, blobs, containers, leases, ingests, namespaces = await asyncio.gather(
        client.list_images(),
        client.list_content(known.blobs if known else None),
        client.list_containers(),
        client.list_leases(),
        client.list_ingests(),
        client.list_namespaces(),
    )
    valid = [lease for lease in leases if not _expired(lease, now)]
    resources = await run_bounded(client.list_lease_resources, [lease.id for lease in valid])
    kinds = [resource.type for each in resources for resource in each]
    used = Counter(_snapshotters(kinds)) + Counter(each.snapshotter for each in containers if each.snapshotter)
    foreign = await run_bounded(client.list_digests, [name for name in namespaces if name != client.namespace])
    stored = await _read_stored(client, blobs, {*used, snapshotter or ""} - {""}, must=snapshotter, known=known)
    used += stored.snapshotters
    return Inventory(
        stored,
        images=images,
        containers=containers,
        leases=tuple(zip(valid, resources, strict=True)),
        expected=frozenset(ingest.expected for ingest in ingests if ingest.expected),
        foreign=frozenset().union(*foreign),
        snapshotter=snapshotter or next((name for name, _ in used.most_common(1)), DEFAULT_SNAPSHOTTER),
    )


async def _read_stored(
    client: ContainerdClient, blobs: Mapping[str, Blob], names: set[str], *, must: str | None, known: Stored | None
) -> Stored:
    """List the snapshots of every snapshotter that is named, and return them with the blobs."""
    same_blobs = known is not None and _same(blobs, known.blobs)
    named = known.snapshotters if known is not None and same_blobs else Stored(blobs, {}).snapshotters
    wanted = sorted({*names, *named} or {DEFAULT_SNAPSHOTTER})
    before: Mapping[str, Mapping[str, Snapshot]] = known.snapshots if known is not None else {}

    async def listed(name: str) -> Mapping[str, Snapshot]:
        try:
            return await client.list_snapshots(name, before.get(name))
        except RuntimeRequestError:
            if name == must:
                raise
            return {}  # labels can name a snapshotter that is no longer loaded

    snapshots = dict(zip(wanted, await run_bounded(listed, wanted), strict=True))
    same = (
        same_blobs and snapshots.keys() == before.keys() and all(_same(snapshots[key], before[key]) for key in wanted)
    )
    return known if known is not None and same else Stored(blobs, snapshots)


def _same(new: Mapping[str, object], old: Mapping[str, object]) -> bool:
    """Return whether two listings hold the very same entries."""
    return len(new) == len(old) and all(old.get(key) is value for key, value in new.items())


async def run_bounded(
    call: Callable[[Item], Awaitable[Result]], items: Sequence[Item], limit: int = MAX_CALLS
) -> list[Result]:
    """Return what ``call`` gives for every item, in order, at most ``limit`` at a time; the first error ends all."""
    results: dict[int, Result] = {}
    pending = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await call(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[index] for index in range(len(items))]


def _snapshotters(kinds: Iterable[str]) -> list[str]:
    """Return the snapshotters that these kinds of nodes name."""
    return [kind.removeprefix(SNAPSHOTS) for kind in kinds if kind.startswith(SNAPSHOTS)]


def _expired(lease: Lease, now: datetime) -> bool:
    """Return whether the collector no longer honours a lease; one with a senseless expiry is honoured."""
    text = lease.labels.get(_EXPIRE)
    if text is None:
        return False
    try:
        expiry = datetime.fromisoformat(text)
    except ValueError:
        return False
    return (expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)) < now


def references(labels: Mapping[str, str]) -> References:
    """Return what an object's labels say to the garbage collector.

    Source: containerd ``containerd.io/gc.ref.content[./]*``, ``.image``, ``.snapshot.NAME[/*]``, ``gc.bref.*`` (only
    newer servers) and ``gc.root``.
    """
    if not any(name.startswith(_GC) for name in labels):
        return _NO_REFERENCES
    to, back, optional = [], [], []
    for name in sorted(labels):
        if name.startswith(_BACK_REF):
            node = _target(name.removeprefix(_BACK_REF), labels[name])
            if node is not None:
                back.append(node)
            continue
        node = _target(name.removeprefix(_GC + "ref."), labels[name]) if name.startswith(_GC + "ref.") else None
        if node is not None:
            to.append(node)
            if name.startswith(_PLATFORM_REF):
                optional.append(node)
    return References(
        tuple(to),
        tuple(back),
        tuple(optional),
        root=any(name.startswith(_ROOT) for name in labels),
        has_layers=any(name.startswith(_LAYER_REF) for name in labels),
    )


def _target(name: str, value: str) -> Node | None:
    """Return the node that ``content.l.0`` or ``snapshot.overlayfs/x`` with this value means, if it is known here."""
    kind, _, rest = name.partition(".")
    if kind == "snapshot":
        return Node(SNAPSHOTS + rest.partition("/")[0], value)
    kind = kind.partition("/")[0]
    known = {"content": CONTENT, "image": IMAGES, "container": CONTAINERS}
    return Node(known[kind], value) if kind in known else None
