"""How the pods are stopped when the node goes down, in the terms of the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.model import Role

if TYPE_CHECKING:
    from nodeagent.plan.shutdown_phases import Phase


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """Checked settings.

    Attributes:
        enabled: ``None`` to follow the role of the agent.
        phases: those of the whole shutdown in order; none for no graceful shutdown.
        restart_logind: whether a logind that lost the bus is restarted.
    """

    enabled: bool | None = None
    phases: tuple[Phase, ...] = ()
    restart_logind: bool = True

    def off_because(self, role: Role) -> str:
        """Return why pods are not stopped in order on this node, in words; empty if they are."""
        if self.enabled is False:
            return "it is not enabled"
        if not self.phases or not any(phase.wanted_ms for phase in self.phases):
            return "its phases have no time"
        if self.enabled is None and role is Role.BESIDE_KUBELET:
            return 'a kubelet manages this node and would start the pods again; shutdown.enabled = "on" overrides that'
        return ""
