"""Image filesystems of the node: reported by the runtime, or used by a snapshotter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError, RuntimeRequestError
from nodeagent.model import ImageFilesystem
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from nodeagent.model import FsObservation, StorageGraph
    from nodeagent.runtime.cri import CriClient

STATVFS_DEADLINE_S: Final = 10.0
CONTENT_STORE: Final = ""
"""Name of the content store in mappings by snapshotter."""

_NO_PATHS: Final = "the runtime reports no image filesystem (ImageFsInfo is empty); set runtime.imagefs_path"


class ImageFilesystems(Record):
    """The image filesystems of the node.

    Attributes:
        first: reading of the filesystem that the runtime reports first; ``None`` after a failed reading.
        error: cause of the failed reading of the first filesystem; empty normally.
        several: all image filesystems of a node with several, in the runtime's order; empty on a node with one.
    """

    first: FsObservation | None
    error: str = ""
    several: tuple[ImageFilesystem, ...] = ()


class ImageFilesystemReader:
    """Reader of the image filesystems of the node."""

    def __init__(self, cri: CriClient, read_filesystem: Callable[[str], FsObservation], imagefs_path: str = "") -> None:
        """Create a reader; a non-empty ``imagefs_path`` replaces the paths that the runtime reports."""
        self._cri = cri
        self._read_filesystem = read_filesystem
        self._imagefs_path = imagefs_path

    async def reported_paths(self) -> tuple[tuple[str, ...], str]:
        """Return the mount points that the runtime reports, or an empty tuple and the cause.

        Source: CRI ``ImageFsInfo``.
        """
        if self._imagefs_path:
            return (self._imagefs_path,), ""
        try:
            paths = (await self._cri.image_fs_info()).image_mountpoints
        except RuntimeRequestError as error:
            return (), str(error)
        return paths, "" if paths else _NO_PATHS

    async def read(
        self,
        reported: Sequence[str],
        error: str,
        storage: StorageGraph | None,
        configured: Collection[str] = (),
    ) -> ImageFilesystems:
        """Return the image filesystems.

        Args:
            reported: the mount points that the runtime reports.
            error: cause if no mount point is reported; empty otherwise.
            storage: the storage graph; ``None`` with CRI alone.
            configured: the snapshotters of the runtime handlers.
        """
        if not reported:
            return ImageFilesystems(None, error)
        if self._imagefs_path:
            return await self._first(reported[0])
        paths = storage.store_paths if storage is not None else {}
        in_use = (storage.stores if storage is not None else frozenset()).union(configured)
        stores = {store: paths[store] for store in sorted(in_use) if store in paths}
        each_path = tuple(dict.fromkeys((*reported, *stores.values())))
        readings = dict(zip(each_path, await asyncio.gather(*map(self._try, each_path)), strict=True))
        found = _group(reported, stores, readings)
        first = found[0]
        if len(found) == 1 and first.stores >= stores.keys():
            return ImageFilesystems(first.observed, first.error)
        return ImageFilesystems(first.observed, first.error, found)

    async def _first(self, path: str) -> ImageFilesystems:
        reading = await self._try(path)
        return ImageFilesystems(None, reading) if isinstance(reading, str) else ImageFilesystems(reading)

    async def _try(self, path: str) -> FsObservation | str:
        """Return the reading of a path, or the cause of a failed reading.

        The path is read in a thread with a deadline, since statvfs on a dead mount never returns.
        """
        try:
            async with asyncio.timeout(STATVFS_DEADLINE_S):
                return await asyncio.to_thread(self._read_filesystem, path)
        except TimeoutError:
            return f"{path}: statvfs timed out after {STATVFS_DEADLINE_S:.0f} s"
        except ObservationError as error:
            return str(error)


def _group(
    reported: Sequence[str], stores: Mapping[str, str], readings: Mapping[str, FsObservation | str]
) -> tuple[ImageFilesystem, ...]:
    """Return the image filesystems with their stores: reported filesystems first, then those of other snapshotters.

    A filesystem with the content store only is not an image filesystem, because images are removed to free the space of
    snapshots. A snapshotter with an unreadable directory, which the runtime does not report, is omitted.
    """
    found: dict[object, tuple[str, FsObservation | str, set[str]]] = {}

    def key_of(path: str) -> object:
        reading = readings[path]
        return path if isinstance(reading, str) else reading.device_id

    for path in reported:
        found.setdefault(key_of(path), (path, readings[path], set()))
    for store, path in stores.items():
        if store != CONTENT_STORE and (path in reported or not isinstance(readings[path], str)):
            found.setdefault(key_of(path), (path, readings[path], set()))[2].add(store)
    content = stores.get(CONTENT_STORE)
    if content is not None and key_of(content) in found:
        found[key_of(content)][2].add(CONTENT_STORE)
    return tuple(
        ImageFilesystem(path, frozenset(names), None, reading)
        if isinstance(reading, str)
        else ImageFilesystem(path, frozenset(names), reading)
        for path, reading, names in found.values()
    )
