"""Settings of graceful shutdown, in the form used by the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import Role
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.plan.shutdown.phases import Phase


class ShutdownSettings(Record):
    """Validated settings of graceful shutdown.

    Attributes:
        enabled: whether graceful shutdown is enabled; ``None`` to follow the role of the agent.
        phases: all phases in order; empty disables graceful shutdown.
        restart_logind: whether a logind without a system bus connection is restarted.
    """

    enabled: bool | None = None
    phases: tuple[Phase, ...] = ()
    restart_logind: bool = True

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason for disabled graceful shutdown, for display; empty if graceful shutdown is enabled.

        Beside a kubelet graceful shutdown is disabled even if ``enabled``: the kubelet restarts each container within a
        second.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if self.enabled is False:
            return 'shutdown.enabled = "off"'
        if not self._has_time:
            return "no phase has a configured time"
        if role is Role.BESIDE_KUBELET:
            refused = 'shutdown.enabled = "on" is refused: ' if self.enabled else ""
            shown = f" ({evidence})" if evidence else ""
            return f"{refused}a kubelet manages this node{shown}; it restarts stopped pods, use its shutdownGracePeriod"
        return ""

    def refused(self, role: Role) -> bool:
        """Return whether graceful shutdown is configured "on" and refused beside a kubelet."""
        return self.enabled is True and self._has_time and role is Role.BESIDE_KUBELET

    @property
    def _has_time(self) -> bool:
        return any(phase.requested_ms for phase in self.phases)
