"""Deadlines of a shutdown in progress: the end of a phase, and the KILL of a pod.

A run that starts late, after a crash of the agent or an outage of the runtime, divides the remaining time among the
phases with pods, in proportion to their granted time. Otherwise pods of a phase with a passed deadline would be killed
without TERM. A phase that starts without time is left to the next process: after the daemon, the unit's
stop hook has a time of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.plan.shutdown.budget import ShutdownBudget

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
