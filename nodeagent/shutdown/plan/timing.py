"""Deadlines of a shutdown in progress (the end of a phase, the KILL of a pod), and the outcome of a pod.

A run that starts late, after a crash of the agent or an outage of the runtime, divides the remaining time among the
phases with pods, in proportion to their granted time. Otherwise pods of a phase with a passed deadline would be killed
without TERM. A phase that starts without time is left to the next process: after the daemon, the unit's
stop hook has a time of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from nodeagent.model import PodOutcome
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from nodeagent.shutdown.plan.budget import ShutdownBudget

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
