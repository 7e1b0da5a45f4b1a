"""Cache of the lists of a containerd namespace, read again only after a transaction in the metadata database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record, replace
from nodeagent.runtime.metadata_graph import is_expired
from nodeagent.runtime.namespace_lists import expected_digests, list_namespace

if TYPE_CHECKING:
    from collections.abc import Hashable
    from datetime import datetime

    from nodeagent.clock import Clock
    from nodeagent.runtime.containerd import ContainerdClient
    from nodeagent.runtime.metadata_graph import Stored
    from nodeagent.runtime.namespace_lists import NamespaceLists


class _Listed(Record):
    """Lists, with the database revision read before the lists, and the time of the lists."""

    revision: Hashable
    at: datetime
    lists: NamespaceLists


class NamespaceCache:
    """Cache of the last lists of a namespace."""

    def __init__(self, clock: Clock) -> None:
        """Create an empty cache; ``clock`` decides on the expiry of leases."""
        self._clock = clock
        self._listed: _Listed | None = None

    async def list(self, client: ContainerdClient, *, revision: Hashable, known: Stored | None) -> NamespaceLists:
        """Return the lists of the namespace; the cached lists if the database revision is unchanged.

        Args:
            client: client of containerd, in the namespace to list.
            revision: revision of the database, read before this call; ``None`` if unknown.
            known: the reading of the last graph, whose unchanged entries are reused.

        Raises:
            RuntimeUnavailableError: no connection.
            RuntimeRequestError: a list failed.
        """
        now, listed = self._clock.now(), self._listed
        if revision is not None and listed is not None and listed.revision == revision and listed.at <= now:
            return await _updated(client, listed.lists, now=now, known=known)
        lists = await list_namespace(client, now=now, known=known)
        self._listed = None if revision is None else _Listed(revision, now, lists)
        return lists


async def _updated(
    client: ContainerdClient, lists: NamespaceLists, *, now: datetime, known: Stored | None
) -> NamespaceLists:
    """Return lists with unchanged records, with the current ingests, and without leases that have expired."""
    ingests = await client.list_ingests()
    return replace(
        lists,
        leases=tuple(each for each in lists.leases if not is_expired(each[0], now)),
        expected=expected_digests(ingests),
        known=known,
    )
