"""Documents of commands, requested from the running daemon or created by reading the node.

A command reads the node with ``--direct``, without a running daemon, and if options or environment variables change
settings, since the daemon responds by its own configuration. The command fails if the daemon refuses the request or
returns an error. The daemon and the command create the same document, which is printed once or repeatedly.

Settings, agent and event loop of a command are created here too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from nodeagent.api.client import DaemonAbsentError
from nodeagent.api.common import Document, encode
from nodeagent.cli import control_client
from nodeagent.cli.display import Line, standard_output, working
from nodeagent.cli.options import OPTIONS, Source

if TYPE_CHECKING:
    import asyncio

    from nodeagent.cli.live import Screen
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.agent_parts import Previews
    from nodeagent.runtime.cri import CriClient
    from nodeagent.settings.settings import Settings

D = TypeVar("D", bound=Document)
Resource = TypeVar("Resource")
T = TypeVar("T")
View = Callable[[D, int | None], Iterable[Line]]
ReadNode = Callable[["Agent"], Coroutine[Any, Any, D]]
"""Function that creates the document from an agent of this node; its imports are deferred."""


class RunCoroutine(Protocol):
    """Function that runs a coroutine and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """Return the result of a coroutine."""


OBSERVED_WITHIN_S: Final = 300.0
"""Response timeout of an operation that observes the node, possibly after the observations of other clients."""


def load_settings(path: Path | None, overrides: Mapping[str, str | int]) -> Settings:
    """Return the settings of a configuration file with the overrides of the command line applied.

    Raises:
        ConfigError: the configuration is invalid; the message has one line per fault with file, key, value and allowed
            form.
    """
    from nodeagent.settings.loading import load  # noqa: PLC0415 - not needed if the daemon responds

    return load(path, overrides, options=OPTIONS).config.settings()


def open_for_command(settings: Settings, *, record: bool, dry_run: bool = True) -> AbstractAsyncContextManager[Agent]:
    """Open an agent for one command; with ``record`` the agent stores the observed image use and the history.

    Raises:
        RuntimeUnavailableError: the runtime does not respond.
    """
    from nodeagent.gc.agent import open_agent  # noqa: PLC0415 - the runtime clients are slow to import

    return open_agent(settings, record=record, dry_run=dry_run)


def run_with_agent(
    settings: Settings, work: Callable[[Agent], Coroutine[Any, Any, T]], *, record: bool = False, dry_run: bool = True
) -> T:
    """Return the result of ``work`` with an agent that is opened for one command.

    Raises:
        RuntimeUnavailableError: the runtime does not respond.
    """
    return _run_with(lambda: open_for_command(settings, record=record, dry_run=dry_run), work)


def _run_with(
    open_resource: Callable[[], AbstractAsyncContextManager[Resource]],
    work: Callable[[Resource], Coroutine[Any, Any, T]],
) -> T:
    """Return the result of ``work`` with a resource that is opened and closed on the event loop of the command."""

    async def run() -> T:
        async with open_resource() as resource:
            return await work(resource)

    with working():
        return run_async(run())


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine on a new event loop; return its result."""
    import asyncio  # noqa: PLC0415 - not needed if the daemon responds

    async def run() -> T:
        asyncio.get_running_loop().set_exception_handler(_report_fault)
        return await work

    return asyncio.run(run())


def _report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an exception in a callback, unless the callback is for a closed event loop of this command.

    grpc has one poller for all event loops of a process, and passes the last events of a closed channel to the closed
    loop of the channel.
    """
    if str(context.get("exception")) != "Event loop is closed":
        loop.default_exception_handler(context)


def read(
    operation: str,
    kind: type[D],
    fields: Mapping[str, object],
    source: Source,
    local: ReadNode[D],
    *,
    within_s: float = OBSERVED_WITHIN_S,
) -> D:
    """Return the document of an operation, from the daemon or else from the node.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        kind: type of the document.
        fields: request fields.
        source: configuration and options that select the daemon or the node.
        local: creates the document without a daemon.
        within_s: timeout of the daemon's response, in seconds.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error, or the node cannot be read without a daemon.
    """
    answer = ask(operation, kind, fields, source, within_s=within_s)
    return read_node(source, local) if answer is None else answer


def ask(
    operation: str,
    kind: type[D],
    fields: Mapping[str, object],
    source: Source,
    *,
    within_s: float = OBSERVED_WITHIN_S,
) -> D | None:
    """Return the daemon's document; ``None`` if the command must read the node itself.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        kind: type of the document.
        fields: request fields.
        source: configuration and options that select the daemon or the node.
        within_s: timeout of the daemon's response, in seconds.

    Raises:
        NodeAgentError: the daemon refuses the request or returns an error.
    """
    if not control_client.is_client(source.config, source.overrides, root_too=True, direct=source.direct):
        return None
    path = control_client.find_socket(None)
    if path is None:
        return None
    try:
        with working():
            return control_client.ControlConnection(path).call(operation, kind, fields, within_s=within_s)
    except DaemonAbsentError:
        return None


def read_node(source: Source, local: ReadNode[D]) -> D:
    """Read the node without a daemon and return the document created by ``local``.

    Raises:
        ConfigError: the configuration is invalid.
        NodeAgentError: the node cannot be read.
    """
    return run_with_agent(load_settings(source.config, source.overrides), local)


def read_preview(source: Source, local: Callable[[Previews], Coroutine[Any, Any, D]]) -> D:
    """Read the node for a preview and return the document of ``local``; result and errors as ``read_node``."""
    settings = load_settings(source.config, source.overrides)
    from nodeagent.gc.agent_parts import open_previewer  # noqa: PLC0415 - the runtime clients are slow to import

    return _run_with(lambda: open_previewer(settings), local)


def read_runtime(source: Source, work: Callable[[CriClient], Coroutine[Any, Any, T]]) -> T:
    """Return the result of ``work`` with a CRI client, without an observation of the node; errors as ``read_node``."""
    settings = load_settings(source.config, source.overrides)
    from nodeagent.runtime import connection, cri  # noqa: PLC0415 - the runtime clients are slow to import

    return _run_with(lambda: connection.configured_connection(settings), lambda made: work(cri.CriClient(made)))


def print_document(document: Document, form: str) -> None:
    """Print a document as ``json`` or ``yaml``."""
    text = encode(document, form)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON escapes are ASCII and valid in every encoding
        text = f"{json.dumps(json.loads(text), indent=2)}\n" if form == "json" else text
    sys.stdout.write(text)


def show_document(document: D, form: str, view: View[D]) -> None:
    """Print a document in an output format.

    Args:
        document: the document.
        form: ``table``, ``json`` or ``yaml``.
        view: returns the lines for the form ``table``, given the terminal width; ``None`` without a terminal.
    """
    if form != "table":
        print_document(document, form)
        sys.stdout.flush()
        return
    display = standard_output()
    display.write(view(document, display.columns))


def watch_document(
    read: Callable[[], D], form: str, watch_s: float | None, view: View[D], screen: Screen[D] | None = None
) -> D:
    """Read and show a document once or every ``watch_s`` seconds; return the last document.

    Args:
        read: returns the current document.
        form: as in :func:`show_document`.
        watch_s: interval in seconds; ``None`` prints once.
        view: as in :func:`show_document`.
        screen: the live view of a table on a terminal; ``None`` for the lines of ``view``.
    """
    document = read()
    if watch_s is not None and form == "table" and standard_output().has_screen:
        from nodeagent.cli.live import Scrolled, show_live  # noqa: PLC0415 - rich is slow to import

        return show_live(document, read, watch_s, screen or Scrolled(view))
    while True:
        show_document(document, form, view)
        if watch_s is None:
            return document
        time.sleep(watch_s)
        document = read()


@contextmanager
def event_loop() -> Iterator[RunCoroutine]:
    """Yield a function that returns the result of a coroutine, run on an event loop in a thread of its own.

    Any thread may call the function. Coroutines that still run at the end of the block are cancelled.
    """
    import asyncio  # noqa: PLC0415 - not needed if the daemon responds

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(_report_fault)
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
