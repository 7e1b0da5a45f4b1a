"""Shutdown plan: the phase and the grace period of each pod.

:func:`plan_shutdown` is used for the rehearsal, for the shutdown, and for a shutdown resumed after a restart of the
agent, with different elapsed times and stopped pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.pods import CRITICAL_PRIORITY
from nodeagent.record import Record
from nodeagent.shutdown.plan.budget import PhaseBudget, ShutdownBudget, phase_end_ms

if TYPE_CHECKING:
    from nodeagent.model import PodProgress, ShutdownPod

SYSTEM_NAMESPACE: Final = "kube-system"
NO_PROGRESS: Final[Mapping[str, PodProgress]] = MappingProxyType({})


class PlacedBy(StrEnum):
    """Rule that assigned a pod to its phase. The values are part of the JSON output and never change."""

    PRIORITY = "priority"
    BELOW_ALL = "below-all"
    PRIORITY_ASSUMED = "priority-assumed"
    STATIC = "static"
    NODE_CRITICAL = "node-critical"
    SYSTEM_UNKNOWN = "system-unknown"
    SELECTOR = "selector"


class PodPhase(Record):
    """Phase of one pod with the reason.

    Attributes:
        phase: index of the phase.
        why: reason for the phase with the source of each fact, without a full stop.
    """

    phase: int
    by: PlacedBy
    why: str


class PodStop(Record):
    """Planned stop of one pod.

    Attributes:
        grace_ms: time of the pod from the start of its phase: the termination grace period, minus the time since an
            earlier stop request, at most the remaining time of the phase. KILL follows TERM after
            :data:`~nodeagent.shutdown.plan.budget.MINIMUM_AFTER_TERM_MS` at the earliest, even for a grace period of 0.
        capped: whether the termination grace period is reduced to the remaining time of the phase.
    """

    pod: ShutdownPod
    placement: PodPhase
    grace_ms: int
    capped: bool


class PlannedPhase(Record):
    """One phase with its pods.

    Attributes:
        starts_ms: start of the phase if every earlier pod uses its whole grace period, in milliseconds since the start
            of the shutdown.
        ends_ms: end of the last pod of the phase in this case; after the deadline only for a phase that starts late.
        stops: stops of the pods in :func:`stop_order`; the pods are stopped in parallel.
    """

    budget: PhaseBudget
    starts_ms: int
    ends_ms: int
    stops: tuple[PodStop, ...]


class ShutdownPlan(Record):
    """Plan of a shutdown, or of the remaining part of a shutdown.

    Attributes:
        phases: all phases in order; a phase without pods ends immediately.
        elapsed_ms: milliseconds from the start of the shutdown to this plan.
    """

    budget: ShutdownBudget
    phases: tuple[PlannedPhase, ...]
    elapsed_ms: int = 0

    @property
    def ends_ms(self) -> int:
        """Latest end of the last pod, in milliseconds since the start of the shutdown."""
        return max((phase.ends_ms for phase in self.phases), default=self.elapsed_ms)


def plan_shutdown(
    budget: ShutdownBudget,
    pods: Iterable[ShutdownPod],
    *,
    elapsed_ms: int = 0,
    progress: Mapping[str, PodProgress] = NO_PROGRESS,
) -> ShutdownPlan:
    """Return the shutdown plan, which assigns a phase and a grace period to every pod.

    A phase starts at the end of the previous phase, at the deadline of the previous phase at the latest; unused time
    extends the next phase. With ``elapsed_ms`` the plan continues a shutdown: stopped pods are omitted, the time since
    a stop request is subtracted from the grace period, and phases that start late share the remaining time by weight,
    see :func:`~nodeagent.shutdown.plan.budget.phase_end_ms`.

    Args:
        budget: phases with their time; without phases the plan is empty.
        pods: running pods in any order. Of two pods with equal UIDs, the first by name is used.
        elapsed_ms: milliseconds since the start of the shutdown.
        progress: recorded progress by pod UID.

    Source: kubelet ``podManager.killPods`` in ``nodeshutdown`` for the grouping and the cap on the grace period; the
    use of unused time and the continuation are specific to nodeagent.
    """
    elapsed_ms = max(0, elapsed_ms)
    members: list[list[tuple[ShutdownPod, PodPhase]]] = [[] for _ in budget.phases]
    planned = {uid for uid, record in progress.items() if record.outcome.ended}
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name, each.uid)):
        if pod.uid in planned or not budget.phases:
            continue
        planned.add(pod.uid)
        placement = place(pod, budget.phases)
        members[placement.phase].append((pod, placement))
    phases, now_ms = [], elapsed_ms
    occupied = {index for index, placed in enumerate(members) if placed}
    for index, (share, placed) in enumerate(zip(budget.phases, members, strict=True)):
        end_ms = phase_end_ms(budget, index, now_ms, occupied)
        stops = _stops(placed, now_ms, end_ms, progress)
        ends_ms = now_ms + max((stop.grace_ms for stop in stops), default=0)
        phases.append(PlannedPhase(share, now_ms, ends_ms, stops))
        now_ms = ends_ms
    return ShutdownPlan(budget, tuple(phases), elapsed_ms)


def elapsed_since(started_s: float, now_s: float) -> int:
    """Return the milliseconds between two readings of the boot clock, in seconds; 0 if ``started_s`` is later.

    A restart of the agent or a step of the wall clock does not affect the boot clock. Both readings must be of the same
    boot.
    """
    return max(0, round((now_s - started_s) * 1000))


def stop_order(pod: ShutdownPod) -> tuple[float, str, str, str]:
    """Return the sort key of stop requests within a phase: longest grace first, ties by namespace, name and UID."""
    grace_s = math.inf if pod.termination_grace_s is None else pod.termination_grace_s
    return -grace_s, pod.namespace, pod.name, pod.uid


def _stops(
    placed: Sequence[tuple[ShutdownPod, PodPhase]], now_ms: int, end_ms: int, progress: Mapping[str, PodProgress]
) -> tuple[PodStop, ...]:
    left_ms = max(0, end_ms - now_ms)
    stops = []
    for pod, placement in sorted(placed, key=lambda each: stop_order(each[0])):
        record = progress.get(pod.uid)
        grace_ms, capped = left_ms, False
        if pod.termination_grace_s is not None:
            used_ms = max(0, now_ms - record.requested_at_ms) if record is not None else 0
            own_ms = max(0, round(pod.termination_grace_s * 1000) - used_ms)
            grace_ms, capped = min(own_ms, left_ms), own_ms > left_ms
        stops.append(PodStop(pod, placement, grace_ms, capped))
    return tuple(stops)


def place(pod: ShutdownPod, phases: Sequence[PhaseBudget]) -> PodPhase:
    """Return the phase of a pod; at least one of ``phases`` must have a minimum priority.

    The priority band of a pod is the phase with the highest minimum that does not exceed the pod's priority, or the
    lowest band if all minima exceed this priority. Static pods, node-critical pods, and pods of unknown priority in
    ``kube-system`` are in the last band regardless of priority. A matching selector of a later phase moves the pod to
    this phase; the last matching phase is used.

    Source: kubelet ``groupByPriority``; in the kubelet an unknown priority counts as 0 as well.
    """
    bands = [
        (share.phase.min_priority, index) for index, share in enumerate(phases) if share.phase.min_priority is not None
    ]
    placement = _by_priority(pod, bands)
    for index in range(len(phases) - 1, placement.phase, -1):
        for selector in phases[index].phase.selectors:
            if selector.matches(pod):
                return PodPhase(index, PlacedBy.SELECTOR, f"selected by {selector}")
    return placement


def _by_priority(pod: ShutdownPod, bands: Sequence[tuple[int, int]]) -> PodPhase:
    last = bands[-1][1]
    if pod.static:
        return PodPhase(last, PlacedBy.STATIC, f"static pod{_source_suffix(pod.static_source)}")
    if pod.node_critical:
        return PodPhase(last, PlacedBy.NODE_CRITICAL, f"node-critical pod{_source_suffix(pod.node_critical_source)}")
    if pod.priority is None:
        if pod.namespace == SYSTEM_NAMESPACE:
            return PodPhase(last, PlacedBy.SYSTEM_UNKNOWN, f"priority unknown, in {SYSTEM_NAMESPACE}")
        return PodPhase(_band(0, bands), PlacedBy.PRIORITY_ASSUMED, "priority unknown, assumed 0")
    by = PlacedBy.PRIORITY if pod.priority >= bands[0][0] else PlacedBy.BELOW_ALL
    critical = ", critical" if pod.priority >= CRITICAL_PRIORITY else ""
    below = f", below the lowest phase's {bands[0][0]}" if by is PlacedBy.BELOW_ALL else ""
    why = f"priority {pod.priority}{critical}{below}{_source_suffix(pod.priority_source)}"
    return PodPhase(_band(pod.priority, bands), by, why)


def _band(priority: int, bands: Sequence[tuple[int, int]]) -> int:
    band = bands[0][1]
    for minimum, index in bands:
        if minimum <= priority:
            band = index
    return band


def _source_suffix(source: str) -> str:
    return f" ({source})" if source else ""
