"""Outcomes of pods in a shutdown, by their processes and exit codes, never by the answer to a stop request."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from nodeagent.model import PodOutcome
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KILLED_EXIT_CODE: Final = 137
"""Exit code of a process that SIGKILL ended. Source: runc and POSIX shells, 128 plus the signal number."""

UNKNOWN_EXIT_CODE: Final = 255
"""Exit code of a container that ended while containerd was down. Source: containerd CRI, ``unknownExitCode``."""

_TERMINATED_EXIT_CODE: Final = 143
_WORDS: Final = {
    PodOutcome.STOPPED: "stopped",
    PodOutcome.KILLED: "killed",
    PodOutcome.FAILED: "still running",
    PodOutcome.STOPPING: "stopping",
    None: "without a stop request",
}


class ContainerEnd(Record):
    """The end of one container.

    Attributes:
        ended: whether it has no processes left.
        killed: whether the agent sent KILL while it had processes; ``None`` where not known.
        exit_code: as the runtime reports it; ``None`` where not known.
    """

    ended: bool
    killed: bool | None = False
    exit_code: int | None = None

    @property
    def known_code(self) -> int | None:
        """The exit code; ``None`` also for code 255 after a possible KILL, the substitute of an unknown code."""
        substituted = self.exit_code == UNKNOWN_EXIT_CODE and self.killed is not False
        return None if substituted else self.exit_code


def pod_outcome(containers: Iterable[ContainerEnd]) -> PodOutcome:
    """Return the outcome of a pod; stopped for a pod without containers.

    The exit code decides between stopped and killed, since a pod may end by itself just before a KILL. Without one a
    container that received KILL counts as killed.
    """
    outcome = PodOutcome.STOPPED
    for each in containers:
        if not each.ended:
            return PodOutcome.FAILED
        if each.killed if each.known_code is None else each.known_code == KILLED_EXIT_CODE:
            outcome = PodOutcome.KILLED
    return outcome


def exit_note(containers: Sequence[ContainerEnd]) -> str:
    """Return the exit codes that an operator has to know, as a phrase; empty if every container ended as requested."""
    if any(each.ended and each.known_code is None for each in containers):
        return "exit code not reported by the runtime"
    if any(each.exit_code == KILLED_EXIT_CODE and each.killed is False for each in containers):
        return f"exit code {KILLED_EXIT_CODE} without a KILL of the agent"
    usual = (None, 0, _TERMINATED_EXIT_CODE, KILLED_EXIT_CODE)
    unusual = sorted({code for each in containers if (code := each.known_code) and code not in usual})
    doubt = " (the runtime's substitute for an exit that it missed, too)" if UNKNOWN_EXIT_CODE in unusual else ""
    return f"exit code {', '.join(map(str, unusual))}{doubt}" if unusual else ""


def outcome_summary(outcomes: Iterable[PodOutcome | None]) -> str:
    """Return the number of pods per outcome as a phrase: ``38 stopped, 1 killed, 1 still running``."""
    counts = Counter(outcomes)
    parts = [f"{counts[each]} {word}" for each, word in _WORDS.items() if counts[each]]
    return ", ".join(parts) or "no pods"
