"""Client TLS over plain asyncio streams."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from nodeagent.tls import TlsRecords

if TYPE_CHECKING:
    import asyncio

_CHUNK_BYTES: Final = 1 << 16


class TlsStream:
    """One TLS connection of a client to a server."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, server_name: str
    ) -> None:
        """Wrap an open TCP connection; :meth:`handshake` verifies the server."""
        self._reader = reader
        self._writer = writer
        self._records = TlsRecords(reader, writer, context, server_name)

    @property
    def closed(self) -> bool:
        """Whether the server or the client has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def handshake(self) -> None:
        """Perform the TLS handshake, which verifies the server certificate.

        Raises:
            ssl.SSLError: the certificate is not trusted, or the handshake failed.
            OSError: the connection was lost.
        """
        await self._records.call(self._records.tls.do_handshake)

    async def read(self) -> bytes:
        """Return the next received bytes; empty after the server has closed the TLS connection properly.

        Raises:
            ssl.SSLError: the connection ended without a TLS close, or the server refused the client certificate.
            OSError: the connection was lost.
        """
        try:
            return await self._records.call(self._records.tls.read, _CHUNK_BYTES)
        except ssl.SSLZeroReturnError:
            return b""

    async def write(self, data: bytes) -> None:
        """Encrypt and send ``data``.

        Raises:
            ssl.SSLError: the connection failed.
            OSError: the connection was lost.
        """
        while data:
            data = data[await self._records.call(self._records.tls.write, data) :]

    def abort(self) -> None:
        """Close the connection without waiting for the server."""
        self._writer.transport.abort()
