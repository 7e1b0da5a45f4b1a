"""Comparison of the Node object with this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ApiServerRefusedError
from nodeagent.host.machine import read_machine
from nodeagent.plan.kubernetes.registration import unproven_because

if TYPE_CHECKING:
    from nodeagent.kube.node_api import NodeApi
    from nodeagent.model.kubernetes import Node

_FORBIDDEN: Final = 403


async def read_foreign(nodes: NodeApi) -> str:
    """Return the reason that the Node object is not proven to be of this machine; empty with proof.

    Raises:
        ApiServerError: the API server does not answer, or refuses the request with a status other than 403.
    """
    try:
        found = await nodes.get_node()
    except ApiServerRefusedError as error:
        if error.status != _FORBIDDEN:
            raise
        return f"cannot read the Node object: {error}"
    return await compare_with_machine(found)


async def compare_with_machine(found: Node | None) -> str:
    """Return the reason that a Node object is not proven to be of this machine; empty with proof."""
    machine = await asyncio.to_thread(read_machine)
    return unproven_because(found, machine.machine_id, machine.system_uuid)
