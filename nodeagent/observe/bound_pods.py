"""Pods bound to this node, as listed by the kubelet, and the state of that list.

A kubelet that has just started answers with an empty list, then with static pods only until the API server answers.
Such a list is not distinguishable from a complete list, so that a missing pod does not count as deleted. Two facts are
evidence about completeness. First, the kubelet adds all pods of one source (its files, the API server) together: a list
with one pod of a source has all pods of that source. Second, a list is incomplete if the runtime has a sandbox of an
API server pod that the list lacks. The evidence does not prove a deletion, as only the API server can. The evidence
limits the time during which the images of a missing pod count as named.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.model.pod_list import Completeness, PodListReading, PodListSource
from nodeagent.model.pods import ENDED
from nodeagent.model.workload import ANNOTATION_SOURCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nodeagent.clock import Clock
    from nodeagent.kube.listing import PodLister
    from nodeagent.model import Sandbox
    from nodeagent.model.pods import PodSpec

    SandboxLister = Callable[[], Awaitable[tuple[Sandbox, ...]]]

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
    def configured(self) -> bool:
        """Whether a kubelet is configured."""
        return self._kubelet is not None

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
