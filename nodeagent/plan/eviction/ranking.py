"""In which order pods would go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.model.pressure import FactSource, FilesystemLayout, FilesystemRole, PodLifecycle, Resource, Signal
from nodeagent.plan.eviction.signals import MEANINGS
from nodeagent.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pressure import Fact, Footprint, PodFacts, PodUsage
    from nodeagent.plan.decision import Detail

_GUESSED = frozenset({FactSource.INFERRED, FactSource.ASSUMED})
_BYTES = frozenset({Resource.MEMORY, Resource.EPHEMERAL_STORAGE})


@dataclass(frozen=True, slots=True)
class RankedPod:
    """One pod's place.

    Attributes:
        rank: from 1; the first would go first.
        usage: of ``resource``, in bytes, inodes or PIDs; ``None`` where it could not be read.
        request: in bytes; 0 for inodes and PIDs, of which there are no requests.
        priority: 0 where it is not known.
        assumed: which facts that count here were inferred or assumed, in words.
    """

    pod: PodFacts
    rank: int
    resource: Resource
    usage: int | None
    request: int
    priority: int
    assumed: tuple[str, ...] = ()

    @property
    def excess(self) -> int | None:
        """How much the usage is above the request, negative below it."""
        return None if self.usage is None else self.usage - self.request

    @property
    def measure(self) -> str:
        """The numbers that rank it, in words."""
        if self.usage is None:
            return f"its use of {self.resource} could not be read, priority {self.priority}"
        if self.resource not in _BYTES:
            return f"uses {self.usage} {self.resource}, priority {self.priority}"
        compared = f"its request of {format_bytes(self.request)}" if self.request else "no request"
        return f"uses {format_bytes(self.usage)} of {self.resource} with {compared}, priority {self.priority}"

    @property
    def note(self) -> str:
        """What was assumed, as an end to a sentence."""
        return f" ({'; '.join(self.assumed)})" if self.assumed else ""

    @property
    def details(self) -> dict[str, Detail]:
        """The numbers that rank it, each with its unit."""
        details: dict[str, Detail] = {"rank": self.rank, "resource": self.resource.value, "priority": self.priority}
        unit = "bytes" if self.resource in _BYTES else self.resource.value
        if self.usage is not None:
            details[f"usage_{unit}"] = self.usage
            if unit == "bytes":
                details["request_bytes"] = self.request
                details["excess_bytes"] = self.usage - self.request
        if self.assumed:
            details["assumed"] = self.assumed
        return details


def rank_pods(pods: Iterable[PodFacts], signal: Signal, layout: FilesystemLayout) -> tuple[RankedPod, ...]:
    """Return the pods that have not finished, in the order in which they would go for a signal.

    - Memory and disk: usage above the request first; then lower priority; then more above the request.
    - Inodes: any usage first; then lower priority; then more inodes.
    - PIDs: lower priority first; then more PIDs.

    A pod without a reading comes before those with one in every comparison of usage. Ties go by UID. For ``swap.free``
    memory includes what is swapped out, since that is what an eviction gives back.

    Unlike the kubelet, inodes are not set off against the storage request, which counts bytes. A signal without a
    resource ranks nothing.

    Source: kubelet ``rankMemoryPressure``, ``rankDiskPressureFunc``, ``rankPIDPressure``.
    """
    resource = MEANINGS[signal].resource
    if resource is None:
        return ()
    measured = [_measure(pod, signal, resource, layout) for pod in pods if pod.lifecycle is not PodLifecycle.FINISHED]
    measured.sort(key=_key_pids if resource is Resource.PIDS else _key_usage)
    return tuple(
        RankedPod(each.pod, rank, each.resource, each.usage, each.request, each.priority, each.assumed)
        for rank, each in enumerate(measured, start=1)
    )


def usage_of(usage: PodUsage | None, signal: Signal, layout: FilesystemLayout) -> tuple[int | None, tuple[str, ...]]:
    """Return what a pod uses of a signal's resource, and in words which parts of it could not be read.

    On disk the parts that lie on the signal's filesystem are added up; a part that was not read counts as 0 unless
    none was.

    Source: kubelet ``podDiskUsage``, ``containerUsage``, ``podLocalVolumeUsage``, by the layout's rank function.
    """
    meaning = MEANINGS[signal]
    if usage is None:
        return None, ()
    if meaning.filesystem is None:
        return _plain_usage(usage, signal)
    inodes = meaning.resource is Resource.INODES
    found = {
        name: each.used_inodes if inodes else each.used_bytes
        for name, each in _parts(usage, meaning.filesystem, layout).items()
    }
    missing = tuple(f"{name} not read, counted as 0" for name, number in found.items() if number is None)
    if found and len(missing) == len(found):
        return None, ()
    return sum(number or 0 for number in found.values()), missing


def _plain_usage(usage: PodUsage, signal: Signal) -> tuple[int | None, tuple[str, ...]]:
    if signal is Signal.PID_AVAILABLE:
        return usage.pids, ()
    if signal is not Signal.SWAP_FREE or usage.memory_bytes is None:
        return usage.memory_bytes, ()
    if usage.swap_bytes is None:
        return usage.memory_bytes, ("swap not read, counted as 0",)
    return usage.memory_bytes + usage.swap_bytes, ()


def _parts(usage: PodUsage, filesystem: FilesystemRole, layout: FilesystemLayout) -> dict[str, Footprint]:
    """Return which parts of a pod lie on a filesystem."""
    writable, others = {"writable layers": usage.writable}, {"logs": usage.logs, "volumes": usage.volumes}
    if layout is FilesystemLayout.DEDICATED_IMAGEFS:
        return others if filesystem is FilesystemRole.NODEFS else writable
    if layout is FilesystemLayout.SPLIT and filesystem is FilesystemRole.IMAGEFS:
        return {}
    return writable | others


def _measure(pod: PodFacts, signal: Signal, resource: Resource, layout: FilesystemLayout) -> RankedPod:
    usage, unread = usage_of(pod.usage, signal, layout)
    facts: list[tuple[str, Fact[int | None]]] = [("priority", pod.priority)]
    request = 0
    if resource in _BYTES:
        fact = pod.memory_request_bytes if resource is Resource.MEMORY else pod.ephemeral_request_bytes
        facts.append((f"{resource} request", fact))
        request = fact.value or 0
    assumed = tuple(f"{name} {fact.source}" for name, fact in facts if fact.source in _GUESSED)
    return RankedPod(pod, 0, resource, usage, request, pod.priority.value or 0, assumed + unread)


def _key_usage(each: RankedPod) -> tuple[bool, bool, int, int, str]:
    excess = each.excess
    return excess is not None, excess is not None and excess <= 0, each.priority, -(excess or 0), each.pod.uid


def _key_pids(each: RankedPod) -> tuple[int, bool, int, str]:
    return each.priority, each.usage is not None, -(each.usage or 0), each.pod.uid
