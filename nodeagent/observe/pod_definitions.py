"""Latest pod definitions from the API server, the kubelet and static manifests.

The pods of a current watch replace the kubelet's list. The pods of an interrupted watch complement the kubelet's list,
since apart from in-place resizes the definition of a pod is immutable.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.model.pod_list import PodListSource
from nodeagent.plan.pods.definitions import SpecIndex

if TYPE_CHECKING:
    from nodeagent.kube.listing import KubeletListing
    from nodeagent.kube.manifests import Manifests
    from nodeagent.model.pods import PodSpec
    from nodeagent.observe.watched_pods import WatchedPods

_MANIFESTS_S: Final = 5.0


class ManifestLister(Protocol):
    """Source of the static pods."""

    def read(self) -> Manifests:
        """Return the pods defined by manifests. Blocks."""


class PodDefinitions:
    """Reader of pod definitions.

    Attributes:
        has_kubelet: whether a kubelet is configured.
    """

    def __init__(
        self,
        listing: KubeletListing,
        manifests: ManifestLister | None,
        node_name: str,
        watched: WatchedPods | None = None,
    ) -> None:
        """Create the reader.

        Args:
            listing: the kubelet's list.
            manifests: source of the static pods; ``None`` without static pods.
            node_name: suffix of static pods' names; empty for the host name.
            watched: the watched pods of the API server; ``None`` without a watch.
        """
        self._watched = watched
        self.has_kubelet = listing.configured
        self._listing = listing
        self._static_pods = _StaticPods(manifests)
        self._node_name = node_name or socket.gethostname()

    async def read_if_due(self, warnings: list[str]) -> None:
        """Read the manifests; without a current watch, also read a kubelet list that exceeds the maximum age."""
        if self._current is not None:
            await self._static_pods.read(warnings)
        else:
            await asyncio.gather(self._listing.read_if_due(), self._static_pods.read(warnings))

    async def read_for(self, uids: set[str]) -> None:
        """Read the kubelet's list if the list lacks one of these pods and the watch is not current."""
        if self._current is None:
            await self._listing.read_for(uids)

    def index(self, warnings: list[str]) -> SpecIndex:
        """Return an index of the definitions; add warnings about failed, outdated and malformed lists."""
        watched = self._watched
        if watched is not None:
            watched.warn(warnings)
        if self._current is not None:
            return SpecIndex(
                self._current.pods,
                self._static_pods.specs,
                node_name=self._node_name,
                complete=self._current.is_complete,
                source=PodListSource.API_SERVER,
            )
        self._listing.warn(warnings)
        listed = self._listing.pods
        uids = {each.uid for each in listed or ()}
        earlier = () if watched is None else tuple(each for each in watched.pods if each.uid not in uids)
        return SpecIndex(
            None if listed is None and not earlier else (*(listed or ()), *earlier),
            self._static_pods.specs,
            node_name=self._node_name,
            complete=self._listing.complete,
        )

    @property
    def _current(self) -> WatchedPods | None:
        """The watch if its pods are current; ``None`` otherwise."""
        return self._watched if self._watched is not None and self._watched.is_current else None

    async def close(self) -> None:
        """Cancel a pending read of the kubelet's list."""
        await self._listing.close()


class _StaticPods:
    """Cache of the static pods of the last successful reading."""

    def __init__(self, manifests: ManifestLister | None) -> None:
        self._manifests = manifests
        self.specs: tuple[PodSpec, ...] = ()

    async def read(self, warnings: list[str]) -> None:
        """Read the manifests in a thread; keep the previous pods after a timeout."""
        if self._manifests is None:
            return
        try:
            async with asyncio.timeout(_MANIFESTS_S):
                found = await asyncio.to_thread(self._manifests.read)
        except TimeoutError:
            warnings.append(f"cannot read static manifests: timeout after {_MANIFESTS_S:g} s; using the previous ones")
            return
        self.specs = found.pods
        warnings += found.warnings
