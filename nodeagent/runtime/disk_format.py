"""Disk usage of blobs and snapshots in whole allocation units of their filesystem."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model import PieceKind, StoredPiece
from nodeagent.record import Record
from nodeagent.runtime.metadata_graph import CONTENT, SNAPSHOTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.runtime.containerd_records import SnapshotUsage
    from nodeagent.runtime.metadata_graph import Inventory, Node

# The usage of an overlay snapshot does not include two directories: the snapshot's directory and the work directory.
_UNCOUNTED_DIRECTORIES = dict.fromkeys(("overlayfs", "fuse-overlayfs", "stargz", "soci", "nydus"), 2)
_INODES_PER_CHUNK = 64


class DiskFormat(Record):
    """Allocation sizes of the image filesystem.

    Attributes:
        block_bytes: allocation unit of files.
        directory_bytes: size of a nearly empty directory: a block on ext4, 0 on xfs and btrfs.
        inode_chunk_bytes: free space used by a chunk of 64 inodes; 0 if inodes use no free space of the filesystem.
    """

    block_bytes: int = 4096
    directory_bytes: int = 4096
    inode_chunk_bytes: int = 0


def disk_format(filesystem_type: str) -> DiskFormat:
    """Return the allocation sizes of a filesystem type.

    XFS and Btrfs store small directories in their inodes. XFS allocates inodes on demand in chunks of 64, and frees a
    chunk once none of its inodes is in use. Source: mkfs.xfs(8), ``-i size``: 512 bytes by default.
    """
    match filesystem_type:
        case "xfs":
            return DiskFormat(directory_bytes=0, inode_chunk_bytes=_INODES_PER_CHUNK * 512)
        case "btrfs":
            return DiskFormat(directory_bytes=0)
        case _:
            return DiskFormat()


class Stores(Record):
    """Directories of the snapshotters, and of the content store under the empty name.

    Attributes:
        paths: directory by store; unknown directories are omitted.
        formats: allocation sizes of the filesystem by store.
    """

    paths: Mapping[str, str]
    formats: Mapping[str, DiskFormat]


NO_STORES: Final = Stores(MappingProxyType({}), MappingProxyType({}))
"""Stores whose directories are unknown."""


class DiskFormats(Record):
    """Allocation sizes of each store's filesystem.

    Attributes:
        default: allocation sizes of the image filesystem.
        by_store: allocation sizes by snapshotter, with the empty name for the content store; a store without an entry
            has the default.
    """

    default: DiskFormat
    by_store: Mapping[str, DiskFormat]

    def stored_piece(self, node: Node, inventory: Inventory, usage: Mapping[Node, SnapshotUsage]) -> StoredPiece:
        """Return the stored piece of a node, without references.

        The key of a snapshot in a snapshotter other than the inventory's starts with the name of that snapshotter.
        """
        snapshotter = "" if node.kind == CONTENT else _snapshotter(node.kind)
        disk = self.by_store.get(snapshotter, self.default)
        if not snapshotter:
            size = -(-inventory.stored.blobs[node.id].size_bytes // disk.block_bytes) * disk.block_bytes
            return StoredPiece(node.id, PieceKind.BLOB, size, 1)
        used = usage[node]
        directories = _UNCOUNTED_DIRECTORIES.get(snapshotter, 0) if used.inodes else 0
        inodes = used.inodes + directories
        # Inodes of a snapshot are allocated in sequence; a partly filled chunk is shared with other files.
        chunks_bytes = inodes // _INODES_PER_CHUNK * disk.inode_chunk_bytes
        return StoredPiece(
            node.id if snapshotter == inventory.snapshotter else f"{snapshotter}/{node.id}",
            PieceKind.SNAPSHOT,
            used.size_bytes + directories * disk.directory_bytes + chunks_bytes,
            inodes,
            snapshotter=snapshotter,
        )


@lru_cache(maxsize=64)
def _snapshotter(kind: str) -> str:
    """Return the snapshotter in a node kind; all pieces share one text object."""
    return kind.removeprefix(SNAPSHOTS)
