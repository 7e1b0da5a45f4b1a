"""``nodeagent status`` and ``nodeagent top``: the status of the node and the daemon, once or until interrupted.

The document is read from the running daemon; without a daemon, the command reads the node directly.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.cli.control_client import connected
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.status_view import status_view, top_view
from nodeagent.cli.watch import print_document, watching
from nodeagent.daemon.documents import Status, Top
from nodeagent.eviction.pressure_documents import PodUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from os import PathLike

    from nodeagent.cli.control_client import ControlConnection
    from nodeagent.cli.display import Line

    S = TypeVar("S", bound=Status)
    Read = Callable[[], S]


def show_status(config: str | PathLike[str] | None, form: str, *, watch_s: float | None) -> None:
    """Print the status of the node and the daemon; exit with code 1 unless a daemon is running and ready.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    with _status_source(config) as read:
        status = _show(read, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if status.agent.ready is True else ExitCode.FAILED)


def show_top(config: str | PathLike[str] | None, form: str, *, watch_s: float | None) -> None:
    """Print the eviction signals and the pods of the node, once or every ``watch_s`` seconds.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: the node cannot be read.
    """
    with _top_source(config) as read:
        _show(read, form, watch_s, top_view)


@contextmanager
def _status_source(config: str | PathLike[str] | None) -> Iterator[Read[Status]]:
    """Yield a function that reads the status document from the daemon, or from the node without a daemon."""
    with _connected_or_none(config) as (agent, problem):
        if agent is not None:
            yield lambda: agent.call("Status", Status)
            return
        from nodeagent.cli.local_status import open_local_status  # noqa: PLC0415 - needed only without a daemon

        with open_local_status(config) as local:
            yield lambda: _with_warning(local.status(), problem)


@contextmanager
def _top_source(config: str | PathLike[str] | None) -> Iterator[Read[Top]]:
    """Yield a function that reads the status and the pods from the daemon, or from the node without a daemon."""
    with _connected_or_none(config) as (agent, problem):
        if agent is not None:
            yield lambda: Top.of(agent.call("Status", Status), agent.call("Pods", PodUsage))
            return
        from nodeagent.cli.local_status import open_local_status  # noqa: PLC0415 - needed only without a daemon

        with open_local_status(config) as local:
            yield lambda: Top.of(_with_warning(local.status(), problem), local.pods())


@contextmanager
def _connected_or_none(config: str | PathLike[str] | None) -> Iterator[tuple[ControlConnection | None, str]]:
    """Open a connection to the daemon; yield ``None`` and the cause if no daemon is running."""
    agent, problem = None, ""
    with ExitStack() as stack:
        try:
            agent = stack.enter_context(connected(config))
        except DaemonAbsentError as error:
            problem = str(error)
        yield agent, problem


def _with_warning(status: Status, warning: str) -> Status:
    return structs.replace(status, warnings=(warning, *status.warnings))


def _show(read: Read[S], form: str, watch_s: float | None, view: Callable[[S, int | None], Iterable[Line]]) -> S:
    """Print the status once or every ``watch_s`` seconds; return the last status document."""
    again = watch_s is not None
    with watching(form, again=again):
        while True:
            status = read()
            print_document(status, form, view, again=again)
            if watch_s is None:
                return status
            time.sleep(watch_s)
