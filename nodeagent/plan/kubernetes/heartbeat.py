"""Heartbeats of a node: Lease, status reports, and the back-off after failures."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodeagent.model.kubernetes import Lease, LeaseSpec, ObjectMeta, OwnerReference
from nodeagent.record import Record

if TYPE_CHECKING:
    from datetime import datetime

    from nodeagent.model.kubernetes import Node, NodeStatus, StatusCondition

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_INTERVAL_S: Final = 10.8
"""With status and conditions at most one request in 10 s. Source: the kubelet renews every 10 to 10.4 s."""
LEASE_DURATION_S: Final = 40
"""Source: KubeletConfiguration ``nodeLeaseDurationSeconds``; the kubelet renews after a quarter of it."""
STATUS_POLL_S: Final = 10.0
"""Source: KubeletConfiguration ``nodeStatusUpdateFrequency``."""
STATUS_REPORT_S: Final = 300.0
"""Source: KubeletConfiguration ``nodeStatusReportFrequency``."""
JITTER_SHARE: Final = 0.2
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 7.0
"""Source: Kubernetes, Nodes: Lease updates are retried with back-off from 200 ms, at most 7 s."""


def retry_delay_s(failures: int, retry_after_s: float | None = None) -> float:
    """Return the seconds until the next attempt.

    Args:
        failures: failed attempts in a row, at least 1.
        retry_after_s: least time that the server stated; ``None`` without one.
    """
    delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
    return max(delay_s, retry_after_s or 0.0)


class ReportReason(StrEnum):
    """Reason for a status report, or for none."""

    FIRST = "first-report"
    CHANGED = "changed"
    HEARTBEAT = "heartbeat"
    UNCHANGED = "unchanged"


class ReportMemory(Record):
    """The last status that the API server accepted.

    Attributes:
        status: ``None`` before the first report.
        due_s: monotonic seconds at which an unchanged status is reported again.
    """

    status: NodeStatus | None = None
    due_s: float = 0.0


def report_reason(memory: ReportMemory, status: NodeStatus, now_s: float) -> ReportReason:
    """Return whether a status is to be reported, and the reason. Heartbeat times are no change."""
    if memory.status is None:
        return ReportReason.FIRST
    if _comparable(status) != _comparable(memory.status):
        return ReportReason.CHANGED
    return ReportReason.HEARTBEAT if now_s >= memory.due_s else ReportReason.UNCHANGED


def remember_report(status: NodeStatus, now_s: float, jitter: float) -> ReportMemory:
    """Return the memory after an accepted report.

    Args:
        status: the accepted status.
        now_s: monotonic seconds.
        jitter: 0 to 1; it spreads the reports of nodes that started together over the last minute of five.
    """
    return ReportMemory(status, now_s + STATUS_REPORT_S * (1 - JITTER_SHARE * jitter))


def complete_status(status: NodeStatus, memory: ReportMemory) -> NodeStatus:
    """Return the status with unread parts as last reported: a missing reading is not a change."""
    earlier = memory.status
    if earlier is None:
        return status
    info = status.node_info
    if info is not None and earlier.node_info is not None and not info.container_runtime_version:
        version = earlier.node_info.container_runtime_version
        info = msgspec.structs.replace(info, container_runtime_version=version)
    return msgspec.structs.replace(
        status,
        capacity={**earlier.capacity, **status.capacity},
        allocatable={**earlier.allocatable, **status.allocatable},
        images=status.images or earlier.images,
        node_info=info,
    )


def status_patch(status: NodeStatus) -> dict[str, Any]:
    """Return the strategic merge patch of a status; conditions of other owners are kept.

    Addresses are replaced, since their merge key, the type, is not unique on a node with two families.

    Source: kubelet ``nodeutil.PatchNodeStatus``.
    """
    fields: dict[str, Any] = msgspec.to_builtins(status)
    fields["addresses"] = [*fields.get("addresses", ()), {"$patch": "replace"}]
    return {"status": fields}


def renewed_lease(found: Lease | None, node: Node, now: datetime) -> Lease:
    """Return the Lease to be written.

    Args:
        found: the Lease as last read or written; ``None`` to create it.
        node: the Node object, which owns the Lease: it is deleted with it.
        now: time of the renewal, aware UTC.

    Source: kubelet ``nodelease``, recorded Lease.
    """
    spec = LeaseSpec(
        holder_identity=node.metadata.name,
        lease_duration_seconds=LEASE_DURATION_S,
        renew_time=now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    )
    owner = OwnerReference(api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid)
    metadata = ObjectMeta(
        name=node.metadata.name,
        namespace=LEASE_NAMESPACE,
        uid="" if found is None else found.metadata.uid,
        resource_version="" if found is None else found.metadata.resource_version,
        owner_references=(owner,),
    )
    return Lease(api_version="coordination.k8s.io/v1", kind="Lease", metadata=metadata, spec=spec)


class LeaseSighting(Record):
    """Renewal of a Lease that another process may hold, observed by this agent's own clock.

    Clocks of two machines differ, so the age of a renewal is not computed from its time.

    Attributes:
        renew_time: as read; empty without a Lease.
        since_s: monotonic seconds of the first observation of this time.
    """

    renew_time: str
    since_s: float


def sight_lease(before: LeaseSighting | None, lease: Lease | None, now_s: float) -> LeaseSighting:
    """Return the sighting after another observation of the Lease; ``lease`` is ``None`` for an absent one."""
    renew_time = "" if lease is None else lease.spec.renew_time
    if before is not None and before.renew_time == renew_time:
        return before
    return LeaseSighting(renew_time, now_s)


def is_lease_free(sighting: LeaseSighting, now_s: float) -> bool:
    """Return whether no other process renews a Lease: it was absent, or not renewed, for its duration.

    A kubelet creates its Lease about ten seconds after its Node object.
    """
    return now_s - sighting.since_s >= LEASE_DURATION_S


def _comparable(status: NodeStatus) -> NodeStatus:
    conditions: tuple[StatusCondition, ...] = tuple(
        msgspec.structs.replace(each, last_heartbeat_time=None) for each in status.conditions
    )
    return msgspec.structs.replace(status, conditions=conditions)
