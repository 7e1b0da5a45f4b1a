"""Kubernetes API objects and the facts of the machine in them, limited to the fields that the agent reads or writes.

Fields without a value are omitted in JSON, so that one type serves full objects and patches. Unknown fields are ignored
when an object is decoded, and are not lost, because the agent changes objects of other owners by patches only.

Source: Kubernetes API, ``core/v1`` and ``coordination.k8s.io/v1``.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Struct, UnsetType, field

from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.model.runtime import Image

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
ARCH_LABEL: Final = "kubernetes.io/arch"
OS_LABEL: Final = "kubernetes.io/os"
NO_KUBELET_TAINT: Final = "nodeagent.dev/no-kubelet"
REGISTERED_ANNOTATION: Final = "nodeagent.dev/registered"
"""Set on a Node that the agent created or adopted; its value is ``created`` or ``adopted``."""


class ApiObject(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base class of the API objects and their parts."""


class OwnerReference(ApiObject, frozen=True):
    """Reference to the owner of an object; the API server deletes the object after the deletion of its owner."""

    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(ApiObject, frozen=True):
    """Metadata of an object.

    Attributes:
        resource_version: version of the object as read; a write with this version fails with status 409 if the object
            has changed.
        deletion_timestamp: set while the object is being deleted.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()


class Taint(ApiObject, frozen=True):
    """A taint of a node; key and effect together are unique."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


class NodeSpec(ApiObject, frozen=True):
    """The desired state of a node."""

    provider_id: str = field(name="providerID", default="")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeAddress(ApiObject, frozen=True):
    """An address of a node, such as ``InternalIP``."""

    type: str
    address: str


class StatusCondition(ApiObject, frozen=True):
    """A condition of a node; ``status`` is ``True``, ``False`` or ``Unknown``."""

    type: str
    status: str
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class NodeSwap(ApiObject, frozen=True):
    """Swap of a node, in bytes."""

    capacity: int


class NodeSystemInfo(ApiObject, frozen=True, omit_defaults=False):
    """Identity and versions of a node; the API requires every string field, so that unknown values are empty."""

    machine_id: str = field(name="machineID", default="")
    system_uuid: str = field(name="systemUUID", default="")
    boot_id: str = field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = field(name="osImage", default="")
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""
    swap: NodeSwap | UnsetType = UNSET


class ContainerImage(ApiObject, frozen=True):
    """An image on a node, with its names and its size in bytes."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(ApiObject, frozen=True):
    """The observed state of a node."""

    addresses: tuple[NodeAddress, ...] = ()
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[StatusCondition, ...] = ()
    node_info: NodeSystemInfo | None = None
    images: tuple[ContainerImage, ...] = ()


class Node(ApiObject, frozen=True):
    """A Node object."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(ApiObject, frozen=True):
    """Holder and last renewal of a Lease.

    Attributes:
        renew_time: RFC 3339 time with exactly six fractional digits of the second, as the API requires.
    """

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str = ""


class Lease(ApiObject, frozen=True):
    """A Lease, the heartbeat of a node."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


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
