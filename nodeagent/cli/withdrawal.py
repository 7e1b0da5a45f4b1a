"""Removal of the agent's parts of the Node object at an uninstallation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.errors import ConfigError, NodeAgentError
from nodeagent.model import Role
from nodeagent.settings.loading import load
from nodeagent.text import escape

if TYPE_CHECKING:
    from pathlib import Path


def withdraw_from_cluster(configuration: Path) -> list[tuple[str, str]]:
    """Remove the agent's own conditions, taints and cordon from its Node object; return the removed and kept parts.

    Without a configured API server no request is sent. A failure does not stop the uninstallation.
    """
    try:
        settings = load(configuration).config.settings() if configuration.exists() else None
    except ConfigError:
        return [("kept", "conditions on the Node object, if any (the configuration is invalid)")]
    if settings is None or settings.kubernetes.access is None:
        return []
    # These imports load OpenSSL and the API objects, which an uninstallation without a cluster does not need.
    from nodeagent.cli.session import run_async  # noqa: PLC0415
    from nodeagent.cluster.withdrawal import withdraw  # noqa: PLC0415
    from nodeagent.host.node import node_name  # noqa: PLC0415
    from nodeagent.pods.role import read_role  # noqa: PLC0415

    try:
        has_kubelet = read_role(settings.role).role is Role.BESIDE_KUBELET
        name = node_name(settings.kubelet.node_name)
        found = run_async(withdraw(settings.kubernetes.access, name, has_kubelet=has_kubelet))
    except NodeAgentError as error:
        return [("kept", f"own parts of the Node object, if any ({escape(str(error))})")]
    return [
        *(("removed", f"{each} of Node object {name}") for each in found.removed),
        *(("kept", each) for each in found.kept),
    ]
