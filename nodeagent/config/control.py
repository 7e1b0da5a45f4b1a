"""Settings of the control API, in the form used by the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
