"""The time a shutdown has: phases as configured, checked, and fitted to what logind allows.

Configured in seconds, counted in whole milliseconds from here on, so that shares add up without rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeagent.model.priority import CRITICAL_PRIORITY
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model import ShutdownPod

USEC_INFINITY: Final = 2**64 - 1
"""How systemd says "no limit" in a property of microseconds. Source: systemd.time(7), ``infinity``."""

LEAST_AT_SIGNAL_MS: Final = 2000
"""Less time is too short to stop pods at logind's signal. Source: kubelet ``minimumGracePeriodInSeconds``."""

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_LONGEST_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Selector:
    """Pods of any of the namespaces (any at all if none is named) that carry all of the labels."""

    namespaces: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, pod: ShutdownPod) -> bool:
        """Return whether the pod is selected."""
        if self.namespaces and pod.namespace not in self.namespaces:
            return False
        return all(pod.labels.get(key) == value for key, value in self.labels.items())

    def __str__(self) -> str:
        parts = [f"namespace {' or '.join(self.namespaces)}"] if self.namespaces else []
        parts += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of a shutdown.

    Attributes:
        name: what it is called before a person; unique.
        seconds: its share of the time.
        min_priority: takes pods from this priority up to the next phase's; ``None`` for a phase that only takes
            what its selectors name.
        selectors: pods of earlier phases that wait for this one; a pod is never moved forward.
    """

    name: str
    seconds: float
    min_priority: int | None = None
    selectors: tuple[Selector, ...] = ()

    @property
    def wanted_ms(self) -> int:
        """Its share in whole milliseconds."""
        return round(self.seconds * 1000)


def two_bands(grace_period_s: float, grace_period_critical_s: float) -> tuple[Phase, ...]:
    """Return the phases that a total and the critical pods' part of it stand for; none for a total of 0.

    Raises:
        ValueError: a number is negative, or the part is more than the total.

    Source: kubelet ``migrateConfig`` in ``nodeshutdown``; it counts whole seconds, here fractions stay, and a part
    beyond the total, which switches the feature off there, is refused.
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
        ValueError: as :func:`check_phases`.

    Source: kubelet ``ShutdownGracePeriodByPodPriority``; it sorts the pairs, here they have to be ascending.
    """
    phases = tuple(Phase(f"priority-{priority}", seconds, priority) for priority, seconds in pairs)
    check_phases(phases)
    return phases


def check_phases(phases: Sequence[Phase]) -> None:
    """Check what can be told without knowing the node. No phases at all is fine: no graceful shutdown.

    Raises:
        ValueError: what is wrong, in a sentence that names the phase.
    """
    names: set[str] = set()
    before: Phase | None = None
    for phase in phases:
        if not phase.name:
            raise ValueError("a shutdown phase has an empty name")
        _check_seconds(f"shutdown phase {phase.name!r}", phase.seconds)
        _check_selectors(phase)
        if phase.min_priority is not None:
            _check_order(before, phase, phase.min_priority)
            before = phase
        if phase.name in names:
            raise ValueError(f"two shutdown phases are called {phase.name!r}")
        names.add(phase.name)
    if phases and before is None:
        raise ValueError("no shutdown phase has a min_priority, so most pods would belong to none")


def _check_seconds(what: str, seconds: float) -> None:
    if not math.isfinite(seconds):
        raise ValueError(f"{what} is {seconds}, not a number of seconds")
    if seconds < 0:
        raise ValueError(f"{what} is negative: {seconds:g} seconds")
    if seconds > _LONGEST_S:
        raise ValueError(f"{what} is {format_duration(seconds)}, more than the allowed {format_duration(_LONGEST_S)}")


def _check_selectors(phase: Phase) -> None:
    if phase.min_priority is None and not phase.selectors:
        raise ValueError(f"shutdown phase {phase.name!r} takes no pods: give it a min_priority or a selector")
    for selector in phase.selectors:
        if not selector.namespaces and not selector.labels:
            raise ValueError(f"a selector of shutdown phase {phase.name!r} is empty and would take every pod")


def _check_order(before: Phase | None, phase: Phase, priority: int) -> None:
    if not _LOWEST <= priority <= _HIGHEST:
        raise ValueError(f"shutdown phase {phase.name!r}: min_priority {priority} is no 32-bit number")
    if before is None or before.min_priority is None or before.min_priority < priority:
        return
    if before.min_priority == priority:
        raise ValueError(f"shutdown phases {before.name!r} and {phase.name!r} both have min_priority {priority}")
    raise ValueError(
        f"shutdown phases must ascend: {phase.name!r} with min_priority {priority} comes after "
        f"{before.name!r} with {before.min_priority}"
    )


@dataclass(frozen=True, slots=True)
class PhaseBudget:
    """The time of one phase.

    Attributes:
        granted_ms: its share of what there is; the configured share unless phases were scaled.
        deadline_ms: when it ends at the latest, counted from the begin of the shutdown. Time that earlier phases
            leave over passes on to it by that.
    """

    phase: Phase
    granted_ms: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ShutdownBudget:
    """The time of all phases.

    Attributes:
        wanted_ms: what is configured.
        granted_ms: what there is; never more than wanted or than logind's limit.
        limit_ms: logind's limit, rounded down; ``None`` where it is unlimited or not known.
        notes: what an operator should know, in sentences.
    """

    phases: tuple[PhaseBudget, ...]
    wanted_ms: int
    granted_ms: int
    limit_ms: int | None
    notes: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether the phases had to be shortened."""
        return self.granted_ms < self.wanted_ms

    @property
    def suffices_at_signal(self) -> bool:
        """Whether pods are stopped at logind's signal.

        With too little time they would all be killed at once; they are then left to the unit's stop command, which
        has ``TimeoutStopSec``. Source: the kubelet's shutdown manager does not start with less than it wants.
        """
        return self.granted_ms >= min(self.wanted_ms, LEAST_AT_SIGNAL_MS)

    def left_to_stop_command(self, limit_set_by: str) -> str:
        """Return a sentence that says why nothing is stopped at logind's signal; empty if pods are."""
        if self.suffices_at_signal:
            return ""
        return (
            f"logind waits only {_shown(self.limit_ms or 0)} (InhibitDelayMaxSec, set by {limit_set_by}), too short "
            f"for phases of {_shown(self.wanted_ms)} in total: no pod is stopped at the signal; the unit's stop "
            "command stops pods within TimeoutStopSec"
        )


def fit_phases(
    phases: Sequence[Phase], limit_us: int | None, *, reserve_ms: int = 0, limit_set_by: str = ""
) -> ShutdownBudget:
    """Share out the time that logind allows.

    The phases stay as configured where they fit. Otherwise each keeps its proportion: the deadlines are scaled and
    rounded down to milliseconds, and a share is the distance between two of them, so the shares add up to what
    there is, exactly.

    Args:
        phases: as :func:`check_phases` accepts them.
        limit_us: logind's ``InhibitDelayMaxUSec``; ``None`` where it could not be read.
        reserve_ms: kept back from the limit for the last kills and for releasing the lock; at most a tenth of it.
        limit_set_by: the file that sets the limit, empty where it is systemd's default or not known.

    Raises:
        ValueError: the limit or the reserve is negative.

    Source: logind.conf(5), ``InhibitDelayMaxSec=``: after it, logind goes on whatever locks are held.
    """
    if (limit_us is not None and limit_us < 0) or reserve_ms < 0:
        raise ValueError(f"a limit of {limit_us} microseconds with a reserve of {reserve_ms} milliseconds is senseless")
    wanted_ms = sum(phase.wanted_ms for phase in phases)
    limit_ms = None if limit_us is None or limit_us == USEC_INFINITY else limit_us // 1000
    granted_ms = wanted_ms
    if limit_ms is not None:
        granted_ms = min(wanted_ms, limit_ms - min(reserve_ms, limit_ms // 10))
    shares, wanted_so_far, deadline_ms = [], 0, 0
    for phase in phases:
        wanted_so_far += phase.wanted_ms
        previous_ms, deadline_ms = deadline_ms, wanted_so_far * granted_ms // wanted_ms if wanted_ms else 0
        shares.append(PhaseBudget(phase, deadline_ms - previous_ms, deadline_ms))
    notes = tuple(_notes(shares, wanted_ms, granted_ms, limit_us, limit_set_by))
    return ShutdownBudget(tuple(shares), wanted_ms, granted_ms, limit_ms, notes)


def _notes(
    shares: Sequence[PhaseBudget], wanted_ms: int, granted_ms: int, limit_us: int | None, limit_set_by: str
) -> list[str]:
    notes = []
    if shares and limit_us is None:
        notes.append("logind's limit could not be read; the phases may be cut short")
    elif limit_us is not None and granted_ms < wanted_ms:
        by = f", set by {limit_set_by}" if limit_set_by else ""
        notes.append(
            f"the phases add up to {_shown(wanted_ms)}, but logind waits only {_shown(limit_us // 1000)} "
            f"(InhibitDelayMaxSec{by}): they are scaled to {_shown(granted_ms)}"
        )
    notes += [
        f"phase {share.phase.name!r} has no time: its pods are killed at once unless others end early"
        for share in shares
        if not share.granted_ms
    ]
    return notes


def _shown(milliseconds: int) -> str:
    if milliseconds % 1000 and milliseconds < 60_000:
        return f"{milliseconds / 1000:.3f}".rstrip("0") + "s"
    return format_duration(milliseconds / 1000)
