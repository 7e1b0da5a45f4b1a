"""Accepted connections before their TLS handshake.

asyncio's own TLS server starts handshakes without a limit: clients that send nothing would use all descriptors of the
daemon. Here a connection is admitted before its handshake, as one that has not sent its request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

_HANDSHAKE_S: Final = 5.0
_SHUTDOWN_S: Final = 1.0
_RETRY_S: Final = 1.0
_LIMIT_BYTES: Final = 8192


def accept_connections(
    bound: socket.socket, backlog: int, opened: Callable[[socket.socket], None]
) -> asyncio.Task[None]:
    """Listen on a bound socket until the returned task is cancelled, which closes the socket.

    Args:
        bound: the socket.
        backlog: number of connections that wait for their acceptance.
        opened: called with each connection.

    Raises:
        OSError: it cannot listen.
    """
    try:
        bound.listen(backlog)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    task = asyncio.ensure_future(_accept(bound, opened))
    task.add_done_callback(lambda _: bound.close())  # cancelled before its start
    return task


async def _accept(bound: socket.socket, opened: Callable[[socket.socket], None]) -> None:
    loop = asyncio.get_running_loop()
    with bound:
        while True:
            try:
                connection, _ = await loop.sock_accept(bound)
            except OSError:  # no descriptor is left, or the client has disconnected
                await asyncio.sleep(_RETRY_S)
                continue
            opened(connection)


async def handshake(
    connection: socket.socket, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of a connection after its handshake.

    Raises:
        OSError: the client has no accepted certificate, disconnected, or does not speak TLS.
        TimeoutError: the handshake takes more than 5 s.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LIMIT_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=context,
        ssl_handshake_timeout=_HANDSHAKE_S,
        ssl_shutdown_timeout=_SHUTDOWN_S,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
