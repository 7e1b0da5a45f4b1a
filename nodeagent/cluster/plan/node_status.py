"""Status of the Node object, computed from one observation of the node.

Names, reasons and messages are equal to the kubelet's, since controllers, dashboards and alerts match them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from nodeagent.cluster.plan.conditions import report_time
from nodeagent.cluster.plan.registration import NO_RESERVATION, Reservation
from nodeagent.model import kubernetes
from nodeagent.model.pressure import NodeCondition, Signal
from nodeagent.record import Record
from nodeagent.units import format_quantity

if TYPE_CHECKING:
    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.runtime import Image

MAX_IMAGES: Final = 50
"""Maximum number of images in the status. Source: KubeletConfiguration ``nodeStatusMaxImages``."""
MAX_IMAGE_NAMES: Final = 5
"""Maximum number of names per image in the status. Source: kubelet ``MaxNamesPerImageInNodeStatus``."""
READY: Final = "Ready"
SHUTTING_DOWN: Final = "node is shutting down"
"""Ready condition message during a graceful shutdown. Source: kubelet shutdown manager, ``ShutdownStatus``."""
_UNOBSERVED: Final = "NodeAgentNotEvaluated"

_PRESSURE: Final[Mapping[NodeCondition, tuple[tuple[str, str], tuple[str, str]]]] = {
    NodeCondition.MEMORY_PRESSURE: (
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ),
    NodeCondition.DISK_PRESSURE: (
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ),
    NodeCondition.PID_PRESSURE: (
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ),
}
"""Reason and message of each pressure condition: active, inactive. Source: kubelet ``nodestatus`` setters."""


class NodeStatusPolicy(Record):
    """Settings of the node status.

    Attributes:
        max_pods: number of pods that the scheduler may place on the node.
        addresses: IP addresses of the node; empty to use the observed addresses.
        further_addresses: addresses of other types than ``InternalIP`` and ``Hostname``.
        thresholds: eviction thresholds; hard thresholds on memory and nodefs reduce the allocatable resources.
    """

    reservation: Reservation = NO_RESERVATION
    max_pods: int = 0
    addresses: tuple[str, ...] = ()
    further_addresses: tuple[kubernetes.NodeAddress, ...] = ()
    thresholds: tuple[Threshold, ...] = ()


def node_status(
    facts: kubernetes.NodeFacts,
    policy: NodeStatusPolicy,
    previous: Sequence[kubernetes.StatusCondition],
    *,
    now: datetime,
) -> kubernetes.NodeStatus:
    """Return the status of the Node object.

    Args:
        facts: facts of one observation; missing readings are omitted, so that a patch keeps the previous values.
        policy: settings of the node status.
        previous: the conditions of the Node object or of the last status, which provide the transition times.
        now: time of the heartbeat, aware UTC.
    """
    previous = [each for each in previous if each.type in {READY, *NodeCondition}]
    at = report_time(now, previous)
    capacity = _capacity(facts, policy)
    return kubernetes.NodeStatus(
        addresses=_addresses(facts, policy),
        capacity={name: _amount(name, value) for name, value in sorted(capacity.items())},
        allocatable={name: _amount(name, value) for name, value in sorted(_allocatable(capacity, policy).items())},
        conditions=_conditions(facts, previous, at),
        node_info=_node_info(facts),
        images=_images(facts.images or ()),
    )


def _amount(name: str, value: int) -> str:
    """Return a resource as a Kubernetes quantity; the CPU value is in millicores."""
    if name == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    return str(value) if name == "pods" else format_quantity(value)


def _addresses(facts: kubernetes.NodeFacts, policy: NodeStatusPolicy) -> tuple[kubernetes.NodeAddress, ...]:
    internal = policy.addresses or facts.machine.addresses
    return (
        *(kubernetes.NodeAddress(type="InternalIP", address=each) for each in internal),
        *policy.further_addresses,
        kubernetes.NodeAddress(type="Hostname", address=facts.name),
    )


def _capacity(facts: kubernetes.NodeFacts, policy: NodeStatusPolicy) -> dict[str, int]:
    machine = facts.machine
    found = {
        "cpu": machine.cpu_millis,
        "memory": machine.memory_bytes,
        "ephemeral-storage": facts.ephemeral_bytes,
        "pods": policy.max_pods,
        **{f"hugepages-{format_quantity(size)}": total for size, total in machine.hugepages},
    }
    return {name: value for name, value in found.items() if value is not None}


def _allocatable(capacity: Mapping[str, int], policy: NodeStatusPolicy) -> dict[str, int]:
    """Return the allocatable resources: capacity minus reservation and hard eviction threshold, at least 0.

    Preallocated huge pages are subtracted from the allocatable memory.

    Source: kubelet ``MachineInfo`` setter and ``GetNodeAllocatableReservation``.
    """
    kept = policy.reservation
    reserved = {
        "cpu": kept.cpu_millis,
        "memory": kept.memory_bytes
        + _hard_threshold(policy.thresholds, Signal.MEMORY_AVAILABLE, capacity.get("memory"))
        + sum(value for name, value in capacity.items() if name.startswith("hugepages-")),
        "ephemeral-storage": kept.ephemeral_bytes
        + _hard_threshold(policy.thresholds, Signal.NODEFS_AVAILABLE, capacity.get("ephemeral-storage")),
    }
    return {name: max(0, value - reserved.get(name, 0)) for name, value in capacity.items()}


def _hard_threshold(thresholds: Sequence[Threshold], signal: Signal, capacity: int | None) -> int:
    """Return the highest hard threshold of a signal in bytes; 0 without a hard threshold."""
    return max(
        (int(each.limit(capacity or 0)) for each in thresholds if each.signal is signal and each.hard), default=0
    )


def _node_info(facts: kubernetes.NodeFacts) -> kubernetes.NodeSystemInfo:
    machine = facts.machine
    return kubernetes.NodeSystemInfo(
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        boot_id=machine.boot_id,
        kernel_version=machine.kernel_version,
        os_image=machine.os_image,
        container_runtime_version=facts.runtime_version,
        kubelet_version=agent_version(facts.agent_version),
        operating_system="linux",
        architecture=machine.architecture,
        swap=kubernetes.NodeSwap(capacity=machine.swap_bytes) if machine.swap_bytes else UNSET,
    )


def agent_version(version: str) -> str:
    """Return the value of ``kubeletVersion``: a semantic version with the suffix ``+nodeagent``; empty if unknown.

    Source: kubectl ``get nodes``, column VERSION; kubeadm parses the value as a semantic version.
    """
    return f"v{version}+nodeagent" if version else ""


def _images(images: Sequence[Image]) -> tuple[kubernetes.ContainerImage, ...]:
    """Return the largest images, ties by id; digests precede tags. Source: kubelet ``Images`` setter."""
    largest = sorted(images, key=lambda each: (-(each.size_bytes or 0), each.id))[:MAX_IMAGES]
    return tuple(
        kubernetes.ContainerImage(
            names=(*each.repo_digests, *each.repo_tags)[:MAX_IMAGE_NAMES],
            size_bytes=each.size_bytes or 0,
        )
        for each in largest
    )


def _conditions(
    facts: kubernetes.NodeFacts, previous: Sequence[kubernetes.StatusCondition], at: datetime
) -> tuple[kubernetes.StatusCondition, ...]:
    found = [(condition.value, *_pressure(condition, facts.pressure)) for condition in NodeCondition]
    found.append(_ready(facts))
    earlier = {each.type: each for each in previous}
    return tuple(
        kubernetes.StatusCondition(
            type=name,
            status=status,
            reason=reason,
            message=message,
            last_heartbeat_time=at,
            last_transition_time=_transition(earlier.get(name), status, at),
        )
        for name, status, reason, message in found
    )


def _pressure(condition: NodeCondition, active: frozenset[NodeCondition] | None) -> tuple[str, str, str]:
    if active is None:
        return "Unknown", _UNOBSERVED, "eviction thresholds are not evaluated"
    met, unmet = _PRESSURE[condition]
    return ("True", *met) if condition in active else ("False", *unmet)


def _ready(facts: kubernetes.NodeFacts) -> tuple[str, str, str, str]:
    """Return type, status, reason and message of the Ready condition. Source: kubelet ``ReadyCondition`` setter."""
    causes = facts.not_ready
    if not causes:
        return READY, "True", "KubeletReady", "kubelet is posting ready status"
    message = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    return READY, "False", "KubeletNotReady", message


def _transition(earlier: kubernetes.StatusCondition | None, status: str, at: datetime) -> datetime:
    if earlier is None or earlier.status != status or earlier.last_transition_time is None:
        return at
    return earlier.last_transition_time


def node_object(
    facts: kubernetes.NodeFacts,
    policy: NodeStatusPolicy,
    previous: Sequence[kubernetes.StatusCondition] = (),
    *,
    now: datetime,
) -> kubernetes.Node:
    """Return the Node object: name, labels and status.

    Args:
        facts: facts of one observation of the node.
        policy: settings of the node status.
        previous: conditions of the last status, which provide the transition times.
        now: time of the heartbeat, aware UTC.
    """
    labels = {
        kubernetes.ARCH_LABEL: facts.machine.architecture,
        kubernetes.HOSTNAME_LABEL: facts.name,
        kubernetes.OS_LABEL: "linux",
    }
    return kubernetes.Node(
        api_version="v1",
        kind="Node",
        metadata=kubernetes.ObjectMeta(name=facts.name, labels=labels),
        status=node_status(facts, policy, previous, now=now),
    )
