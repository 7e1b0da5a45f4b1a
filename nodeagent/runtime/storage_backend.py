# ruff: noqa: ARG002 - the null backend ignores its arguments
"""Storage below CRI: image names, layers and unreferenced content.

CRI lists images with compressed sizes and removes single images. A storage backend adds a runtime's own records:
the storage graph, the names and users of images that CRI does not list, deletion by name, garbage collection.
:class:`ContainerdStorage` is the backend for containerd; ``CriOnlyStorage`` is the null backend for every other
runtime, and for ``runtime.containerd_api = "off"``: sizes are upper bounds and every removal is a CRI call.

Rejected: an optional client, which would require a check in every caller.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.parsing import parse_json
from nodeagent.record import Record
from nodeagent.runtime import namespace_lists
from nodeagent.runtime.connection import gather_all, run_bounded
from nodeagent.runtime.containerd import PINNED_LABEL
from nodeagent.runtime.namespace_lists import DEFAULT_SNAPSHOTTER

if TYPE_CHECKING:
    from nodeagent.model.runtime import Image, Space, StorageGraph, UnlistedContent
    from nodeagent.runtime.containerd import ContainerdClient, StoredContainer, StoredImage
    from nodeagent.runtime.leases import Creations, ImageLeases, UndoLeases
    from nodeagent.runtime.storage_graph import ImageExtent, LayerCache
    from nodeagent.units import Clock


class RemovalRecords(Record):
    """Records for image removals that can be undone.

    Attributes:
        leases: opens, restores and releases removals.
        undo: keeps the content of removed images for an undo.
        creations: reader of the container creations in progress.
        extents: returns the extent of images by id, from the names by image id and the last storage graph.
        snapshotters: returns the snapshotters in that graph, or the default snapshotter before the first graph.
    """

    leases: ImageLeases
    undo: UndoLeases
    creations: Creations
    extents: Callable[[Mapping[str, Sequence[StoredImage]]], dict[str, ImageExtent]]
    snapshotters: Callable[[], tuple[str, ...]]


MAX_CONFIG_BYTES: Final = 1 << 20
"""Maximum length of an image config that is read; the configs of usual images have 2 to 20 KiB."""

_DISABLED = "runtime.containerd_api is off"
_NO_RECORDS = "references are recorded only by containerd's own services: disabled or unavailable"


class StorageBackend:
    """The runtime's own records of images and layers; this base class has none, as for CRI alone.

    Unless stated otherwise, every method raises the errors of :meth:`RuntimeConnection.unary`, including
    RuntimeUnsupportedError on a runtime other than containerd.

    Attributes:
        enabled: whether the runtime's own services are used; false for CRI alone.
    """

    enabled = False

    async def list_records(self) -> namespace_lists.StorageLists | None:
        """Return the lists for a storage graph, for a call concurrent with CRI's lists; ``None`` for CRI alone."""
        return None

    async def build_graph(
        self,
        images: Sequence[Image],
        *,
        snapshotter: str | None,
        path: str,
        containers: tuple[StoredContainer, ...] | None = None,
        lists: namespace_lists.StorageLists | None = None,
    ) -> StorageGraph | None:
        """Return the storage graph of ``images``; ``None`` for CRI alone.

        Args:
            images: images as listed by CRI before this call.
            snapshotter: the configured snapshotter; ``None`` selects the snapshotter used by most images.
            path: a path on the image filesystem, whose type determines allocation sizes.
            containers: the container records; ``None`` to list the records in this call.
            lists: the result of :meth:`list_records`; ``None`` to read the lists in this call.
        """
        return None

    async def find_unlisted(self, images: Sequence[Image], *, snapshotter: str | None, path: str) -> UnlistedContent:
        """Return the content that no listed image references; arguments as in :meth:`build_graph`.

        Raises:
            ObservationError: the backend has no records of references, as for CRI alone.
        """
        raise ObservationError(_NO_RECORDS)

    async def read_store_paths(self) -> Mapping[str, str]:
        """Return the directory of each snapshotter, and of the content store under the empty name; empty if unknown."""
        return {}

    async def get_image_names(self, names: Iterable[str]) -> tuple[StoredImage, ...]:
        """Return the records of the names in ``names`` that exist; empty for CRI alone."""
        return ()

    async def read_config(self, image_id: str) -> object:
        """Return the config of an image, as decoded JSON; ``None`` for CRI alone.

        Raises:
            ObservationError: the config is longer than ``MAX_CONFIG_BYTES``, or is not JSON.
        """
        return None

    async def list_containers(self) -> tuple[StoredContainer, ...]:
        """Return every container record, including records of sandboxes and other clients; empty for CRI alone."""
        return ()

    async def read_writable(self) -> dict[str, Space]:
        """Return the usage of the writable layer by container id, sandboxes included; empty for CRI alone.

        Layers that the snapshotter cannot measure are omitted, such as layers with paths longer than ``PATH_MAX``.
        """
        return {}

    async def measure_layer(self, snapshotter: str, key: str) -> Space | None:
        """Return the current usage of a writable layer; ``None`` if the snapshotter fails, and for CRI alone."""
        return None

    async def has_writable_layer(self, container_id: str) -> bool:
        """Return whether the writable layer of a container or sandbox exists; false for CRI alone."""
        return False

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete an image name, only with this target digest if ``target`` is set; return whether the name existed.

        Raises:
            NodeAgentError: CRI alone, which removes whole images, not single names.
        """
        raise NodeAgentError(_DISABLED)

    async def pin_image(self, name: str) -> bool:
        """Set the label of an image name that pins its image; return whether the name exists.

        Raises:
            NodeAgentError: CRI alone.
        """
        raise NodeAgentError(_DISABLED)

    async def delete_lease(self, lease_id: str) -> bool:
        """Delete a lease; return whether the lease existed.

        Raises:
            NodeAgentError: CRI alone.
        """
        raise NodeAgentError(_DISABLED)

    async def delete_content(self, digest: str) -> bool:
        """Delete a blob's record; return whether the record existed.

        Raises:
            NodeAgentError: CRI alone.
        """
        raise NodeAgentError(_DISABLED)

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Remove a snapshot without children; return whether the snapshot existed.

        Raises:
            NodeAgentError: CRI alone.
        """
        raise NodeAgentError(_DISABLED)

    async def collect_garbage(self) -> None:
        """Run the runtime's garbage collection and wait for its end.

        Raises:
            NodeAgentError: CRI alone.
        """
        raise NodeAgentError(_DISABLED)

    async def remove_orphaned_directories(self, snapshotter: str) -> None:
        """Remove the directories left by failed snapshot removals; no effect for CRI alone."""

    @property
    def removals(self) -> RemovalRecords | None:
        """Records for image removals that can be undone; ``None`` for CRI alone."""
        return None


class CriOnlyStorage(StorageBackend):
    """The null backend: no records beyond CRI. Deletions and collections fail."""


class ContainerdStorage(StorageBackend):
    """containerd's own services, on the socket that also serves CRI."""

    enabled = True

    def __init__(  # noqa: PLR0913 - one argument per source
        self,
        client: ContainerdClient,
        clock: Clock,
        make_cache: Callable[[str], LayerCache],
        read_format: Callable[[str], namespace_lists.DiskFormat] | None = None,
        read_owner: Callable[[], str] = str,
        *,
        read_revision: Callable[[str], Hashable] | None = None,
    ) -> None:
        """Create the backend.

        Args:
            client: client of containerd, in CRI's namespace.
            clock: clock for the expiry of leases.
            make_cache: returns the cache for images on the filesystem of a path.
            read_format: returns the allocation sizes of the filesystem of a path; blocking. ``None`` to use the
                allocation sizes of the cache for all stores.
            read_owner: returns the identity of the pass lock, for leases; empty if unknown.
            read_revision: returns the revision of containerd's database at a path, ``None`` if unknown; blocking.
                Records are not listed again while the revision is unchanged; ``None`` to list the records every time.
        """
        self._client = client
        self._clock = clock
        self._make_cache = make_cache
        self._read_format = read_format
        self._formats: dict[str, namespace_lists.DiskFormat] = {}
        self._cache: LayerCache | None = None
        self._read_revision = read_revision
        self._database = ""
        self._read_owner = read_owner

    async def list_records(self) -> namespace_lists.StorageLists:
        """Return the lists for a storage graph."""
        return namespace_lists.StorageLists(*await gather_all(self._list_namespace(), self._read_stores()))

    async def _list_namespace(self) -> namespace_lists.NamespaceLists:
        if self._cache is None:
            return await namespace_lists.list_namespace(self._client, now=self._clock.now())
        return await self._cache.list_namespace(self._client, await self._revision())

    async def _revision(self) -> Hashable:
        """Return the revision of containerd's database, whose path can change in a restart; ``None`` if unknown."""
        read = self._read_revision
        if read is None:
            return None
        revision = await asyncio.to_thread(read, self._database) if self._database else None
        if revision is None:
            try:
                self._database = await self._client.read_database_path()
            except RuntimeRequestError:
                return None
            revision = await asyncio.to_thread(read, self._database) if self._database else None
        return revision

    async def build_graph(
        self,
        images: Sequence[Image],
        *,
        snapshotter: str | None,
        path: str,
        containers: tuple[StoredContainer, ...] | None = None,
        lists: namespace_lists.StorageLists | None = None,
    ) -> StorageGraph:
        """Return the storage graph of ``images``."""
        cache = self._cache_for(path)
        return await cache.build(
            self._client,
            images,
            snapshotter=snapshotter,
            containers=containers,
            lists=lists if lists is not None else await self.list_records(),
        )

    async def read_store_paths(self) -> Mapping[str, str]:
        """Return the directory of each snapshotter, and of the content store under the empty name."""
        try:
            return await self._client.read_store_paths()
        except RuntimeRequestError:
            return {}

    async def _read_stores(self) -> namespace_lists.Stores:
        paths, read = await self.read_store_paths(), self._read_format
        if read is None:
            return namespace_lists.Stores(paths, namespace_lists.NO_STORES.formats)
        for path in paths.values():
            if path not in self._formats:
                self._formats[path] = await asyncio.to_thread(read, path)
        return namespace_lists.Stores(paths, {store: self._formats[path] for store, path in paths.items()})

    async def find_unlisted(self, images: Sequence[Image], *, snapshotter: str | None, path: str) -> UnlistedContent:
        """Return the content that no listed image references.

        Raises:
            ObservationError: the runtime is not containerd.
        """
        content_path, cache = (await self.read_store_paths()).get("", ""), self._cache_for(path)
        try:
            return await cache.find_unlisted(self._client, images, snapshotter=snapshotter, content_path=content_path)
        except RuntimeUnsupportedError as error:
            raise ObservationError(f"this runtime does not report references: {error}") from error

    def _cache_for(self, path: str) -> LayerCache:
        if self._cache is None:
            self._cache = self._make_cache(path)
        return self._cache

    async def get_image_names(self, names: Iterable[str]) -> tuple[StoredImage, ...]:
        """Return the records of the names in ``names`` that exist."""
        found = await asyncio.gather(*(self._client.get_image(name) for name in names))
        return tuple(each for each in found if each is not None)

    async def read_config(self, image_id: str) -> object:
        """Return the config of an image. Source: containerd CRI plugin, whose image id is the digest of the config."""
        data = await self._client.read_content(image_id, MAX_CONFIG_BYTES)
        if data is None:
            raise ObservationError(f"its config is longer than {MAX_CONFIG_BYTES} bytes")
        try:
            return parse_json(data)
        except ValueError as error:
            raise ObservationError("its config is not JSON") from error

    async def list_containers(self) -> tuple[StoredContainer, ...]:
        """Return every container record. Source: containerd ``containers.v1.Containers.List``."""
        return await self._client.list_containers()

    async def read_writable(self) -> dict[str, Space]:
        """Return the usage of the writable layer by container id; layers that cannot be measured are omitted."""
        stored = [each for each in await self._client.list_containers() if each.snapshotter and each.snapshot_key]
        found = await run_bounded(lambda each: self.measure_layer(each.snapshotter, each.snapshot_key), stored)
        return {
            each.id: used if self._cache is None else self._cache.space_of(each.snapshotter, used)
            for each, used in zip(stored, found, strict=True)
            if used is not None
        }

    async def measure_layer(self, snapshotter: str, key: str) -> Space | None:
        """Return the usage of a snapshot, measured by this call; ``None`` if the snapshotter fails."""
        with suppress(RuntimeRequestError):
            return await self._client.snapshot_usage(snapshotter, key)
        return None

    async def has_writable_layer(self, container_id: str) -> bool:
        """Return whether a snapshotter has the snapshot of a container or sandbox."""
        found = await asyncio.gather(*(self._client.has_snapshot(name, container_id) for name in self._snapshotters()))
        return any(found)

    def _snapshotters(self) -> tuple[str, ...]:
        return self._cache.snapshotters if self._cache is not None else (DEFAULT_SNAPSHOTTER,)

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Delete an image name, only with this target digest if ``target`` is set; return whether the name existed."""
        return await self._client.delete_image(name, sync=sync, target=target)

    async def pin_image(self, name: str) -> bool:
        """Set the label of an image name that pins its image; return whether the name exists."""
        return await self._client.label_image(name, PINNED_LABEL, "pinned")

    async def delete_lease(self, lease_id: str) -> bool:
        """Delete a lease; return whether the lease existed."""
        return await self._client.delete_lease(lease_id, sync=False)

    async def delete_content(self, digest: str) -> bool:
        """Delete a blob's record; return whether the record existed."""
        return await self._client.delete_content(digest)

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Remove a snapshot without children; return whether the snapshot existed."""
        return await self._client.remove_snapshot(snapshotter, key)

    async def collect_garbage(self) -> None:
        """Run containerd's garbage collection and wait for its end."""
        await self.removals.leases.collect_garbage()

    async def remove_orphaned_directories(self, snapshotter: str) -> None:
        """Remove the directories left by failed snapshot removals.

        containerd retries a failed removal only in the garbage collection after the removal of another snapshot. If
        ``Cleanup`` is unimplemented (containerd 1.6), an empty snapshot is created and removed to cause the retry.
        """
        try:
            await self._client.clean_up(snapshotter)
        except RuntimeUnsupportedError:
            key = f"nodeagent-{os.urandom(6).hex()}"
            await self._client.prepare_snapshot(snapshotter, key)
            await self._client.remove_snapshot(snapshotter, key)
            await self.collect_garbage()

    @cached_property
    def removals(self) -> RemovalRecords:
        """Records for image removals that can be undone."""
        from nodeagent.runtime.leases import Creations, ImageLeases, UndoLeases  # noqa: PLC0415 - not needed by a preview

        leases = ImageLeases(self._client, self._clock, self._read_owner)
        undo = UndoLeases(self._client, leases)
        return RemovalRecords(leases, undo, Creations(self._client, self._clock), self._extents, self._snapshotters)

    def _extents(self, names: Mapping[str, Sequence[StoredImage]]) -> dict[str, ImageExtent]:
        return self._cache.extents(names) if self._cache is not None else {}
