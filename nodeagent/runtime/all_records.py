"""Records of a containerd daemon in all its namespaces, for the leak audit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nodeagent.errors import RuntimeRequestError
from nodeagent.model.runtime_objects import ObjectKind, RuntimeObject, RuntimeRecords
from nodeagent.runtime.bounded_calls import run_bounded
from nodeagent.runtime.metadata_graph import EXPIRE

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.runtime.containerd import ContainerdClient


async def read_all_records(
    client: ContainerdClient, snapshotters: Collection[str], cri_ids: frozenset[str]
) -> RuntimeRecords:
    """Return the records of all namespaces.

    Args:
        client: client of containerd, in any namespace.
        snapshotters: the snapshotters to list; a snapshotter that is not loaded has no snapshots.
        cri_ids: ids of the containers and sandboxes that CRI lists.

    Raises:
        NodeAgentError: a listing failed; with incomplete lists, existing objects would count as leaks.
    """
    found = await run_bounded(
        lambda name: _read(client.in_namespace(name), snapshotters), await client.list_namespaces(), limit=2
    )
    return RuntimeRecords(
        frozenset().union(*(each.containers for each in found)),
        cri_ids,
        frozenset().union(*(each.digests for each in found)),
        frozenset().union(*(each.ingests for each in found)),
        frozenset().union(*(each.snapshots for each in found)),
        tuple(lease for each in found for lease in each.leases),
    )


async def _read(client: ContainerdClient, snapshotters: Collection[str]) -> RuntimeRecords:
    namespace = client.namespace
    containers, digests, ingests, leases = await asyncio.gather(
        client.list_containers(), client.list_digests(namespace), client.list_ingests(), client.list_leases()
    )
    snapshots: set[tuple[str, str, str]] = set()
    for name in snapshotters:
        try:
            listed = await client.list_snapshots(name)
        except RuntimeRequestError as error:
            if error.status != "INVALID_ARGUMENT":  # the status of a snapshotter that is not loaded
                raise
            continue
        snapshots.update((name, namespace, key) for key in listed)
    return RuntimeRecords(
        frozenset((namespace, each.id) for each in containers),
        digests=digests,
        ingests=frozenset((namespace, each.reference) for each in ingests),
        snapshots=frozenset(snapshots),
        leases=tuple(
            RuntimeObject(ObjectKind.LEASE, each.id, each.id, namespace, changed_at=expires_at)
            for each in leases
            if (expires_at := _expires_at(each.labels.get(EXPIRE))) is not None
        ),
    )


def _expires_at(text: str | None) -> datetime | None:
    """Return the expiry time in a label; ``None`` without a valid time."""
    try:
        expiry = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return expiry.replace(tzinfo=UTC) if expiry is not None and expiry.tzinfo is None else expiry
