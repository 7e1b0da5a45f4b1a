"""TLS of a server over plain asyncio streams, imported only where a listener has a certificate."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.tls import TlsRecords

if TYPE_CHECKING:
    import asyncio


class TlsServerStream:
    """The server's side of one TLS connection, with the methods of a stream reader and writer that a request needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        """Wrap an accepted connection; call :meth:`handshake` before any other method."""
        self._writer = writer
        self._records = TlsRecords(reader, writer, context, None)

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport of the encrypted bytes."""
        return self._writer.transport

    async def handshake(self) -> None:
        """Present the server certificate, and verify the client certificate where one is required.

        Raises:
            ssl.SSLError: no common TLS version, or the client's certificate is missing, expired or not trusted.
            OSError: the connection was lost.
        """
        await self._records.call(self._records.tls.do_handshake)

    async def read(self, limit: int) -> bytes:
        """Return up to ``limit`` received bytes; empty after the end of the connection.

        An end without a ``close_notify`` alert counts as a regular end, since HTTP framing detects truncated requests.

        Raises:
            ssl.SSLError: the client sent malformed records.
            OSError: the connection was lost.
        """
        try:
            return await self._records.call(self._records.tls.read, limit)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def write(self, data: bytes) -> None:
        """Encrypt bytes and pass them to the transport; :meth:`drain` waits until they are sent.

        Raises:
            ssl.SSLError: the connection has failed.
        """
        while data:
            data = data[self._records.tls.write(data) :]
        self._writer.write(self._records.outgoing.read())

    async def drain(self) -> None:
        """Wait until the bytes are sent.

        Raises:
            OSError: the connection was lost.
        """
        await self._writer.drain()

    def write_eof(self) -> None:
        """Close the sending direction; the client can still send."""
        self._say_end()
        self._writer.write_eof()

    def close(self) -> None:
        """Close the connection after the bytes are sent."""
        self._say_end()
        self._writer.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        Raises:
            OSError: the connection was lost.
        """
        await self._writer.wait_closed()

    def _say_end(self) -> None:
        """Send the ``close_notify`` alert without waiting for the alert of the client."""
        with suppress(ssl.SSLError):
            self._records.tls.unwrap()
        if self._records.outgoing.pending and not self._writer.is_closing():
            self._writer.write(self._records.outgoing.read())
