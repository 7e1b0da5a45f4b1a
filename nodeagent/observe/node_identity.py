"""Comparison of the Node object with this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.errors import ApiServerRefusedError
from nodeagent.host.machine import read_machine
from nodeagent.plan.kubernetes.pod_watch import other_machine

if TYPE_CHECKING:
    from nodeagent.kube.node_api import NodeApi


async def read_foreign(nodes: NodeApi) -> str:
    """Return the reason that the Node object is not proven to be of this machine; empty if it is.

    Raises:
        ApiServerUnavailableError: no answer.
    """
    machine = await asyncio.to_thread(read_machine)
    try:
        found = await nodes.get_node()
    except ApiServerRefusedError as error:
        return f"cannot read the Node object: {error}"
    return other_machine(found, machine.machine_id, machine.system_uuid)
