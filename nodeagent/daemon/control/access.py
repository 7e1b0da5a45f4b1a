"""Access rights of a caller of the control API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.operations import Access

if TYPE_CHECKING:
    from nodeagent.config.control import ControlSettings
    from nodeagent.host.peer import Peer


def access_of(peer: Peer, settings: ControlSettings, group: int | None) -> Access:
    """Return the access right of the process at the other end of a connection.

    Args:
        peer: credentials of the process when it connected.
        settings: whether members of the group have write access.
        group: GID of the configured group; ``None`` if the group does not exist on the node.
    """
    if peer.uid == 0:
        return Access.ACT
    if group is None or group not in peer.groups:
        return Access.NOTHING
    return Access.ACT if settings.group_may_act else Access.READ
