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
    """

    source: PodListSource
    uids: frozenset[str]
    synced: bool = False

    @property
    def proves_absence(self) -> bool:
        """Whether a pod of the API server that is missing in this list is deleted."""
        return self.source is PodListSource.API_SERVER and self.synced


class Completeness(StrEnum):
    """Evidence on the completeness of a pod list; part of the JSON output. No value proves a deletion.

    Attributes:
        UNKNOWN: no list has been read.
        SOURCE_LISTED: it has pods of the API server, which the kubelet adds all at once.
        UNCONFIRMED: it has none, and neither has the runtime.
        PARTIAL: it has none, but the runtime has.
    """

    UNKNOWN = "unknown"
    SOURCE_LISTED = "source-listed"
    UNCONFIRMED = "unconfirmed"
    PARTIAL = "partial"


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
