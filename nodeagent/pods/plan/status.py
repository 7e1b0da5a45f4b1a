"""Status of containers and pods in the words of kubectl and crictl, for display; decisions use the states of CRI."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model.runtime import ContainerState
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container, Sandbox


class StatusWord(StrEnum):
    """Status of a container or a pod. The values are part of the JSON output.

    Attributes:
        EXITED: exited with an unknown exit code.
        CRASH_LOOP: failed after a restart, and restarted again by the kubelet.
        NOT_READY: pod without containers, and without a ready sandbox.
        DELETED: pod that counts as deleted.
    """

    RUNNING = "Running"
    COMPLETED = "Completed"
    ERROR = "Error"
    OOM_KILLED = "OOMKilled"
    CRASH_LOOP = "CrashLoop"
    CREATED = "Created"
    EXITED = "Exited"
    UNKNOWN = "Unknown"
    NOT_READY = "NotReady"
    DELETED = "Deleted"


CONTAINER_WORDS: Final = tuple(each for each in StatusWord if each not in (StatusWord.NOT_READY, StatusWord.DELETED))
_RESTARTED_WITHIN: Final = timedelta(minutes=10)
"""Age of an exit beyond which the kubelet does not restart the container: twice its largest delay.

Source: kubelet ``MaxContainerBackOff``, 5 minutes.
"""
_OF_STATE: Final = {
    ContainerState.RUNNING: StatusWord.RUNNING,
    ContainerState.CREATED: StatusWord.CREATED,
    ContainerState.UNKNOWN: StatusWord.UNKNOWN,
}
_WORST_FIRST: Final = (
    StatusWord.CRASH_LOOP,
    StatusWord.OOM_KILLED,
    StatusWord.ERROR,
    StatusWord.UNKNOWN,
    StatusWord.EXITED,
    StatusWord.CREATED,
    StatusWord.RUNNING,
    StatusWord.COMPLETED,
)
_REASON: Final = re.compile(r"[A-Z][A-Za-z]{1,40}")
_OF_CODE: Final = frozenset({"Completed", "Error", "Exited"})


def exit_reason(container: Container) -> str:
    """Return the reason of an exit that states more than the exit code, such as ``OOMKilled``; empty otherwise."""
    reason = container.exit_reason
    return reason if _REASON.fullmatch(reason) and reason not in _OF_CODE else ""


def container_statuses(
    containers: Iterable[Container], ready_sandboxes: Collection[str], now: datetime
) -> dict[str, StatusWord]:
    """Return the status of each container, by id.

    Only the newest instance of a container can be in a crash loop. ``ready_sandboxes`` are ids.
    """
    listed = list(containers)
    newest = {each.id for each in newest_instances(listed)}
    return {
        each.id: _status(each, restarts=each.id in newest and each.sandbox_id in ready_sandboxes, now=now)
        for each in listed
    }


def newest_instances(containers: Iterable[Container]) -> list[Container]:
    """Return the newest instance of each container of a pod, in the order of the names; without a pod all of them."""
    found: dict[tuple[str, str], Container] = {}
    for each in containers:
        key = (each.pod_uid, each.name) if each.pod_uid else ("", each.id)
        if key not in found or (each.attempt, each.id) > (found[key].attempt, found[key].id):
            found[key] = each
    return [found[key] for key in sorted(found)]


def _status(container: Container, *, restarts: bool, now: datetime) -> StatusWord:
    if container.state is not ContainerState.EXITED:
        return _OF_STATE[container.state]
    code, ended = container.exit_code, container.finished_at
    if code is None:
        return StatusWord.EXITED
    is_recent = ended is not None and now - ended <= _RESTARTED_WITHIN
    if code and restarts and is_recent and container.attempt:
        return StatusWord.CRASH_LOOP
    if exit_reason(container) == StatusWord.OOM_KILLED:
        return StatusWord.OOM_KILLED
    return StatusWord.ERROR if code or exit_reason(container) else StatusWord.COMPLETED


class PodSummary(Record):
    """Status of a pod with the numbers of its containers, of each only the newest instance.

    Attributes:
        expected: number of containers; without the completed ones, such as init containers, unless all are completed.
        restarts: sum of the attempts.
    """

    status: StatusWord
    running: int
    expected: int
    restarts: int


def pod_summary(
    sandboxes: Sequence[Sandbox], containers: Iterable[Container], statuses: Mapping[str, StatusWord], *, deleted: bool
) -> PodSummary:
    """Return the summary of a pod: the worst status of its containers, or ``Deleted``."""
    newest = newest_instances(containers)
    words = [statuses[each.id] for each in newest]
    left = [each for each in words if each is not StatusWord.COMPLETED]
    if deleted:
        status = StatusWord.DELETED
    elif words:
        status = min(words, key=_WORST_FIRST.index)
    else:
        status = StatusWord.CREATED if any(each.ready for each in sandboxes) else StatusWord.NOT_READY
    running = words.count(StatusWord.RUNNING)
    return PodSummary(status, running, len(left or words), sum(each.attempt for each in newest))
