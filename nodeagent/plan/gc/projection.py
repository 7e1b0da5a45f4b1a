"""Projection of a snapshot to the state after a plan, as input of the next planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import ImageUsage
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import FsObservation, NodeSnapshot
    from nodeagent.plan.gc.image_users import ImageUsers


def project_with_users(
    snapshot: NodeSnapshot, removed_containers: frozenset[str], removed_sandboxes: frozenset[str], users: ImageUsers
) -> tuple[NodeSnapshot, ImageUsers]:
    """Return the snapshot without these containers and sandboxes, and the remaining users of images.

    The known sizes of the containers' writable layers are added to the available bytes of the image filesystem; of
    several to each, since theirs is unknown, so that no image is removed for space that a container frees. Images
    without remaining users count as last used now, since they were in use in this pass, so that a later planner removes
    them last. Pieces referenced by these containers keep their references, since other containers may reference them
    too; the projection underestimates the freed bytes.
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
        image_usage=_usage_after(snapshot, users.images - users_after.images),
    )
    return after, users_after


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
