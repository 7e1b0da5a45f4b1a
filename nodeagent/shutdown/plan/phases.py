"""Configured shutdown phases (priority bands and selectors, each with its time), and stop signals."""

from __future__ import annotations

import math
import re
import signal
from typing import TYPE_CHECKING, Final

from nodeagent.model.pods import CRITICAL_PRIORITY
from nodeagent.record import Record, field
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.model import ShutdownPod

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_LONGEST_S = 7 * 86400.0


class Selector(Record):
    """Selector of pods in one of the namespaces (empty for all namespaces) with all of the labels."""

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
    """One phase of a shutdown.

    Attributes:
        name: unique name of the phase, for display.
        seconds: configured time of the phase.
        min_priority: lowest priority of the phase's band, which ends below the next higher minimum; ``None`` for a
            phase that contains only selected pods.
        selectors: selectors of pods to move from earlier phases to this phase; no pod is moved to an earlier phase.
    """

    name: str
    seconds: float
    min_priority: int | None = None
    selectors: tuple[Selector, ...] = ()

    @property
    def requested_ms(self) -> int:
        """Configured time of the phase in whole milliseconds."""
        return round(self.seconds * 1000)


def two_bands(grace_period_s: float, grace_period_critical_s: float) -> tuple[Phase, ...]:
    """Return the phases of two priority bands, regular and critical; empty for a total of 0.

    Raises:
        ValueError: a time is negative, not finite or too long, or the critical part exceeds the total.

    Source: kubelet ``migrateConfig`` in ``nodeshutdown``; the kubelet truncates to whole seconds and disables graceful
    shutdown if the critical part exceeds the total. nodeagent supports fractions of seconds and raises an error.
    """
    _check_seconds("grace_period", grace_period_s)
    _check_seconds("grace_period_critical", grace_period_critical_s)
    if grace_period_critical_s > grace_period_s:
        raise ValueError(
            f"grace_period_critical ({format_duration(grace_period_critical_s)}) is part of grace_period "
            f"({format_duration(grace_period_s)}) and must not exceed grace_period"
        )
    if not grace_period_s:
        return ()
    return (
        Phase("ordinary", grace_period_s - grace_period_critical_s, 0),
        Phase("critical", grace_period_critical_s, CRITICAL_PRIORITY),
    )


def by_priority(pairs: Sequence[tuple[int, float]]) -> tuple[Phase, ...]:
    """Return one phase for each pair of minimum priority and time in seconds.

    Raises:
        ValueError: a phase is invalid; see :func:`check_phases`.

    Source: kubelet ``ShutdownGracePeriodByPodPriority``; the kubelet sorts the pairs; nodeagent requires ascending
    priorities.
    """
    phases = tuple(Phase(f"priority-{priority}", seconds, priority) for priority, seconds in pairs)
    check_phases(phases)
    return phases


def check_phases(phases: Sequence[Phase]) -> None:
    """Raise ``ValueError`` for invalid names, times, priorities or selectors; an empty sequence is valid.

    Raises:
        ValueError: a phase is invalid; the message has the name of the phase and the reason.
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
        raise ValueError(f"shutdown phase {phase.name!r} selects no pods: set a min_priority or a selector")
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


_REAL_TIME_FIRST: Final = 34  # as in container runtimes, independent of the agent's C library
_LAST: Final = 64
_REAL_TIME: Final = re.compile(r"RT(MIN|MAX)(?:([+-])(\d{1,2}))?")
_NAMES: Final = {each.name: int(each) for each in signal.Signals if each < _REAL_TIME_FIRST}


def signal_number(name: str) -> int | None:
    """Return the number of a signal; ``None`` for an empty or unknown name, for which TERM is used.

    Numbers and names are accepted, with or without ``SIG``: ``3``, ``SIGQUIT``, ``quit``, ``SIGRTMIN+3``. Source:
    Dockerfile reference, ``STOPSIGNAL``; signal(7).
    """
    text = name.strip().upper()
    if text.isascii() and text.isdecimal() and len(text) <= 2:
        number: int | None = int(text)
    elif (found := _REAL_TIME.fullmatch(text.removeprefix("SIG"))) is not None:
        first = _REAL_TIME_FIRST if found[1] == "MIN" else _LAST
        number = first + int(f"{found[2] or '+'}{found[3] or 0}")
        number = number if number >= _REAL_TIME_FIRST else None
    else:
        number = _NAMES.get(f"SIG{text.removeprefix('SIG')}")
    return number if number is not None and 1 <= number <= _LAST else None
