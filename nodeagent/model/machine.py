"""Machine of a node, and the facts for the node status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.model.image import Image
    from nodeagent.model.pressure import NodeCondition


class Machine(Record):
    """Identity and resources of the machine; an unreadable text is empty, an unreadable number ``None``.

    Attributes:
        name: host name in lower case.
        addresses: IP addresses of the node, at most one of each family, IPv4 first.
        cpus: number of CPUs that are online.
        hugepages: pairs of page size and reserved total, in bytes, ascending.
        architecture: in Go's spelling, such as ``amd64``.
        unread: failed readings, each with its path and cause.
    """

    name: str
    addresses: tuple[str, ...] = ()
    cpus: int | None = None
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    hugepages: tuple[tuple[int, int], ...] = ()
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = ""
    architecture: str = ""
    unread: tuple[str, ...] = ()


class NodeFacts(Record):
    """Facts of one observation of a node, from which the node status is computed.

    Attributes:
        name: name of the Node object.
        ephemeral_bytes: size of nodefs; ``None`` if unread.
        runtime_version: name and version of the runtime, such as ``containerd://1.6.20``; empty while the runtime does
            not answer.
        not_ready: reasons that the node is not ready, as worded by the kubelet; empty if the node is ready.
        images: all images; ``None`` while the runtime does not list images.
        pressure: active pressure conditions; ``None`` if thresholds are not evaluated.
        agent_version: version of the agent.
        unread: failed readings, each with its path or call and the cause.
    """

    name: str
    machine: Machine
    observed_at: datetime
    ephemeral_bytes: int | None = None
    runtime_version: str = ""
    not_ready: tuple[str, ...] = ()
    images: tuple[Image, ...] | None = None
    pressure: frozenset[NodeCondition] | None = None
    agent_version: str = ""
    unread: tuple[str, ...] = ()
