"""The agent's own parts of the Node object: changes of its taints, and the removal of all parts at an uninstallation.

A change is a read, a patch, and a repetition after a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nodeagent.cluster.facts import compare_with_machine, read_foreign
from nodeagent.cluster.plan.conditions import TaintPlan, WithdrawalPlan, conditions_patch, plan_taints, plan_withdrawal
from nodeagent.errors import ApiServerError, ForeignNodeError
from nodeagent.kube.api_client import ApiClient, NodeApi, patch_planned
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import ApiAccess

WITHIN_S: Final = 15.0


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


class Withdrawal(Record):
    """Removed parts of a Node object, and kept parts with the reason, as texts for display."""

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


async def withdraw(access: ApiAccess, name: str, *, has_kubelet: bool) -> Withdrawal:
    """Remove the agent's own parts from a Node object; return the removed parts, and the kept parts with the reason.

    The object is changed only with proof that it represents this machine. The call takes at most 15 s and raises no
    error.
    """
    client = ApiClient(access, ApiCredentials(access))
    removed: list[str] = []
    try:
        async with asyncio.timeout(WITHIN_S):
            return await _withdraw(NodeApi(client, name), removed, has_kubelet=has_kubelet)
    except TimeoutError:
        return Withdrawal(tuple(removed), (f"own parts of Node object {name}: no answer in {WITHIN_S:g} s",))
    except ApiServerError as error:
        return Withdrawal(tuple(removed), (f"own parts of Node object {name}: {error}",))
    finally:
        client.close()


async def _withdraw(nodes: NodeApi, removed: list[str], *, has_kubelet: bool) -> Withdrawal:
    found = await nodes.get_node()
    if found is None:
        return Withdrawal()
    if because := await read_foreign(nodes):
        return Withdrawal(kept=(f"Node object {found.metadata.name}: {because}",))

    async def plan_again() -> WithdrawalPlan:
        return plan_withdrawal(await nodes.get_node() or found, has_kubelet=has_kubelet)

    plan = plan_withdrawal(found, has_kubelet=has_kubelet)
    if plan.conditions:
        await nodes.patch_status(conditions_patch(found.metadata.uid, ()))
        removed += (f"condition {each}" for each in plan.conditions)
        plan = await plan_again()  # new resourceVersion
    plan = await patch_planned(nodes, plan, plan_again)
    removed += plan.removed
    return Withdrawal(tuple(removed), (plan.kept,) if plan.kept else ())
