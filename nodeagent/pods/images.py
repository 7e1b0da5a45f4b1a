"""Images named by the pods of this node, in static manifests, the kubelet's list and the API server's watch.

The runtime reports no use of an image before a container exists. A pod needs its images soon if the pod was just bound,
waits for its init containers, or has a new static manifest. With the pull policy ``Never`` a removed image is never
pulled again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.kube.kubelet_pods import KubeletPods, pods_address
from nodeagent.model.node import NO_POD_IMAGES, PodImages
from nodeagent.model.pods import ENDED, Completeness, PodSpec
from nodeagent.pods.sources import MAX_AGE_S, BoundPods, ManifestLister, SandboxLister

if TYPE_CHECKING:
    from nodeagent.pods.settings import KubeletSettings
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.units import Clock

_MANIFESTS_S: Final = 5.0
_Named = defaultdict[str, defaultdict[str, set[str]]]
"""Sources by pod name by image reference: a pod in several lists counts once."""


async def no_pod_images() -> PodImages:
    """Return the result without images, for a node without pod lists."""
    return NO_POD_IMAGES


@dataclass(eq=False)
class PodImageReader:
    """Reader of the images named by pods; concurrent callers share one reading.

    Attributes:
        clock: dates the readings.
        bound: the pods bound to this node.
        manifests: source of the static pods; ``None`` without static pods.
        watched: the watched pods of the API server; ``None`` without a watch.
    """

    clock: Clock
    _: KW_ONLY
    bound: BoundPods
    manifests: ManifestLister | None = None
    watched: WatchedPods | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _static: tuple[PodSpec, ...] = field(default=(), init=False)
    _static_read: bool = field(default=False, init=False)
    _read_s: float | None = field(default=None, init=False)
    _latest: PodImages = field(default=NO_POD_IMAGES, init=False)

    async def read(self) -> PodImages:
        """Return the images named by pods, from a reading within the last second.

        After a failed reading the previous list is used, with a warning. The result has an error without a previous
        list, and while the list lacks pods that have a sandbox and were never listed.
        """
        async with self._lock:
            now_s = self.clock.monotonic_s()
            if self._read_s is None or not 0 <= now_s - self._read_s < MAX_AGE_S:
                self._latest = await self._read()
                self._read_s = self.clock.monotonic_s()
            return self._latest

    async def _read(self) -> PodImages:
        warnings: list[str] = []
        errors = [each for each in await asyncio.gather(self._list(warnings), self._list_static(warnings)) if each]
        named: _Named = defaultdict(lambda: defaultdict(set))
        _add(named, self._static, "static manifest")
        for spec, is_listed in self.bound.pods():
            _add(named, (spec,), "kubelet" if is_listed else "earlier list of the kubelet")
        if self.watched is not None:
            source = "API server"
            if outdated := self.watched.outdated:
                source = "earlier list of the API server"
                warnings.append(outdated)
            _add(named, (each for each in self.watched.pods if each.phase not in ENDED), source)
        sorted_names = {
            reference: tuple(f"{pod} ({', '.join(sorted(sources))})" for pod, sources in sorted(pods.items()))
            for reference, pods in named.items()
        }
        return PodImages(sorted_names, "; ".join(errors), tuple(warnings))

    async def _list(self, warnings: list[str]) -> str:
        """Read the kubelet's list; return the error without any list, or the evidence that the list lacks pods."""
        state = await self.bound.read()
        if state is None:
            return ""
        if state.error:
            problem = f"cannot list the pods of this node: {state.error}"
            if not self.bound.has_list:
                return problem
            warnings.append(f"{problem}; images of pods bound since the previous list are not kept")
        if state.completeness is Completeness.PARTIAL:
            return f"the kubelet's list is incomplete: {state.detail}"
        return ""

    async def _list_static(self, warnings: list[str]) -> str:
        """Read the manifests; return the error of a failure without a previous reading, otherwise an empty string."""
        if self.manifests is None:
            return ""
        try:
            async with asyncio.timeout(_MANIFESTS_S):
                found = await asyncio.to_thread(self.manifests.read)
        except TimeoutError:
            problem = f"cannot read static manifests: timeout after {_MANIFESTS_S:g} s"
            if not self._static_read:
                return problem
            warnings.append(f"{problem}; using the previous ones")
            return ""
        if found.error and not self._static_read:
            return found.error
        self._static, self._static_read = (*found.pods, *found.previous), True
        warnings += found.warnings
        return ""


def make_bound_pods(settings: KubeletSettings, clock: Clock, list_sandboxes: SandboxLister) -> BoundPods:
    """Return the reader of the kubelet's list; without a configured kubelet the reader has no pods."""
    access = settings.access
    if access is None:
        return BoundPods(clock)
    from nodeagent.host.sockets import port_owners  # noqa: PLC0415 - loaded only with a configured kubelet

    return BoundPods(
        clock, KubeletPods(access, port_owners), address=pods_address(access), list_sandboxes=list_sandboxes
    )


def _add(named: _Named, pods: Iterable[PodSpec], source: str) -> None:
    for pod in pods:
        for reference in pod.images:
            named[reference][f"{pod.namespace}/{pod.name}"].add(source)
