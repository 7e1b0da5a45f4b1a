"""Complete Node object of this node: metadata and status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.kubernetes import ARCH_LABEL, HOSTNAME_LABEL, OS_LABEL, Node, ObjectMeta
from nodeagent.plan.node_status import node_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from nodeagent.model.kubernetes import NodeFacts, StatusCondition
    from nodeagent.plan.node_status import NodeStatusPolicy


def node_object(
    facts: NodeFacts, policy: NodeStatusPolicy, previous: Sequence[StatusCondition] = (), *, now: datetime
) -> Node:
    """Return the Node object: name, labels and status.

    Args:
        facts: facts of one observation of the node.
        policy: settings of the node status.
        previous: conditions of the last status, which provide the transition times.
        now: time of the heartbeat, aware UTC.
    """
    labels = {
        ARCH_LABEL: facts.machine.architecture,
        HOSTNAME_LABEL: facts.name,
        OS_LABEL: "linux",
    }
    return Node(
        api_version="v1",
        kind="Node",
        metadata=ObjectMeta(name=facts.name, labels=labels),
        status=node_status(facts, policy, previous, now=now),
    )
