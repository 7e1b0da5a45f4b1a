"""Withdrawal from the cluster at an uninstallation, by the configuration of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.config.loading import load
from nodeagent.config.policies import settings as settings_of
from nodeagent.errors import ConfigError, NodeAgentError
from nodeagent.host.placement import Change
from nodeagent.model import Role
from nodeagent.text import escape

if TYPE_CHECKING:
    from pathlib import Path


def withdraw_from_cluster(configuration: Path) -> list[tuple[Change, str]]:
    """Remove the agent's own conditions, taints and cordon from its Node object; return the removed and kept parts.

    Nothing is requested without a configured API server. A failure does not end the uninstallation.
    """
    try:
        settings = settings_of(load(configuration).config) if configuration.exists() else None
    except ConfigError:
        return [(Change.KEPT, "conditions on the Node object, if any (the configuration is invalid)")]
    if settings is None or settings.kubernetes.access is None:
        return []
    # import OpenSSL and the objects of the API, which an uninstallation without a cluster does not load
    from nodeagent.act.withdrawal import withdraw  # noqa: PLC0415
    from nodeagent.cli.session import run_async  # noqa: PLC0415
    from nodeagent.host.node import node_name  # noqa: PLC0415
    from nodeagent.observe.node_role import read_role  # noqa: PLC0415

    try:
        has_kubelet = read_role(settings.role).role is Role.BESIDE_KUBELET
        name = node_name(settings.kubelet.node_name)
        found = run_async(withdraw(settings.kubernetes.access, name, has_kubelet=has_kubelet))
    except NodeAgentError as error:
        return [(Change.KEPT, f"own parts of the Node object, if any ({escape(str(error))})")]
    return [
        *((Change.REMOVED, f"{each} of Node object {name}") for each in found.removed),
        *((Change.KEPT, each) for each in found.kept),
    ]
