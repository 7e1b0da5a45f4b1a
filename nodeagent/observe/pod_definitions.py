"""Pod definitions: the kubelet's pod list and the manifests of static pods, each as read last."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.plan.pods.definitions import SpecIndex

if TYPE_CHECKING:
    from nodeagent.kube.listing import KubeletListing
    from nodeagent.kube.manifests import Manifests
    from nodeagent.model.pods import PodSpec

_MANIFESTS_S: Final = 5.0


class ManifestLister(Protocol):
    """The static pods' manifests."""

    def read(self) -> Manifests:
        """Return the defined pods; blocking."""


class PodDefinitions:
    """Reads the definitions of pods.

    Attributes:
        has_kubelet: whether a kubelet is configured.
    """

    def __init__(self, listing: KubeletListing, manifests: ManifestLister | None, node_name: str) -> None:
        """Create the reader; ``node_name`` is the suffix of static pods' names, by default the host name."""
        self.has_kubelet = listing.configured
        self._listing = listing
        self._static_pods = _StaticPods(manifests)
        self._node_name = node_name or socket.gethostname()

    async def read_if_due(self, warnings: list[str]) -> None:
        """Read the manifests, and the kubelet's list if it exceeds its maximum age."""
        await asyncio.gather(self._listing.read_if_due(), self._static_pods.read(warnings))

    async def read_for(self, uids: set[str]) -> None:
        """Read the kubelet's list if it lacks one of these pods."""
        await self._listing.read_for(uids)

    def index(self, warnings: list[str]) -> SpecIndex:
        """Return the definitions; add the warnings about the kubelet's list."""
        self._listing.warn(warnings)
        return SpecIndex(
            self._listing.pods, self._static_pods.specs, node_name=self._node_name, complete=self._listing.complete
        )

    async def close(self) -> None:
        """Cancel a pending read of the kubelet's list."""
        await self._listing.close()


class _StaticPods:
    """Static pods as read last."""

    def __init__(self, manifests: ManifestLister | None) -> None:
        self._manifests = manifests
        self.specs: tuple[PodSpec, ...] = ()

    async def read(self, warnings: list[str]) -> None:
        """Read the manifests in a thread; keep the previous ones after a timeout."""
        if self._manifests is None:
            return
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._manifests.read), _MANIFESTS_S)
        except TimeoutError:
            warnings.append(f"cannot read static manifests: timeout after {_MANIFESTS_S:g} s; using the previous ones")
            return
        self.specs = found.pods
        warnings += found.warnings
