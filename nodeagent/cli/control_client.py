"""Client of the control API. Only the path of the control socket is needed, not a valid configuration.

The module has few imports, since import time dominates the run time of the commands that only query the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from nodeagent import __version__
from nodeagent.api.client import ANSWER_WITHIN_S, ControlClient, DaemonAbsentError, DaemonRefusedError
from nodeagent.api.common import Document, DocumentError, decode
from nodeagent.config.paths import has_settings, read_socket_path
from nodeagent.errors import NodeAgentError

D = TypeVar("D", bound=Document)

T = TypeVar("T")


class ControlConnection:
    """Connection to the running daemon; returns its responses as typed documents, and as text through ``client``."""

    def __init__(self, path: Path | str) -> None:
        self.client = ControlClient(path)

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
        text = self.client.call(operation, fields, within_s=within_s)
        return _checked(text, lambda each: decode(each, answer))

    def stream(
        self, operation: str, decoder: Callable[[str], T], fields: Mapping[str, object] | None = None
    ) -> Iterator[T]:
        """Yield the responses of a streaming operation as they arrive, each decoded by ``decoder``.

        Raises:
            NodeAgentError: as ``call``.
        """
        for text in self.client.stream(operation, fields):
            yield _checked(text, decoder)


def find_socket(config: Path | None) -> str | None:
    """Return the configured path of the control socket; ``None`` if the control API is disabled.

    Raises:
        ConfigError: the file ``config`` cannot be read. Invalid settings in the file are ignored.
    """
    return read_socket_path(None if config is None else str(config))


def connect(path: Path | str) -> ControlConnection:
    """Open a connection to the daemon that listens on a control socket.

    Raises:
        DaemonAbsentError: no daemon is listening on the socket.
        DaemonUnavailableError: a daemon is listening and accepts no connection.
        DaemonRefusedError: this user is not allowed to connect.
    """
    agent = ControlConnection(path)
    agent.client.probe()
    return agent


def connected(config: Path | None) -> ControlConnection:
    """Open a connection to the running daemon, at the configured control socket.

    Raises:
        DaemonAbsentError: no daemon is running, or its control API is disabled.
        DaemonUnavailableError: the daemon accepts no connection.
        DaemonRefusedError: this user is not allowed to connect.
    """
    path = find_socket(config)
    if path is None:
        raise DaemonAbsentError('control API disabled: control.socket = ""')
    return connect(path)


def daemon_of(config: Path | None) -> ControlConnection | None:
    """Open a connection to the daemon of a configuration; return ``None`` if no daemon is running.

    ``None`` is also returned if ``config`` is ``None`` and environment variables set more than the control socket: the
    command may then use another state directory than the running daemon.

    Raises:
        DaemonRefusedError: a daemon is running and refuses this user.
        DaemonUnavailableError: a daemon is running and accepts no connection.
    """
    if config is None and has_settings(os.environ):
        return None
    try:
        return connected(config)
    except DaemonAbsentError:
        return None


def is_client(config: Path | None, overrides: Mapping[str, object], *, root_too: bool, direct: bool) -> bool:
    """Return whether a command uses a running daemon; arguments: see :func:`daemon_for_user`."""
    allowed = os.geteuid() != 0 or root_too
    return allowed and not direct and config is None and not overrides and not has_settings(os.environ)


def daemon_for_user(
    config: Path | None,
    overrides: Mapping[str, object],
    *,
    root_too: bool = False,
    direct: bool = False,
    refusal_matters: bool = True,
) -> ControlConnection | None:
    """Open a connection to the daemon if the command uses the daemon; return ``None`` if the command reads the node.

    The command uses a running daemon if the user is not root, since only root can read the node, and if neither an
    option nor an environment variable changes the configuration.

    Args:
        config: configuration file set by an option; ``None`` without one.
        overrides: settings changed by options.
        root_too: whether the daemon is used for root too, so that the command needs no valid configuration.
        direct: whether ``--direct`` is set: the command always reads the node.
        refusal_matters: whether a refused connection is an error; otherwise ``None`` is returned.

    Raises:
        DaemonRefusedError: a daemon is running and refuses this user.
        DaemonUnavailableError: a daemon is running and accepts no connection.
    """
    if not is_client(config, overrides, root_too=root_too, direct=direct):
        return None
    try:
        return connected(None)
    except DaemonAbsentError:
        return None
    except DaemonRefusedError:
        if refusal_matters:
            raise
        return None


def _checked(text: str, decoder: Callable[[str], T]) -> T:
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
