"""What a graceful shutdown has to know of the pods on the node, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ShutdownPod:
    """One pod that runs when the node goes down.

    Attributes:
        priority: ``None`` where no source told it.
        priority_source: who told the priority, in words, such as ``kubelet /pods``; empty where nobody did.
        static: whether it comes from a file or a mirror of one; ``static_source`` says who told so.
        node_critical: whether it is critical to the node; ``node_critical_source`` says who told so.
        labels: the pod's own labels.
        termination_grace_s: what the pod asks for, in seconds; ``None`` where not known.
        container_ids: its running containers, in the order in which they are to be told.

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
    """How far a pod has come. The values are part of the state on disk and of the history."""

    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be done; a failed stop is tried again as long as there is time."""
        return self in (PodOutcome.STOPPED, PodOutcome.KILLED)


@dataclass(frozen=True, slots=True)
class PodProgress:
    """What is remembered of one pod while the node goes down.

    Attributes:
        requested_at_ms: when it was told to stop, in milliseconds since the shutdown began.
        detail: what went wrong, empty otherwise.
    """

    outcome: PodOutcome
    requested_at_ms: int
    detail: str = ""
