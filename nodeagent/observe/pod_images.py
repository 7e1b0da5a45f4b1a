"""Images named by the pods of this node: static manifests, and the kubelet's list of pods bound to it.

The runtime knows an image only as used once a container exists. A pod that was just bound, that waits for its init
containers, or whose static manifest was just written needs its images next, and with the pull policy ``Never`` a
removed image is never pulled again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.host.port_owners import port_owners
from nodeagent.kube.kubelet_pods import KubeletPods
from nodeagent.kube.manifests import ManifestReader
from nodeagent.model import NO_POD_IMAGES, PodImages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.clock import Clock
    from nodeagent.config.eviction import KubeletSettings
    from nodeagent.kube.listing import PodLister
    from nodeagent.model.pods import PodSpec
    from nodeagent.observe.pods import ManifestLister

_MAX_AGE_S: Final = 1.0
_MANIFESTS_S: Final = 5.0
_ENDED: Final = frozenset({"Succeeded", "Failed"})
VANISHED_S: Final = 600.0
"""Time for which the images of a pod that vanished from the kubelet's list remain named.

A starting kubelet lists no pods at first, then static pods only, and so it does as long as the API server is away. A
deleted pod is normally listed as terminating before it vanishes.
"""


async def no_pod_images() -> PodImages:
    """Return no images, for a node without lists of pods."""
    return NO_POD_IMAGES


class PodImageReader:
    """Reads the images named by pods; concurrent readings share one."""

    def __init__(
        self, clock: Clock, *, kubelet: PodLister | None = None, manifests: ManifestLister | None = None
    ) -> None:
        """Create a reader; without ``kubelet`` and ``manifests`` no image is named by a pod."""
        self._clock = clock
        self._kubelet = kubelet
        self._manifests = manifests
        self._lock = asyncio.Lock()
        self._bound: dict[str, tuple[PodSpec, float]] | None = None
        self._static: tuple[PodSpec, ...] = ()
        self._static_read = False
        self._listed_s = 0.0
        self._read_s: float | None = None
        self._latest = NO_POD_IMAGES

    async def read(self) -> PodImages:
        """Return the images, read within the last second.

        A failed reading uses the previous list, with a warning. Without a previous list the result has an error.
        """
        async with self._lock:
            now_s = self._clock.monotonic_s()
            if self._read_s is None or not 0 <= now_s - self._read_s < _MAX_AGE_S:
                self._latest = await self._read()
                self._read_s = self._clock.monotonic_s()
            return self._latest

    async def _read(self) -> PodImages:
        warnings: list[str] = []
        errors = [each for each in await asyncio.gather(self._list(warnings), self._list_static(warnings)) if each]
        named: defaultdict[str, set[str]] = defaultdict(set)
        _add(named, self._static, "static manifest")
        for spec, listed_s in (self._bound or {}).values():
            if spec.phase not in _ENDED:
                _add(named, (spec,), "kubelet" if listed_s == self._listed_s else "earlier list of the kubelet")
        sorted_names = {reference: tuple(sorted(pods)) for reference, pods in named.items()}
        return PodImages(sorted_names, "; ".join(errors), tuple(warnings))

    async def _list(self, warnings: list[str]) -> str:
        """Read the kubelet's list; return the error if there is no list."""
        if self._kubelet is None:
            return ""
        try:
            self._remember(await self._kubelet.read())
        except ObservationError as error:
            problem = f"cannot list the pods of this node: {error}"
            if self._bound is None:
                return problem
            warnings.append(f"{problem}; images of pods bound since the previous list are not kept")
        return ""

    def _remember(self, pods: Iterable[PodSpec]) -> None:
        """Store the listed pods, and those that vanished without having been listed as ended or terminating."""
        self._listed_s = self._clock.monotonic_s()
        earlier = {
            key: (spec, listed_s)
            for key, (spec, listed_s) in (self._bound or {}).items()
            if not spec.deleting and spec.phase not in _ENDED and self._listed_s - listed_s < VANISHED_S
        }
        self._bound = earlier | {
            each.uid or f"{each.namespace}/{each.name}/{number}": (each, self._listed_s)
            for number, each in enumerate(pods)
        }

    async def _list_static(self, warnings: list[str]) -> str:
        """Read the manifests; return the error if there is no previous reading."""
        if self._manifests is None:
            return ""
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._manifests.read), _MANIFESTS_S)
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


def make_pod_image_reader(settings: KubeletSettings, clock: Clock) -> PodImageReader:
    """Return the reader of the configured sources."""
    kubelet = KubeletPods(settings.access, port_owners) if settings.access is not None else None
    manifests = ManifestReader(settings.manifests) if settings.manifests is not None else None
    return PodImageReader(clock, kubelet=kubelet, manifests=manifests)


def _add(named: defaultdict[str, set[str]], pods: Iterable[PodSpec], source: str) -> None:
    for pod in pods:
        for reference in pod.images:
            named[reference].add(f"{pod.namespace}/{pod.name} ({source})")
