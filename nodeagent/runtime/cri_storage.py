# ruff: noqa: ARG002 - the null backend ignores its arguments
"""The storage backend for runtimes without containerd's own services, and for ``runtime.containerd_api = "off"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.errors import NodeAgentError, ObservationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import Image, StorageGraph, UnreferencedPiece
    from nodeagent.runtime.containerd_records import SnapshotUsage, StoredContainer, StoredImage
    from nodeagent.runtime.namespace_lists import StorageLists

_DISABLED = "runtime.containerd_api is off"
_NO_RECORDS = "references are recorded only by containerd's own services: disabled or unavailable"


class CriOnlyStorage:
    """The null backend: no records beyond CRI. Deletions and collections fail."""

    enabled = False

    async def list_records(self) -> StorageLists | None:
        """Return ``None``, since CRI has no storage records."""
        return None

    async def build_graph(
        self,
        images: Sequence[Image],
        *,
        snapshotter: str | None,
        path: str,
        containers: tuple[StoredContainer, ...] | None = None,
        lists: StorageLists | None = None,
    ) -> StorageGraph | None:
        """Return ``None``, since CRI has no records of layers."""
        return None

    async def find_unreferenced(
        self,
        *,
        snapshotter: str | None,
        path: str,
    ) -> tuple[UnreferencedPiece, ...]:
        """Raise ObservationError, since CRI has no records of references."""
        raise ObservationError(_NO_RECORDS)

    async def read_store_paths(self) -> Mapping[str, str]:
        """Return an empty mapping, since CRI does not report the directories of stores."""
        return {}

    async def get_image_names(self, names: Iterable[str]) -> tuple[StoredImage, ...]:
        """Return an empty tuple, since CRI has no records of image names."""
        return ()

    async def list_containers(self) -> tuple[StoredContainer, ...]:
        """Return an empty tuple, since CRI has no records of containers of other clients."""
        return ()

    async def read_writable_bytes(self) -> dict[str, int]:
        """Return an empty mapping, since CRI has no access to snapshots."""
        return {}

    async def measure_layer(self, snapshotter: str, key: str) -> SnapshotUsage | None:
        """Return ``None``, since CRI has no access to snapshots."""
        return None

    async def has_writable_layer(self, container_id: str) -> bool:
        """Return false, since CRI has no access to snapshots."""
        return False

    async def delete_image(self, name: str, *, sync: bool, target: str = "") -> bool:
        """Raise NodeAgentError, since CRI removes whole images, not single names."""
        raise NodeAgentError(_DISABLED)

    async def pin_image(self, name: str) -> bool:
        """Raise NodeAgentError, since CRI cannot pin an image."""
        raise NodeAgentError(_DISABLED)

    async def delete_content(self, digest: str) -> bool:
        """Raise NodeAgentError, since CRI has no blobs."""
        raise NodeAgentError(_DISABLED)

    async def remove_snapshot(self, snapshotter: str, key: str) -> bool:
        """Raise NodeAgentError, since CRI has no snapshots."""
        raise NodeAgentError(_DISABLED)

    async def collect_garbage(self) -> None:
        """Raise NodeAgentError, since CRI has no garbage collection."""
        raise NodeAgentError(_DISABLED)

    async def remove_orphaned_directories(self, snapshotter: str) -> None:
        """Do nothing, since CRI has no access to snapshots."""

    @property
    def removals(self) -> None:
        """Return ``None``, since a CRI RemoveImage call cannot be undone."""
