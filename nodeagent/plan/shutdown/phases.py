"""Shutdown phases as configured: priority bands and selectors, each with its time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nodeagent.model.priority import CRITICAL_PRIORITY
from nodeagent.record import Record, field
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model import ShutdownPod

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_LONGEST_S = 7 * 86400.0


class Selector(Record):
    """Pods of any of the namespaces (of all namespaces if none is named) that carry all of the labels."""

    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, pod: ShutdownPod) -> bool:
        """Return whether the selector matches a pod."""
        if self.namespaces and pod.namespace not in self.namespaces:
            return False
        return all(pod.labels.get(key) == value for key, value in self.labels.items())

    def __str__(self) -> str:
        parts = [f"namespace {' or '.join(self.namespaces)}"] if self.namespaces else []
        parts += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return " and ".join(parts)


class Phase(Record):
    """One step of a shutdown.

    Attributes:
        name: unique name, shown to operators.
        seconds: its configured time.
        min_priority: lowest priority of its band, which ends at the next phase's; ``None`` for a phase of selected
            pods only.
        selectors: pods of earlier phases that are moved to this one; a pod is never moved to an earlier phase.
    """

    name: str
    seconds: float
    min_priority: int | None = None
    selectors: tuple[Selector, ...] = ()

    @property
    def requested_ms(self) -> int:
        """Its configured time in whole milliseconds."""
        return round(self.seconds * 1000)


def two_bands(grace_period_s: float, grace_period_critical_s: float) -> tuple[Phase, ...]:
    """Return the phases of the two priority bands, regular and critical; none for a total of 0.

    Raises:
        ValueError: a number is negative, or the critical part exceeds the total.

    Source: kubelet ``migrateConfig`` in ``nodeshutdown``; it counts whole seconds, fractions are
    kept here, and a part beyond the total, which disables the feature there, is refused.
    """
    _check_seconds("grace_period", grace_period_s)
    _check_seconds("grace_period_critical", grace_period_critical_s)
    if grace_period_critical_s > grace_period_s:
        raise ValueError(
            f"grace_period_critical ({format_duration(grace_period_critical_s)}) is part of grace_period "
            f"({format_duration(grace_period_s)}) and cannot be more than it"
        )
    if not grace_period_s:
        return ()
    return (
        Phase("ordinary", grace_period_s - grace_period_critical_s, 0),
        Phase("critical", grace_period_critical_s, CRITICAL_PRIORITY),
    )


def by_priority(pairs: Sequence[tuple[int, float]]) -> tuple[Phase, ...]:
    """Return one phase for each pair of minimum priority and seconds.

    Raises:
        ValueError: as for :func:`check_phases`.

    Source: kubelet ``ShutdownGracePeriodByPodPriority``; it sorts the pairs, here they must ascend.
    """
    phases = tuple(Phase(f"priority-{priority}", seconds, priority) for priority, seconds in pairs)
    check_phases(phases)
    return phases


def check_phases(phases: Sequence[Phase]) -> None:
    """Check names, times, priorities and selectors. No phases at all are valid: no graceful shutdown.

    Raises:
        ValueError: a phase is invalid; the message names it and the reason.
    """
    names: set[str] = set()
    previous: Phase | None = None
    for phase in phases:
        if not phase.name:
            raise ValueError("a shutdown phase has an empty name")
        _check_seconds(f"shutdown phase {phase.name!r}", phase.seconds)
        _check_selectors(phase)
        if phase.min_priority is not None:
            _check_order(previous, phase, phase.min_priority)
            previous = phase
        if phase.name in names:
            raise ValueError(f"two shutdown phases have the name {phase.name!r}")
        names.add(phase.name)
    if phases and previous is None:
        raise ValueError("no shutdown phase has a min_priority, so most pods would have no phase")


def _check_seconds(subject: str, seconds: float) -> None:
    if not math.isfinite(seconds):
        raise ValueError(f"{subject} is {seconds}, not a number of seconds")
    if seconds < 0:
        raise ValueError(f"{subject} is negative: {seconds:g} seconds")
    if seconds > _LONGEST_S:
        raise ValueError(
            f"{subject} is {format_duration(seconds)}, more than the allowed {format_duration(_LONGEST_S)}"
        )


def _check_selectors(phase: Phase) -> None:
    if phase.min_priority is None and not phase.selectors:
        raise ValueError(f"shutdown phase {phase.name!r} selects no pods: give it a min_priority or a selector")
    for selector in phase.selectors:
        if not selector.namespaces and not selector.labels:
            raise ValueError(f"a selector of shutdown phase {phase.name!r} is empty and would match every pod")


def _check_order(previous: Phase | None, phase: Phase, priority: int) -> None:
    if not _LOWEST <= priority <= _HIGHEST:
        raise ValueError(f"shutdown phase {phase.name!r}: min_priority {priority} is not a 32-bit number")
    if previous is None or previous.min_priority is None or previous.min_priority < priority:
        return
    if previous.min_priority == priority:
        raise ValueError(f"shutdown phases {previous.name!r} and {phase.name!r} both have min_priority {priority}")
    raise ValueError(
        f"shutdown phases must ascend: {phase.name!r} with min_priority {priority} follows "
        f"{previous.name!r} with {previous.min_priority}"
    )
