"""The pod reader: facts, usage and handles of the pods on the node.

A pass fails if one of the runtime's two lists fails. Any other failure causes a warning and unknown facts, and a pod
with unknown facts is not evicted.

The CRI status of sandboxes and containers is read once for each object: the cgroup parent and the log directory of a
sandbox never change. The traits of a container change only by a resize, after which :meth:`RuntimeDetails.expire`
causes another read. A pass on an idle node therefore requires only two list calls of the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.errors import RuntimeNotFoundError, RuntimeRequestError
from nodeagent.guarded_call import compute
from nodeagent.host.kubelet_traces import KUBELET_ROOT
from nodeagent.host.sockets import port_owners
from nodeagent.kube.kubelet_pods import KubeletListing, KubeletPods, ManifestReader, PodLister
from nodeagent.model.node import Role
from nodeagent.model.pods import ContainerTraits, PodHandle, PodInventory, PodReading, RuntimePod
from nodeagent.model.pressure import LayerUsage, Moment
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.pods import usage as pod_usage
from nodeagent.pods.plan.facts import group_pods, ignored_marks, merge_facts, qos_of_cgroup, shutdown_pods
from nodeagent.pods.sources import PodDefinitions
from nodeagent.record import Record, replace
from nodeagent.runtime.connection import gather_all, run_bounded
from nodeagent.runtime.lists import is_too_large

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import KubeletAccess
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.runtime.cri import ContainerDetails, ContainerUsage, CriClient, SandboxDetails
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

_CONCURRENCY: Final = 16
_WITHIN_S: Final = 10.0
_MAYBE_RUNNING: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class RuntimeDetails:
    """Cache of the status of active sandboxes and their containers, by id."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._sandboxes: dict[str, SandboxDetails] = {}
        self._traits: dict[str, ContainerTraits] = {}

    @property
    def traits(self) -> Mapping[str, ContainerTraits]:
        """Traits of the containers whose status was read, by container id."""
        return self._traits

    @property
    def cgroup_parents(self) -> dict[str, str]:
        """Cgroup of the pod by sandbox id; an empty string if unknown."""
        return {sandbox_id: _cgroup_parent(details) for sandbox_id, details in self._sandboxes.items()}

    @property
    def log_directories(self) -> dict[str, str | None]:
        """Log directory of the pod by sandbox id; ``None`` if unknown."""
        return {sandbox_id: details.sandbox.log_directory for sandbox_id, details in self._sandboxes.items()}

    def expire(self, container_ids: Iterable[str]) -> None:
        """Discard the status of these containers, so that the next :meth:`read_missing` reads their status again."""
        for container_id in container_ids:
            self._traits.pop(container_id, None)

    async def read_missing(
        self, sandboxes: Sequence[Sandbox], containers: Sequence[Container], warnings: list[str]
    ) -> None:
        """Read the unknown status of active sandboxes and their containers; drop the status of removed objects.

        Args:
            sandboxes: all sandboxes of the node.
            containers: all containers of the node.
            warnings: receives a sentence if a status could not be read; the facts of its pod remain unknown.
        """
        self._drop_removed({each.id for each in sandboxes} | {each.id for each in containers})
        active = active_sandboxes(sandboxes, containers)
        failed: list[str] = []

        async def attempt(read: Callable[[], Awaitable[None]]) -> None:
            try:
                await read()
            except RuntimeNotFoundError:
                return
            except RuntimeRequestError as error:
                failed.append(str(error))

        missing = [
            *(
                partial(self._read_sandbox, each.id)
                for each in sandboxes
                if each.id in active and each.id not in self._sandboxes
            ),
            *(
                partial(self._read_container, each.id)
                for each in containers
                if each.sandbox_id in active and each.id not in self._traits
            ),
        ]
        if not missing:
            return
        try:
            async with asyncio.timeout(_WITHIN_S):
                await run_bounded(attempt, missing, _CONCURRENCY)
        except TimeoutError:
            failed.append(f"no answer in {_WITHIN_S:g} s")
        if failed:
            warnings.append(
                f"cannot read {len(failed)} of {len(missing)} sandboxes and containers: {min(failed)}; "
                "their pods are kept"
            )

    def _drop_removed(self, listed: set[str]) -> None:
        for removed in self._sandboxes.keys() - listed:
            del self._sandboxes[removed]
        for removed in self._traits.keys() - listed:
            del self._traits[removed]

    async def _read_sandbox(self, sandbox_id: str) -> None:
        self._sandboxes[sandbox_id] = await self._cri.sandbox_details(sandbox_id)

    async def _read_container(self, container_id: str) -> None:
        details = await self._container_details(container_id)
        # A created container has no process and no PID yet; a reading now would be cached for its lifetime.
        if details.container.state in (ContainerState.RUNNING, ContainerState.EXITED):
            self._traits[container_id] = details.traits

    async def _container_details(self, container_id: str) -> ContainerDetails:
        """Return the verbose status; the plain status if the verbose status exceeds the message limit.

        Otherwise a pod could prevent its eviction: an environment of several megabytes makes the status unreadable.
        """
        try:
            return await self._cri.container_details(container_id, verbose=True)
        except RuntimeRequestError as error:
            if not is_too_large(error):
                raise
        plain = await self._cri.container_details(container_id)
        return replace(plain, traits=replace(plain.traits, is_oversized=True))


def active_sandboxes(sandboxes: Iterable[Sandbox], containers: Iterable[Container]) -> frozenset[str]:
    """Return the ids of the sandboxes that are ready or have a container that may be running."""
    return frozenset(
        (
            *(each.id for each in sandboxes if each.ready),
            *(each.sandbox_id for each in containers if each.state in _MAYBE_RUNNING),
        )
    )


def _cgroup_parent(details: SandboxDetails) -> str:
    """Return the pod's cgroup: the configured parent, else the parent of the sandbox's cgroup; empty if unknown."""
    if details.cgroup_parent:
        return details.cgroup_parent
    path = details.cgroups_path
    parent = path.partition(":")[0] if path.count(":") == 2 else path.rpartition("/")[0]
    return parent if qos_of_cgroup(parent)[0] is not None else ""


_LISTS_KEPT_S: Final = 60.0
_KUBELET_MAX_AGE_S: Final = 10.0


class PodSettings(Record):
    """Sources of pod facts.

    Attributes:
        node_name: suffix of the names of static pods; empty for the host name.
        pod_log_root: parent of the log directories of pods without a configured log directory.
        kubelet_root: the kubelet's root directory, which contains the volumes of pods.
        kubelet: access to the kubelet's pod list; ``None`` for no access.
        manifests: directory of the static pods' manifests; ``None`` without static pods.
        annotation_namespaces: namespaces whose pods may carry marks in annotations.
        memory_stalls: whether the memory stalls of pods are read.
    """

    node_name: str = ""
    pod_log_root: Path = Path("/var/log/pods")
    kubelet_root: Path = KUBELET_ROOT
    kubelet: KubeletAccess | None = None
    manifests: Path | None = None
    annotation_namespaces: frozenset[str] = frozenset()
    memory_stalls: bool = False


class _RuntimeLists(NamedTuple):
    """The runtime's lists, and the time at which they were requested."""

    sandboxes: tuple[Sandbox, ...]
    containers: tuple[Container, ...]
    at: Moment


class PodReader:
    """Reader of the pods of a node, for one pass at a time."""

    def __init__(  # noqa: PLR0913 - one argument per source
        self,
        cri: CriClient,
        *,
        settings: PodSettings,
        clock: Clock,
        kubelet: PodLister | None = None,
        root: Path = Path("/"),
        role: Callable[[], Role],
        measure_layer: pod_usage.MeasureLayer | None = None,
        watched: WatchedPods | None = None,
    ) -> None:
        """Create a reader without initial readings.

        Args:
            cri: the runtime.
            settings: sources of pod facts.
            clock: dates the readings.
            kubelet: source of the kubelet's pod list; ``None`` to use ``settings.kubelet``.
            root: parent of ``proc`` and ``sys``.
            role: returns the current role, which changes at run time. On a node without a kubelet, a pod that no source
                declares critical is assumed not to be critical; beside a kubelet no fact is assumed.
            measure_layer: returns the usage of a writable layer by snapshotter and container id, for layers that
                neither the runtime's statistics nor the mounts include; ``None`` if such usage remains unknown.
            watched: the watched pods of the API server; ``None`` without a watch.
        """
        self._cri = cri
        self._clock = clock
        self._role = role
        self._exited_layers = None if measure_layer is None else pod_usage.ExitedLayers(measure_layer)
        if kubelet is None and settings.kubelet is not None:
            kubelet = KubeletPods(settings.kubelet, port_owners)
        manifests = None if settings.manifests is None else ManifestReader(settings.manifests)
        listing = KubeletListing(kubelet, clock, _KUBELET_MAX_AGE_S)
        self._definitions = PodDefinitions(listing, manifests, settings.node_name, watched)
        self._annotation_namespaces = settings.annotation_namespaces
        self._details = RuntimeDetails(cri)
        self._cgroups = pod_usage.PodCgroups(root, settings.kubelet_root, with_stalls=settings.memory_stalls)
        self._last: _RuntimeLists | None = None
        self._disk = pod_usage.PodDiskReader(settings.pod_log_root, settings.kubelet_root, root)

    async def read_usage(self) -> PodInventory | None:
        """Return the pods of the runtime's last lists with their current memory and PIDs, without a runtime call.

        The result is ``None`` before the first lists, if the last lists are older than a minute, and if the kernel does
        not report the memory of cgroups.
        """
        if self._last is None or not self._cgroups.has_memory:
            return None
        if self._clock.monotonic_s() - self._last.at.monotonic_s > _LISTS_KEPT_S:
            return None
        return await self._inventory(self._last, None, [], with_usage=True)

    async def read(self, *, with_usage: bool = True, with_disk: bool = False, quick: bool = False) -> PodInventory:
        """Return the pods with a ready sandbox or a container that may be running.

        Args:
            with_usage: read memory and PIDs.
            with_disk: measure disk usage as well, which walks directories.
            quick: wait for the runtime's two lists only; other facts are from the previous reading.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: one of the runtime's two list calls failed.
        """
        warnings: list[str] = []
        now = Moment(self._clock.now(), self._clock.monotonic_s())
        sandboxes, containers, stats = await self._lists(warnings, with_stats=with_disk, quick=quick)
        lists = _RuntimeLists(sandboxes, containers, now)
        if not quick:
            self._cgroups.drop_removed({each.id for each in sandboxes} | {each.id for each in containers})
            self._details.expire(await self._cgroups.find_resized(self._details.traits))
            await self._details.read_missing(sandboxes, containers, warnings)
            active = active_sandboxes(sandboxes, containers)
            await self._definitions.read_for({each.uid for each in sandboxes if each.id in active})
            self._last = lists
        if stats is None and with_usage and not self._cgroups.has_memory:
            stats = await self._stats(warnings)
        return await self._inventory(lists, stats, warnings, with_usage=with_usage, with_disk=with_disk)

    async def _inventory(
        self,
        lists: _RuntimeLists,
        stats: dict[str, ContainerUsage] | None,
        warnings: list[str],
        *,
        with_usage: bool,
        with_disk: bool = False,
    ) -> PodInventory:
        """Return facts and handles of the pods in the runtime's lists."""
        specs, count = self._definitions.index(warnings), len(lists.containers)
        pods = await compute(
            count,
            group_pods,
            lists.sandboxes,
            lists.containers,
            cgroup_parents=self._details.cgroup_parents,
            traits=self._details.traits,
            memory_min_bytes=self._cgroups.memory_min_bytes,
        )
        handles = await compute(count, self._cgroups.find_handles, pods)
        readings: dict[str, PodReading] = {}
        if with_usage or with_disk:
            readings = await self._readings(pods, handles, stats, warnings, with_disk=with_disk)
        capacity_bytes = self._cgroups.memory_capacity_bytes(warnings)
        assume = self._role() is Role.STANDALONE and not self._definitions.has_kubelet
        facts = await compute(
            count,
            merge_facts,
            pods,
            specs,
            readings,
            memory_capacity_bytes=capacity_bytes,
            assume=assume,
            annotation_namespaces=self._annotation_namespaces,
        )
        stops = await compute(count, shutdown_pods, facts, pods, specs)
        warnings += await compute(count, ignored_marks, facts)
        return PodInventory(facts, stops, handles, lists.at, tuple(warnings))

    async def close(self) -> None:
        """Cancel a read of the kubelet's list and directory walks in progress."""
        self._disk.close()
        await self._definitions.close()

    async def _lists(
        self, warnings: list[str], *, with_stats: bool, quick: bool
    ) -> tuple[tuple[Sandbox, ...], tuple[Container, ...], dict[str, ContainerUsage] | None]:
        """Return sandboxes, containers and statistics from concurrent calls; ``None`` without statistics."""
        stats, sandboxes, containers, _ = await gather_all(
            self._stats(warnings) if with_stats else _none_value(),
            self._cri.list_sandboxes(),
            self._cri.list_containers(),
            _none_value() if quick else self._definitions.read_if_due(warnings),
        )
        return sandboxes, containers, stats

    async def _stats(self, warnings: list[str]) -> dict[str, ContainerUsage] | None:
        try:
            return {each.container_id: each for each in await self._cri.list_container_stats()}
        except RuntimeRequestError as error:
            warnings.append(f"container statistics unavailable: {error}")
            return None

    async def _readings(
        self,
        pods: Sequence[RuntimePod],
        handles: Mapping[str, PodHandle],
        stats: Mapping[str, ContainerUsage] | None,
        warnings: list[str],
        *,
        with_disk: bool,
    ) -> dict[str, PodReading]:
        readings = await self._cgroups.read(pods, handles, warnings)
        disk = pod_usage.DiskUsage()
        if with_disk:
            disk = await self._disk.read(pods, self._details.log_directories, warnings)
        lower_bounds: frozenset[str] = frozenset()
        if disk.layers:
            stats, lower_bounds = pod_usage.replace_layers(stats or {}, disk.layers)
        exited: Mapping[str, tuple[LayerUsage, ...]] = {}
        if with_disk and self._exited_layers is not None:
            stats = {**(stats or {}), **await pod_usage.measure_missing(pods, stats or {}, self._exited_layers.measure)}
            exited = await self._exited_layers.read(pods, stats or {})
        fill = not self._cgroups.has_memory
        make = partial(_with_disk, fill_memory=fill, lower_bounds=lower_bounds)
        return await compute(len(handles), make, pods, readings, stats, disk, exited)


def _with_disk(  # noqa: PLR0913 - the readings
    pods: Sequence[RuntimePod],
    readings: Mapping[str, PodReading],
    stats: Mapping[str, ContainerUsage] | None,
    disk: pod_usage.DiskUsage,
    exited: Mapping[str, tuple[LayerUsage, ...]],
    *,
    fill_memory: bool,
    lower_bounds: frozenset[str],
) -> dict[str, PodReading]:
    """Return a reading of every pod, by UID, with the statistics of its containers and its disk usage."""
    found = {}
    for pod in pods:
        reading = readings.get(pod.uid, PodReading())
        if stats is not None:
            reading = pod_usage.with_stats(reading, pod, stats, fill_memory=fill_memory, lower_bounds=lower_bounds)
            reading = pod_usage.with_layers(reading, pod, stats, disk.devices, lower_bounds)
        reading = pod_usage.with_disk_usage(reading, disk.pods.get(pod.uid))
        unknown = (LayerUsage(pod_usage.AT_LEAST_ZERO),) if pod.has_oversized_status else ()
        further = (*disk.image_volumes(pod.uid), *exited.get(pod.uid, ()), *unknown)
        found[pod.uid] = pod_usage.with_further_layers(reading, further)
    return found


def make_pod_reader(  # noqa: PLR0913 - the sources of a reader
    cri: CriClient,
    settings: Settings,
    clock: Clock,
    role: Callable[[], Role],
    measure_layer: pod_usage.MeasureLayer | None = None,
    *,
    watched: WatchedPods | None = None,
) -> PodReader:
    """Return the pod reader with the configured sources.

    Args:
        cri: the runtime.
        settings: settings of the agent.
        clock: dates the readings.
        role: returns the current role of the node.
        measure_layer: returns the usage of a writable layer; see :class:`PodReader`.
        watched: the watched pods of the API server; ``None`` without a watch.
    """
    kubelet = settings.kubelet
    sources = PodSettings(
        node_name=kubelet.node_name,
        pod_log_root=settings.pod_log_root,
        kubelet=kubelet.access,
        manifests=kubelet.manifests,
        annotation_namespaces=settings.eviction.annotation_namespaces,
        memory_stalls=settings.eviction.measures_stalls,
    )
    return PodReader(cri, settings=sources, clock=clock, role=role, measure_layer=measure_layer, watched=watched)


async def _none_value() -> None:
    return None
