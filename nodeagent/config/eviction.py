"""Settings of pod eviction and of the sources of pod facts, in the form used by the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import Role
from nodeagent.model.pressure import MemorySource
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.kubelet_access import KubeletAccess
    from nodeagent.plan.eviction.thresholds import Threshold


class StallSettings(Record):
    """PSI triggers of the eviction loop.

    Attributes:
        memory_us: memory stall time within the window that wakes the loop; 0 disables.
        io_us: I/O stall time within the window that wakes the loop; 0 disables.
        window_us: PSI window of both stall times.

    Source: kernel psi.rst, "Monitoring for pressure thresholds".
    """

    memory_us: int = 100_000
    io_us: int = 0
    window_us: int = 1_000_000


class EvictionSettings(Record):
    """Validated settings of pod eviction.

    Attributes:
        enabled: whether eviction is enabled; ``None`` to follow the role of the agent.
        interval_s: poll interval of the signals without pressure.
        memory_source: source of ``memory.available``.
        kernel_estimate: whether ``memory.available`` is decided from ``MemAvailable`` too, not by the formula alone.
        reclaim_cache: whether active page cache of pods is reclaimed before evictions for ``memory.available``.
        annotation_namespaces: namespaces whose pods may set priority, static and mirror marks by annotations.
        verify_s: timeout for the end of an evicted pod's processes after the runtime reports it as stopped.
        through_api: whether pods are evicted through the API server beside a kubelet.
    """

    enabled: bool | None = None
    thresholds: tuple[Threshold, ...] = field(default_factory=parse_thresholds)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    interval_s: float = 10.0
    memory_source: MemorySource = MemorySource.WORKING_SET
    kernel_estimate: bool = True
    reclaim_cache: bool = True
    stall: StallSettings = field(default_factory=StallSettings)
    verify_s: float = 10.0
    annotation_namespaces: frozenset[str] = frozenset()
    through_api: bool = False

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason for disabled eviction on this node, for display; empty if eviction is enabled.

        Beside a kubelet pods are evicted only through the API server, not through the runtime, since the kubelet
        restarts the containers of an evicted pod.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if self.enabled is False:
            return 'eviction.enabled = "off"'
        if not self.thresholds:
            return "no thresholds configured"
        if role is Role.BESIDE_KUBELET and not self.through_api:
            refused = 'eviction.enabled = "on" is refused: ' if self.enabled else ""
            shown = f" ({evidence})" if evidence else ""
            return f"{refused}a kubelet manages this node{shown}; it evicts pods itself and restarts evicted pods"
        return ""

    def refused(self, role: Role) -> bool:
        """Return whether eviction is configured "on" and refused beside a kubelet."""
        refused = role is Role.BESIDE_KUBELET and not self.through_api
        return self.enabled is True and bool(self.thresholds) and refused


class KubeletSettings(Record):
    """Validated settings of the sources of pod facts beyond CRI.

    Attributes:
        access: access to the kubelet API; ``None`` disables.
        manifests: directory of static pod manifests; ``None`` disables.
        node_name: suffix of static pod names; empty for the host name.
    """

    access: KubeletAccess | None = None
    manifests: Path | None = None
    node_name: str = ""
