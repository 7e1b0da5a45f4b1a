"""Watching the pods of the node: what each is, what it uses, and what it takes to end it.

What cannot change is asked once and kept by sandbox and container id, so that a pass on a node at rest costs the
runtime's two lists and the kernel's files. What the runtime's lists do not tell fails the pass; everything else that
fails leaves facts unknown, with a warning, and unknown facts keep a pod.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import ObservationError, RuntimeNotFoundError, RuntimeRequestError
from nodeagent.host.cgroups import (
    Cgroups,
    CgroupUsage,
    expand_parent,
    read_memory_min,
    read_usage,
    read_working_sets,
)
from nodeagent.host.pod_disk import deadline_in, read_pod_disk
from nodeagent.host.signals import read_memory_capacity
from nodeagent.host.writable_layers import find_upper_directories, measure_writable_layer
from nodeagent.kube.kubelet_pods import KubeletPods
from nodeagent.kube.listing import KubeletListing
from nodeagent.kube.manifests import ManifestReader
from nodeagent.model import ContainerState, Role
from nodeagent.model.pods import ContainerHandle, PodHandle, PodInventory, PodReading
from nodeagent.model.pressure import Footprint, Moment
from nodeagent.plan.pods.facts import SpecIndex, merge_facts, shutdown_pods
from nodeagent.plan.pods.groups import group_pods
from nodeagent.plan.pods.inference import qos_of_cgroup
from nodeagent.runtime.cri import ContainerUsage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nodeagent.clock import Clock
    from nodeagent.host.disk_usage import Tree
    from nodeagent.host.pod_disk import PodDisk
    from nodeagent.kube.listing import PodLister
    from nodeagent.kube.manifests import Manifests
    from nodeagent.model import Container, Sandbox
    from nodeagent.model.kubelet_access import KubeletAccess
    from nodeagent.model.pods import ContainerTraits, PodSpec, RuntimePod
    from nodeagent.runtime.cri import CriClient, SandboxDetails

_CONCURRENCY: Final = 16
_DETAILS_S: Final = 10.0
_CGROUPS_S: Final = 5.0
_MANIFESTS_S: Final = 5.0
_WALK_S: Final = 10.0
_WALK_POD_S: Final = 2.0
_MAYBE_UP: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Where to look for pods.

    Attributes:
        role: standalone, a pod that nobody calls important is taken for an ordinary one; beside a kubelet only what
            is told counts.
        node_name: that the kubelet ends static pods' names with; empty for the host's name.
        pod_log_root: where pods log that tell no log directory.
        kubelet_root: below which the kubelet keeps volumes.
        kubelet: how to ask the kubelet for its list; ``None`` for not at all.
        kubelet_max_age_s: when its list is asked for again.
        manifests: directory of the static pods' manifests; ``None`` for none.
    """

    role: Role
    node_name: str = ""
    pod_log_root: Path = Path("/var/log/pods")
    kubelet_root: Path = Path("/var/lib/kubelet")
    kubelet: KubeletAccess | None = None
    kubelet_max_age_s: float = 10.0
    manifests: Path | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on disk.

    Attributes:
        pods: by UID.
        layers: writable layers of running containers by container id, as far as they were walked.
        cut: names of the pods that were not measured to the end.
    """

    pods: Mapping[str, PodDisk] = field(default_factory=dict)
    layers: Mapping[str, Tree] = field(default_factory=dict)
    cut: tuple[str, ...] = ()


class ManifestLister(Protocol):
    """The static pods' manifests."""

    def read(self) -> Manifests:
        """Return the pods they define; blocking."""


class PodWatcher:
    """Gathers the pods of a node, pass after pass; one pass at a time."""

    def __init__(  # noqa: PLR0913 - it composes the readers
        self,
        cri: CriClient,
        *,
        settings: PodSettings,
        clock: Clock,
        kubelet: PodLister | None = None,
        manifests: ManifestLister | None = None,
        root: Path = Path("/"),
        role: Callable[[], Role] | None = None,
    ) -> None:
        """Compose a watcher; nothing is read yet.

        Args:
            cri: the runtime.
            settings: where to look.
            clock: dates what is seen.
            kubelet: its list of pods, instead of the one the settings tell how to ask.
            manifests: those of static pods, instead of those in the settings' directory.
            root: where ``proc`` and ``sys`` are.
            role: returns the role in force, which changes at run time; that of the settings unless given.
        """
        self._cri = cri
        self._settings = settings
        self._clock = clock
        self._root = root
        self._role = role or (lambda: settings.role)
        self._cgroups = Cgroups(root)
        if kubelet is None and settings.kubelet is not None:
            kubelet = KubeletPods(settings.kubelet)
        if manifests is None and settings.manifests is not None:
            manifests = ManifestReader(settings.manifests)
        self._listing = KubeletListing(kubelet, clock, settings.kubelet_max_age_s)
        self._manifests = manifests
        self._defined: tuple[PodSpec, ...] = ()
        self._node_name = settings.node_name or socket.gethostname()
        self._sandboxes: dict[str, SandboxDetails] = {}
        self._traits: dict[str, ContainerTraits] = {}
        self._directories: dict[str, str] = {}
        self._memory_min: dict[str, int] = {}
        self._capacity_bytes: int | None = None
        self._walk: asyncio.Future[Measured] | None = None

    async def gather(self, *, with_usage: bool = True, with_disk: bool = False, quick: bool = False) -> PodInventory:
        """Return the pods that have something up.

        Args:
            with_usage: read what they use of memory and PIDs.
            with_disk: measure what they keep on disk as well, which takes walks over directories.
            quick: wait for nothing but the runtime's two lists; what else is needed is as it was last.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            RuntimeRequestError: it refused one of its two lists.
        """
        warnings: list[str] = []
        now = Moment(self._clock.now(), self._clock.monotonic_s())
        sandboxes, containers, stats = await self._lists(warnings, with_stats=with_disk, quick=quick)
        up = _up(sandboxes, containers)
        if not quick:
            await self._read_details(sandboxes, containers, up, warnings)
            await self._listing.read_for({each.uid for each in sandboxes if each.id in up})
        self._listing.warn(warnings)
        pods = group_pods(
            sandboxes,
            containers,
            cgroup_parents={key: _parent(details) for key, details in self._sandboxes.items()},
            traits=self._traits,
            memory_min_bytes=self._memory_min,
        )
        handles = self._handles(pods)
        readings: dict[str, PodReading] = {}
        if with_usage or with_disk:
            if stats is None and with_usage and not self._cgroups.has_memory:
                stats = await self._stats(warnings)
            readings = await self._readings(pods, handles, stats, warnings, with_disk=with_disk)
        specs = SpecIndex(self._listing.pods, self._defined, node_name=self._node_name, complete=self._listing.complete)
        facts = merge_facts(
            pods, specs, readings, memory_capacity_bytes=self._capacity(warnings), assume=self._may_assume()
        )
        return PodInventory(facts, shutdown_pods(facts, pods, specs), handles, now, tuple(warnings))

    async def close(self) -> None:
        """Stop what is still under way."""
        await self._listing.close()

    def _may_assume(self) -> bool:
        return self._role() is Role.STANDALONE and not self._listing.configured

    async def _lists(
        self, warnings: list[str], *, with_stats: bool, quick: bool
    ) -> tuple[tuple[Sandbox, ...], tuple[Container, ...], dict[str, ContainerUsage] | None]:
        """Ask for everything that no other answer is needed for, at once."""
        stats, sandboxes, containers, _, _ = await asyncio.gather(
            self._stats(warnings) if with_stats else _nothing(),
            self._cri.list_sandboxes(),
            self._cri.list_containers(),
            _nothing() if quick else self._listing.read_if_due(),
            _nothing() if quick else self._read_manifests(warnings),
        )
        return sandboxes, containers, stats

    async def _stats(self, warnings: list[str]) -> dict[str, ContainerUsage] | None:
        try:
            return {each.container_id: each for each in await self._cri.list_container_stats()}
        except RuntimeRequestError as error:
            warnings.append(f"what containers use by the runtime's own count is not known: {error}")
            return None

    async def _read_manifests(self, warnings: list[str]) -> None:
        if self._manifests is None:
            return
        try:
            found = await asyncio.wait_for(asyncio.to_thread(self._manifests.read), _MANIFESTS_S)
        except TimeoutError:
            warnings.append(f"static manifests could not be read in {_MANIFESTS_S:g} s; those read before count")
            return
        self._defined = found.pods
        warnings += found.warnings

    async def _read_details(
        self,
        sandboxes: Sequence[Sandbox],
        containers: Sequence[Container],
        up: frozenset[str],
        warnings: list[str],
    ) -> None:
        """Ask for what is not known yet of sandboxes that are up and their containers; forget what is gone."""
        self._forget({each.id for each in sandboxes} | {each.id for each in containers})
        slots = asyncio.Semaphore(_CONCURRENCY)
        failed: list[str] = []

        async def read(about: Callable[[], Awaitable[None]]) -> None:
            async with slots:
                try:
                    await about()
                except RuntimeNotFoundError:
                    return
                except RuntimeRequestError as error:
                    failed.append(str(error))

        wanted = [
            *(self._sandbox_reader(each) for each in sandboxes if each.id in up and each.id not in self._sandboxes),
            *(
                self._container_reader(each)
                for each in containers
                if each.sandbox_id in up and each.id not in self._traits
            ),
        ]
        if not wanted:
            return
        try:
            await asyncio.wait_for(asyncio.gather(*map(read, wanted)), _DETAILS_S)
        except TimeoutError:
            failed.append(f"no answer in {_DETAILS_S:g} s")
        if failed:
            warnings.append(
                f"{len(failed)} of {len(wanted)} sandboxes and containers could not be read; their pods are kept: "
                f"{min(failed)}"
            )

    def _forget(self, listed: set[str]) -> None:
        """Drop what is kept of sandboxes and containers that are gone."""
        for gone in self._sandboxes.keys() - listed:
            del self._sandboxes[gone]
        for gone in self._traits.keys() - listed:
            del self._traits[gone]
        for gone in self._memory_min.keys() - listed:
            del self._memory_min[gone]
        for gone in self._directories.keys() - listed:
            del self._directories[gone]

    def _sandbox_reader(self, sandbox: Sandbox) -> Callable[[], Awaitable[None]]:
        async def read() -> None:
            self._sandboxes[sandbox.id] = await self._cri.sandbox_details(sandbox.id)

        return read

    def _container_reader(self, container: Container) -> Callable[[], Awaitable[None]]:
        async def read() -> None:
            details = await self._cri.container_details(container.id, verbose=True)
            if details.container.state in (ContainerState.RUNNING, ContainerState.EXITED):  # else it has no process yet
                self._traits[container.id] = details.traits

        return read

    def _handles(self, pods: Sequence[RuntimePod]) -> dict[str, PodHandle]:
        """Return what it takes to end each pod, with the cgroups that are there."""
        shared = Counter(expand_parent(pod.cgroup_parent) for pod in pods)
        return {pod.uid: self._handle(pod, shared) for pod in pods}

    def _handle(self, pod: RuntimePod, shared: Mapping[str, int]) -> PodHandle:
        own = None
        if shared[expand_parent(pod.cgroup_parent)] == 1 and _is_of_pod(pod):
            own = self._directory(pod.sandbox.id, partial(self._cgroups.find, pod.cgroup_parent))
        containers = []
        for each in pod.running:
            traits = pod.traits.get(each.id)
            find = partial(self._cgroups.find_container, traits.cgroups_path if traits else "", each.id, own)
            directory = self._directory(each.id, find)
            containers.append(ContainerHandle(each.id, each.name, directory, traits.pid if traits else None))
        return PodHandle(pod.uid, pod.sandbox_ids, tuple(containers), own)

    def _directory(self, key: str, find: Callable[[], str | None]) -> str | None:
        """Return a cgroup's directory, looked up once."""
        known = self._directories.get(key)
        if known is None:
            known = find()
            if known is not None:
                self._directories[key] = known
        return known

    async def _readings(
        self,
        pods: Sequence[RuntimePod],
        handles: Mapping[str, PodHandle],
        stats: Mapping[str, ContainerUsage] | None,
        warnings: list[str],
        *,
        with_disk: bool,
    ) -> dict[str, PodReading]:
        try:
            readings = await asyncio.wait_for(asyncio.to_thread(self._read_cgroups, pods, handles), _CGROUPS_S)
        except TimeoutError:
            warnings.append(f"the pods' cgroups could not be read in {_CGROUPS_S:g} s")
            readings = {}
        measured = await self._disks(pods, warnings) if with_disk else Measured()
        if measured.layers:
            stats = _renewed(stats or {}, measured.layers)
        if stats is not None:
            fill = not self._cgroups.has_memory
            readings = {
                pod.uid: _with_stats(readings.get(pod.uid, PodReading()), pod, stats, fill_memory=fill) for pod in pods
            }
        return {pod.uid: _with_disk(readings.get(pod.uid, PodReading()), measured.pods.get(pod.uid)) for pod in pods}

    async def _disks(self, pods: Sequence[RuntimePod], warnings: list[str]) -> Measured:
        """Measure in a thread, and not again while one still hangs: a stat on a dead mount never returns.

        What an earlier look began and did not wait for is not told: it may be hours old.
        """
        walk = None
        if self._walk is None or await _ended(self._walk):
            walk = self._walk = asyncio.ensure_future(asyncio.to_thread(self._measure, pods))
        if walk is None or not await _ended(walk):
            warnings.append("what pods keep on disk could not be measured: a directory does not answer")
            return Measured()
        self._walk = None
        measured = await walk
        if cut := measured.cut:
            more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
            names = ", ".join(cut[:3]) + more
            warnings.append(f"what {names} keep on disk was not measured to the end; it is at least what is shown")
        return measured

    def _read_cgroups(self, pods: Sequence[RuntimePod], handles: Mapping[str, PodHandle]) -> dict[str, PodReading]:
        return {pod.uid: self._read_cgroup(pod, handles[pod.uid]) for pod in pods}

    def _read_cgroup(self, pod: RuntimePod, handle: PodHandle) -> PodReading:
        directories = {each.id: each.cgroup for each in handle.containers if each.cgroup is not None}
        memory = read_working_sets(directories)
        if handle.cgroup is not None:
            usage = read_usage(handle.cgroup)
            if pod.memory_min_bytes is None and usage is not None:
                self._memory_min[pod.sandbox.id] = read_memory_min(handle.cgroup) or 0
        else:
            usage = _sum_usage(directories, len(handle.containers))
        if usage is None:
            return PodReading(container_memory_bytes=memory)
        return PodReading(usage.memory_bytes, usage.swap_bytes, usage.pids, memory)

    def _measure(self, pods: Sequence[RuntimePod]) -> Measured:
        """Walk the pods' directories one after the other, each within its share.

        Pods keep logs and volumes in few files as a rule, so those of all pods come before the writable layers.
        """
        ends_s = deadline_in(_WALK_S)
        found, cut = {}, []
        for pod in pods:
            sandbox, details = pod.sandbox, self._sandboxes.get(pod.sandbox.id)
            told = details.sandbox.log_directory if details is not None else None
            name = f"{sandbox.namespace}_{sandbox.name}_{pod.uid}".replace("/", "_")
            disk = read_pod_disk(
                pod.uid,
                Path(told) if told else self._settings.pod_log_root / name,
                self._settings.kubelet_root,
                deadline_s=min(ends_s, deadline_in(_WALK_POD_S)),
            )
            found[pod.uid] = disk
            if not disk.complete:
                cut.append(f"{sandbox.namespace}/{sandbox.name}")
        uppers = find_upper_directories(
            [each.id for pod in pods for each in pod.running], str(self._root / "proc/self/mountinfo")
        )
        layers = {}
        for container_id, upper in uppers.items():
            tree = measure_writable_layer(upper, min(ends_s, deadline_in(_WALK_POD_S)))
            if tree is not None:
                layers[container_id] = tree
        return Measured(found, layers, tuple(cut))

    def _capacity(self, warnings: list[str]) -> int | None:
        if self._capacity_bytes is None:
            try:
                self._capacity_bytes = read_memory_capacity(self._root)
            except ObservationError as error:
                warnings.append(f"memory requests cannot be inferred: {error}")
        return self._capacity_bytes


async def _nothing() -> None:
    return None


async def _ended(walk: asyncio.Future[Measured]) -> bool:
    """Wait a bounded while; return whether a walk has ended, well or badly."""
    done, _ = await asyncio.wait([walk], timeout=_WALK_S + _WALK_POD_S)
    return bool(done)


def _up(sandboxes: Iterable[Sandbox], containers: Iterable[Container]) -> frozenset[str]:
    """Return the ids of sandboxes that are ready or hold what may run."""
    return frozenset(
        (
            *(each.id for each in sandboxes if each.ready),
            *(each.sandbox_id for each in containers if each.state in _MAYBE_UP),
        )
    )


def _parent(details: SandboxDetails) -> str:
    """Return the pod's cgroup: as configured, else the one its sandbox lies in if that is a pod's."""
    if details.cgroup_parent:
        return details.cgroup_parent
    path = details.cgroups_path
    parent = path.partition(":")[0] if path.count(":") == 2 else path.rpartition("/")[0]
    return parent if qos_of_cgroup(parent)[0] is not None else ""


def _is_of_pod(pod: RuntimePod) -> bool:
    """Return whether a pod's cgroup parent is for that pod alone, by its name."""
    last = pod.cgroup_parent.rstrip("/").rpartition("/")[2]
    return qos_of_cgroup(pod.cgroup_parent)[0] is not None or pod.uid in last or pod.uid.replace("-", "_") in last


def _sum_usage(directories: Mapping[str, str], count: int) -> CgroupUsage | None:
    """Return the sum over containers; ``None`` unless each of them could be read."""
    usages = [usage for each in directories.values() if (usage := read_usage(each)) is not None]
    if not usages or len(usages) < count:
        return None
    return CgroupUsage(
        _sum(each.memory_bytes for each in usages),
        _sum(each.swap_bytes for each in usages),
        _sum(each.pids for each in usages),
    )


def _sum(parts: Iterable[int | None]) -> int | None:
    """Return the sum; ``None`` where a part is missing."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _renewed(stats: Mapping[str, ContainerUsage], layers: Mapping[str, Tree]) -> dict[str, ContainerUsage]:
    """Return the runtime's figures with what was measured now; a walk that was cut short counts where it found more."""
    found = dict(stats)
    for container_id, tree in layers.items():
        told = found.get(container_id, ContainerUsage(container_id))
        if tree.complete or tree.size_bytes > (told.writable_bytes or 0):
            found[container_id] = replace(told, writable_bytes=tree.size_bytes, writable_inodes=tree.inodes)
    return found


def _with_stats(
    reading: PodReading, pod: RuntimePod, stats: Mapping[str, ContainerUsage], *, fill_memory: bool
) -> PodReading:
    """Return a reading with the writable layers, and on request with memory where the kernel's files did not tell it.

    Where the kernel has such files, one that cannot be read leaves a pod's use unknown, whether the runtime was asked
    for its figures or not: else a preview, which asks, would choose a pod that the daemon keeps.

    A container that has ended counts as far as the runtime tells of it.
    """
    told = {each.id: stats[each.id] for each in pod.containers if each.id in stats}
    layers = {key: each.writable_bytes for key, each in told.items() if each.writable_bytes is not None}
    complete = all(each.id in layers for each in pod.running)
    inodes = [each.writable_inodes or 0 for each in told.values()]
    memory, total = dict(reading.container_memory_bytes), reading.memory_bytes
    if fill_memory:
        memory = {
            key: each.working_set_bytes for key, each in told.items() if each.working_set_bytes is not None
        } | memory
        if total is None and pod.running:
            total = _sum(memory.get(each.id) for each in pod.running)
    return replace(
        reading,
        memory_bytes=total,
        container_memory_bytes=memory,
        writable=Footprint(sum(layers.values()), sum(inodes)) if complete else None,
        container_writable_bytes=layers,
    )


def _with_disk(reading: PodReading, disk: PodDisk | None) -> PodReading:
    if disk is None:
        return reading
    parts = [each.used_bytes for each in (reading.writable, disk.log_tree, disk.volumes) if each is not None]
    return replace(
        reading,
        logs=disk.logs,
        container_logs_bytes=disk.container_logs_bytes,
        volumes=disk.volumes,
        empty_dir_bytes=disk.empty_dir_bytes,
        ephemeral_bytes=sum(part or 0 for part in parts) if parts else None,
    )
