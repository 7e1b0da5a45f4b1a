"""Change of the agent's taints on the Node object, by read, patch and repetition after a conflict."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.cluster.facts import compare_with_machine
from nodeagent.cluster.plan.conditions import TaintPlan, plan_taints
from nodeagent.errors import ForeignNodeError
from nodeagent.kube.api_client import NodeApi, patch_planned


async def apply_taints(nodes: NodeApi, desired: Mapping[str, str]) -> TaintPlan:
    """Set and remove the agent's taints; return the changes. Without changes nothing is written.

    Args:
        nodes: requests for the Node object of this machine.
        desired: effect of each taint by key; an empty effect removes the taint.

    Raises:
        ForeignNodeError: the Node object is not proven to be of this machine.
        ApiServerError: a request failed, or the object changed during each of 5 attempts.
    """

    async def plan() -> TaintPlan:
        found = await nodes.get_node()
        because = await compare_with_machine(found)
        if found is None or because:
            raise ForeignNodeError(f"no taint is written: {because}")
        return plan_taints(found, desired)

    return await patch_planned(nodes, await plan(), plan)
