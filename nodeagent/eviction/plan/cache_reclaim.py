"""Reclaim of active page cache before an eviction for memory.

The kubelet's formula counts active page cache as used, so a pod that reads a file twice can cause a memory threshold to
be met although the kernel could free this cache. If the kernel's estimate (MemAvailable) shows no shortage, active page
cache of pods is reclaimed first. Cold cache is not read again. Hot cache returns within seconds; if the threshold is
met again by then, a pod is evicted. The formula does not count inactive cache as used, so reclaiming only inactive
cache changes no signal; the kernel reclaims inactive cache first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.pressure import Observation

REPEATED_AFTER_S: Final = 30.0
"""Seconds after a cache reclaim in which a met threshold evicts a pod instead: the reclaimed cache was in use."""
MAX_STEP_BYTES: Final = 128 << 20
"""Largest predicted effect of one reclaim step; measured duration of such a step: 0.2 to 0.9 s."""
_MAX_INACTIVE_BYTES: Final = 512 << 20
_MIN_POD_BYTES: Final = 4 << 20
_MARGIN: Final = 1.1
_YIELD: Final = 0.5
_STALL_SHARE: Final = 0.1
_STALL_S: Final = 0.02


class PodCache(NamedTuple):
    """Page cache of one pod.

    Attributes:
        active_bytes: active file pages of the pod's cgroup.
        inactive_bytes: inactive file pages of the pod's cgroup.
        working_set_bytes: memory usage without inactive file pages; includes the active page cache.
        protected_bytes: the larger of the pod's memory request and ``memory.low``; not reclaimed.
    """

    uid: str
    active_bytes: int
    inactive_bytes: int
    working_set_bytes: int
    protected_bytes: int


class CacheStep(NamedTuple):
    """One request to reclaim page cache from the cgroup of one pod.

    Attributes:
        effect_bytes: predicted decrease of the pod's working set.
        size_bytes: bytes to request from the kernel: ``effect_bytes`` plus the inactive cache, which the kernel
            reclaims first.
    """

    uid: str
    effect_bytes: int
    size_bytes: int


class StepReading(NamedTuple):
    """Memory readings of a pod before or after a reclaim step.

    Attributes:
        stall_us: memory stall time (PSI ``total``) of the pod's cgroup since its creation, in microseconds.
        at_s: monotonic time of the reading in seconds.
    """

    working_set_bytes: int
    stall_us: int
    at_s: float


def missing_bytes(threshold: Threshold, reading: Observation, *, since_last_s: float | None) -> float:
    """Return the bytes of page cache to reclaim for a met threshold, with a margin of 10%.

    The result is 0 for signals other than ``memory.available``, without the kernel's estimate, if this estimate shows a
    shortage, and within ``REPEATED_AFTER_S`` of the last reclaim.
    """
    if threshold.signal is not Signal.MEMORY_AVAILABLE or reading.kernel_available is None:
        return 0
    limit = threshold.limit(reading.capacity, with_reclaim=True)
    hot = since_last_s is not None and since_last_s < REPEATED_AFTER_S
    return 0 if hot or reading.kernel_available < limit else max(0.0, limit - reading.available) * _MARGIN


def plan_cache_reclaim(
    threshold: Threshold, reading: Observation, caches: Iterable[PodCache], *, since_last_s: float | None
) -> tuple[CacheStep, ...]:
    """Return the reclaim steps that clear a threshold, largest active cache first; empty if the cache does not suffice.

    The result is empty as well if ``missing_bytes`` is 0. A pod keeps half of its active cache; its working set is not
    reduced below its memory request or ``memory.low``.

    Args:
        threshold: the met threshold.
        reading: the latest reading of its signal.
        caches: page cache of each pod.
        since_last_s: seconds since the last cache reclaim; ``None`` if no reclaim was run.
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
    """Return the reason to stop the cache reclaim after a step; empty to continue.

    The reclaim stops if the step freed less than half of its predicted bytes, or if processes of the pod stalled on
    memory for more than a tenth of the step, at least 20 ms: such a stall shows that the pod reads the reclaimed cache
    again.

    Source: kernel psi.rst, ``total``.
    """
    fall = before.working_set_bytes - after.working_set_bytes
    if fall < step.effect_bytes * _YIELD:
        return f"working set fell by {max(0, fall)} of {step.effect_bytes} bytes"
    stalled_s = (after.stall_us - before.stall_us) / 1e6
    if stalled_s > max(_STALL_S, (after.at_s - before.at_s) * _STALL_SHARE):
        return f"the pod waited {stalled_s:.2f} s for memory"
    return ""
