"""Composition of the pod watcher of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.observe.pods import PodSettings, PodWatcher

if TYPE_CHECKING:
    from nodeagent.act.agent import Agent


def make_watcher(agent: Agent) -> PodWatcher:
    """Return a watcher of the pods on an agent's node; the caller closes it.

    It follows the role of the agent: what may be inferred of a pod differs beside a kubelet.
    """
    settings = agent.settings
    return PodWatcher(
        agent.cri,
        settings=PodSettings(
            agent.role,
            node_name=settings.kubelet.node_name,
            pod_log_root=settings.pod_log_root,
            kubelet=settings.kubelet.access,
            manifests=settings.kubelet.manifests,
        ),
        clock=agent.clock,
        role=lambda: agent.role,
    )
