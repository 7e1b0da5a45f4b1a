"""Pods of a node shutdown, and their outcomes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping


class ShutdownPod(Record):
    """One pod that runs at the start of a node shutdown.

    Attributes:
        priority: priority of the pod; ``None`` if unknown.
        priority_source: source of the priority, such as ``kubelet /pods``; empty without a priority.
        static: whether the pod is a static pod or the mirror pod of a static pod; see ``static_source``.
        node_critical: whether the pod is critical to the node; see ``node_critical_source``.
        labels: the pod's own labels.
        termination_grace_s: termination grace period in seconds; ``None`` if unknown.
        container_ids: ids of the running containers, in the order of their stop requests.

    Source: Kubernetes ``PodSpec`` (``priority``, ``terminationGracePeriodSeconds``), annotations of the sandbox.
    """

    uid: str
    namespace: str
    name: str
    priority: int | None = None
    priority_source: str = ""
    static: bool = False
    static_source: str = ""
    node_critical: bool = False
    node_critical_source: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    termination_grace_s: float | None = None
    container_ids: tuple[str, ...] = ()


class PodOutcome(StrEnum):
    """Progress of the stop of one pod. The values are part of the state on disk and of the shutdown history."""

    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the pod has stopped; a failed stop is retried while there is time."""
        return self in (PodOutcome.STOPPED, PodOutcome.KILLED)


class PodProgress(Record):
    """Recorded progress of one pod of a shutdown.

    Attributes:
        requested_at_ms: time of the stop request, in milliseconds since the shutdown began.
        detail: reason for a failure, empty otherwise.
    """

    outcome: PodOutcome
    requested_at_ms: int
    detail: str = ""
