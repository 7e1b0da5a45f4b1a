"""The node as it will be once a plan is carried out, so that the next planner can plan on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.model import ImageUsage
from nodeagent.plan.gc.image_users import find_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model import FsObservation, NodeSnapshot
    from nodeagent.plan.gc.image_users import ImageUsers


def project(
    snapshot: NodeSnapshot,
    containers_gone: frozenset[str],
    sandboxes_gone: frozenset[str],
) -> NodeSnapshot:
    """Return the snapshot as it will be without those containers and sandboxes.

    What is known of the containers' writable layers is added to the image filesystem's available bytes. Images that
    lose their last user count as last used at this instant, since they were in use in this very pass; a later
    planner so takes them last. Pieces of storage that such containers hold stay held, as it is not known which
    other container holds them too: a projection rather promises too little.
    """
    return project_with_users(snapshot, containers_gone, sandboxes_gone, find_users(snapshot))[0]


def project_with_users(
    snapshot: NodeSnapshot, containers_gone: frozenset[str], sandboxes_gone: frozenset[str], users: ImageUsers
) -> tuple[NodeSnapshot, ImageUsers]:
    """Return what ``project`` does, and the users of images that are left of ``users``."""
    if not containers_gone and not sandboxes_gone:
        return snapshot, users
    users_after = users.without(containers_gone, sandboxes_gone)
    after = replace(
        snapshot,
        containers=tuple([each for each in snapshot.containers if each.id not in containers_gone]),
        sandboxes=tuple([each for each in snapshot.sandboxes if each.id not in sandboxes_gone]),
        sandboxes_unread=snapshot.sandboxes_unread - sandboxes_gone,
        writable_bytes={key: size for key, size in snapshot.writable_bytes.items() if key not in containers_gone},
        image_filesystem=_filesystem_after(snapshot, containers_gone),
        image_usage=_usage_after(snapshot, users.images - users_after.images),
    )
    return after, users_after


def _filesystem_after(snapshot: NodeSnapshot, containers_gone: frozenset[str]) -> FsObservation | None:
    before = snapshot.image_filesystem
    if before is None:
        return None
    freed = sum(snapshot.writable_bytes.get(container_id, 0) for container_id in containers_gone)
    return replace(before, available_bytes=min(before.capacity_bytes, before.available_bytes + freed))


def _usage_after(before: NodeSnapshot, released: frozenset[str]) -> Mapping[str, ImageUsage]:
    if not released:
        return before.image_usage
    now = before.observed_at
    usage = dict(before.image_usage)
    for image_id in released:
        known = usage.get(image_id)
        usage[image_id] = ImageUsage(known.first_detected if known is not None else now, now)
    return usage
