"""Outcomes of pods in a shutdown, from their processes and exit codes, not from the response to a stop request."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from nodeagent.model import PodOutcome
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
