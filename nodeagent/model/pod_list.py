"""Lists of the pods bound to this node, from sources other than the runtime."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from datetime import datetime


class PodListSource(StrEnum):
    """The sources of a pod list."""

    API_SERVER = "API server"
    KUBELET = "kubelet"


class PodList(Record):
    """A list of the pods bound to this node.

    A listed pod exists. A missing pod is deleted only if the list proves that, see ``proves_absence``: a kubelet that
    has just started answers with an empty list, then with its static pods, and while the API server is away it has
    nothing else. Nothing in those answers distinguishes them from a complete list.

    Attributes:
        uids: UIDs of the pods, and the configuration hashes of mirror pods, which are the UIDs of static pods.
        synced: whether the source has all pods and is connected: for a watch of the API server, that its initial list
            is complete and the watch is not interrupted.
        deleted: UIDs of pods whose deletion the source has reported.
        listed_at: time, by the wall clock of this node, at which a list that is consistent with all earlier writes was
            requested; ``None`` without one.
    """

    source: PodListSource
    uids: frozenset[str]
    synced: bool = False
    deleted: frozenset[str] = frozenset()
    listed_at: datetime | None = None

    @property
    def proves_absence(self) -> bool:
        """Whether a pod of the API server that is missing in this list is deleted."""
        return self.source is PodListSource.API_SERVER and self.synced

    def lacks(self, uid: str, active_at: datetime | None) -> bool:
        """Return whether a pod of the API server is proven to be deleted.

        Either its deletion was reported, or it had been bound to this node before the list was requested, which then
        has it unless it is deleted. A newer pod may not have reached the watch yet.

        Args:
            uid: of the pod.
            active_at: latest trace of the pod on this node, such as the creation of its sandbox; ``None`` if unknown.
        """
        if not self.proves_absence or uid in self.uids:
            return False
        listed_before = self.listed_at is None or active_at is None or active_at >= self.listed_at
        return uid in self.deleted or not listed_before


class Completeness(StrEnum):
    """Evidence on the completeness of a pod list; part of the JSON output. Only ``SYNCED`` can prove a deletion.

    Attributes:
        UNKNOWN: no list has been read.
        SOURCE_LISTED: it has pods of the API server, which the kubelet adds all at once.
        UNCONFIRMED: it has none, and neither has the runtime.
        PARTIAL: it has none, but the runtime has.
        SYNCED: a watch of the API server has all pods, and is connected.
        OUTDATED: a watch of the API server may lack pods; its pods remain facts.
    """

    UNKNOWN = "unknown"
    SOURCE_LISTED = "source-listed"
    UNCONFIRMED = "unconfirmed"
    PARTIAL = "partial"
    SYNCED = "synced"
    OUTDATED = "outdated"


class PodListReading(Record):
    """State of a pod list.

    Attributes:
        address: the list's; empty if unknown.
        observed_at: time of the last successful reading; ``None`` before the first.
        pods: number of listed pods.
        detail: evidence against completeness, for display; empty without any.
        error: cause of the last failure; empty after a success.
    """

    source: PodListSource
    address: str = ""
    observed_at: datetime | None = None
    pods: int = 0
    completeness: Completeness = Completeness.UNKNOWN
    error: str = ""
    detail: str = ""

    def with_error(self, error: str) -> PodListReading:
        """Return the state after a failed reading; the previous list remains in use."""
        return replace(self, error=error)
