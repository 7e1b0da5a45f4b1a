"""The control socket: listening, peer credentials, access rights, and the relay to the gRPC service.

The gRPC library does not report the peer credentials of a connection. Connections are therefore accepted here, where
the kernel reports them, and relayed to the service over a socket in a private directory. Each relay connects from a
random abstract address, by which the service finds the credentials. The service is not loaded before the first
connection.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.config.control import DEFAULT_SOCKET
from nodeagent.daemon.loops import wait_for_any
from nodeagent.errors import NodeAgentError
from nodeagent.host.peer import group_number, is_stale_socket, read_peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeagent.config.control import ControlSettings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.host.peer import Peer

_CHECK_INTERVAL_S: Final = 60.0
_SWAP_S: Final = 0.2
_RETRY_S: Final = 30.0
_MAX_CONNECTIONS: Final = 64
_MAX_CONNECTIONS_PER_USER: Final = 16
"""Connections of one user other than root, so that root can always connect."""
_CHUNK_BYTES: Final = 1 << 16
_BACKLOG: Final = 64
_LONGEST_PATH: Final = 107
"""Source: unix(7), ``sun_path``."""


class Service(Protocol):
    """The service behind the socket."""

    async def stop(self) -> None:
        """Cancel all calls in progress."""


Serve = "Callable[[str, Callable[[str], Peer | None]], Awaitable[Service]]"


class ControlUnavailableError(NodeAgentError):
    """The control socket cannot be opened."""


class ControlServer:
    """Listens on the control socket and relays its connections."""

    def __init__(
        self,
        context: DaemonContext,
        serve: Callable[[str, Callable[[str], Peer | None]], Awaitable[Service]] | None = None,
    ) -> None:
        """Prepare; ``serve`` starts the service at an address and gets a function from connection to peer."""
        self._context = context
        self._serve = serve or self._serve_control
        self._service: Service | None = None
        self._starting = asyncio.Lock()
        self._path: Path | None = None
        self._inner: Path | None = None
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until ``stop`` is set; retry at intervals while the socket cannot be opened."""
        try:
            while not stop.is_set():
                settings = self._context.settings.control
                if settings.socket is None:
                    await self._close()
                    await self._wait_for_change(settings, stop)
                    continue
                try:
                    await self._listen(settings, settings.socket, stop)
                except (ControlUnavailableError, OSError) as error:
                    if str(error) != self._problem:
                        self._context.logger.warning(
                            "control_unavailable", socket=str(settings.socket), error=str(error)
                        )
                    self._problem = str(error)
                    await wait_for_any(_RETRY_S, stop)
        finally:
            await self._close()

    async def _listen(self, settings: ControlSettings, path: Path, stop: asyncio.Event) -> None:
        listener = open_socket(path, settings.group)
        self._path = path
        inode = os.stat(path).st_ino  # noqa: PTH116 - a file on tmpfs does not block
        server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=_BACKLOG)
        self._context.logger.info("control_listening", socket=str(path), who=who_may_connect(path, settings.group))
        self._problem = ""
        try:
            await self._wait_for_change(settings, stop)
        finally:
            server.close()
            with suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    path.unlink()  # noqa: ASYNC240 - a file on tmpfs does not block

    async def _wait_for_change(self, settings: ControlSettings, stop: asyncio.Event) -> None:
        """Wait until the settings change or ``stop`` is set."""
        renew = self._context.renew
        while not stop.is_set() and self._context.settings.control == settings:
            if await wait_for_any(_CHECK_INTERVAL_S, stop, renew) and renew.is_set():
                await wait_for_any(_SWAP_S, stop)  # new settings take effect after the pass in progress

    async def _close(self) -> None:
        """Close every connection and stop the service."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
        inner, self._inner = self._inner, None
        if inner is not None:
            shutil.rmtree(inner.parent, ignore_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side closes it."""
        name = ""
        try:
            accepted: socket.socket = writer.get_extra_info("socket")
            peer = read_peer(accepted)
            if peer.uid and sum(each.uid == peer.uid for each in self._peers.values()) >= _MAX_CONNECTIONS_PER_USER:
                return
            name = f"nodeagent-{os.getpid()}-{secrets.token_hex(16)}"
            self._peers[name] = peer
            try:
                inner_reader, inner_writer = await _connect_from(name, await self._address())
            except OSError as error:
                self._context.logger.warning("control_unavailable", socket=str(self._path), error=str(error))
                return
            try:
                await _pump_both(reader, writer, inner_reader, inner_writer)
            finally:
                inner_writer.close()
        except OSError:
            pass  # the client disconnected
        except Exception:  # a bug in one connection must not end the task
            self._context.logger.exception("control_failed", method="connect")
        finally:
            self._peers.pop(name, None)
            writer.close()

    async def _address(self) -> str:
        """Return the address of the service; start it for the first connection."""
        async with self._starting:
            if self._inner is None:
                self._inner = make_inner(self._path or DEFAULT_SOCKET)
            if self._service is None:
                self._service = await self._serve(str(self._inner), self.peer_of)
        return str(self._inner)

    def peer_of(self, name: str) -> Peer | None:
        """Return the peer of a relayed connection; ``None`` for any other connection."""
        return self._peers.get(name)

    async def _serve_control(self, address: str, peer_of: Callable[[str], Peer | None]) -> Service:
        from nodeagent.daemon.control.service import serve  # noqa: PLC0415 - loads gRPC's server only for the first connection

        return await serve(self._context, address, peer_of)


def make_inner(path: Path) -> Path:
    """Create a private directory and return the address of the service in it.

    It is beside the control socket, on tmpfs: the disk may be full, and systemd-tmpfiles removes old files from
    ``/tmp``. The directory of a killed agent is removed.

    Raises:
        OSError: the directory cannot be created.
    """
    directory = path.with_name(f".{path.name}.d")
    if len(os.fsencode(directory / "s")) > _LONGEST_PATH:
        return Path(tempfile.mkdtemp(prefix="nodeagent-")) / "s"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return directory / "s"


def open_socket(path: Path, group: str) -> socket.socket:
    """Return a listening socket at a path, for root and a group.

    Only root can connect if the group does not exist or the owner cannot be changed.

    Raises:
        ControlUnavailableError: the directory does not exist, or the path is another file or another agent's socket.
        OSError: the socket cannot be created.
    """
    if not path.parent.is_dir():
        raise ControlUnavailableError(f"{path.parent}: no such directory; run systemd-tmpfiles --create")
    _remove_stale_socket(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        number = group_number(group)
        if number is not None and _set_group(path, number):
            path.chmod(0o660)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def who_may_connect(path: Path, group: str) -> str:
    """Return the users that can connect to a socket, in words."""
    if os.stat(path).st_mode & stat.S_IWGRP:  # noqa: PTH116 - a file on tmpfs does not block
        return f"root and group {group}"
    why = "cannot change its group" if group_number(group) is not None else "no such group"
    return f"root only, not group {group}: {why}"


def _set_group(path: Path, group: int) -> bool:
    if os.lstat(path).st_gid == group:
        return True
    try:
        os.chown(path, -1, group)
    except OSError:
        return False
    return True


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket that a killed agent left; any other file is an error."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ControlUnavailableError(f"{path}: not a socket; remove the file or set control.socket")
    try:
        stale = is_stale_socket(str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlUnavailableError(f"{path}: cannot connect to the agent that owns it: {error}") from error
    if not stale:
        raise ControlUnavailableError(f"{path}: another agent is listening")
    path.unlink(missing_ok=True)


async def _connect_from(name: str, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setblocking(False)
        made.bind(f"\0{name}")
        await asyncio.get_running_loop().sock_connect(made, address)
        return await asyncio.open_unix_connection(sock=made)
    except BaseException:
        made.close()
        raise


async def _pump_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inner_reader: asyncio.StreamReader,
    inner_writer: asyncio.StreamWriter,
) -> None:
    pumps = {
        asyncio.ensure_future(_pump(reader, inner_writer)),
        asyncio.ensure_future(_pump(inner_reader, writer)),
    }
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
