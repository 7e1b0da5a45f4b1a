"""Settings of the Node object and of the API server access, in the form used by the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import Role
from nodeagent.plan.kubernetes.policy import NO_RESERVATION, RegistrationPolicy, Reservation
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.api_access import ApiAccess


class KubernetesSettings(Record):
    """Validated settings of the Node object and of the API server access.

    Attributes:
        node_ips: IP addresses of the node; empty to detect them.
        reservation: resources that pods cannot use.
        max_pods: number of pods that the scheduler may place on the node.
        register_node: whether the agent registers the node if no kubelet manages the node.
        watch_pods: whether the pods of this node are watched at the API server.
        publish_conditions: whether the agent's own conditions are applied to the Node object.
        condition_taints: effect of each configured taint that follows a condition of the agent, by key.
        publish_events: whether Events about the node and its pods are created.
        evict_pods: whether pods are evicted through the API server beside a kubelet.
        override_disruption_budgets: whether a pod may be deleted despite its disruption budget as the last resort.
        delete_failed_after_s: age in seconds from which failed pods of this node are deleted; 0 to keep them.
        access: access to the API server; ``None`` if no API server is configured.
        registration: configured part of the Node object.
    """

    node_ips: tuple[str, ...] = ()
    reservation: Reservation = NO_RESERVATION
    max_pods: int = 0
    register_node: bool = False
    watch_pods: bool = False
    publish_conditions: bool = False
    condition_taints: Mapping[str, str] = field(default_factory=dict)
    publish_events: bool = False
    evict_pods: bool = False
    override_disruption_budgets: bool = False
    delete_failed_after_s: float = 0.0
    access: ApiAccess | None = None
    registration: RegistrationPolicy = field(default_factory=RegistrationPolicy)

    @property
    def delete_failed_after(self) -> bool:
        """Whether failed pods of this node are deleted."""
        return self.delete_failed_after_s > 0

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason that the agent does not register the node, for display; empty if it does.

        Beside a kubelet registration is refused even if configured: two processes would update one Node object.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if not self.register_node or self.access is None:
            return "not enabled"
        if role is Role.BESIDE_KUBELET:
            shown = f" ({evidence})" if evidence else ""
            return f"kubernetes.register_node = true is refused: a kubelet manages this node{shown} and registers it"
        return ""
