"""Projection: the snapshot as it would be after the removals of a plan, as input of the next planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import ImageUsage, ReferenceKind
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import FsObservation, NodeSnapshot, StorageGraph
    from nodeagent.plan.gc.image_users import ImageUsers


def project_with_users(
    snapshot: NodeSnapshot, removed_containers: frozenset[str], removed_sandboxes: frozenset[str], users: ImageUsers
) -> tuple[NodeSnapshot, ImageUsers]:
    """Return the snapshot after removal of these containers and sandboxes, and the remaining users of images.

    The known sizes of the writable layers are added to the available bytes of the image filesystem, so that no image is
    removed for space that a removed container frees. On a node with several image filesystems the sizes are added to
    each, since the filesystem of a layer is unknown. The image layers lose the references of the removed containers,
    so that an image frees the layers that only they referenced. Images without remaining users count as last used now,
    so that the image planner removes them last.
    """
    if not removed_containers and not removed_sandboxes:
        return snapshot, users
    users_after = users.without(removed_containers, removed_sandboxes)
    freed_bytes = sum(snapshot.writable_bytes.get(container_id, 0) for container_id in removed_containers)
    after = replace(
        snapshot,
        containers=tuple([each for each in snapshot.containers if each.id not in removed_containers]),
        sandboxes=tuple([each for each in snapshot.sandboxes if each.id not in removed_sandboxes]),
        sandboxes_unread=snapshot.sandboxes_unread - removed_sandboxes,
        writable_bytes={key: size for key, size in snapshot.writable_bytes.items() if key not in removed_containers},
        image_filesystem=_filesystem_after(snapshot.image_filesystem, freed_bytes),
        image_filesystems=tuple(
            replace(each, observed=_filesystem_after(each.observed, freed_bytes)) for each in snapshot.image_filesystems
        ),
        storage=_storage_after(snapshot.storage, removed_containers | removed_sandboxes),
        image_usage=_usage_after(snapshot, users.images - users_after.images),
    )
    return after, users_after


def _storage_after(storage: StorageGraph | None, removed: frozenset[str]) -> StorageGraph | None:
    """Return the graph in which removed containers and sandboxes reference no piece."""
    if storage is None:
        return None
    released: set[int] = set()
    remaining: set[int] = set()
    for container_id, indexes in storage.by_container.items():
        (released if container_id in removed else remaining).update(indexes)
    pieces = list(storage.pieces)
    for index in released - remaining:
        references = tuple(each for each in pieces[index].references if each is not ReferenceKind.CONTAINER)
        pieces[index] = replace(pieces[index], references=references)
    return replace(storage, pieces=tuple(pieces))


def _filesystem_after(before: FsObservation | None, freed_bytes: int) -> FsObservation | None:
    if before is None:
        return None
    return replace(before, available_bytes=min(before.capacity_bytes, before.available_bytes + freed_bytes))


def _usage_after(before: NodeSnapshot, released: frozenset[str]) -> Mapping[str, ImageUsage]:
    if not released:
        return before.image_usage
    now = before.observed_at
    usage = dict(before.image_usage)
    for image_id in released:
        known = usage.get(image_id)
        usage[image_id] = ImageUsage(known.first_detected if known is not None else now, now)
    return usage
