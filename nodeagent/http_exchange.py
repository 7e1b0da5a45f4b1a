"""The client's side of one HTTP/1.1 connection, without I/O, by h11.

The clients of the daemon and of the kubelet read a blocking socket, by :class:`SocketResponse`; the client of the API
server reads an asyncio stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import h11

if TYPE_CHECKING:
    import socket

PART_BYTES: Final = 1 << 16
_BEGIN: Final = b"HTTP/1."


class HttpProtocolError(Exception):
    """The sent or received bytes are not HTTP/1.1."""


class TruncatedResponseError(Exception):
    """The connection was closed before the end of the response."""


class HttpExchange:
    """Requests and responses of one connection, one at a time."""

    def __init__(self) -> None:
        """Create the state of a new connection."""
        self._wire = h11.Connection(h11.CLIENT)
        self._ended = False

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._wire.our_state is h11.IDLE and not self._ended

    def encode(self, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
        """Return the bytes of a request.

        Raises:
            HttpProtocolError: the target or a header is not valid, or a request is unanswered.
        """
        headers = [*headers, ("Content-Length", str(len(body)))]
        try:
            events = h11.Request(method=method, target=target, headers=headers), h11.Data(data=body), h11.EndOfMessage()
            return b"".join(self._wire.send(each) or b"" for each in events)
        except h11.LocalProtocolError as error:
            raise HttpProtocolError(str(error)) from error

    def receive(self, data: bytes) -> None:
        """Add received bytes; empty at the end of the connection.

        Raises:
            TruncatedResponseError: the connection ended before the status and headers of the response.
            HttpProtocolError: it ended after other bytes than HTTP.
        """
        if not data and self._wire.their_state is h11.SEND_RESPONSE:
            received = self._wire.trailing_data[0]
            if received and not received.startswith(_BEGIN):
                raise HttpProtocolError(f"starts with {received[:20]!r}")
            raise TruncatedResponseError("connection closed")
        self._ended = not data
        self._wire.receive_data(data)

    def next_event(self) -> h11.Response | h11.Data | h11.EndOfMessage | None:
        """Return the next event of the response; ``None`` if more bytes are required. Interim responses are skipped.

        Raises:
            HttpProtocolError: the received bytes are not HTTP.
            TruncatedResponseError: the connection ended before the end of the body.
        """
        try:
            while isinstance(event := self._wire.next_event(), h11.InformationalResponse):
                pass
        except h11.RemoteProtocolError as error:
            raise (TruncatedResponseError if self._ended else HttpProtocolError)(str(error)) from error
        if isinstance(event, h11.EndOfMessage) and self._wire.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._wire.start_next_cycle()
        return event if isinstance(event, h11.Response | h11.Data | h11.EndOfMessage) else None


class SocketResponse:
    """Response to a sent request, read from a blocking socket; the constructor reads status and headers.

    Errors are those of :class:`HttpExchange` and of the socket.
    """

    def __init__(self, connection: socket.socket, exchange: HttpExchange) -> None:
        self._connection = connection
        self._exchange = exchange
        event = self._next()
        self.status = event.status_code if isinstance(event, h11.Response) else 0
        self.reason = bytes(event.reason).decode("latin-1") if isinstance(event, h11.Response) else ""

    def parts(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        while isinstance(event := self._next(), h11.Data):
            yield bytes(event.data)

    def _next(self) -> h11.Response | h11.Data | h11.EndOfMessage:
        while (event := self._exchange.next_event()) is None:
            self._exchange.receive(self._connection.recv(PART_BYTES))
        return event
