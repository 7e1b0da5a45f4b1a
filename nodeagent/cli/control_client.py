"""Client of the control API. Only the path of the control socket is needed, not a valid configuration.

The module has few imports, since import time dominates the run time of the commands that only query the daemon.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from nodeagent import __version__
from nodeagent.api.client import (
    ANSWER_WITHIN_S,
    ControlClient,
    DaemonAbsentError,
    DaemonRefusedError,
)
from nodeagent.api.codec import DocumentError
from nodeagent.cli.source import is_client
from nodeagent.config.paths import has_settings, read_socket_path
from nodeagent.errors import NodeAgentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from nodeagent.api.codec import Document

    D = TypeVar("D", bound=Document)

T = TypeVar("T")


class ControlConnection:
    """Connection to the running daemon; returns its responses as typed documents."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def call(
        self,
        operation: str,
        answer: type[D],
        fields: Mapping[str, object] | None = None,
        *,
        within_s: float = ANSWER_WITHIN_S,
    ) -> D:
        """Call an operation of the control API and return its response.

        Args:
            operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
            answer: document type of the response.
            fields: request fields.
            within_s: response timeout, in seconds.

        Raises:
            DaemonUnavailableError: the connection is lost.
            DaemonRefusedError: this user has no access to the operation.
            UsageError: the daemon rejects the request as invalid.
            NodeAgentError: the request failed, or the response does not match the schema of this version.
        """
        return decoded(self.call_text(operation, fields, within_s=within_s), answer)

    def call_text(
        self, operation: str, fields: Mapping[str, object] | None = None, *, within_s: float = ANSWER_WITHIN_S
    ) -> str:
        """Call an operation of the control API and return its response as JSON text.

        Raises:
            NodeAgentError: as ``call``.
        """
        return self._client.call(operation, fields, within_s=within_s)

    def stream(
        self, operation: str, decoder: Callable[[str], T], fields: Mapping[str, object] | None = None
    ) -> Iterator[T]:
        """Yield the responses of a streaming operation as they arrive, each decoded by ``decoder``.

        Raises:
            NodeAgentError: as ``call``.
        """
        for text in self._client.stream(operation, fields):
            yield checked(text, decoder)


def find_socket(config: str | PathLike[str] | None) -> str | None:
    """Return the configured path of the control socket; ``None`` if the control API is disabled.

    Raises:
        ConfigError: the file ``config`` cannot be read. Invalid settings in the file are ignored.
    """
    return read_socket_path(None if config is None else os.fspath(config))


@contextmanager
def connect(path: str | PathLike[str]) -> Iterator[ControlConnection]:
    """Open a connection to the daemon that listens on a control socket.

    Raises:
        DaemonAbsentError: no daemon is listening on the socket.
        DaemonUnavailableError: a daemon is listening and accepts no connection.
        DaemonRefusedError: this user is not allowed to connect.
    """
    client = ControlClient(path)
    client.probe()
    yield ControlConnection(client)


@contextmanager
def connected(config: str | PathLike[str] | None) -> Iterator[ControlConnection]:
    """Open a connection to the running daemon, at the configured control socket.

    Raises:
        DaemonAbsentError: no daemon is running, or its control API is disabled.
        DaemonUnavailableError: the daemon accepts no connection.
        DaemonRefusedError: this user is not allowed to connect.
    """
    path = find_socket(config)
    if path is None:
        raise DaemonAbsentError('control API disabled: control.socket = ""')
    with connect(path) as agent:
        yield agent


@contextmanager
def daemon_of(config: str | PathLike[str] | None) -> Iterator[ControlConnection | None]:
    """Open a connection to the daemon of a configuration; yield ``None`` if no daemon is running.

    ``None`` is also yielded if ``config`` is ``None`` and environment variables set more than the control socket: the
    command may then use another state directory than the running daemon.

    Raises:
        DaemonRefusedError: a daemon is running and refuses this user.
        DaemonUnavailableError: a daemon is running and accepts no connection.
    """
    agent = None
    with ExitStack() as stack:
        if config is not None or not has_settings(os.environ):
            try:
                agent = stack.enter_context(connected(config))
            except DaemonAbsentError:
                agent = None
        yield agent


@contextmanager
def daemon_for_user(
    config: str | PathLike[str] | None,
    overrides: Mapping[str, object],
    *,
    root_too: bool = False,
    direct: bool = False,
    refusal_matters: bool = True,
) -> Iterator[ControlConnection | None]:
    """Open a connection to the daemon if the command uses the daemon; yield ``None`` if the command reads the node.

    The command uses a running daemon if the user is not root, since only root can read the node, and if neither an
    option nor an environment variable changes the configuration.

    Args:
        config: configuration file set by an option; ``None`` without one.
        overrides: settings changed by options.
        root_too: whether the daemon is used for root too, so that the command needs no valid configuration.
        direct: whether ``--direct`` is set: the command always reads the node.
        refusal_matters: whether a refused connection is an error; otherwise ``None`` is yielded.

    Raises:
        DaemonRefusedError: a daemon is running and refuses this user.
        DaemonUnavailableError: a daemon is running and accepts no connection.
    """
    agent = None
    if is_client(config, overrides, root_too=root_too, direct=direct):
        with ExitStack() as stack:
            try:
                agent = stack.enter_context(connected(None))
            except DaemonAbsentError:
                agent = None
            except DaemonRefusedError:
                if refusal_matters:
                    raise
            yield agent
    else:
        yield None


def decoded(text: str, kind: type[D]) -> D:
    """Return the document in a response of the daemon; see :func:`checked`."""
    from nodeagent.api.codec import decode  # noqa: PLC0415 - slow to import

    return checked(text, lambda each: decode(each, kind))


def checked(text: str, decoder: Callable[[str], T]) -> T:
    """Return a response of the daemon, decoded by ``decoder``.

    Raises:
        NodeAgentError: the response does not match the schema of this version.
    """
    try:
        return decoder(text)
    except DocumentError as error:
        raise NodeAgentError(
            f"unexpected answer of the agent: {error}; its version may differ from that of this command, "
            f"{__version__}; restart the agent, or use the command of its version"
        ) from error
