"""Shutdown planning: the phase of each pod and its grace period.

One function serves the rehearsal, the shutdown itself and its continuation after a restart of the agent; they differ
in the elapsed time and in the pods that have stopped.
"""

from __future__ import annotations

import math
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.priority import CRITICAL_PRIORITY
from nodeagent.plan.shutdown.timing import phase_end_ms
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import PodProgress, ShutdownPod
    from nodeagent.plan.shutdown.budget import PhaseBudget, ShutdownBudget

SYSTEM_NAMESPACE: Final = "kube-system"
NO_PROGRESS: Final[Mapping[str, PodProgress]] = MappingProxyType({})


class PlacedBy(StrEnum):
    """Rule that placed a pod in its phase. The values are part of the JSON output and never change."""

    PRIORITY = "priority"
    BELOW_ALL = "below-all"
    PRIORITY_ASSUMED = "priority-assumed"
    STATIC = "static"
    NODE_CRITICAL = "node-critical"
    SYSTEM_UNKNOWN = "system-unknown"
    SELECTOR = "selector"


class Placement(Record):
    """The phase of one pod.

    Attributes:
        phase: position among the phases.
        why: reason with the source of each fact, without a full stop.
    """

    phase: int
    by: PlacedBy
    why: str


class PodStop(Record):
    """The planned stop of one pod.

    Attributes:
        grace_ms: its time from the start of its phase: its termination grace period, less the part it had before a
            restart of the agent, at most the rest of the phase. KILL follows TERM after
            :data:`~nodeagent.plan.shutdown.timing.MINIMUM_AFTER_TERM_MS` at the earliest, also for 0.
        capped: whether its termination grace period is longer than that.
    """

    pod: ShutdownPod
    placement: Placement
    grace_ms: int
    capped: bool


class PlannedPhase(Record):
    """One phase with its pods.

    Attributes:
        starts_ms: its start if every pod before it uses its whole grace; counted from the start of the shutdown.
        ends_ms: the end of its last pod in that case; never after its deadline, except for a phase that starts late.
        stops: its pods, in :func:`stop_order`. They are stopped in parallel.
    """

    budget: PhaseBudget
    starts_ms: int
    ends_ms: int
    stops: tuple[PodStop, ...]


class ShutdownPlan(Record):
    """Plan of a shutdown, or of its rest.

    Attributes:
        phases: all phases in order; a phase without pods takes no time.
        elapsed_ms: milliseconds from the start of the shutdown to this plan.
    """

    budget: ShutdownBudget
    phases: tuple[PlannedPhase, ...]
    elapsed_ms: int = 0

    @property
    def ends_ms(self) -> int:
        """Latest end of the last pod, in milliseconds since the shutdown began."""
        return max((phase.ends_ms for phase in self.phases), default=self.elapsed_ms)


def plan_shutdown(
    budget: ShutdownBudget,
    pods: Iterable[ShutdownPod],
    *,
    elapsed_ms: int = 0,
    progress: Mapping[str, PodProgress] = NO_PROGRESS,
) -> ShutdownPlan:
    """Return the plan: every pod in one phase, with its grace period.

    A phase starts at the end of the previous one, at its deadline at the latest, so unused time extends the next.
    With ``elapsed_ms`` the plan continues a shutdown: stopped pods are omitted, pods with a stop request have used
    part of their grace, and phases that start late share the remaining time by weight, see
    :func:`~nodeagent.plan.shutdown.timing.phase_end_ms`.

    Args:
        budget: the phases; without phases the plan is empty.
        pods: the running pods in any order. Of two with the same uid the first by name is used.
        elapsed_ms: milliseconds since the shutdown began.
        progress: recorded progress by pod uid.

    Source: kubelet ``podManager.killPods`` in ``nodeshutdown`` for grouping and the cap on the grace period; the use
    of unused time and the continuation are this agent's own.
    """
    elapsed_ms = max(0, elapsed_ms)
    members: list[list[tuple[ShutdownPod, Placement]]] = [[] for _ in budget.phases]
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
    """Return the milliseconds between two readings of a clock that counts from boot; 0 if the first is later.

    Such a clock is affected neither by a restart of the agent nor by a change of the wall time. Both readings must
    be of the same boot.
    """
    return max(0, round((now_s - started_s) * 1000))


def stop_order(pod: ShutdownPod) -> tuple[float, str, str, str]:
    """Return the sort key of stop requests within a phase: longest grace first, ties by namespace, name and uid."""
    grace_s = math.inf if pod.termination_grace_s is None else pod.termination_grace_s
    return -grace_s, pod.namespace, pod.name, pod.uid


def _stops(
    placed: Sequence[tuple[ShutdownPod, Placement]], now_ms: int, end_ms: int, progress: Mapping[str, PodProgress]
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


def place(pod: ShutdownPod, phases: Sequence[PhaseBudget]) -> Placement:
    """Return the phase of a pod; ``phases`` is not empty and one of them has a minimum priority.

    The priority band is the phase with the highest minimum up to the pod's priority, the lowest phase for a priority
    below all minima. Static and node-critical pods, and pods of unknown priority in ``kube-system``, are in the last
    band at any priority. A matching selector of a later phase moves the pod there; the last match is used.

    Source: kubelet ``groupByPriority``; an unknown priority counts as 0 there too.
    """
    bands = [
        (share.phase.min_priority, index) for index, share in enumerate(phases) if share.phase.min_priority is not None
    ]
    placement = _by_priority(pod, bands)
    for index in range(len(phases) - 1, placement.phase, -1):
        for selector in phases[index].phase.selectors:
            if selector.matches(pod):
                return Placement(index, PlacedBy.SELECTOR, f"selected by {selector}")
    return placement


def _by_priority(pod: ShutdownPod, bands: Sequence[tuple[int, int]]) -> Placement:
    last = bands[-1][1]
    if pod.static:
        return Placement(last, PlacedBy.STATIC, f"static pod{_source_suffix(pod.static_source)}")
    if pod.node_critical:
        return Placement(last, PlacedBy.NODE_CRITICAL, f"node-critical pod{_source_suffix(pod.node_critical_source)}")
    if pod.priority is None:
        if pod.namespace == SYSTEM_NAMESPACE:
            return Placement(last, PlacedBy.SYSTEM_UNKNOWN, f"priority unknown, in {SYSTEM_NAMESPACE}")
        return Placement(_band(0, bands), PlacedBy.PRIORITY_ASSUMED, "priority unknown, assumed 0")
    by = PlacedBy.PRIORITY if pod.priority >= bands[0][0] else PlacedBy.BELOW_ALL
    critical = ", critical" if pod.priority >= CRITICAL_PRIORITY else ""
    below = f", below the lowest phase's {bands[0][0]}" if by is PlacedBy.BELOW_ALL else ""
    why = f"priority {pod.priority}{critical}{below}{_source_suffix(pod.priority_source)}"
    return Placement(_band(pod.priority, bands), by, why)


def _band(priority: int, bands: Sequence[tuple[int, int]]) -> int:
    band = bands[0][1]
    for minimum, index in bands:
        if minimum <= priority:
            band = index
    return band


def _source_suffix(source: str) -> str:
    return f" ({source})" if source else ""
