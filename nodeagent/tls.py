"""TLS over plain asyncio streams.

The daemon imports asyncio without OpenSSL, which saves 4 MiB on nodes without TLS. asyncio's own TLS is therefore
unavailable in the daemon, even after a later import of ``ssl``. This module is imported only if TLS is used.
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
    """One side of a TLS connection: TLS operations, with the transport of TLS records over asyncio streams.

    Attributes:
        tls: TLS object; its methods are called through :meth:`call`, or the caller sends ``outgoing`` afterwards.
        outgoing: encrypted bytes to send.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        server_name: str | None,
    ) -> None:
        """Wrap an open connection: as the client of ``server_name``, or as the server if it is ``None``."""
        self._reader = reader
        self._writer = writer
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self.outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def call(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a TLS operation to its end, with all required reads and writes; return its result.

        Raises:
            ssl.SSLError: the operation failed; the TLS alert with the cause was sent to the peer.
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
