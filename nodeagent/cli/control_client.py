"""Asking the running agent, on its socket."""

from __future__ import annotations

import json
import os
import socket as sockets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from nodeagent import __version__
from nodeagent.config.control import DEFAULT_SOCKET
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc
    from google.protobuf.message import Message

ANSWER_WITHIN_S: Final = 30.0
_CONNECT_WITHIN_S: Final = 2.0
_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class DaemonUnavailableError(NodeAgentError):
    """No agent listens: it does not run here, or listens elsewhere."""


class DaemonRefusedError(NodeAgentError):
    """The agent listens, and this user may not ask that."""


class ControlConnection:
    """A connection to the running agent."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def ask(self, method: str, request: Message | None = None, *, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        """Return the document that a method answers with.

        Raises:
            DaemonUnavailableError: the agent went away.
            DaemonRefusedError: this user may not.
            UsageError: the agent does not understand what it was asked.
            NodeAgentError: it could not do it.
        """
        import grpc  # noqa: PLC0415 - not for every command

        try:
            return _read(self._call(method, "unary_unary")(request or request_for(method), timeout=within_s))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NodeAgentError(self._unsupported(method)) from error
            raise _translated(error) from error

    def follow(self, method: str, request: Message | None = None) -> Iterator[dict[str, Any]]:
        """Yield the documents that a method answers with, as they come.

        Raises:
            NodeAgentError: as ``ask``.
        """
        import grpc  # noqa: PLC0415 - likewise

        try:
            for each in self._call(method, "unary_stream")(request or request_for(method)):
                yield _read(each)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NodeAgentError(self._unsupported(method)) from error
            raise _translated(error) from error

    def _unsupported(self, method: str) -> str:
        """Return the error text for a method that the daemon does not implement, with the daemon's version."""
        import grpc  # noqa: PLC0415 - likewise

        try:
            answer = self._call("Status", "unary_unary")(request_for("Status"), timeout=ANSWER_WITHIN_S)
            version = _read(answer)["agent"]["version"]
        except (grpc.RpcError, KeyError, TypeError, ValueError):
            version = "unknown"
        return f"daemon version {version} does not support {method}, command version {__version__} does; restart it"

    def _call(self, method: str, kind: str) -> Any:  # noqa: ANN401 - of the library
        from google.protobuf import message_factory  # noqa: PLC0415 - likewise

        from nodeagent._proto.control.v1 import control_pb2  # noqa: PLC0415

        service = control_pb2.DESCRIPTOR.services_by_name["Control"]
        about = service.methods_by_name[method]
        return getattr(self._channel, kind)(
            f"/{service.full_name}/{method}",
            request_serializer=message_factory.GetMessageClass(about.input_type).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(about.output_type).FromString,
        )


@contextmanager
def line(path: Path | None = None) -> Iterator[ControlConnection]:
    """Return a connection to the agent that listens at a path, by default where it always does.

    Raises:
        DaemonUnavailableError: no agent listens there.
        DaemonRefusedError: this user may not connect.
    """
    where = path or DEFAULT_SOCKET
    _knock(where)
    import grpc  # noqa: PLC0415 - a command without an agent to ask goes without

    with grpc.insecure_channel(f"unix:{where}", options=_OPTIONS) as channel:
        yield ControlConnection(channel)


@contextmanager
def understood() -> Iterator[None]:
    """Take an answer that lacks what is shown of it for one of another version.

    Raises:
        NodeAgentError: it does.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise NodeAgentError(
            f"the running agent answers otherwise than this command, {__version__}, expects ({error!r}): it may be of "
            "another version; restart it, or use its own command"
        ) from error


def _knock(path: Path) -> None:
    """See whether somebody listens, as the errors of a plain connection tell most."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_WITHIN_S)
        try:
            probe.connect(str(path))
        except PermissionError as error:
            raise DaemonRefusedError(
                f"{path}: permission denied: the agent answers root and members of its group (nodeagent); "
                f"use sudo, or 'usermod -aG nodeagent {_user()}' and log in again"
            ) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise DaemonUnavailableError(
                f"no agent listens at {path}; is it running? systemctl status nodeagent tells"
            ) from error
        except OSError as error:
            raise DaemonUnavailableError(f"{path}: {error.strerror or error}") from error


def _user() -> str:
    import getpass  # noqa: PLC0415 - only for a refusal

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def request_for(method: str, **fields: str | float | bool) -> Message:
    """Return what a method is asked with.

    Raises:
        UsageError: a text is not text, or a number is out of range.
    """
    from nodeagent._proto.control.v1 import control_pb2  # noqa: PLC0415 - not for every command

    try:
        made: Message = getattr(control_pb2, f"{method}Request")(**fields)
    except ValueError as error:
        raise UsageError(f"the agent cannot be asked for that: {error}") from error
    return made


def _read(answer: Any) -> dict[str, Any]:  # noqa: ANN401 - a generated message
    found: dict[str, Any] = json.loads(answer.json)
    return found


def _translated(error: grpc.RpcError) -> NodeAgentError:
    import grpc  # noqa: PLC0415 - an error of it is at hand

    code, details = error.code(), error.details() or ""
    codes = grpc.StatusCode
    if code is codes.UNAVAILABLE and "runtime" in details:
        return RuntimeUnavailableError(details)
    kind, text = {
        codes.PERMISSION_DENIED: (DaemonRefusedError, details),
        codes.UNAUTHENTICATED: (DaemonRefusedError, details),
        codes.INVALID_ARGUMENT: (UsageError, details),
        codes.ABORTED: (PassBusyError, details),
        codes.DEADLINE_EXCEEDED: (NodeAgentError, "the agent did not answer in time"),
        codes.UNAVAILABLE: (DaemonUnavailableError, f"the agent went away: {details}"),
        codes.CANCELLED: (DaemonUnavailableError, f"the agent went away: {details}"),
    }.get(code, (NodeAgentError, details or str(code)))
    return kind(text)
