"""Lists of the pods bound to this node, from sources other than the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PodListSource(StrEnum):
    """The sources of a pod list."""

    API_SERVER = "API server"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True)
class PodList:
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
