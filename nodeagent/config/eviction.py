"""How pods are evicted, and where more is known of them, in the terms of the daemon."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.model import Role
from nodeagent.model.pressure import MemorySource
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.policy import EvictionPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.kubelet_access import KubeletAccess
    from nodeagent.plan.eviction.thresholds import Threshold


@dataclass(frozen=True, slots=True)
class StallSettings:
    """When stalled tasks wake the loop.

    Attributes:
        memory_us: how long tasks have to stall for memory within the window; 0 to not watch it.
        io_us: likewise for I/O.

    Source: kernel psi.rst, "Monitoring for pressure thresholds".
    """

    memory_us: int = 100_000
    io_us: int = 0
    window_us: int = 1_000_000


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Checked settings.

    Attributes:
        enabled: ``None`` to follow the role of the agent.
        interval_s: time between two looks at a node at ease.
        memory_source: what ``memory.available`` stands for.
        verify_s: how long a victim's processes may take to be gone after the runtime says so.
    """

    enabled: bool | None = None
    thresholds: tuple[Threshold, ...] = field(default_factory=parse_thresholds)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    interval_s: float = 10.0
    memory_source: MemorySource = MemorySource.WORKING_SET
    stall: StallSettings = field(default_factory=StallSettings)
    verify_s: float = 10.0

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return why no pod is evicted on this node, in words; empty if pods are.

        Beside a kubelet none is, even if ``enabled``: the kubelet restarts the containers of an evicted pod.

        Args:
            role: of the agent on this node.
            evidence: for the role, to be named in the answer.
        """
        if self.enabled is False:
            return "it is not enabled"
        if not self.thresholds:
            return "it has no thresholds"
        if role is Role.BESIDE_KUBELET:
            refused = 'eviction.enabled = "on" is refused: ' if self.enabled else ""
            shown = f" ({evidence})" if evidence else ""
            return f"{refused}a kubelet manages this node{shown}; it evicts pods itself and restarts evicted ones"
        return ""

    def refused(self, role: Role) -> bool:
        """Return whether eviction is configured "on" and refused beside a kubelet."""
        return self.enabled is True and bool(self.thresholds) and role is Role.BESIDE_KUBELET


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Where more is known of pods than the runtime tells.

    Attributes:
        access: how to ask the kubelet for its pods; ``None`` for not at all.
        manifests: directory of static pods' manifests; ``None`` for none.
        node_name: that static pods' names end with; empty for the host's name.
    """

    access: KubeletAccess | None = None
    manifests: Path | None = None
    node_name: str = ""
