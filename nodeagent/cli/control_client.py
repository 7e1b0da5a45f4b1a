"""Client of the control API."""

from __future__ import annotations

import os
import socket as sockets
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent import __version__
from nodeagent.api.codec import Document, DocumentError, decode, decode_fields
from nodeagent.config.control import DEFAULT_SOCKET
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import grpc
    from google.protobuf.message import Message

D = TypeVar("D", bound=Document)
T = TypeVar("T")

ANSWER_WITHIN_S: Final = 30.0
_CONNECT_WITHIN_S: Final = 2.0
_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_PREFIX: Final = "NODEAGENT_"
_SOCKET_VARIABLE: Final = "NODEAGENT_CONTROL__SOCKET"
"""Overrides the configuration, so that none has to be read."""
_NO_SETTINGS: Final = (_SOCKET_VARIABLE, "NODEAGENT_TEST_", "NODEAGENT_SERVICE_", "NODEAGENT_PORT")


class DaemonUnavailableError(NodeAgentError):
    """No daemon is listening: it is not running, or uses another socket."""


class DaemonRefusedError(NodeAgentError):
    """The daemon is listening, and refuses this user."""


class ControlConnection:
    """A connection to the running daemon."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def call(
        self, method: str, answer: type[D], request: Message | None = None, *, within_s: float = ANSWER_WITHIN_S
    ) -> D:
        """Return the answer of a method.

        Raises:
            DaemonUnavailableError: the daemon stopped.
            DaemonRefusedError: this user is not allowed to call the method.
            UsageError: the daemon rejects the request as invalid.
            NodeAgentError: the request failed, or the answer is not of this version.
        """
        return _decoded(self.call_text(method, request, within_s=within_s), lambda text: decode(text, answer))

    def call_text(self, method: str, request: Message | None = None, *, within_s: float = ANSWER_WITHIN_S) -> str:
        """Return the answer of a method as the JSON text that the daemon sent; for a signed plan.

        Raises:
            NodeAgentError: as ``call``.
        """
        import grpc  # noqa: PLC0415 - not for every command

        try:
            message = self._call(method, "unary_unary")(request or request_for(method), timeout=within_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NodeAgentError(self._unsupported(method)) from error
            raise _translated(error) from error
        return str(message.json)

    def stream(self, method: str, decoder: Callable[[str], T], request: Message | None = None) -> Iterator[T]:
        """Yield the answers of a streaming method as they arrive, each through ``decoder``.

        Raises:
            NodeAgentError: as ``call``.
        """
        import grpc  # noqa: PLC0415 - not for every command

        try:
            for message in self._call(method, "unary_stream")(request or request_for(method)):
                yield _decoded(message.json, decoder)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NodeAgentError(self._unsupported(method)) from error
            raise _translated(error) from error

    def _unsupported(self, method: str) -> str:
        """Return the error text for a method that the daemon does not implement, with the daemon's version."""
        import grpc  # noqa: PLC0415 - likewise

        try:
            answer = self._call("Status", "unary_unary")(request_for("Status"), timeout=ANSWER_WITHIN_S)
            version = decode_fields(answer.json)["agent"]["version"]
        except (grpc.RpcError, KeyError, TypeError, ValueError):
            version = "unknown"
        return f"daemon version {version} does not support {method}, command version {__version__} does; restart it"

    def _call(self, method: str, kind: str) -> Any:  # noqa: ANN401 - of the library
        from google.protobuf import message_factory  # noqa: PLC0415 - not for every command

        from nodeagent._proto.control.v1 import control_pb2  # noqa: PLC0415

        service = control_pb2.DESCRIPTOR.services_by_name["Control"]
        about = service.methods_by_name[method]
        return getattr(self._channel, kind)(
            f"/{service.full_name}/{method}",
            request_serializer=message_factory.GetMessageClass(about.input_type).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(about.output_type).FromString,
        )


def find_socket(config: Path | None) -> Path | None:
    """Return the path of the control socket by a configuration; ``None`` if the configuration disables it."""
    variable = os.environ.get(_SOCKET_VARIABLE)
    if variable and variable.startswith("/"):
        return Path(variable)
    if config is None and variable is None and _may_exist(DEFAULT_SOCKET):
        return DEFAULT_SOCKET
    from nodeagent.cli.session import load_settings  # noqa: PLC0415 - loading takes longer than the rest

    return load_settings(config, {}).control.socket


def _may_exist(path: Path) -> bool:
    """Return whether a path exists; true where permissions hide it."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def connect(path: Path) -> Iterator[ControlConnection]:
    """Return a connection to the daemon that listens on a socket.

    Raises:
        DaemonUnavailableError: no daemon is listening there.
        DaemonRefusedError: this user is not allowed to connect.
    """
    _probe(path)
    import grpc  # noqa: PLC0415 - not needed where no daemon is listening

    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        yield ControlConnection(channel)


@contextmanager
def connected(config: Path | None) -> Iterator[ControlConnection]:
    """Return a connection to the running daemon.

    Raises:
        DaemonUnavailableError: no daemon is running.
        DaemonRefusedError: this user is not allowed to connect.
    """
    path = find_socket(config)
    if path is None:
        raise DaemonUnavailableError('control API disabled: control.socket = ""')
    with connect(path) as agent:
        yield agent


@contextmanager
def daemon_for_user(
    config: Path | None, overrides: Mapping[str, object], *, refusal_matters: bool = True
) -> Iterator[ControlConnection | None]:
    """Return a connection to the daemon if the command is a client of it; ``None`` if it reads the node itself.

    It is a client for a user other than root, who cannot read the node, if a daemon is running and no configuration of
    the user's own is given, in the environment either.

    Args:
        config: file of the configuration.
        overrides: options that take precedence over it.
        refusal_matters: whether a refusal is an error; otherwise the command reads the node itself.

    Raises:
        DaemonRefusedError: a daemon is running and refuses this user.
    """
    agent = None
    with ExitStack() as stack:
        if os.geteuid() != 0 and config is None and not overrides and not _configured(os.environ):
            try:
                agent = stack.enter_context(connected(None))
            except DaemonUnavailableError:
                agent = None
            except DaemonRefusedError:
                if refusal_matters:
                    raise
        yield agent


def _configured(environment: Mapping[str, str]) -> bool:
    """Return whether variables set anything else than the socket of the daemon."""
    return any(name.startswith(_PREFIX) and not name.startswith(_NO_SETTINGS) for name in environment)


def _decoded(text: str, decoder: Callable[[str], T]) -> T:
    try:
        return decoder(text)
    except DocumentError as error:
        raise NodeAgentError(
            f"unexpected answer of the agent: {error}; its version may differ from that of this command, "
            f"{__version__}; restart the agent, or use the command of its version"
        ) from error


def _probe(path: Path) -> None:
    """Check that a daemon is listening: the errors of a plain connection are more precise than those of gRPC."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_WITHIN_S)
        try:
            probe.connect(str(path))
        except PermissionError as error:
            raise DaemonRefusedError(
                f"cannot connect to control socket {path}: permission denied: only root and members of group nodeagent "
                f"may; use sudo, or 'usermod -aG nodeagent {_user()}' and log in again"
            ) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonUnavailableError(
                f"no agent listening on control socket {path}; check it with: systemctl status nodeagent"
            ) from error
        except OSError as error:
            raise DaemonUnavailableError(
                f"cannot connect to control socket {path}: {error.strerror or error}"
            ) from error


def _user() -> str:
    import getpass  # noqa: PLC0415 - only for an error

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def request_for(method: str, **fields: str | float | bool) -> Message:
    """Return the request message of a method.

    Raises:
        UsageError: a text is not UTF-8, or a number is out of range.
    """
    from nodeagent._proto.control.v1 import control_pb2  # noqa: PLC0415 - not for every command

    try:
        message: Message = getattr(control_pb2, f"{method}Request")(**fields)
    except ValueError as error:
        raise UsageError(f"invalid argument of {method}: {error}") from error
    return message


def _translated(error: grpc.RpcError) -> NodeAgentError:
    import grpc  # noqa: PLC0415 - already loaded by the caller

    code, details = error.code(), error.details() or ""
    codes = grpc.StatusCode
    if code is codes.UNAVAILABLE and "runtime" in details:
        return RuntimeUnavailableError(details)
    kind, text = {
        codes.PERMISSION_DENIED: (DaemonRefusedError, details),
        codes.UNAUTHENTICATED: (DaemonRefusedError, details),
        codes.INVALID_ARGUMENT: (UsageError, details),
        codes.ABORTED: (PassBusyError, details),
        codes.DEADLINE_EXCEEDED: (NodeAgentError, "the agent did not answer before the deadline"),
        codes.UNAVAILABLE: (DaemonUnavailableError, f"connection to the agent lost: {details}"),
        codes.CANCELLED: (DaemonUnavailableError, f"connection to the agent lost: {details}"),
    }.get(code, (NodeAgentError, details or str(code)))
    return kind(text)
