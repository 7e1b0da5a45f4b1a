"""Node heartbeats: Lease renewal, node status reports, and the back-off after failures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from nodeagent.model.clock import not_before
from nodeagent.model.kubernetes import (
    Lease,
    LeaseSpec,
    Node,
    NodeAddress,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    StatusCondition,
)
from nodeagent.record import Record

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_INTERVAL_S: Final = 11.2
"""Lease renewal interval in seconds; above 10 s, to average at most one request in 10 s with status and conditions.

Source: the kubelet renews every 10 to 10.4 s.
"""
LEASE_DURATION_S: Final = 40
"""Lease duration in seconds. Source: KubeletConfiguration ``nodeLeaseDurationSeconds``."""
STATUS_POLL_S: Final = 10.0
"""Seconds between readings of the node status. Source: KubeletConfiguration ``nodeStatusUpdateFrequency``."""
STATUS_REPORT_S: Final = 300.0
"""Seconds between reports of an unchanged status. Source: KubeletConfiguration ``nodeStatusReportFrequency``."""
JITTER_SHARE: Final = 0.2
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 7.0
"""Maximum retry delay in seconds. Source: Kubernetes, Nodes: Lease updates are retried after 200 ms to 7 s."""


def retry_delay_s(failures: int, retry_after_s: float | None = None) -> float:
    """Return the seconds until the next attempt after failed requests, with exponential back-off.

    Args:
        failures: consecutive failed attempts, at least 1.
        retry_after_s: seconds in the ``Retry-After`` header; ``None`` without the header.
    """
    delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
    return max(delay_s, retry_after_s or 0.0)


class ReportReason(StrEnum):
    """Reason to send or skip a node status report."""

    FIRST = "first-report"
    CHANGED = "changed"
    HEARTBEAT = "heartbeat"
    UNCHANGED = "unchanged"


class ReportMemory(Record):
    """Last node status that the API server accepted.

    Attributes:
        status: the accepted status; ``None`` before the first report.
        due_s: monotonic seconds at which an unchanged status is reported again.
    """

    status: NodeStatus | None = None
    due_s: float = 0.0


def report_reason(memory: ReportMemory, status: NodeStatus, now_s: float) -> ReportReason:
    """Return the reason to report a status; ``UNCHANGED`` to skip the report. Heartbeat times are ignored."""
    if memory.status is None:
        return ReportReason.FIRST
    if _comparable(status) != _comparable(memory.status):
        return ReportReason.CHANGED
    return ReportReason.HEARTBEAT if now_s >= memory.due_s else ReportReason.UNCHANGED


def remember_report(status: NodeStatus, now_s: float, jitter: float) -> ReportMemory:
    """Return the record of an accepted status report, with the time of the next heartbeat.

    Args:
        status: the accepted status.
        now_s: current time in monotonic seconds.
        jitter: random number from 0 to 1, which spreads the reports of nodes started together over one minute.
    """
    return ReportMemory(status, now_s + STATUS_REPORT_S * (1 - JITTER_SHARE * jitter))


def complete_status(status: NodeStatus, memory: ReportMemory) -> NodeStatus:
    """Return the status with missing readings filled from the last report, since a missing reading is not a change."""
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


_OBSERVED_ADDRESSES: Final = frozenset({"InternalIP", "Hostname"})


def status_patch(status: NodeStatus, found: Iterable[NodeAddress]) -> dict[str, Any]:
    """Return the strategic merge patch of a node status; conditions and addresses of other owners are kept.

    The list of addresses is replaced, since its merge key, the type, is not unique on a dual-stack node. The addresses
    of types that the agent neither observes nor has configured are those of another owner, such as the external
    addresses of a cloud controller.

    Args:
        status: the status of the agent.
        found: the addresses of the Node object.

    Source: kubelet ``nodeutil.PatchNodeStatus``.
    """
    own = _OBSERVED_ADDRESSES.union(each.type for each in status.addresses)
    addresses = (*status.addresses, *(each for each in found if each.type not in own))
    fields: dict[str, Any] = msgspec.to_builtins(status)
    fields["addresses"] = [*msgspec.to_builtins(addresses), {"$patch": "replace"}]
    return {"status": fields}


def renewed_lease(found: Lease | None, node: Node, now: datetime, written: str = "") -> Lease:
    """Return the Lease to create or update, with a renewal time later than the found and the last written one.

    The node controller counts only a later renewal time as a heartbeat.

    Args:
        found: the Lease as last read or written; ``None`` to create it.
        node: the Node object, the owner of the Lease: the Lease is deleted with the node.
        now: time of the renewal, aware UTC.
        written: renewal time that was written last, possibly without an answer; empty before the first renewal.

    Source: kubelet ``nodelease``, recorded Lease; node lifecycle controller, ``tryUpdateNodeHealth``.
    """
    for earlier in (written, "" if found is None else found.spec.renew_time):
        now = not_before(now, _following(earlier))
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


def _following(renew_time: str) -> datetime | None:
    """Return the shortest time after a renewal time; ``None`` for an empty or invalid one."""
    try:
        found = datetime.fromisoformat(renew_time) + timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else None


class LeaseSighting(Record):
    """Last change of a Lease that another process may renew, by the monotonic clock of this machine.

    Clocks of two machines differ, so the age of a renewal is not computed from its renewal time.

    Attributes:
        renew_time: renewal time as read from the Lease; empty without a Lease.
        since_s: time of the first observation of ``renew_time``, in monotonic seconds.
    """

    renew_time: str
    since_s: float


def sight_lease(before: LeaseSighting | None, lease: Lease | None, now_s: float) -> LeaseSighting:
    """Return the observation updated with a reading of the Lease; ``lease`` is ``None`` if the Lease does not exist."""
    renew_time = "" if lease is None else lease.spec.renew_time
    if before is not None and before.renew_time == renew_time:
        return before
    return LeaseSighting(renew_time, now_s)


def is_lease_free(sighting: LeaseSighting, now_s: float) -> bool:
    """Return whether no other process renews a Lease: the Lease was absent or not renewed for the Lease duration.

    An absent Lease is also observed for this time: a kubelet creates its Lease about 10 s after its Node object.
    """
    return now_s - sighting.since_s >= LEASE_DURATION_S


def _comparable(status: NodeStatus) -> NodeStatus:
    conditions: tuple[StatusCondition, ...] = tuple(
        msgspec.structs.replace(each, last_heartbeat_time=None) for each in status.conditions
    )
    return msgspec.structs.replace(status, conditions=conditions)
