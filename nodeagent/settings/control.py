"""Section ``control``: control API of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from nodeagent.config.fields import Section, SocketPath, Switch, about
from nodeagent.config.paths import CONTROL_SOCKET
from nodeagent.record import Record

DEFAULT_SOCKET: Final = Path(CONTROL_SOCKET)


class ControlSettings(Record):
    """Validated settings of the control API.

    Attributes:
        socket: path of the control socket; ``None`` disables the control API.
        group: group with read access.
        group_may_act: whether the group also has write access.
    """

    socket: Path | None = DEFAULT_SOCKET
    group: str = "nodeagent"
    group_may_act: bool = False


class ControlSection(Section):
    """Control API of the daemon."""

    socket: Annotated[
        SocketPath, about("Path of the control socket, at most 107 bytes; its directory must exist. Empty disables.")
    ] = CONTROL_SOCKET
    group: Annotated[
        str,
        about(
            "Group with read access: status, plans, history, events. Root has full access. The socket's directory "
            "must be owned by this group and have the set-group-ID bit."
        ),
    ] = "nodeagent"
    group_may_act: Annotated[
        Switch,
        about(
            "Whether the group also has write access: gc, gc undo, trigger, hold, pause and reload, limited to the "
            "removals that this configuration permits. Only root can remove holds of other users, end their pauses, "
            "or run a disabled GC."
        ),
    ] = False

    def settings(self) -> ControlSettings:
        """Return the settings of a valid section."""
        return ControlSettings(Path(self.socket) if self.socket else None, self.group, self.group_may_act)
