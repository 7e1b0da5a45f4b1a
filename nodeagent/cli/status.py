"""``nodeagent status`` and ``nodeagent top``: the status of the node and the daemon, once or until interrupted.

The document is read from the running daemon; without a daemon, the command reads the node directly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from nodeagent.api.client import DaemonAbsentError
from nodeagent.cli.control_client import connected
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import watch_document
from nodeagent.cli.session import load_settings, open_for_command
from nodeagent.cli.status_view import status_view, top_view
from nodeagent.daemon.documents import Status, Top
from nodeagent.eviction.pressure_documents import PodUsage


def show_status(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the status of the node and the daemon; exit with code 1 unless a daemon is running and ready.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: no daemon is running, and the node cannot be read.
    """
    with _sources(config) as (read, _):
        status = watch_document(read, form, watch_s, status_view)
    sys.exit(ExitCode.DONE if status.agent.ready is True else ExitCode.FAILED)


def show_top(config: Path | None, form: str, *, watch_s: float | None) -> None:
    """Print the eviction signals and the pods of the node, once or every ``watch_s`` seconds.

    Raises:
        DaemonRefusedError: the daemon refuses this user.
        NodeAgentError: the node cannot be read.
    """
    with _sources(config) as (read, read_pods):
        watch_document(lambda: Top.of(read(), read_pods()), form, watch_s, top_view)


@contextmanager
def _sources(config: Path | None) -> Iterator[tuple[Callable[[], Status], Callable[[], PodUsage]]]:
    """Yield functions that read the status and the pods from the daemon, or from the node without a daemon."""
    try:
        agent = connected(config)
    except DaemonAbsentError as error:
        problem = str(error)
    else:
        yield lambda: agent.call("Status", Status), lambda: agent.call("Pods", PodUsage)
        return
    import asyncio  # noqa: PLC0415 - needed only without a daemon

    from nodeagent.daemon.status import StatusReader, pods_document, status_document  # noqa: PLC0415

    settings = load_settings(config, {})
    with asyncio.Runner() as runner:
        opened = open_for_command(settings, record=False)
        node = runner.run(opened.__aenter__())
        reader = StatusReader(node)
        try:
            yield (
                lambda: _with_warning(runner.run(status_document(node, reader, None)), problem),
                lambda: runner.run(pods_document(node, reader)),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))


def _with_warning(status: Status, warning: str) -> Status:
    return structs.replace(status, warnings=(warning, *status.warnings))
