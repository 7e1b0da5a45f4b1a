"""Latest pod definitions from the API server, the kubelet and static manifests.

The pods of a current watch replace the kubelet's list. The pods of an interrupted watch complement the kubelet's list,
since apart from in-place resizes the definition of a pod is immutable.

Pods bound to this node, as listed by the kubelet, and the state of that list.

A kubelet that has just started answers with an empty list, then with static pods only until the API server answers.
Such a list is not distinguishable from a complete list, so that a missing pod does not count as deleted. Two facts are
evidence about completeness. First, the kubelet adds all pods of one source (its files, the API server) together: a list
with one pod of a source has all pods of that source. Second, a list is incomplete if the runtime has a sandbox of an
API server pod that the list lacks. The evidence does not prove a deletion, as only the API server can. The evidence
limits the time during which the images of a missing pod count as named.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.model.pods import ENDED, Completeness, PodListReading, PodListSource, PodSpec
from nodeagent.model.runtime import ANNOTATION_SOURCE, Sandbox
from nodeagent.pods.plan.facts import SpecIndex

if TYPE_CHECKING:
    from nodeagent.kube.kubelet_pods import KubeletListing, Manifests, PodLister
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.units import Clock

SandboxLister = Callable[[], Awaitable[tuple[Sandbox, ...]]]


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


MAX_AGE_S: Final = 1.0
VANISHED_S: Final = 600.0
"""Seconds after which the images of a pod no longer count as named, if lists with pods of its source lack the pod."""

_API: Final = "api"
_SHOWN: Final = 3


class BoundPods:
    """Reader of the kubelet's pod list; concurrent callers share one reading.

    Attributes:
        state: the state of the list, for display; ``None`` without a kubelet.
    """

    def __init__(
        self,
        clock: Clock,
        kubelet: PodLister | None = None,
        *,
        address: str = "",
        list_sandboxes: SandboxLister | None = None,
    ) -> None:
        """Create a reader without a list.

        Args:
            clock: dates the readings.
            kubelet: the kubelet's list; ``None`` without a configured kubelet.
            address: address of the list, for display.
            list_sandboxes: returns the runtime's sandboxes, as evidence of an incomplete list; ``None`` for no
                comparison.
        """
        self._clock = clock
        self._kubelet = kubelet
        self._list_sandboxes = list_sandboxes
        self._lock = asyncio.Lock()
        self._read_s: float | None = None
        self._bound: dict[str, tuple[PodSpec, float | None]] | None = None
        self._listed: frozenset[str] = frozenset()
        self.state = None if kubelet is None else PodListReading(PodListSource.KUBELET, address)

    @property
    def has_list(self) -> bool:
        """Whether a list has been read."""
        return self._bound is not None

    def pods(self) -> Iterator[tuple[PodSpec, bool]]:
        """Yield each pod that has not ended, and whether the latest list contains the pod."""
        for key, (spec, _) in (self._bound or {}).items():
            if spec.phase not in ENDED:
                yield spec, key in self._listed

    async def read(self, *, max_age_s: float = MAX_AGE_S) -> PodListReading | None:
        """Return the state of the list after a reading that is at most ``max_age_s`` old; ``None`` without a kubelet.

        After a failure the previous list is kept, and the state has the error.
        """
        async with self._lock:
            now_s = self._clock.monotonic_s()
            if self._kubelet is not None and (self._read_s is None or not 0 <= now_s - self._read_s < max_age_s):
                self.state = await self._read(self._kubelet)
                self._read_s = self._clock.monotonic_s()
            return self.state

    async def _read(self, kubelet: PodLister) -> PodListReading:
        before = self.state or PodListReading(PodListSource.KUBELET)
        try:
            pods = await kubelet.read()
        except ObservationError as error:
            return before.with_error(str(error))
        remembered = self._remember(pods)
        from_api_server = any(_source(each) == _API for each in pods)
        completeness, detail = Completeness.SOURCE_LISTED, ""
        if not from_api_server:
            completeness, detail = await self._compare(remembered)
        return PodListReading(
            PodListSource.KUBELET, before.address, self._clock.now(), len(pods), completeness, detail=detail
        )

    def _remember(self, pods: tuple[PodSpec, ...]) -> frozenset[str]:
        """Store the listed pods and the missing pods that may still be bound; return the UIDs of all stored pods."""
        now_s = self._clock.monotonic_s()
        listed = {each.uid or f"{each.namespace}/{each.name}/{number}": each for number, each in enumerate(pods)}
        names = {(each.namespace, each.name) for each in pods}
        sources = {_source(each) for each in pods}
        kept: dict[str, tuple[PodSpec, float | None]] = {}
        for key, (spec, missing_s) in (self._bound or {}).items():
            if key in listed or spec.deleting or spec.phase in ENDED or (spec.namespace, spec.name) in names:
                continue
            since_s = None
            if _source(spec) in sources:
                since_s = now_s if missing_s is None else missing_s
            if since_s is None or now_s - since_s < VANISHED_S:
                kept[key] = spec, since_s
        self._bound = kept | {key: (each, None) for key, each in listed.items()}
        self._listed = frozenset(listed)
        return frozenset(self._bound)

    async def _compare(self, known: frozenset[str]) -> tuple[Completeness, str]:
        """Return the completeness of a list without API server pods, and the evidence, by comparison with sandboxes."""
        if self._list_sandboxes is None:
            return Completeness.UNCONFIRMED, "no pod of the API server in the list"
        try:
            sandboxes = await self._list_sandboxes()
        except NodeAgentError as error:
            return Completeness.PARTIAL, f"no pod of the API server in the list; cannot list sandboxes: {error}"
        missing = sorted({f"{each.namespace}/{each.name}" for each in sandboxes if _is_missing(each, known)})
        if not missing:
            return Completeness.UNCONFIRMED, "no pod of the API server in the list"
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return (
            Completeness.PARTIAL,
            f"no pod of the API server in the list, but the runtime has {', '.join(missing[:_SHOWN])}{more}",
        )


def _is_missing(sandbox: Sandbox, known: frozenset[str]) -> bool:
    return sandbox.from_api_server and bool(sandbox.uid) and sandbox.uid not in known


def _source(spec: PodSpec) -> str:
    """Return the configuration source of a pod; empty if unknown.

    Source: kubelet ``config.source``: ``api``, ``file`` or ``http``.
    """
    return spec.annotations.get(ANNOTATION_SOURCE, "")
