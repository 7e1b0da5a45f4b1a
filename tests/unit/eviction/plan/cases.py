"""Builders of readings, thresholds and pods: sizes in MiB, times in monotonic seconds, unless named otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from nodeagent.eviction.plan.memory_model import estimate_memory
from nodeagent.eviction.plan.planner import EvictionPlan, plan_eviction
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.state import EvictionState, evaluate
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.model.pressure import (
    ContainerFacts,
    Fact,
    FactSource,
    FilesystemLayout,
    Footprint,
    MemoryCounters,
    Moment,
    NodeMemory,
    PodFacts,
    PodUsage,
    QosClass,
    ReclaimActivity,
    Signal,
    SignalReading,
)
from tests.unit.builders import MIB, NOW as NOON

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodeagent.eviction.plan.state import Evaluation
    from nodeagent.eviction.plan.thresholds import Threshold

START_S: Final = 10_000.0
POLICY: Final = EvictionPolicy()
SINGLE: Final = FilesystemLayout.SINGLE
EMPTY_FOOTPRINT: Final = Footprint(0, 0)
EMPTY_STATE: Final = EvictionState()


def at(seconds: float, *, wall_s: float | None = None) -> Moment:
    """Return the moment ``seconds`` after the start; ``wall_s`` sets a different wall time, also in seconds."""
    return Moment(NOON + timedelta(seconds=seconds if wall_s is None else wall_s), START_S + seconds)


def read(
    signal: str = "memory.available",
    available_mib: float = 50,
    *,
    seconds: float = 0.0,
    capacity_mib: float = 1000,
    kernel_mib: float | None = None,
    **exact: float,
) -> SignalReading:
    """Return a signal reading; ``available`` and ``capacity`` override the MiB with exact amounts.

    ``kernel_mib`` is ``MemAvailable`` beside the formula; evidence of a shortage confirms the lower of both.
    """
    available, capacity = exact.get("available", available_mib * MIB), exact.get("capacity", capacity_mib * MIB)
    if kernel_mib is None:
        return SignalReading(Signal(signal), available, capacity, at(seconds))
    memory = NodeMemory(
        formula=available,
        kernel_available=kernel_mib * MIB,
        counters=MemoryCounters(int(capacity), 0, 0, 0, 0, 0, 0, 0, 0),
        activity=ReclaimActivity(scanned=9, direct=1, refaulted=9, available_fell=0, unexplained_grew=0),
        stall_percent=50.0,
    )
    return SignalReading(Signal(signal), estimate_memory(memory).available, capacity, at(seconds), memory)


def thresholds(hard: str = "memory.available<100Mi", **settings: Any) -> tuple[Threshold, ...]:
    """Return the parsed thresholds, without the threshold on allocatable memory."""
    return parse_thresholds(hard=hard, allocatable=False, **settings)


def evaluated(
    *observations: SignalReading,
    state: EvictionState = EMPTY_STATE,
    limits: Sequence[Threshold] | None = None,
    policy: EvictionPolicy = POLICY,
    seconds: float = 0.0,
) -> Evaluation:
    """Return the evaluation of these readings at ``seconds``."""
    return evaluate(state, observations, thresholds() if limits is None else limits, policy, now=at(seconds))


def known(value: Any, source: FactSource = FactSource.KUBELET) -> Fact[Any]:
    """Return a known fact, by default from the kubelet."""
    return Fact(value, source)


def pod(
    name: str = "web",
    *,
    memory: float | None = 100,
    request: float | None = 0,
    priority: int | None = 0,
    namespace: str = "shop",
    pids: int | None = 10,
    writable: Footprint = EMPTY_FOOTPRINT,
    logs: Footprint = EMPTY_FOOTPRINT,
    volumes: Footprint = EMPTY_FOOTPRINT,
    ephemeral_request: float | None = 0,
    swap: float | None = None,
    stalled: float | None = None,
    memory_volumes: float = 0,
    memory_cache: float = 0,
    **fields: Any,
) -> PodFacts:
    """Return a pod with complete facts; sizes are in MiB, stalls in percent, its UID is ``uid-NAME``."""
    usage = PodUsage(
        memory_bytes=None if memory is None else int(memory * MIB),
        pids=pids,
        writable=writable,
        logs=logs,
        volumes=volumes,
        swap_bytes=None if swap is None else int(swap * MIB),
        memory_volumes_bytes=int(memory_volumes * MIB),
        memory_cache_bytes=int(memory_cache * MIB),
        stalled_some_percent=stalled,
        stalled_full_percent=stalled,
    )
    facts: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": namespace,
        "name": name,
        "priority": known(priority),
        "qos": known(QosClass.BURSTABLE),
        "static": known(value=False),
        "mirror": known(value=False),
        "critical": known(value=False),
        "memory_request_bytes": known(None if request is None else int(request * MIB)),
        "ephemeral_request_bytes": known(None if ephemeral_request is None else int(ephemeral_request * MIB)),
        "termination_grace_s": known(30.0),
        "usage": usage,
    }
    return PodFacts(**(facts | fields))


def disk(mib: float | None, inodes: int | None = 0) -> Footprint:
    """Return a disk usage of ``mib`` MiB and ``inodes`` inodes."""
    return Footprint(None if mib is None else int(mib * MIB), inodes)


def container(name: str = "app", **mib: float | None) -> ContainerFacts:
    """Return a container; ``mib`` maps attribute names without the suffix ``_bytes`` to sizes in MiB."""
    sizes: dict[str, Any] = {f"{key}_bytes": None if value is None else int(value * MIB) for key, value in mib.items()}
    return ContainerFacts(name, **sizes)


def planned(
    pods: Iterable[PodFacts],
    *observations: SignalReading,
    limits: Sequence[Threshold] | None = None,
    policy: EvictionPolicy = POLICY,
    layout: FilesystemLayout = SINGLE,
    state: EvictionState = EMPTY_STATE,
    seconds: float = 0.0,
    **rest: Any,
) -> EvictionPlan:
    """Return the eviction plan of a pass; without readings, memory is below its threshold."""
    found = evaluated(
        *(observations or (read(seconds=seconds),)), state=state, limits=limits, policy=policy, seconds=seconds
    )
    return plan_eviction(found, pods, policy, layout=layout, now=at(seconds), **rest)


def victim(plan: EvictionPlan) -> str | None:
    """Return the name of the pod to evict; ``None`` if the plan evicts no pod."""
    return plan.victim.pod.name if plan.victim else None


def reasons(plan: EvictionPlan) -> dict[str, str]:
    """Return the reason code of each pod, by pod name."""
    return {each.name.split("/")[1]: each.reason.code.value for each in plan.plan.decisions}
