"""Composition of evictions through the API server; imported only if such evictions are configured."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.errors import ConfigError
from nodeagent.eviction.api_evictor import ApiEvictor, RoleCleaner, RoleEvictor
from nodeagent.eviction.eviction_api import EvictionApi
from nodeagent.host.cgroups import read_processes
from nodeagent.kube.api_client import ApiClient
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model import Role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.eviction.container_removal import ContainerCleaner
    from nodeagent.eviction.evictor import Evictor
    from nodeagent.gc.agent import Agent
    from nodeagent.model.pods import PodInventory


def make_evictor(agent: Agent, local: Evictor, read_pods: Callable[[], Awaitable[PodInventory]]) -> RoleEvictor:
    """Return the evictor of an agent; ``local`` evicts pods on a standalone node.

    Raises:
        ConfigError: no API server is configured.
    """
    settings, kubernetes = agent.settings.eviction, agent.settings.kubernetes
    if kubernetes.access is None or agent.watched_pods is None:
        raise ConfigError("kubernetes.evict_pods = true requires kubeconfig or server")
    api = ApiEvictor(
        EvictionApi(ApiClient(kubernetes.access, ApiCredentials(kubernetes.access))),
        agent.watched_pods,
        read_pods,
        settings.policy,
        clock=agent.clock,
        read_processes=read_processes,
        verify_s=settings.verify_s,
        jitter=random.random,
        overrides_budgets=kubernetes.override_disruption_budgets,
    )
    return RoleEvictor(local, api, partial(_is_beside_kubelet, agent))


def make_cleaner(agent: Agent, local: ContainerCleaner) -> RoleCleaner:
    """Return the cleaner of an agent; ``local`` removes the containers of evicted pods on a standalone node."""
    is_beside_kubelet = partial(_is_beside_kubelet, agent)
    return RoleCleaner(local, agent.cri.list_containers, is_beside_kubelet, agent.watched_pods)


def _is_beside_kubelet(agent: Agent) -> bool:
    return agent.role is Role.BESIDE_KUBELET
