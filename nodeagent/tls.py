"""TLS over plain asyncio streams.

The daemon loads asyncio without OpenSSL, which saves 4 MiB on nodes that need no TLS, so asyncio's own TLS is not
available in it, even after a later import of ``ssl``. This module is imported only where TLS is used.
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


class TlsRecords:
    """One side of a TLS connection: its operations with the transport of their records.

    Attributes:
        tls: the operations; each is called by :meth:`call`, or followed by a transport of ``outgoing``.
        outgoing: encrypted bytes to send.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        server_name: str | None,
    ) -> None:
        """Take an open connection: the client's side with the server's name, else the server's side."""
        self._reader = reader
        self._writer = writer
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self.outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def call(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of an operation, with received bytes as often as it needs them.

        Raises:
            ssl.SSLError: the operation failed; the alert, which names the cause in the log of the peer, is sent before.
            OSError: the connection was lost.
        """
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
                await self._flush()
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self.outgoing.pending:
            self._writer.write(self.outgoing.read())
            await self._writer.drain()
