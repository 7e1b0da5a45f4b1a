"""Parser of the control server's HTTP/1.1 responses.

Rejected: h11, which parses the requests in the daemon, and ``http.client``; the import of each takes longer than a
whole command. The server is the daemon, which runs as root, so the parser is not hardened against malicious responses.
Truncated and malformed responses are errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

_PART_BYTES = 1 << 16
_LONGEST_LINE = 1 << 14
_BEGIN = b"HTTP/1."


class MalformedResponseError(Exception):
    """The received bytes are not an HTTP/1.1 response."""


class TruncatedResponseError(Exception):
    """The connection was closed before the end of the response."""


class HttpResponse:
    """A response, whose status line and headers are read by the constructor.

    Attributes:
        status: HTTP status code.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Read the status line and headers of a response; interim responses (1xx) are skipped.

        Raises:
            MalformedResponseError: the received bytes are not HTTP.
            TruncatedResponseError: the connection was closed before the end of the headers.
        """
        self._connection = connection
        self._received = b""
        self.status = 100
        while 100 <= self.status < 200:
            self.status, self._headers = self._head()

    def parts(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            MalformedResponseError: a chunk or a length is invalid.
            TruncatedResponseError: the connection was closed before the end of the body.
        """
        length = self._headers.get(b"content-length")
        if self._headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            while size := _number(self._line().partition(b";")[0], 16):
                yield from self._exactly(size)
                if self._line():
                    raise MalformedResponseError("chunk longer than its size")
            while self._line():
                pass
        elif length is not None:
            yield from self._exactly(_number(length, 10))
        else:
            yield self._received
            while part := self._connection.recv(_PART_BYTES):
                yield part

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        while len(self._received) < len(_BEGIN) and _BEGIN.startswith(self._received):
            self._receive()
        if not self._received.startswith(_BEGIN):
            raise MalformedResponseError(f"starts with {self._received[:20]!r}")
        status = _number(self._line()[len(_BEGIN) + 2 :][:3], 10)
        headers = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return status, headers

    def _line(self) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _LONGEST_LINE:
                raise MalformedResponseError("line too long")
            self._receive()
        line, self._received = self._received[:end], self._received[end + 1 :]
        return line.removesuffix(b"\r")

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._received:
                self._receive()
            part, self._received = self._received[:size], self._received[size:]
            size -= len(part)
            yield part

    def _receive(self) -> None:
        part = self._connection.recv(_PART_BYTES)
        if not part:
            raise TruncatedResponseError
        self._received += part


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise MalformedResponseError(f"{text[:20]!r} is not a number") from error
