"""Settings of the node's part in a Kubernetes cluster, in the form used by the agent."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.plan.node_status import NO_RESERVATION, Reservation


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Validated settings.

    Attributes:
        node_ips: IP addresses of the node; empty to detect them.
        reservation: resources that pods cannot use.
        max_pods: number of pods that the scheduler may place on the node.
    """

    node_ips: tuple[str, ...] = ()
    reservation: Reservation = NO_RESERVATION
    max_pods: int = 0
