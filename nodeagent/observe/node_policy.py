"""Configured part of the node status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.plan.node_status import NodeStatusPolicy

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings


def status_policy(settings: Settings) -> NodeStatusPolicy:
    """Return the node status policy: reservation, maximum number of pods, node IPs and eviction thresholds."""
    chosen = settings.kubernetes
    return NodeStatusPolicy(chosen.reservation, chosen.max_pods, chosen.node_ips, settings.eviction.thresholds)
