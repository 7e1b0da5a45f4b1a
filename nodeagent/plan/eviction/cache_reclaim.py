"""Reclaim of active page cache before an eviction for memory.

The kubelet's formula counts active page cache as used, so that a pod which reads a file twice can meet a memory
threshold while the kernel could free all of that cache. Where the kernel's estimate shows no shortage, active cache of
pods is reclaimed first. A cold cache is not read again; a hot one is back within seconds, and a pod is evicted then.
Inactive cache is not used by the formula, so that its reclaim alone changes no signal; the kernel reclaims it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pressure import Observation
    from nodeagent.plan.eviction.thresholds import Threshold

REPEATED_AFTER_S: Final = 30.0
"""Time after a reclaim in which a met threshold evicts a pod: the reclaimed cache was in use."""
MAX_STEP_BYTES: Final = 128 << 20
"""Largest effect of one step: it took 0.2 to 0.9 s where it was measured."""
_MAX_INACTIVE_BYTES: Final = 512 << 20
_MIN_POD_BYTES: Final = 4 << 20
_MARGIN: Final = 1.1
_YIELD: Final = 0.5
_STALL_SHARE: Final = 0.1
_STALL_S: Final = 0.02


class PodCache(NamedTuple):
    """Page cache of one pod.

    Attributes:
        active_bytes: active file pages.
        inactive_bytes: inactive file pages.
        working_set_bytes: memory in use, with the active cache.
        protected_bytes: the larger of its memory request and ``memory.low``.
    """

    uid: str
    active_bytes: int
    inactive_bytes: int
    working_set_bytes: int
    protected_bytes: int


class CacheStep(NamedTuple):
    """One reclaim from one pod.

    Attributes:
        effect_bytes: predicted fall of the pod's working set.
        size_bytes: amount to reclaim: the effect, and inactive cache, which the kernel reclaims first.
    """

    uid: str
    effect_bytes: int
    size_bytes: int


class StepReading(NamedTuple):
    """Readings of a pod before or after a step.

    Attributes:
        stall_us: time for which its processes waited for memory since the creation of its cgroup.
        at_s: monotonic time.
    """

    working_set_bytes: int
    stall_us: int
    at_s: float


def missing_bytes(threshold: Threshold, reading: Observation, *, since_last_s: float | None) -> float:
    """Return the bytes to reclaim for a met threshold; 0 if page cache is not the cause, or was reclaimed just now.

    Page cache is the cause if the kernel's estimate shows no shortage.
    """
    if threshold.signal is not Signal.MEMORY_AVAILABLE or reading.kernel_available is None:
        return 0
    limit = threshold.limit(reading.capacity, with_reclaim=True)
    hot = since_last_s is not None and since_last_s < REPEATED_AFTER_S
    return 0 if hot or reading.kernel_available < limit else max(0.0, limit - reading.available) * _MARGIN


def plan_cache_reclaim(
    threshold: Threshold, reading: Observation, caches: Iterable[PodCache], *, since_last_s: float | None
) -> tuple[CacheStep, ...]:
    """Return the steps that clear a threshold, largest active cache first; none if cache does not suffice.

    There are no steps for another signal than ``memory.available``, without the kernel's estimate, if that shows a
    shortage too, and if all reclaimable cache of the pods is less than the shortage. A pod keeps its request,
    ``memory.low``, and half of its active cache.

    Args:
        threshold: a met one.
        reading: the latest.
        caches: of the pods.
        since_last_s: time since the last reclaim; ``None`` for none.
    """
    steps: list[CacheStep] = []
    left = missing_bytes(threshold, reading, since_last_s=since_last_s)
    if left <= 0:
        return ()
    for pod in sorted(caches, key=lambda each: (-each.active_bytes, each.uid)):
        room = min(pod.active_bytes // 2, pod.working_set_bytes - pod.protected_bytes, int(left) + 1)
        if room < min(_MIN_POD_BYTES, left) or pod.inactive_bytes > _MAX_INACTIVE_BYTES:
            continue
        inactive = pod.inactive_bytes
        left -= room
        while room > 0:
            effect = min(room, MAX_STEP_BYTES)
            steps.append(CacheStep(pod.uid, effect, effect + inactive))
            room, inactive = room - effect, 0
        if left <= 0:
            return tuple(steps)
    return ()


def fault_of_step(step: CacheStep, before: StepReading, after: StepReading) -> str:
    """Return why no step follows, else empty: it yielded less than half of its prediction, or the pod waited.

    A pod waits for memory if its processes stalled for more than a tenth of the step, since they read the cache again.

    Source: kernel psi.rst, ``total``.
    """
    fall = before.working_set_bytes - after.working_set_bytes
    if fall < step.effect_bytes * _YIELD:
        return f"working set fell by {max(0, fall)} of {step.effect_bytes} bytes"
    stalled_s = (after.stall_us - before.stall_us) / 1e6
    if stalled_s > max(_STALL_S, (after.at_s - before.at_s) * _STALL_SHARE):
        return f"the pod waited {stalled_s:.2f} s for memory"
    return ""
