"""Relay connections between a Unix socket and a TCP port on loopback, in the network namespace of the relay process.

``python -m tests.support.unix_relay FROM TO``: one is the path of a socket, the other a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_CHUNK = 64 << 10


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    target.close()


def relay_to(target: str | int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return the handler that relays a connection to a Unix socket, or to a port on loopback."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(target, str):
                upstream_reader, upstream_writer = await asyncio.open_unix_connection(target)
            else:
                upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))

    return relay


async def _serve(source: str, target: str) -> None:
    if source.isdecimal():
        server: asyncio.Server = await asyncio.start_server(relay_to(target), "127.0.0.1", int(source))
    else:
        server = await asyncio.start_unix_server(relay_to(int(target)), source)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2]))
