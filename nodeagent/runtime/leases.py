"""Leases: of an image removal, of its undo window, and of container creations in progress.

A removal keeps the content of the images while their names are deleted, so that the deletion can be undone. The lease
has one resource, a small blob that references the target of every image by a ``containerd.io/gc.ref`` label. From this
blob, the garbage collector reaches the manifests, configs, layers and unpacked snapshots. The labels of the lease
record every name with its target and labels, so that the lease is also the log of the removal: the lease exists before
the first name is deleted, and the deletion of the lease is the decision to remove. After any interruption, an existing
lease means that the removal was not decided, and the names are restored from the lease. Every lease of the agent is
created here with the label of a removal, so that one recovery finds all of them; the lease of a garbage collection is a
removal without names.

Rejected: a log in the agent's state directory. Such a log cannot be written together with the lease, is lost with the
directory, and cannot be written while the disk is full, which is a reason for image removal. Rejected: a lease on each
target, blob or snapshot, since every added resource is a transaction with a write to the disk.

Source: containerd ``docs/garbage-collection.md`` (leases, ``gc.expire``); ``metadata/images.go`` (``Create``).

The lease of a removal cannot be used for the undo window: its deletion is the decision to remove, and containerd has no
call that changes a label of a lease. Before that deletion, a second lease is therefore created on the same content. The
second lease records the names, and is identified by its label. After a crash between the two calls both leases exist:
the removal was not decided, and both leases are deleted (see :mod:`nodeagent.gc.restore`).

A container creation in progress appears in no list of containers. CreateContainer reads the image record, and creates a
lease with a random id and an expiry of 24 hours. In that lease, CreateContainer prepares a writable snapshot on the top
layer of the image and writes the container record. Finally the lease is deleted. The lease, the snapshot and the record
are visible in containerd's own services before CRI lists the container.

Source: containerd ``container_create.go`` (CRI), ``client.NewContainer``, ``lease.go`` (``WithLease``).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeRequestError, RuntimeUnavailableError
from nodeagent.record import Record
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.containerd import (
    KIND_LABEL,
    REMOVED,
    Blob,
    ContentLease,
    LeasedResource,
    Stamp,
    StoredImage,
    decode_encoded_image,
    is_undo,
)
from nodeagent.runtime.namespace_lists import CONTENT, EXPIRE, expiry_of, references

if TYPE_CHECKING:
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.units import Clock

MAX_LABELS_BYTES: Final = 4 << 20
"""Maximum size of the recorded names; containerd accepts requests of 16 MiB by default."""

_NAME_LABEL: Final = "nodeagent/name."
_OWNER_LABEL: Final = "nodeagent/owner"
_TARGET_LABEL: Final = "containerd.io/gc.ref.content."
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
_COLLECTION_WINDOW: Final = timedelta(minutes=10)
_COLLECTION_ATTEMPTS: Final = 3
_CHUNK: Final = 3500  # containerd accepts 4096 bytes for key and value of a label together
_PENDING: Final = "pending"
_DISK_FULL: Final = ("no space left on device", "disk quota exceeded")


class ImageName(NamedTuple):
    """One name of an image, exactly as containerd stores it.

    Attributes:
        image_id: CRI's id of the image.
        stored: the name with its target and labels.
        encoded: the complete record as a message, including fields unknown to the agent.
    """

    image_id: str
    stored: StoredImage
    encoded: bytes

    @property
    def is_id(self) -> bool:
        """Whether the name is the image id, under which CRI stores the image."""
        return self.stored.name == self.image_id


class OpenRemoval(Record):
    """An undecided image removal, whose lease exists.

    Attributes:
        names: the recorded names.
        opened_at: creation of the lease; ``None`` if unknown.
        expires_at: time after which containerd deletes the lease; ``None`` if the label is missing or malformed.
        owner: identity of the pass lock of the process that created the lease; empty if unknown.
        damaged: whether some labels could not be decoded.
    """

    lease_id: str
    names: tuple[ImageName, ...]
    opened_at: datetime | None
    expires_at: datetime | None
    owner: str = ""
    damaged: bool = False

    @property
    def is_collection(self) -> bool:
        """Whether the lease is empty, for a garbage collection; see :meth:`ImageLeases.collect_garbage`."""
        return not self.names and not self.damaged


class Restored(Record):
    """Result of restoring the names of one image.

    Attributes:
        created: restored names, which were absent.
        taken: names that exist with another target, because of a pull or a tag, and are not changed.
        lost: names whose target no longer exists.
    """

    created: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


class ImageLeases:
    """Operations on the leases of image removals: open, list, restore and release.

    Every method raises the errors of ``RuntimeConnection.unary``.
    """

    def __init__(self, client: ContainerdClient, clock: Clock, read_owner: Callable[[], str] = str) -> None:
        """Create the operations for the client's namespace.

        ``clock`` determines the expiry of leases; ``read_owner`` returns the identity of the pass lock, empty if
        unknown.
        """
        self._client = client
        self._clock = clock
        self._read_owner = read_owner

    async def list_names(self) -> dict[str, tuple[StoredImage, bytes]]:
        """Return every image name with its encoded record."""
        return {stored.name: (stored, encoded) for stored, encoded in await self._client.list_image_records()}

    async def open(
        self,
        names: Sequence[ImageName],
        further: Iterable[LeasedResource] = (),
        *,
        window: timedelta,
        labels: Mapping[str, str] = _NO_LABELS,
        holder: LeasedResource | None = None,
    ) -> str:
        """Create a lease that keeps the content of images and records their names; return its id.

        Args:
            names: the names that will be deleted; without names, the lease is empty.
            further: pieces of the images that are not reachable by labels from a target.
            window: time until the expiry of the lease, when containerd deletes the lease.
            labels: further labels of the lease; ``KIND_LABEL`` overrides the default kind, an undecided removal.
            holder: an existing blob that references the targets of the names; ``None`` to write a new blob.

        Raises:
            ObservationError: the lease could neither be completed nor deleted. The names must not be deleted, since the
                next pass restores the names of this lease.
        """
        lease_id = f"nodeagent-removal-{os.urandom(8).hex()}"
        expires = (self._clock.now() + window).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            own = {EXPIRE: expires, _OWNER_LABEL: self._read_owner()}
            await self._client.create_lease(lease_id, {**own, **encode_names(names), **labels})
            if names:
                await self._hold(lease_id, {each.stored.target: None for each in names}, holder)
            await run_bounded(lambda resource: self._client.add_lease_resource(lease_id, resource), [*further])
        except RuntimeUnavailableError:
            raise
        except BaseException as error:
            try:
                await asyncio.shield(self._client.delete_lease(lease_id, sync=False))
            except RuntimeRequestError as failure:
                raise ObservationError(
                    f"cannot lease the images ({error}); cannot delete the lease: {failure}"
                ) from error
            raise
        return lease_id

    async def _hold(self, lease_id: str, targets: Mapping[str, None], holder: LeasedResource | None) -> None:
        """Add the blob that references the targets to the lease, and verify the lease and the blob.

        On a full disk no blob can be written: the targets themselves are then added, with one disk write each.
        """
        if holder is None:
            labels = {f"{_TARGET_LABEL}{number:05}": target for number, target in enumerate(targets)}
            try:
                holder = await self._client.write_leased_blob(lease_id, _holder_data(lease_id), labels)
            except RuntimeRequestError as error:
                if not is_disk_full(error):
                    raise
                await self._hold_directly(lease_id, [LeasedResource(target, CONTENT) for target in targets])
                return
        else:
            await self._client.add_lease_resource(lease_id, holder)
        blob, held = await asyncio.gather(self._client.get_blob(holder.id), self._client.list_lease_resources(lease_id))
        if holder not in held or blob is None or not targets.keys() <= referenced_blobs(blob):
            raise RuntimeRequestError(
                "content.Write", holder.id, "FAILED_PRECONDITION", f"lease {lease_id} does not reference the images"
            )

    async def _hold_directly(self, lease_id: str, targets: Sequence[LeasedResource]) -> None:
        await run_bounded(lambda target: self._client.add_lease_resource(lease_id, target), targets)
        if not set(targets) <= set(await self._client.list_lease_resources(lease_id)):
            raise RuntimeRequestError(
                "leases.AddResource", lease_id, "FAILED_PRECONDITION", "images are not in the lease"
            )

    async def wait_for_writes(self, lease_id: str) -> None:
        """Wait for the metadata changes that other clients requested before this call.

        containerd makes one change after the other, and none during the mark phase of a garbage collection. The change
        by this method, to a lease of :meth:`open`, has no effect.

        Source: containerd ``metadata/db.go`` (``Update``, ``GarbageCollect``).
        """
        try:
            await self._client.add_lease_resource(lease_id, holder_of(lease_id))
        except RuntimeRequestError as error:
            if not is_disk_full(error):  # on a full disk, too, the earlier changes are made
                raise

    async def list_open(self) -> tuple[OpenRemoval, ...]:
        """Return the undecided removals of this process and of other processes."""
        leases = await self._client.list_leases()
        return tuple(decode_lease(each) for each in leases if each.labels.get(KIND_LABEL, REMOVED) != REMOVED)

    async def restore(self, names: Iterable[ImageName]) -> dict[str, Restored]:
        """Create the absent names with the recorded targets and labels; return the result by image id.

        The image id is created first: after the creation of another name, CRI would create a missing id with different
        labels. An existing name is never changed, since a pull or a tag may have created the name in the meantime.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable.
            NodeAgentError: a name could not be created; the names of all other images are restored.
        """
        by_image: dict[str, list[ImageName]] = {}
        for each in names:
            by_image.setdefault(each.image_id, []).append(each)
        restored: dict[str, Restored] = {}
        errors: list[NodeAgentError] = []

        async def restore_image(image_id: str) -> None:
            try:
                restored[image_id] = await self._restore_image(by_image[image_id])
            except RuntimeUnavailableError:
                raise
            except NodeAgentError as error:
                errors.append(error)

        await run_bounded(restore_image, list(by_image))
        if errors:
            raise errors[0]
        return restored

    async def _restore_image(self, names: Sequence[ImageName]) -> Restored:
        created, taken, lost = [], [], []
        for each in sorted(names, key=lambda name: (not name.is_id, name.stored.name)):
            existing = await self._client.get_image(each.stored.name)
            if existing is None and await self._client.get_blob(each.stored.target) is None:
                lost.append(each.stored.name)
                continue
            if existing is None and await self._client.create_image(each.encoded):
                created.append(each.stored.name)
                continue
            existing = existing or await self._client.get_image(each.stored.name)
            if existing is None or existing.target != each.stored.target:
                taken.append(each.stored.name)
        return Restored(tuple(created), tuple(taken), tuple(lost))

    async def release(self, lease_id: str, *, sync: bool) -> None:
        """Delete a lease; an absent lease is no error. With ``sync``, return after the resulting garbage collection."""
        await self._client.delete_lease(lease_id, sync=sync)

    async def collect_garbage(self) -> None:
        """Run containerd's garbage collection and wait for its end.

        containerd has no call for a garbage collection, but collects before it confirms the synchronous deletion of a
        lease. The recovery of another process can delete the lease first, without a collection; hence the attempts.
        """
        for _ in range(_COLLECTION_ATTEMPTS):
            lease_id = await self.open((), window=_COLLECTION_WINDOW)
            if await self._client.delete_lease(lease_id, sync=True):
                return
        raise RuntimeRequestError(
            "leases.Delete", lease_id, "ABORTED", "no garbage collection: lease deleted by others"
        )


def is_disk_full(error: RuntimeRequestError) -> bool:
    """Return whether containerd failed for lack of disk space. Source: errno(3), texts of ENOSPC and EDQUOT."""
    return any(text in error.detail.lower() for text in _DISK_FULL)


def holder_of(lease_id: str) -> LeasedResource:
    """Return the blob that :meth:`ImageLeases.open` wrote for a lease."""
    return LeasedResource(f"sha256:{hashlib.sha256(_holder_data(lease_id)).hexdigest()}", CONTENT)


def referenced_blobs(blob: Blob) -> frozenset[str]:
    """Return the digests that the labels of a blob reference."""
    return frozenset(node.id for node in references(blob.labels).to if node.kind == CONTENT)


def _holder_data(lease_id: str) -> bytes:
    """Return the content of the blob of a lease; the agent uses only the labels of the blob."""
    return f"{lease_id}\n".encode()


def encode_names(names: Iterable[ImageName]) -> dict[str, str]:
    """Return the labels that record names, split into parts within containerd's size limit."""
    labels = {KIND_LABEL: _PENDING}
    for number, each in enumerate(names):
        text = f"{each.image_id} {base64.b64encode(each.encoded).decode()}"
        for start in range(0, len(text), _CHUNK):
            labels[f"{_NAME_LABEL}{number:05}.{start:08}"] = text[start : start + _CHUNK]
    return labels


def decode_lease(lease: ContentLease) -> OpenRemoval:
    """Return the removal of a lease with ``KIND_LABEL``; names that cannot be decoded are omitted."""
    names, damaged = [], False
    for text in _joined(lease.labels):
        image_id, _, encoded = text.partition(" ")
        try:
            record = base64.b64decode(encoded, validate=True)
            names.append(ImageName(image_id, decode_encoded_image(record), record))
        except (binascii.Error, DecodeError, ValueError):
            damaged = True
    expires_at, owner = expiry_of(lease), lease.labels.get(_OWNER_LABEL, "")
    return OpenRemoval(lease.id, tuple(names), lease.created.at, expires_at, owner, damaged)


def _joined(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the text of each recorded name, joined from its labels."""
    chunks = sorted(each for each in labels if each.startswith(_NAME_LABEL))
    for _, parts in groupby(chunks, key=lambda label: label.rpartition(".")[0]):
        yield "".join(labels[part] for part in parts)


_PASS_LABEL: Final = "nodeagent/pass"
_SIZE_LABEL: Final = "nodeagent/frees-bytes"
_COUNT_LABEL: Final = "nodeagent/resources"


class UndoableRemoval(Record):
    """Images that one transaction of a pass has removed, and whose content is kept during the undo window.

    Attributes:
        pass_id: id of the pass; empty if the label is missing.
        names: the deleted names.
        removed_at: time of the removal; ``None`` if unknown.
        expires_at: end of the undo window; ``None`` if the label is missing or malformed.
        size_bytes: bytes freed at the end of the undo window, as predicted by the plan; ``None`` if unknown.
        resources: number of resources at the creation of the lease; 0 if unknown.
    """

    lease_id: str
    pass_id: str
    names: tuple[ImageName, ...]
    removed_at: datetime | None
    expires_at: datetime | None
    size_bytes: int | None
    resources: int

    @property
    def image_ids(self) -> tuple[str, ...]:
        """Ids of the removed images, without duplicates."""
        return tuple(dict.fromkeys(each.image_id for each in self.names))

    def is_over(self, now: datetime) -> bool:
        """Return whether the undo window has ended; containerd can delete the content from then on.

        If the time of the removal is in the future by more than the window, the wall clock was set back. The window
        then counts as ended, since the content would otherwise be kept too long.
        """
        if self.expires_at is None or self.expires_at <= now:
            return True
        return self.removed_at is not None and self.removed_at - now > self.expires_at - self.removed_at


class UndoLeases:
    """Operations on the leases of undoable removals: create, list, reopen and release.

    Every method raises the errors of ``RuntimeConnection.unary``.
    """

    def __init__(self, client: ContainerdClient, leases: ImageLeases) -> None:
        """Create the operations for the client's namespace; ``leases`` creates and deletes leases."""
        self._client = client
        self._leases = leases

    async def keep(  # noqa: PLR0913 - the content and the labels of the lease
        self,
        names: Sequence[ImageName],
        further: Iterable[LeasedResource],
        *,
        pass_id: str,
        window: timedelta,
        size_bytes: int,
        holder: LeasedResource | None = None,
    ) -> str:
        """Create the lease of an undoable removal before the removal is decided; return its id.

        ``holder`` is an existing blob that references exactly the targets of these names.

        Raises:
            NodeAgentError: the lease could not be created.
        """
        others = tuple(further)
        count = 1 + len(others)  # 1 is the blob that references the targets
        labels = {
            KIND_LABEL: REMOVED,
            _PASS_LABEL: pass_id,
            _SIZE_LABEL: str(size_bytes),
            _COUNT_LABEL: str(count),
        }
        return await self._leases.open(names, others, window=window, labels=labels, holder=holder)

    async def list_all(self) -> tuple[UndoableRemoval, ...]:
        """Return the undoable removals, newest first, including removals with an ended undo window."""
        leases = await self._client.list_leases()
        found = [_decode(each) for each in leases if is_undo(each)]
        dated = [each for each in found if each.removed_at is not None]
        undated = [each for each in found if each.removed_at is None]
        return (*sorted(dated, key=lambda each: (each.removed_at, each.lease_id), reverse=True), *undated)

    async def reopen(self, removal: UndoableRemoval, *, window: timedelta) -> str:
        """Create the lease of an undecided removal, with the names and the content of ``removal``; return its id.

        After this call, any interruption of the undo causes the names to be restored.

        Raises:
            ObservationError: the lease of ``removal`` was deleted, or does not keep all of the content.
        """
        held = await self._client.list_lease_resources(removal.lease_id)
        blobs = await run_bounded(self._client.get_blob, [each.id for each in held if each.type == CONTENT])
        targets = {each.stored.target for each in removal.names}
        holder = next((each.digest for each in blobs if each is not None and targets <= referenced_blobs(each)), "")
        if len(held) < max(1, removal.resources) or not holder:
            raise ObservationError(f"lease {removal.lease_id} does not keep the content of its images")
        others = [each for each in held if each.id != holder]
        return await self._leases.open(removal.names, others, window=window, holder=LeasedResource(holder, CONTENT))

    async def release(self, removals: Iterable[UndoableRemoval], *, collect: bool) -> None:
        """Delete the leases of removals; with ``collect``, return after the garbage collection that frees the space."""
        pending = list(removals)
        for position, each in enumerate(pending, start=1):
            await self._leases.release(each.lease_id, sync=collect and position == len(pending))


def _decode(lease: ContentLease) -> UndoableRemoval:
    removal = decode_lease(lease)
    return UndoableRemoval(
        removal.lease_id,
        lease.labels.get(_PASS_LABEL, ""),
        removal.names,
        removal.opened_at,
        removal.expires_at,
        _number(lease.labels.get(_SIZE_LABEL, "")),
        _number(lease.labels.get(_COUNT_LABEL, "")) or 0,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


LONGEST_CREATION: Final = timedelta(minutes=2)
"""Age beyond which a lease or a snapshot counts as left by a failed creation: the kubelet's default request timeout."""

_SANDBOX_LEASE: Final = re.compile(r"[0-9a-f]{64}")  # containerd 2 creates an empty lease with the id of each sandbox
_UNPACKING: Final = "extract-"
_NOT_LOADED: Final = "INVALID_ARGUMENT"


class CreationLeases(NamedTuple):
    """Recent leases of other clients: creations, pulls and imports in progress.

    Attributes:
        recent: ids of the leases.
        empty: ids of the leases without a resource: creations before the preparation of the snapshot, and pulls and
            imports that have just begun.
    """

    recent: frozenset[str]
    empty: frozenset[str]


class Creations:
    """Reader of container creations in progress. Every method raises the errors of ``RuntimeConnection.unary``."""

    def __init__(self, client: ContainerdClient, clock: Clock) -> None:
        """Create a reader for the client's namespace; ``clock`` determines the age of leases and snapshots."""
        self._client = client
        self._clock = clock

    async def leases(self) -> CreationLeases:
        """Return the recent leases of other clients."""
        recent = [
            each
            for each in await self._client.list_leases()
            if EXPIRE in each.labels
            and KIND_LABEL not in each.labels
            and not _SANDBOX_LEASE.fullmatch(each.id)
            and self._is_recent(each.created)
        ]
        resources = await run_bounded(self._client.list_lease_resources, [each.id for each in recent])
        empty = {lease.id for lease, held in zip(recent, resources, strict=True) if not held}
        if empty:  # a lease without resources may have been deleted between the two calls
            empty &= {each.id for each in await self._client.list_leases()}
        return CreationLeases(frozenset(each.id for each in recent), frozenset(empty))

    async def prepared(self, snapshotters: Iterable[str], others: Iterable[str] = ()) -> dict[str, str]:
        """Return the keys of recent writable snapshots without a container record, by the key of the parent snapshot.

        Parents are keys of committed snapshots (chain IDs), which are equal in all snapshotters: a container of another
        runtime class can use a snapshotter that does not have the image yet.

        Args:
            snapshotters: snapshotters to read.
            others: further snapshotters to read; snapshotters that are not loaded are skipped.
        """
        required = frozenset(snapshotters)
        found: dict[str, str] = {}
        for name in sorted({*required, *others}):
            try:
                listed = await self._client.list_writable_snapshots(name)
            except RuntimeRequestError as error:
                if name not in required and error.status == _NOT_LOADED:
                    continue
                raise
            snapshots = [
                each
                for each in listed
                if each.parent and not each.key.startswith(_UNPACKING) and self._is_recent(each.created)
            ]
            # Containers are read after snapshots, so that a finished creation is recognized by its container record.
            recorded = {each.snapshot_key for each in await self._client.list_containers()} if snapshots else set()
            found |= {each.parent: each.key for each in snapshots if each.key not in recorded}
        return found

    def _is_recent(self, created: Stamp) -> bool:
        """Return whether ``created`` is within ``LONGEST_CREATION``; an unknown time counts as recent."""
        return created.at is None or created.at > self._clock.now() - LONGEST_CREATION
