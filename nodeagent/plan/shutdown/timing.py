"""Deadlines of a shutdown that is being carried out: the end of a phase, and the KILL of a pod.

A run that starts late, after a crash of the agent or an outage of the runtime, shares the remaining time among the
phases that have pods, by their weight; otherwise a phase whose deadline had passed would be killed without TERM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.plan.shutdown.budget import ShutdownBudget

MINIMUM_AFTER_TERM_MS: Final = 500
"""Least time between TERM and KILL, also for a pod or a phase without time of its own."""

_FINAL_TERM_LEAD_MS: Final = 1000
_PENDING_TERM_MS: Final = 2000
_LAST_KILLS_MS: Final = 300  # from the last KILL to the end of the run


def phase_end_ms(budget: ShutdownBudget, index: int, start_ms: int, occupied: Collection[int]) -> int:
    """Return the latest end of a phase, in milliseconds since the shutdown began.

    A phase that starts in time has until its deadline, including unused time of earlier phases. One that starts late
    has its share of the remaining time, by weight among the phases with pods, and never more than its own time.

    Args:
        budget: the phases with their deadlines.
        index: position of the phase.
        start_ms: start of the phase, or the delivery of its last TERM if that was later.
        occupied: positions of the phases with pods that have not ended.
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


def last_kill_ms(started_ms: int, ends_ms: int) -> int:
    """Return the time of the last KILL of a run that starts and ends at the given times."""
    return max(started_ms, ends_ms - _LAST_KILLS_MS)


def kill_due_ms(signalled_ms: int | None, own_grace_ms: int | None, phase_end_ms: int, last_ms: int) -> int:
    """Return the time of a pod's KILL, in milliseconds since the shutdown began.

    Args:
        signalled_ms: delivery of TERM; ``None`` while unconfirmed, so that KILL waits for the end of the run.
        own_grace_ms: the termination grace period of the pod; ``None`` where not known.
        phase_end_ms: latest end of its phase.
        last_ms: time of the last KILL of the run.

    Source: kubelet ``killContainer``, which always grants a minimum after TERM.
    """
    if signalled_ms is None:
        return last_ms
    due_ms = phase_end_ms if own_grace_ms is None else min(phase_end_ms, signalled_ms + own_grace_ms)
    return min(max(due_ms, signalled_ms + MINIMUM_AFTER_TERM_MS), last_ms)


def delayed_kill_ms(due_ms: int, last_ms: int) -> int:
    """Return the latest time of a KILL that is due, for a process that has had no CPU time to receive its TERM.

    A process that never receives it, such as one in an uninterruptible wait, must not delay the shutdown by more.
    """
    return max(due_ms, min(due_ms + _PENDING_TERM_MS, last_ms))


def final_term_ms(signalled_ms: int, due_ms: int) -> int:
    """Return the time of the last TERM before a KILL that is due, for a TERM whose delivery was not observed."""
    return due_ms - min(_FINAL_TERM_LEAD_MS, max(0, due_ms - signalled_ms) // 4)
