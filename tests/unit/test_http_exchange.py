"""HTTP/1.1 of a client without I/O: framings of responses, ends of connections, other protocols."""

from __future__ import annotations

import h11
import pytest

from nodeagent.http_exchange import HttpExchange, HttpProtocolError, TruncatedResponseError

HEAD = b"HTTP/1.1 200 OK\r\n"
HTTP_2 = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"


def response(received: bytes, part_bytes: int) -> tuple[HttpExchange, int, bytes]:
    """Return the connection, the status and the body of a response received in parts before an end."""
    exchange = HttpExchange()
    assert exchange.encode("GET", "/x", [("Host", "h")]).startswith(b"GET /x HTTP/1.1\r\n")
    parts = [received[start : start + part_bytes] for start in range(0, len(received), part_bytes)]
    status, body = 0, b""
    while True:
        event = exchange.next_event()
        if event is None:
            exchange.receive(parts.pop(0) if parts else b"")
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            return exchange, status, body


@pytest.mark.parametrize("part_bytes", [1, 7, 1000])
@pytest.mark.parametrize(
    ("received", "reusable"),
    [
        (HEAD + b"Content-Length: 4\r\n\r\nbody", True),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n", True),
        (HEAD + b"\r\nbody", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 4\r\n\r\nbody", True),
        (HEAD + b"Content-Length: 4\r\nConnection: close\r\n\r\nbody", False),
    ],
    ids=["length", "chunked", "until-close", "interim", "close"],
)
def test_response_is_read_in_every_framing(received: bytes, reusable: bool, part_bytes: int) -> None:
    exchange, status, body = response(received, part_bytes)
    assert (status, body, exchange.reusable) == (200, b"body", reusable)


@pytest.mark.parametrize("part_bytes", [1, 7, 1000])
@pytest.mark.parametrize(
    ("received", "error"),
    [
        (b"", TruncatedResponseError),
        (HEAD, TruncatedResponseError),
        (HEAD + b"Content-Length: 9\r\n\r\nbody", TruncatedResponseError),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n", TruncatedResponseError),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nno\r\n", HttpProtocolError),
        (HEAD + b"Content-Length: many\r\n\r\n", HttpProtocolError),
        (HTTP_2, HttpProtocolError),
    ],
    ids=["none", "head", "length", "chunk", "chunk-size", "length-text", "http-2"],
)
def test_incomplete_or_malformed_response_is_an_error(received: bytes, error: type[Exception], part_bytes: int) -> None:
    with pytest.raises(error):
        response(received, part_bytes)


@pytest.mark.parametrize(("target", "value"), [("/a b", "h"), ("/a", "h\r\nX: y")], ids=["target", "header"])
def test_request_that_is_not_http_is_refused(target: str, value: str) -> None:
    with pytest.raises(HttpProtocolError):
        HttpExchange().encode("GET", target, [("Host", value)])
