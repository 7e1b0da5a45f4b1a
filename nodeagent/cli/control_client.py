"""Client of the control API. It requires the path of the control socket and no valid configuration.

It has few imports, which determine the duration of commands answered by the daemon.
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
from nodeagent.api.document_error import DocumentError
from nodeagent.cli.source import is_client
from nodeagent.config.socket_path import has_settings, read_socket_path
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
        """Return the answer of an operation.

        Args:
            operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
            answer: type of its document.
            fields: of the request.
            within_s: time limit of the answer.

        Raises:
            DaemonUnavailableError: connection lost.
            DaemonRefusedError: this user has no access to the operation.
            UsageError: the daemon rejects the request as invalid.
            NodeAgentError: the request failed, or the answer is not of this version.
        """
        from nodeagent.api.codec import decode  # noqa: PLC0415 - slow to import

        return checked(self.call_text(operation, fields, within_s=within_s), lambda text: decode(text, answer))

    def call_text(
        self, operation: str, fields: Mapping[str, object] | None = None, *, within_s: float = ANSWER_WITHIN_S
    ) -> str:
        """Return the answer of an operation as the received JSON text.

        Raises:
            NodeAgentError: as ``call``.
        """
        return self._client.call(operation, fields, within_s=within_s)

    def stream(
        self, operation: str, decoder: Callable[[str], T], fields: Mapping[str, object] | None = None
    ) -> Iterator[T]:
        """Yield the answers of a streaming operation as they arrive, each through ``decoder``.

        Raises:
            NodeAgentError: as ``call``.
        """
        for text in self._client.stream(operation, fields):
            yield checked(text, decoder)


def find_socket(config: str | PathLike[str] | None) -> str | None:
    """Return the path of the control socket by a configuration; ``None`` if the configuration disables it.

    Raises:
        ConfigError: the given file cannot be read; its faults are ignored.
    """
    return read_socket_path(None if config is None else os.fspath(config))


@contextmanager
def connect(path: str | PathLike[str]) -> Iterator[ControlConnection]:
    """Return a connection to the daemon at a socket.

    Raises:
        DaemonAbsentError: no daemon is listening there.
        DaemonUnavailableError: a daemon is listening and accepts no connection.
        DaemonRefusedError: this user is not allowed to connect.
    """
    client = ControlClient(path)
    client.probe()
    yield ControlConnection(client)


@contextmanager
def connected(config: str | PathLike[str] | None) -> Iterator[ControlConnection]:
    """Return a connection to the running daemon.

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
    """Return a connection to the daemon of a configuration; ``None`` where none is running.

    It is ``None`` also if environment variables configure more than the socket, without a ``config``: then the command
    is meant for another state directory than that of the running daemon.

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
    """Return a connection to the daemon if the command is a client of it; ``None`` if it reads the node itself.

    It is a client for a user other than root, who cannot read the node, if a daemon is running and no configuration of
    the user's own is given, in the environment either.

    Args:
        config: file of the configuration.
        overrides: options that take precedence over it.
        root_too: whether it is a client for root too: then it needs no valid configuration, as the daemon has one.
        direct: whether the user asked for a reading of the node itself.
        refusal_matters: whether a refusal is an error; otherwise the command reads the node itself.

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


def checked(text: str, decoder: Callable[[str], T]) -> T:
    """Return an answer of the daemon through its decoder.

    Raises:
        NodeAgentError: the answer is not of this version.
    """
    try:
        return decoder(text)
    except DocumentError as error:
        raise NodeAgentError(
            f"unexpected answer of the agent: {error}; its version may differ from that of this command, "
            f"{__version__}; restart the agent, or use the command of its version"
        ) from error
