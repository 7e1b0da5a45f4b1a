"""Shutdown plan: the budget of the shutdown, and the phase and grace period of each pod.

:func:`plan_shutdown` is used for the rehearsal, for the shutdown, and for a shutdown resumed after a restart of the
agent, with different elapsed times and stopped pods.

The budget has the configured phases and the time of each within the delay that logind or systemd grants. The inhibitor
task, the stop hook, the CLI and ``doctor`` all use :func:`shutdown_budget`, with different limits
(:class:`DelayLimit`). Times are whole milliseconds, so that the shares of the phases add up without rounding errors.

A run that starts late, after a crash of the agent or an outage of the runtime, divides the remaining time among the
phases with pods, in proportion to their granted time. Otherwise pods of a phase with a passed deadline would be killed
without TERM. A phase that starts without time is left to the next process: after the daemon, the unit's
stop hook has a time of its own.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.pods import CRITICAL_PRIORITY
from nodeagent.model.stops import PodOutcome, ShutdownPod
from nodeagent.record import Record, field
from nodeagent.units import USEC_INFINITY, format_duration

if TYPE_CHECKING:
    from nodeagent.model.stops import PodProgress

MINIMUM_AT_SIGNAL_MS: Final = 2000
"""Minimum time for stopping pods at logind's signal. Source: kubelet ``minimumGracePeriodInSeconds``."""

RESERVE_MS: Final = 500
"""Part of the limit reserved for the last kills and the release of the inhibitor lock."""

STOP_HOOK_RESERVE_S: Final = 10.0
"""Part of ``TimeoutStopSec`` reserved for the start of the stop hook and its last log entries."""

LAST_KILLS_MS: Final = 2000
"""Time to wait for the kills of the last phase, if the limit permits."""

_LIMIT_MARGIN_MS: Final = 100
_LATE_START_MS: Final = 500  # for kills of a run that starts after its deadline


class DelayLimit(Record):
    """Limit of the shutdown delay: maximum time for which logind or systemd waits for pods.

    Attributes:
        limit_us: limit in microseconds; ``USEC_INFINITY`` for no limit, ``None`` if the limit could not be read.
        set_by: file or unit that sets the limit; empty if unknown.
        setting: name of the logind or systemd setting.
        waiter: service that waits for the pods: logind or systemd.
    """

    limit_us: int | None
    set_by: str = ""
    setting: str = "InhibitDelayMaxSec"
    waiter: str = "logind"

    @classmethod
    def of_logind(cls, reported_us: int | None, configured_us: int, set_by: str) -> DelayLimit:
        """Return the limit at logind's signal: the reported value, or the configured value before logind's report."""
        return cls(configured_us if reported_us is None else reported_us, set_by)

    @classmethod
    def of_unit_stop(cls, timeout_us: int | None, *, elapsed_s: float = 0.0) -> DelayLimit:
        """Return the limit at a stop of the agent's systemd unit.

        Args:
            timeout_us: ``TimeoutStopUSec`` of the unit; ``None`` for no limit.
            elapsed_s: seconds since the start of the stop hook.
        """
        limit_us = USEC_INFINITY
        if timeout_us is not None:
            limit_us = max(0, round(timeout_us - (STOP_HOOK_RESERVE_S + elapsed_s) * 1e6))
        return cls(limit_us, "the unit", "TimeoutStopSec", "systemd")

    @property
    def limit_ms(self) -> int | None:
        """The limit in milliseconds, rounded down; ``None`` for no limit or if it could not be read."""
        return None if self.limit_us is None or self.limit_us == USEC_INFINITY else self.limit_us // 1000

    @property
    def source(self) -> str:
        """Name of the setting, with the file or unit that sets it."""
        return f"{self.setting}, set by {self.set_by}" if self.set_by else self.setting


UNLIMITED: Final = DelayLimit(USEC_INFINITY)


class PhaseBudget(Record):
    """Time of one phase.

    Attributes:
        granted_ms: share of the phase in the granted time; the configured time, unless the phases were scaled.
        deadline_ms: latest end of the phase, in milliseconds since the start of the shutdown. A phase that starts early
            may use the time that earlier phases left unused.
    """

    phase: Phase
    granted_ms: int
    deadline_ms: int


class ShutdownBudget(Record):
    """Time of all phases within the limit.

    Attributes:
        requested_ms: configured time of all phases.
        granted_ms: available time of all phases; at most the requested time and the limit.
        limit: the applied limit.
        notes: warnings for the operator, as sentences.
    """

    phases: tuple[PhaseBudget, ...]
    requested_ms: int
    granted_ms: int
    limit: DelayLimit
    notes: tuple[str, ...] = ()

    @property
    def limit_ms(self) -> int | None:
        """The limit in milliseconds, rounded down; ``None`` for no limit or if it could not be read."""
        return self.limit.limit_ms

    @property
    def scaled(self) -> bool:
        """Whether the phases are shortened because the limit is less than the configured time."""
        return self.granted_ms < self.requested_ms

    @property
    def suffices_at_signal(self) -> bool:
        """Whether pods are stopped at logind's signal.

        With too little time all pods would be killed immediately; instead, the stop hook of the unit stops the pods
        within ``TimeoutStopSec``. Source: kubelet shutdown manager, which does not start if logind grants less than the
        configured time.
        """
        return self.granted_ms >= min(self.requested_ms, MINIMUM_AT_SIGNAL_MS)

    @property
    def delegated_because(self) -> str:
        """Reason to stop no pod at logind's signal, as a sentence; empty if pods are stopped at the signal."""
        if self.suffices_at_signal:
            return ""
        return (
            f"{self.limit.waiter} waits only {_format_ms(self.limit_ms or 0)} ({self.limit.source}), too short "
            f"for phases of {_format_ms(self.requested_ms)} in total: no pod is stopped at the signal; the unit's stop "
            "hook stops pods within TimeoutStopSec"
        )

    def latest_end_ms(self, started_ms: int) -> int:
        """Return the latest end of a shutdown run, in milliseconds since the start of the shutdown.

        Args:
            started_ms: start of the run in milliseconds since the start of the shutdown; above 0 for a resumed
                shutdown.
        """
        latest = self.granted_ms + LAST_KILLS_MS
        if self.limit_ms is not None:
            latest = max(self.granted_ms, min(latest, self.limit_ms - _LIMIT_MARGIN_MS))
        return max(latest, started_ms + _LATE_START_MS)


def shutdown_budget(phases: Sequence[Phase], limit: DelayLimit, *, reserve_ms: int = RESERVE_MS) -> ShutdownBudget:
    """Return the time of each phase within the limit.

    The phases get their configured time if the limit permits. Otherwise all deadlines are scaled by the same factor and
    rounded down to milliseconds. The share of a phase is the difference between two deadlines, so that the shares add
    up exactly to the granted time.

    Args:
        phases: phases that :func:`check_phases` accepts.
        limit: limit of the shutdown delay.
        reserve_ms: part of the limit reserved for the last kills and the release of the lock; at most a tenth of the
            limit is reserved.

    Raises:
        ValueError: the limit or the reserve is negative.

    Source: logind.conf(5), ``InhibitDelayMaxSec=``: logind continues the shutdown after this time despite delay locks.
    """
    if (limit.limit_us is not None and limit.limit_us < 0) or reserve_ms < 0:
        raise ValueError(f"invalid limit of {limit.limit_us} microseconds with a reserve of {reserve_ms} milliseconds")
    requested_ms = sum(phase.requested_ms for phase in phases)
    granted_ms = requested_ms
    if limit.limit_ms is not None:
        granted_ms = min(requested_ms, limit.limit_ms - min(reserve_ms, limit.limit_ms // 10))
    shares, requested_so_far_ms, deadline_ms = [], 0, 0
    for phase in phases:
        requested_so_far_ms += phase.requested_ms
        previous_ms = deadline_ms
        deadline_ms = requested_so_far_ms * granted_ms // requested_ms if requested_ms else 0
        shares.append(PhaseBudget(phase, deadline_ms - previous_ms, deadline_ms))
    notes = tuple(_notes(shares, requested_ms, granted_ms, limit))
    return ShutdownBudget(tuple(shares), requested_ms, granted_ms, limit, notes)


def required_delay_s(phases: Sequence[Phase]) -> int:
    """Return the limit in whole seconds that permits the configured time of all phases plus the reserve."""
    return math.ceil(sum(phase.requested_ms for phase in phases) / 1000 * 1.1) + 1


def _notes(shares: Sequence[PhaseBudget], requested_ms: int, granted_ms: int, limit: DelayLimit) -> list[str]:
    notes = []
    if shares and limit.limit_us is None:
        notes.append(f"cannot read the limit of {limit.waiter}; the phases may be shortened")
    elif limit.limit_ms is not None and granted_ms < requested_ms:
        notes.append(
            f"the phases add up to {_format_ms(requested_ms)}, but {limit.waiter} waits only "
            f"{_format_ms(limit.limit_ms)} ({limit.source}): they are scaled to {_format_ms(granted_ms)}"
        )
    notes += [
        f"phase {share.phase.name!r} has no time: its pods are killed at once unless others end early"
        for share in shares
        if not share.granted_ms
    ]
    return notes


def _format_ms(milliseconds: int) -> str:
    if milliseconds % 1000:  # rounding would display the limit
        return f"{milliseconds / 1000:.3f}".rstrip("0") + "s"
    return format_duration(milliseconds / 1000)


KILLED_EXIT_CODE: Final = 137
"""Exit code of a process terminated by SIGKILL. Source: runc and POSIX shells, 128 plus the signal number."""

UNKNOWN_EXIT_CODE: Final = 255
"""Exit code of a container that exited while containerd was down. Source: containerd CRI, ``unknownExitCode``."""

_TERMINATED_EXIT_CODE: Final = 143
_WORDS: Final = {
    PodOutcome.STOPPED: "stopped",
    PodOutcome.KILLED: "killed",
    PodOutcome.FAILED: "still running",
    PodOutcome.STOPPING: "stopping",
    None: "without a stop request",
}


class ContainerEnd(Record):
    """Exit of one container in a shutdown.

    Attributes:
        ended: whether no process of the container is left.
        killed: whether the agent sent KILL while processes were running; ``None`` if unknown.
        exit_code: exit code reported by the runtime; ``None`` if unknown.
    """

    ended: bool
    killed: bool | None = False
    exit_code: int | None = None

    @property
    def known_code(self) -> int | None:
        """The exit code; ``None`` if unknown.

        Code 255 after a possible KILL counts as unknown, since containerd reports 255 for a missed exit.
        """
        substituted = self.exit_code == UNKNOWN_EXIT_CODE and self.killed is not False
        return None if substituted else self.exit_code


def pod_outcome(containers: Iterable[ContainerEnd]) -> PodOutcome:
    """Return the outcome of a pod from its containers; ``STOPPED`` for a pod without containers.

    The exit code distinguishes ``STOPPED`` from ``KILLED``, since a container may exit just before the KILL. Without an
    exit code, a container to which the agent sent KILL counts as killed.
    """
    outcome = PodOutcome.STOPPED
    for each in containers:
        if not each.ended:
            return PodOutcome.FAILED
        if each.killed if each.known_code is None else each.known_code == KILLED_EXIT_CODE:
            outcome = PodOutcome.KILLED
    return outcome


def exit_note(containers: Sequence[ContainerEnd]) -> str:
    """Return unusual or missing exit codes as a phrase for operators; empty if all containers exited as expected."""
    if any(each.ended and each.known_code is None for each in containers):
        return "exit code not reported by the runtime"
    if any(each.exit_code == KILLED_EXIT_CODE and each.killed is False for each in containers):
        return f"exit code {KILLED_EXIT_CODE} without a KILL of the agent"
    usual = (None, 0, _TERMINATED_EXIT_CODE, KILLED_EXIT_CODE)
    unusual = sorted({code for each in containers if (code := each.known_code) and code not in usual})
    doubt = " (containerd also reports it for a missed exit)" if UNKNOWN_EXIT_CODE in unusual else ""
    return f"exit code {', '.join(map(str, unusual))}{doubt}" if unusual else ""


def outcome_summary(outcomes: Iterable[PodOutcome | None]) -> str:
    """Return the number of pods per outcome as a phrase: ``38 stopped, 1 killed, 1 still running``."""
    counts = Counter(outcomes)
    parts = [f"{counts[each]} {word}" for each, word in _WORDS.items() if counts[each]]
    return ", ".join(parts) or "no pods"


MINIMUM_AFTER_TERM_MS: Final = 500
"""Minimum time between TERM and KILL, even for a pod or a phase without any time."""

_FINAL_TERM_LEAD_MS: Final = 1000
_PENDING_TERM_MS: Final = 2000
_LAST_KILLS_MS: Final = 300  # between the last KILL and the end of the run


def phase_end_ms(budget: ShutdownBudget, index: int, start_ms: int, occupied: Collection[int]) -> int:
    """Return the latest end of a phase, in milliseconds since the start of the shutdown.

    A phase that starts in time ends at its deadline, including unused time of earlier phases. A phase that starts late
    gets a share of the remaining time, in proportion to the granted time of the remaining phases with pods, at most its
    granted time.

    Args:
        budget: phases with their granted time and deadlines.
        index: index of the phase.
        start_ms: start of the phase, or the delivery of its last TERM if later; in milliseconds since the start of the
            shutdown.
        occupied: indexes of the phases with pods that have not terminated.
    """
    share = budget.phases[index]
    if start_ms <= share.deadline_ms - share.granted_ms:
        return share.deadline_ms
    left_ms = max(0, budget.granted_ms - start_ms)
    later = (
        each.granted_ms for position, each in enumerate(budget.phases) if position > index and position in occupied
    )
    weight_ms = share.granted_ms + sum(later)
    if not weight_ms:
        return start_ms
    return start_ms + min(share.granted_ms, left_ms * share.granted_ms // weight_ms)


def is_too_late(budget: ShutdownBudget, index: int, start_ms: int) -> bool:
    """Return whether a phase with time of its own starts without a minimum time for its pods, as after a long outage.

    Its pods are left to the next process. The pods of a phase without time of its own are stopped at any time.

    Args:
        budget: phases with their granted time.
        index: index of the phase.
        start_ms: start of the phase, in milliseconds since the start of the shutdown.
    """
    share_ms = budget.phases[index].granted_ms
    return share_ms > 0 and budget.granted_ms - start_ms < min(MINIMUM_AFTER_TERM_MS, share_ms // 2)


def last_kill_ms(started_ms: int, ends_ms: int) -> int:
    """Return the time of the last KILL of a run; all times in milliseconds since the start of the shutdown."""
    return max(started_ms, ends_ms - _LAST_KILLS_MS)


def kill_due_ms(signalled_ms: int | None, own_grace_ms: int | None, phase_end_ms: int, last_ms: int) -> int:
    """Return the time of the KILL of a pod; all times in milliseconds since the start of the shutdown.

    Args:
        signalled_ms: time of the delivery of TERM; ``None`` while unconfirmed, which delays KILL to the end of the run.
        own_grace_ms: termination grace period of the pod; ``None`` if unknown.
        phase_end_ms: latest end of the pod's phase.
        last_ms: time of the last KILL of the run.

    Returns:
        At the latest ``last_ms``, but never less than :data:`MINIMUM_AFTER_TERM_MS` after TERM: a pod with a later TERM
        is running at the end of the run.

    Source: kubelet ``killContainer``, which always waits for a minimum time after TERM.
    """
    if signalled_ms is None:
        return last_ms
    due_ms = phase_end_ms if own_grace_ms is None else min(phase_end_ms, signalled_ms + own_grace_ms)
    return max(min(due_ms, last_ms), signalled_ms + MINIMUM_AFTER_TERM_MS)


def delayed_kill_ms(due_ms: int, last_ms: int) -> int:
    """Return the latest time of a due KILL, for a process that had no CPU time to receive its TERM.

    The delay is bounded, since a process in uninterruptible sleep may never receive TERM.
    """
    return max(due_ms, min(due_ms + _PENDING_TERM_MS, last_ms))


def final_term_ms(signalled_ms: int, due_ms: int) -> int:
    """Return the time to repeat TERM before a due KILL, if the delivery of the first TERM was not observed."""
    return due_ms - min(_FINAL_TERM_LEAD_MS, max(0, due_ms - signalled_ms) // 4)


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
            :data:`MINIMUM_AFTER_TERM_MS` at the earliest, even for a grace period of 0.
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
    see :func:`phase_end_ms`.

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
