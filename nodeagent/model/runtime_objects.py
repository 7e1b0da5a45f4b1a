"""Objects of the runtime on the host, and records of the runtime, for the leak audit."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class ObjectKind(StrEnum):
    """Kind of an object on the host. The values are part of the JSON output."""

    SNAPSHOT_DIRECTORY = "snapshot-directory"
    SNAPSHOT_RECORD = "snapshot-record"
    BLOB = "blob"
    INGEST = "ingest"
    MOUNT = "mount"
    SHIM = "shim"
    CGROUP = "cgroup"
    LEASE = "lease"
    TASK_DIRECTORY = "task-directory"
    CRI_DIRECTORY = "cri-directory"


class RuntimeObject(Record):
    """One object on the host, or one record that can outlive its use.

    Attributes:
        name: path, or id for a process, a lease or a record.
        key: identity in the runtime's records: container id, digest, reference, snapshot key, number of a directory.
        scope: namespace of the key, or the snapshotter; empty for a key without namespace or snapshotter.
        namespace: namespace of a snapshot record; empty otherwise.
        changed_at: time of the last change of the object, or the expiry of a lease; ``None`` if unknown.
        size_bytes: size of the object; ``None`` if not measured.
    """

    kind: ObjectKind
    name: str
    key: str
    scope: str = ""
    namespace: str = ""
    changed_at: datetime | None = None
    size_bytes: int | None = None


class RuntimePaths(Record):
    """Directories and socket of a containerd daemon.

    Attributes:
        stores: directory by snapshotter, with the content store under the empty name.
        cri: directories of the CRI plugin, persistent and volatile.
        tasks: directories of the tasks, persistent and volatile.
        address: path of containerd's socket.
    """

    stores: Mapping[str, str] = field(default_factory=dict)
    cri: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    address: str = ""


class RuntimeRecords(Record):
    """The runtime's records in all its namespaces.

    Attributes:
        containers: namespace and id of each container.
        cri_ids: ids of the containers and sandboxes that CRI lists.
        digests: digests of all blobs.
        ingests: namespace and reference of each blob being written.
        snapshots: snapshotter, namespace and key of each snapshot.
        leases: leases with an expiry time.
    """

    containers: frozenset[tuple[str, str]] = frozenset()
    cri_ids: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    ingests: frozenset[tuple[str, str]] = frozenset()
    snapshots: frozenset[tuple[str, str, str]] = frozenset()
    leases: tuple[RuntimeObject, ...] = ()


class HostObjects(Record):
    """The objects of a runtime on the host.

    Attributes:
        objects: the objects, in an order that does not change between readings.
        directories: numbers of the snapshot directories by snapshotter, from the database of the snapshotter. A
            snapshotter with an unreadable database has no entry, and its directories are not compared.
        warnings: sources that could not be read.
    """

    objects: tuple[RuntimeObject, ...]
    directories: Mapping[str, frozenset[str]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
