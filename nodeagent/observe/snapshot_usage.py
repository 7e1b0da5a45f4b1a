"""Snapshot usage in the state database, for the storage graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.runtime.containerd_records import SnapshotUsage, Stamp
from nodeagent.runtime.metadata_graph import SNAPSHOTS, Node
from nodeagent.store import SnapshotFigures

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nodeagent.store import Store


class StoredSnapshotUsage:
    """Snapshot usage recorded by earlier processes, by node of the storage graph."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> dict[Node, tuple[Stamp, SnapshotUsage]]:
        """Return the usage of each recorded snapshot, with the creation time of the snapshot."""
        return {
            Node(SNAPSHOTS + snapshotter, key): (
                Stamp(figures.created_s, figures.created_ns),
                SnapshotUsage(figures.size_bytes, figures.inodes),
            )
            for (snapshotter, key), figures in self._store.snapshot_usage().items()
        }

    def write(self, read: Mapping[Node, tuple[Stamp, SnapshotUsage]], removed: Collection[Node]) -> None:
        """Record the usage of ``read`` and delete the records of ``removed``."""
        self._store.note_snapshot_usage(
            {_store_key(node): SnapshotFigures(*created, *used) for node, (created, used) in read.items()},
            [_store_key(node) for node in removed],
        )


def _store_key(node: Node) -> tuple[str, str]:
    return node.kind.removeprefix(SNAPSHOTS), node.id
