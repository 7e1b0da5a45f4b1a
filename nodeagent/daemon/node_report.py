"""Report of this node for a summary of many nodes, from its status and a preview of the next pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.node.gc import preview_collection
from nodeagent.api.node_report import NodeReport
from nodeagent.daemon.status import status_document
from nodeagent.errors import NodeAgentError
from nodeagent.host.node import node_name
from nodeagent.plan.gc.policy import Scope

if TYPE_CHECKING:
    from nodeagent.act.agent import Agent
    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.daemon.status import StatusReader


async def report_document(agent: Agent, reader: StatusReader, context: DaemonContext | None) -> NodeReport:
    """Return the report of the node; if the node cannot be observed, the report has the cause and no plan.

    Only the enabled loops are planned, since the report predicts the removals of the daemon.
    """
    status = await status_document(agent, reader, context)
    scope, preview, problem = _enabled_scope(agent.settings), None, ""
    try:
        preview = None if scope is None else await preview_collection(agent, scope)
    except NodeAgentError as error:
        problem = str(error)
    return NodeReport.of(node_name(agent.settings.kubelet.node_name), status, preview, problem)


def _enabled_scope(settings: Settings) -> Scope | None:
    """Return the scope of the enabled collection loops; ``None`` if the configuration disables both."""
    if settings.image_interval_s is None:
        return None if settings.container_interval_s is None else Scope.CONTAINERS
    return Scope.IMAGES if settings.container_interval_s is None else Scope.ALL
