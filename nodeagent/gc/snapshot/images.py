"""Observation of images: storage graph, recorded use, holds, images named by pods, and image filesystems.

Image filesystems are those that the runtime reports, and those that a snapshotter uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import NodeAgentError, ObservationError, RuntimeRequestError, RuntimeUnsupportedError, StoreError
from nodeagent.gc.plan.image_protection import holds_in_force, labels_named
from nodeagent.gc.plan.image_users import images_in_use
from nodeagent.guarded_call import compute
from nodeagent.last_result import keep_last_result
from nodeagent.model.node import Hold, NodeSnapshot, PodImages
from nodeagent.model.runtime import (
    NO_LABELS,
    FsObservation,
    GapCause,
    Image,
    ImageFilesystem,
    ImageRecord,
    ImageUseRecord,
    Label,
    LabelReading,
    StorageGraph,
    UnlistedContent,
)
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import gather_all, run_bounded
from nodeagent.runtime.cri import labels_in_config
from nodeagent.runtime.storage_backend import CriOnlyStorage, StorageBackend
from nodeagent.runtime.storage_graph import pull_times, with_pins

if TYPE_CHECKING:
    from nodeagent.gc.plan.image_protection import ProtectionRule
    from nodeagent.gc.snapshot.lists import CheckedLists
    from nodeagent.loops.clock_reading import FirstSeenReader
    from nodeagent.model.clock import ClockTrust
    from nodeagent.runtime.containerd import StoredContainer
    from nodeagent.runtime.cri import CriClient, RuntimeStatus
    from nodeagent.runtime.namespace_lists import StorageLists
    from nodeagent.store.clock_record import ClockReading


PodImageSource = Callable[[], Awaitable[PodImages]]


_NOT_OBSERVED: Final = ImageUseRecord({}, None)


@dataclass(eq=False)
class ImageObserver:
    """Observer of images, which adds the image part to snapshots.

    Attributes:
        filesystems: all image filesystems in the last observation of a node with several; empty on a node with one,
            ``None`` before the first observation.
    """

    cri: CriClient
    storage: StorageBackend
    _: KW_ONLY
    filesystem_reader: ImageFilesystemReader
    memory: ObservationStore
    read_holds: Callable[[], tuple[Hold, ...]]
    read_pod_images: PodImageSource
    rules: Sequence[ProtectionRule] = ()
    _sources: Mapping[str, frozenset[str]] = field(default_factory=dict, init=False)
    filesystems: tuple[ImageFilesystem, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Create the reader of labels."""
        self._configs = ConfigLabels(self._read_config)

    async def find_unlisted(self, images: Sequence[Image] | None = None) -> UnlistedContent:
        """Return the stored content that no image in ``images`` references, by default of the images listed now.

        Raises:
            ObservationError: the runtime has no records of references, or ``runtime.containerd_api`` is off.
        """
        if images is None:
            images = await self.cri.list_images()
        status = await self.cri.status()
        paths, _ = await self.filesystem_reader.reported_paths()
        return await self.storage.find_unlisted(images, snapshotter=status.snapshotter, path=next(iter(paths), "/"))

    async def find_filesystems(self) -> tuple[ImageFilesystem, ...]:
        """Return all image filesystems of a node with several; empty on a node with one.

        The result is from the last observation; before the first observation, from the runtime's report and the
        snapshotters of its handlers.

        Raises:
            NodeAgentError: the runtime does not answer.
        """
        if self.filesystems is not None:
            return self.filesystems
        (paths, error), status = await gather_all(self.filesystem_reader.reported_paths(), self.cri.status())
        known = StorageGraph(store_paths=await self.storage.read_store_paths())
        return (await self.filesystem_reader.read(paths, error, known, status.snapshotters)).several

    async def list_stored(self) -> tuple[StoredContainer, ...] | None:
        """Return containerd's own records of containers; ``None`` on other runtimes."""
        if isinstance(self.storage, CriOnlyStorage):
            return None
        try:
            return await self.storage.list_containers()
        except RuntimeUnsupportedError:  # not containerd
            self.storage = CriOnlyStorage()
            return None

    async def list_records(self) -> StorageLists | NodeAgentError | None:
        """Return the lists for a storage graph, or the error of a failed list; ``None`` on other runtimes."""
        try:
            return await self.storage.list_records()
        except NodeAgentError as error:
            return error

    async def reported_paths(self) -> tuple[tuple[str, ...], str]:
        """Return the mount points that the runtime reports, or an empty tuple and the cause."""
        return await self.filesystem_reader.reported_paths()

    async def complete(  # noqa: PLR0913, PLR0917 - one argument per reading
        self,
        snapshot: NodeSnapshot,
        checked: CheckedLists,
        status: RuntimeStatus,
        reported: tuple[tuple[str, ...], str],
        warnings: list[str],
        at: ClockReading,
        labels: frozenset[Label] = frozenset(),
    ) -> NodeSnapshot:
        """Return the snapshot with the storage graph, the usage of images, the holds and the image filesystem.

        Args:
            snapshot: the snapshot, with the images that CRI lists.
            checked: the lists of the runtime and containerd's own records.
            status: the status of the runtime.
            reported: the mount points that the runtime reports, or an empty tuple and the cause.
            warnings: receives a sentence for each unreadable part.
            at: the reading of the clocks at the observation.
            labels: labels to read besides those of rules and holds.
        """
        paths, error = reported
        storage = await self._build_graph(snapshot.images, checked, status, next(iter(paths), "/"), warnings)
        filesystems = await self.filesystem_reader.read(paths, error, storage, status.snapshotters)
        self.filesystems = filesystems.several
        if storage is not None:
            snapshot = replace(snapshot, images=with_pins(snapshot.images, storage))
        pulled = pull_times(snapshot.images, storage)
        in_use = images_in_use(snapshot)

        def read_state() -> tuple[ImageUseRecord, tuple[Hold, ...], str]:
            # contradictory lists would record used images as unused, and unlisted images as removed
            use = _NOT_OBSERVED if snapshot.contradictions else self.memory.observe(pulled, in_use, at)
            try:
                return use, self.read_holds(), ""
            except StoreError as unreadable:
                return use, (), str(unreadable)

        use, holds, holds_error = await asyncio.to_thread(read_state)
        pods = await self.read_pod_images()  # read last, since pods may have been bound during the observation
        warnings += pods.warnings
        in_force = holds_in_force(holds, snapshot.clock, snapshot.observed_at)
        kept = labels_named([rule.text for rule in self.rules] + [hold.image for hold in in_force])
        images, reading = await self._with_labels(snapshot.images, kept | labels, storage, checked.records)
        if kept and reading.unread:
            cause = next(iter(reading.unread.values()))
            warnings.append(f"{len(reading.unread)} image(s) kept: labels unknown, and a rule names a label: {cause}")
        return replace(
            snapshot,
            images=images,
            label_reading=reading,
            holds=in_force,
            pod_images=pods,
            image_sources=self._image_sources(storage),
            holds_error=holds_error,
            storage=storage,
            image_usage=use.usage,
            image_use_observed_since=use.observed_since,
            image_filesystem=filesystems.first,
            image_filesystem_error=filesystems.error,
            image_filesystems=filesystems.several,
        )

    async def _build_graph(
        self,
        images: Sequence[Image],
        checked: CheckedLists,
        status: RuntimeStatus,
        path: str,
        warnings: list[str],
    ) -> StorageGraph | None:
        try:
            if isinstance(self.storage, CriOnlyStorage):
                return None
            if isinstance(checked.records, NodeAgentError):
                raise checked.records
            return await self.storage.build_graph(
                images,
                snapshotter=status.snapshotter,
                path=path,
                containers=checked.stored,
                lists=checked.records,
            )
        except NodeAgentError as error:
            warnings.append(f"sizes are upper bounds: containerd's own services failed: {error}")
            return None

    async def _with_labels(
        self,
        images: tuple[Image, ...],
        asked: frozenset[Label],
        storage: StorageGraph | None,
        records: StorageLists | NodeAgentError | None,
    ) -> tuple[tuple[Image, ...], LabelReading]:
        """Return the images with the asked labels of their configs and of their names, and the unread images."""
        if not asked:
            self._configs.clear()
            return images, NO_LABELS
        found, unread = await self._configs.read([each.id for each in images], asked)
        stored = None if isinstance(self.storage, CriOnlyStorage) else (storage, records)
        return await compute(len(images), _labelled, images, asked, found, unread, stored)

    async def _read_config(self, image_id: str) -> object:
        if isinstance(self.storage, CriOnlyStorage):
            return await self.cri.image_config(image_id)
        return await self.storage.read_config(image_id)

    def _image_sources(self, storage: StorageGraph | None) -> Mapping[str, frozenset[str]] | None:
        """Return the sources by image id, of the last graph if ``storage`` is missing; ``None`` with CRI alone.

        The content of an image id never changes, and a later pull only adds sources.
        """
        if storage is not None:
            self._sources = _sources_of(storage.records)
        elif isinstance(self.storage, CriOnlyStorage):
            return None
        return self._sources


@keep_last_result
def _sources_of(records: Mapping[str, ImageRecord]) -> Mapping[str, frozenset[str]]:
    """Return the known sources by image id."""
    return {image_id: record.sources for image_id, record in records.items() if record.sources is not None}


NONE: Final = frozenset[Label]()
LABELS_WITHIN_S: Final = 10.0
"""Time limit in seconds for the labels of one observation; the remaining images are read by the next."""


def _matching(asked: frozenset[Label], labels: Mapping[str, str]) -> frozenset[Label]:
    """Return the asked labels that an object with these labels has."""
    return frozenset([each for each in asked if each[0] in labels and each[1] in (None, labels[each[0]])])


def _labelled(
    images: tuple[Image, ...],
    asked: frozenset[Label],
    found: Mapping[str, frozenset[Label]],
    unread: dict[str, str],
    stored: tuple[StorageGraph | None, StorageLists | NodeAgentError | None] | None,
) -> tuple[tuple[Image, ...], LabelReading]:
    """Return the images with the asked labels of their configs and of their names, and the unread images.

    Args:
        images: the images as listed.
        asked: the labels.
        found: labels of configs by image id.
        unread: cause by id for images whose config is unknown.
        stored: containerd's records of images and names; ``None`` with CRI alone, which has no labels of names.
    """
    listed, of_names = set[str](), dict[str, frozenset[Label]]()
    records: Mapping[str, ImageRecord] = {}
    keys = {key for key, _ in asked}
    if stored is not None and stored[0] is not None and not isinstance(stored[1], NodeAgentError | None):
        records, names = stored[0].records, stored[1].namespace.images
        listed = {each.name for each in names}
        of_names = {each.name: _matching(asked, each.labels) for each in names if not keys.isdisjoint(each.labels)}
    labelled = []
    for image in images:
        labels = found.get(image.id, NONE)
        if stored is not None:
            record = records.get(image.id)
            if record is None or not listed.issuperset(record.names):
                unread.setdefault(image.id, "containerd's records of its names are unreadable")
            elif of_names and not of_names.keys().isdisjoint(record.names):
                labels = labels.union(*(of_names[name] for name in record.names if name in of_names))
        labelled.append(replace(image, labels=labels) if labels else image)
    return tuple(labelled), LabelReading(asked, unread)


class ConfigLabels:
    """Reader of the labels in the configs of images, which never change for an image id."""

    def __init__(self, read_config: Callable[[str], Awaitable[object]], within_s: float = LABELS_WITHIN_S) -> None:
        """Create a reader.

        Args:
            read_config: returns the config of an image by id; raises ObservationError for an unusable config.
            within_s: time limit in seconds of one reading.
        """
        self._read_config = read_config
        self._within_s = within_s
        self._known: tuple[frozenset[Label], Mapping[str, frozenset[Label] | str]] = NONE, {}

    def clear(self) -> None:
        """Forget all labels."""
        self._known = NONE, {}

    async def read(
        self, image_ids: Sequence[str], asked: frozenset[Label]
    ) -> tuple[dict[str, frozenset[Label]], dict[str, str]]:
        """Return the asked labels of each image by id, and the cause for each image whose labels are unknown.

        Only the asked labels are stored. A config that is too long or malformed is read once, too.
        """
        earlier, entries = self._known
        same = asked <= earlier
        asked = earlier if same else asked
        known = {each: entries[each] for each in image_ids if each in entries} if same else {}
        missing = [each for each in image_ids if each not in known]
        failed: dict[str, str] = dict.fromkeys(missing, f"not read within {self._within_s:g} s of this observation")
        shared: dict[frozenset[Label], frozenset[Label]] = {}

        async def read(image_id: str) -> None:
            try:
                config = await self._read_config(image_id)
            except RuntimeRequestError as error:
                failed[image_id] = str(error)
            except ObservationError as error:
                known[image_id] = str(error)
            else:
                labels = None if config is None else labels_in_config(config)
                if config is None:
                    failed[image_id] = "the runtime does not report its config"
                elif labels is None:
                    known[image_id] = "its config has no readable labels"
                else:
                    found = _matching(asked, labels)
                    known[image_id] = shared.setdefault(found, found)

        try:
            async with asyncio.timeout(self._within_s):
                await run_bounded(read, missing)
        except TimeoutError:
            pass
        self._known = asked, known
        failed = {image_id: cause for image_id, cause in failed.items() if image_id not in known}
        failed |= {image_id: each for image_id, each in known.items() if isinstance(each, str)}
        return {image_id: each for image_id, each in known.items() if not isinstance(each, str)}, failed


class ObservationStore(Protocol):
    """State kept between observations; its methods block. Implemented by ``Store``."""

    @property
    def first_seen(self) -> FirstSeenReader:
        """Return the reader of the first observations of items with a time that contradicts the clock."""

    def read_clock(self, at: ClockReading) -> ClockTrust:
        """Record a reading of the clocks and return the trust in its wall clock."""

    def observe(
        self, listed: Mapping[str, datetime | None], in_use: Collection[str], at: ClockReading
    ) -> ImageUseRecord:
        """Record one detection and return the usage of each listed image.

        Args:
            listed: image id to time of pull; ``None`` if unknown.
            in_use: ids of the images in use.
            at: reading of the clocks at the detection.
        """

    def interrupt(self, cause: GapCause) -> None:
        """Record the cause of a gap in the observation of image use that begins now."""


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


class ImageFilesystemReader(Record):
    """Reader of the image filesystems of the node.

    Attributes:
        cri: CRI client of the runtime.
        read_filesystem: reads the usage of a filesystem.
        imagefs_path: path that replaces the paths reported by the runtime; empty normally.
    """

    cri: CriClient
    read_filesystem: Callable[[str], FsObservation]
    imagefs_path: str = ""

    async def reported_paths(self) -> tuple[tuple[str, ...], str]:
        """Return the mount points that the runtime reports, or an empty tuple and the cause.

        Source: CRI ``ImageFsInfo``.
        """
        if self.imagefs_path:
            return (self.imagefs_path,), ""
        try:
            paths = (await self.cri.image_fs_info()).image_mountpoints
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
        if self.imagefs_path:
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
                return await asyncio.to_thread(self.read_filesystem, path)
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
