"""Container creations in progress, which appear in no list of containers.

CreateContainer reads the image record, and creates a lease with a random id and an expiry of 24 hours. In that lease,
CreateContainer prepares a writable snapshot on the top layer of the image and writes the container record. Finally the
lease is deleted. The lease, the snapshot and the record are visible in containerd's own services before CRI lists the
container.

Source: containerd ``container_create.go`` (CRI), ``client.NewContainer``, ``lease.go`` (``WithLease``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import RuntimeRequestError
from nodeagent.runtime.connection import run_bounded
from nodeagent.runtime.containerd_records import KIND_LABEL, Stamp
from nodeagent.runtime.metadata_graph import EXPIRE

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.runtime.containerd import ContainerdClient

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
