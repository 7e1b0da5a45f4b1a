"""The agent's own socket, in the terms of the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_SOCKET: Final = Path("/run/nodeagent/control.sock")


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Checked settings.

    Attributes:
        socket: where the agent listens; ``None`` for not at all.
        group: whose members may ask it.
        group_may_act: whether they may also have it do something.
    """

    socket: Path | None = DEFAULT_SOCKET
    group: str = "nodeagent"
    group_may_act: bool = False
