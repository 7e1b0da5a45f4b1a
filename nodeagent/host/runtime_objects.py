"""Objects of a containerd on the host: directories, blobs, mounts, shims and cgroups."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.host.bolt import read_bolt
from nodeagent.host.filesystems import MOUNTINFO, read_mounts
from nodeagent.model.runtime_objects import HostObjects, ObjectKind, RuntimeObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.model.runtime_objects import RuntimePaths

_CONTENT: Final = ""
_ID: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER: Final = re.compile(r"[0-9]+")
_CRI_KINDS: Final = ("sandboxes", "containers")
_CGROUP_ROOTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/pids", "sys/fs/cgroup/memory")
_CGROUP_NAME: Final = re.compile(r"cri-containerd-([0-9a-f]{64})\.scope")
_SHIM: Final = "containerd-shim"
_MAX_CGROUPS: Final = 100_000


def read_objects(paths: RuntimePaths, root: Path = Path("/"), mountinfo: str = MOUNTINFO) -> HostObjects:
    """Return the objects of a containerd on the host.

    Args:
        paths: directories of the containerd.
        root: parent of ``proc`` and ``sys``.
        mountinfo: path of the mount table of this process.
    """
    content = paths.stores.get(_CONTENT)
    warnings: list[str] = []
    if content is None or not Path(content).is_dir():
        warnings.append(f"blobs not compared: cannot read the content store {content or '(unknown directory)'}")
    found = [
        *_snapshot_directories(paths, warnings),
        *_blobs(paths, warnings),
        *_ingests(paths, warnings),
        *_directories(paths, warnings),
        *_mounts(paths, mountinfo),
        *_shims(paths, root),
        *_cgroups(root),
    ]
    directories: dict[str, frozenset[str]] = {}
    for snapshotter, path in paths.stores.items():  # read after the directories, which are created first
        if snapshotter != _CONTENT and Path(path, "metadata.db").exists():
            try:
                directories[snapshotter], records = _snapshot_records(snapshotter, path)
            except ObservationError as error:
                warnings.append(f"snapshots of {snapshotter} not compared: {error}")
            else:
                found += records
    return HostObjects(tuple(found), directories, tuple(warnings))


def _entries(directory: str, warnings: list[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a directory by name; empty if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda each: each.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        warnings.append(f"cannot read {directory}: {error.strerror or error}")
        return []


def _changed_at(entry: os.DirEntry[str]) -> datetime | None:
    try:
        return datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return None


def _snapshot_directories(paths: RuntimePaths, warnings: list[str]) -> Iterator[RuntimeObject]:
    for snapshotter, path in paths.stores.items():
        if snapshotter == _CONTENT:
            continue
        for each in _entries(f"{path}/snapshots", warnings):
            if _NUMBER.fullmatch(each.name):  # other names are temporary
                yield RuntimeObject(
                    ObjectKind.SNAPSHOT_DIRECTORY, each.path, each.name, snapshotter, changed_at=_changed_at(each)
                )


def _snapshot_records(snapshotter: str, path: str) -> tuple[frozenset[str], list[RuntimeObject]]:
    """Return the directory numbers and the records of the snapshots.

    Source: containerd ``snapshots/storage``: bucket ``v1``/``snapshots``, key ``id`` as uvarint; keys of metadata are
    ``NAMESPACE/SEQUENCE/KEY``.
    """
    database = f"{path}/metadata.db"
    numbers, records = set(), []
    for name, snapshot in read_bolt(database, b"v1", b"snapshots").items():
        number = snapshot.get(b"id") if isinstance(snapshot, dict) else None
        if not isinstance(number, bytes) or not number:
            raise ObservationError(f"{database}: a snapshot without id")
        numbers.add(str(_uvarint(number)))
        namespace, _, rest = name.decode(errors="surrogateescape").partition("/")
        sequence, _, key = rest.partition("/")
        if sequence.isdigit():
            shown = f"{snapshotter}: {namespace}/{sequence}/{key}"
            try:
                changed_at = datetime.fromtimestamp(os.stat(f"{path}/snapshots/{_uvarint(number)}").st_mtime, UTC)  # noqa: PTH116 - one call
            except OSError:
                changed_at = None
            records.append(RuntimeObject(ObjectKind.SNAPSHOT_RECORD, shown, key, snapshotter, namespace, changed_at))
    return frozenset(numbers), records


def _uvarint(encoded: bytes) -> int:
    value = 0
    for index, byte in enumerate(encoded):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    return value


def _blobs(paths: RuntimePaths, warnings: list[str]) -> Iterator[RuntimeObject]:
    content = paths.stores.get(_CONTENT)
    if content is None:
        return
    for algorithm in _entries(f"{content}/blobs", warnings):
        for each in _entries(algorithm.path, warnings):
            try:
                size = each.stat(follow_symlinks=False).st_size
            except OSError:
                continue  # the blob was removed meanwhile
            digest = f"{algorithm.name}:{each.name}"
            yield RuntimeObject(ObjectKind.BLOB, each.path, digest, changed_at=_changed_at(each), size_bytes=size)


def _ingests(paths: RuntimePaths, warnings: list[str]) -> Iterator[RuntimeObject]:
    """Yield the directories of blobs being written; the file ``ref`` contains ``NAMESPACE/SEQUENCE/REFERENCE``."""
    content = paths.stores.get(_CONTENT)
    if content is None:
        return
    for each in _entries(f"{content}/ingest", warnings):
        try:
            reference = Path(each.path, "ref").read_text(errors="surrogateescape")
            data = os.stat(f"{each.path}/data")  # noqa: PTH116 - one call, no object
        except OSError:
            continue  # the ingest finished meanwhile
        namespace, _, rest = reference.partition("/")
        written_at = datetime.fromtimestamp(data.st_mtime, UTC)
        yield RuntimeObject(
            ObjectKind.INGEST,
            each.path,
            rest.partition("/")[2],
            namespace,
            changed_at=written_at,
            size_bytes=data.st_size,
        )


def _directories(paths: RuntimePaths, warnings: list[str]) -> Iterator[RuntimeObject]:
    for base in paths.cri:
        for kind in _CRI_KINDS:
            for each in _entries(f"{base}/{kind}", warnings):
                if _ID.fullmatch(each.name):
                    yield RuntimeObject(ObjectKind.CRI_DIRECTORY, each.path, each.name, changed_at=_changed_at(each))
    for base in paths.tasks:
        for namespace in _entries(base, warnings):
            for each in _entries(namespace.path, warnings):
                yield RuntimeObject(
                    ObjectKind.TASK_DIRECTORY, each.path, each.name, namespace.name, changed_at=_changed_at(each)
                )


def _mounts(paths: RuntimePaths, mountinfo: str) -> Iterator[RuntimeObject]:
    """Yield the mounts of tasks and sandboxes: the root filesystems and the shared memory."""
    for point in sorted(read_mounts(mountinfo)):
        for base in paths.tasks:
            namespace, _, rest = point.removeprefix(f"{base}/").partition("/")
            if point.startswith(f"{base}/") and rest:
                yield RuntimeObject(ObjectKind.MOUNT, point, rest.partition("/")[0], namespace)
        for base in paths.cri:
            kind, _, rest = point.removeprefix(f"{base}/").partition("/")
            if point.startswith(f"{base}/") and kind in _CRI_KINDS and rest:
                yield RuntimeObject(ObjectKind.MOUNT, point, rest.partition("/")[0], "k8s.io")


def _shims(paths: RuntimePaths, root: Path) -> Iterator[RuntimeObject]:
    """Yield the shims of this containerd, identified by their command-line arguments."""
    try:
        names = sorted(each.name for each in (root / "proc").iterdir() if each.name.isdigit())
    except OSError:
        return
    for name in names:
        try:
            words = (root / "proc" / name / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        except OSError:
            continue  # the process ended meanwhile
        options = dict(pairwise(words))
        shim, address = Path(words[0]).name.startswith(_SHIM), options.get("-address")
        if shim and address in (paths.address, f"unix://{paths.address}") and options.get("-id"):
            yield RuntimeObject(ObjectKind.SHIM, name, options["-id"], options.get("-namespace", ""))


def _cgroups(root: Path) -> Iterator[RuntimeObject]:
    """Yield the cgroups of containerd's CRI plugin with the systemd driver; other names do not contain the owner."""
    seen: set[str] = set()
    for base in _CGROUP_ROOTS:
        for count, (directory, names, _) in enumerate(os.walk(root / base)):
            if count > _MAX_CGROUPS:
                return
            for name in sorted(names):
                match = _CGROUP_NAME.fullmatch(name)
                path = f"{directory}/{name}"
                if match and path not in seen:
                    seen.add(path)
                    yield RuntimeObject(ObjectKind.CGROUP, path, match[1])
        if (root / base / "cgroup.controllers").exists():
            return
