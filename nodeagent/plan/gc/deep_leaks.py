"""Leak audit: objects on the host (mounts, shims, cgroups, directories, blobs) without a record in the runtime."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.runtime_objects import ObjectKind
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from nodeagent.model.runtime_objects import HostObjects, RuntimeObject, RuntimeRecords


class KindAdvice(Record):
    """Advice on the removal of one kind of leaked object.

    Attributes:
        safe: whether objects of this kind can be removed without a further check.
        how: removal procedure, for display.
    """

    safe: bool
    how: str


ADVICE: Final[Mapping[ObjectKind, KindAdvice]] = MappingProxyType(
    {
        ObjectKind.SNAPSHOT_DIRECTORY: KindAdvice(
            True,
            "containerd removes it in the garbage collection after the removal of any snapshot of this snapshotter",
        ),
        ObjectKind.SNAPSHOT_RECORD: KindAdvice(
            True,
            "containerd removes it in the garbage collection after the removal of any snapshot of this snapshotter",
        ),
        ObjectKind.BLOB: KindAdvice(
            True, "containerd removes it in the garbage collection after the removal of any image or blob"
        ),
        ObjectKind.INGEST: KindAdvice(
            True, "containerd aborts it in the garbage collection after the removal of any image or blob"
        ),
        ObjectKind.MOUNT: KindAdvice(False, "check with fuser -m that no process uses it, then umount PATH"),
        ObjectKind.SHIM: KindAdvice(
            False,
            "check its child processes, then kill it; its container has no record and cannot be stopped through CRI",
        ),
        ObjectKind.CGROUP: KindAdvice(False, "rmdir PATH, which fails while processes are in it"),
        ObjectKind.LEASE: KindAdvice(True, "containerd removes it in its next garbage collection"),
        ObjectKind.TASK_DIRECTORY: KindAdvice(True, "containerd removes it at its next start"),
        ObjectKind.CRI_DIRECTORY: KindAdvice(True, "containerd removes it at its next start"),
    }
)


class DeepLeak(Record):
    """A leaked object, with a sentence that names the missing record."""

    found: RuntimeObject
    why: str


def find_deep_leaks(
    host: HostObjects, records: RuntimeRecords, now: datetime, *, minimum_age_s: float
) -> tuple[DeepLeak, ...]:
    """Return the objects on the host without a record in the runtime, sorted by kind and name.

    Objects must be read before records, so that an object created between the two readings is not reported as a leak.
    Objects younger than the minimum age are omitted, since the runtime creates a directory or blob before its record.
    Objects of unknown age are omitted unless the minimum age is 0. Shims, mounts and cgroups need no minimum age: the
    runtime writes the record of a container before these objects exist, and deletes the record after their removal.
    """
    leaks = []
    ids = records.cri_ids | {container for _, container in records.containers}
    for each in (*host.objects, *records.leases):
        why = _missing_record(each, host, records, ids, now)
        if why and _old_enough(each, now, minimum_age_s):
            leaks.append(DeepLeak(each, why))
    order = list(ObjectKind)
    return tuple(sorted(leaks, key=lambda leak: (order.index(leak.found.kind), leak.found.name, leak.found.scope)))


_TIMELESS: Final = frozenset({ObjectKind.MOUNT, ObjectKind.SHIM, ObjectKind.CGROUP, ObjectKind.LEASE})


def _old_enough(each: RuntimeObject, now: datetime, minimum_age_s: float) -> bool:
    if each.kind in _TIMELESS or minimum_age_s <= 0:
        return True
    return each.changed_at is not None and (now - each.changed_at).total_seconds() >= minimum_age_s


def _missing_record(  # noqa: PLR0911 - one return for each kind
    each: RuntimeObject, host: HostObjects, records: RuntimeRecords, ids: frozenset[str], now: datetime
) -> str:
    """Return a sentence that names the missing record; empty if the record exists or cannot be checked.

    ``ids`` are the ids of containers and sandboxes in all containerd namespaces.
    """
    match each.kind:
        case ObjectKind.SNAPSHOT_DIRECTORY:
            known = host.directories.get(each.scope)
            missing = known is not None and each.key not in known
            return f"not in the database of the snapshotter {each.scope}" if missing else ""
        case ObjectKind.SNAPSHOT_RECORD:
            missing = (each.scope, each.namespace, each.key) not in records.snapshots
            return f"no snapshot of this key in containerd's namespace {each.namespace}" if missing else ""
        case ObjectKind.BLOB:
            return "" if each.key in records.digests else "no blob of this digest in any namespace"
        case ObjectKind.INGEST:
            known_ingest = (each.scope, each.key) in records.ingests
            return "" if known_ingest else "no blob of this reference is being written"
        case ObjectKind.LEASE:
            return "expired" if each.changed_at is not None and each.changed_at < now else ""
        case ObjectKind.CRI_DIRECTORY:
            return "" if each.key in ids else "CRI lists no container or sandbox of this id"
        case ObjectKind.CGROUP:
            return "" if each.key in ids else "no container of this id"
        case _:
            known_id = (each.scope, each.key) in records.containers or each.key in records.cri_ids
            return "" if known_id else f"no container of this id in the namespace {each.scope}"
