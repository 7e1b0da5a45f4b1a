"""Lists of the pods bound to this node, from sources other than the runtime."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from datetime import datetime


class PodListSource(StrEnum):
    """Source of a pod list."""

    API_SERVER = "API server"
    KUBELET = "kubelet"


class PodList(Record):
    """A list of the pods bound to this node.

    A listed pod exists. A missing pod counts as deleted only if the list proves the deletion (``proves_absence``). A
    kubelet that has just started answers with an empty list, then with static pods only until the API server answers.
    These incomplete lists are not distinguishable from a complete list.

    Attributes:
        uids: UIDs of the pods, and the configuration hashes of mirror pods, which are the UIDs of static pods.
        synced: whether the source has all pods and is connected: the initial list of an API server watch is complete,
            and the watch is not interrupted.
        deleted: UIDs of pods whose deletion the source has reported.
        listed_at: request time, by the wall clock of this node, of a list that includes all earlier writes; ``None``
            without such a list.
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

        The proof is either a reported deletion, or the absence of the pod from a list that was requested after the
        binding of the pod to this node. A newer pod may not have reached the watch yet.

        Args:
            uid: UID of the pod.
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
        SOURCE_LISTED: the list has pods of the API server, which the kubelet adds all together.
        UNCONFIRMED: neither the list nor the runtime has pods of the API server.
        PARTIAL: the list has no pods of the API server, but the runtime has, or could not be compared.
        SYNCED: a watch of the API server has all pods, and is connected.
        OUTDATED: a watch of the API server may lack pods; the listed pods remain valid.
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
        address: address of the list; empty if unknown.
        observed_at: time of the last successful reading; ``None`` before the first.
        pods: number of listed pods.
        detail: evidence against completeness, for display; empty without evidence.
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
