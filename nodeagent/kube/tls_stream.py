"""TLS over plain asyncio streams.

The daemon loads asyncio without OpenSSL, which saves 4 MiB on nodes that need no TLS, so asyncio's own TLS is not
available in it, even after a later import of ``ssl``.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
_CHUNK_BYTES: Final = 1 << 16


class TlsStream:
    """One TLS connection of a client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, server_name: str
    ) -> None:
        """Take an open connection; :meth:`handshake` verifies the server."""
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    @property
    def closed(self) -> bool:
        """Whether the server or the client has closed the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def handshake(self) -> None:
        """Verify the server.

        Raises:
            ssl.SSLError: the certificate is not trusted, or the handshake failed.
            OSError: the connection was lost.
        """
        await self._call(self._tls.do_handshake)

    async def read(self) -> bytes:
        """Return some received bytes; none after the server has closed the connection properly.

        Raises:
            ssl.SSLError: the connection was cut, or the server refused the client certificate.
            OSError: the connection was lost.
        """
        try:
            return await self._call(self._tls.read, _CHUNK_BYTES)
        except ssl.SSLZeroReturnError:
            return b""

    async def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ssl.SSLError: the connection failed.
            OSError: the connection was lost.
        """
        while data:
            data = data[await self._call(self._tls.write, data) :]

    def abort(self) -> None:
        """Drop the connection without waiting for the server."""
        self._writer.transport.abort()

    async def _call(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of an operation, with received bytes as often as it needs them."""
        while True:
            try:
                result = operation(*args, **kwargs)
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._reader.read(_CHUNK_BYTES)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError:
                await self._flush()  # the alert, which names the cause in the log of the server
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()
