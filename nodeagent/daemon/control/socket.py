"""The socket on which the running agent is asked and told things, and who may.

The service itself is gRPC, whose library does not tell who connected. So connections are accepted here, where the
kernel tells, and are passed on to the service over a socket that nobody else can reach, from an address made up for
each: by it the service knows whom it answers. Nothing of the service is loaded before the first connection.
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

_LOOK_S: Final = 60.0
_SWAP_S: Final = 0.2
_RETRY_S: Final = 30.0
_MOST_CONNECTIONS: Final = 64
_MOST_OF_A_USER: Final = 16
"""So many connections a user other than root may have, so that there is always one left for root."""
_CHUNK_BYTES: Final = 1 << 16
_BACKLOG: Final = 64
_LONGEST_PATH: Final = 107
"""Source: unix(7), ``sun_path``."""


class Service(Protocol):
    """What answers."""

    async def stop(self) -> None:
        """Cancel what is under way."""


Serve = "Callable[[str, Callable[[str], Peer | None]], Awaitable[Service]]"


class ControlUnavailableError(NodeAgentError):
    """The socket cannot be had."""


class ControlServer:
    """Keeps the socket, and passes on who connects."""

    def __init__(
        self,
        context: DaemonContext,
        serve: Callable[[str, Callable[[str], Peer | None]], Awaitable[Service]] | None = None,
    ) -> None:
        """Prepare; ``serve`` starts the service at an address, told who is behind each connection."""
        self._context = context
        self._serve = serve or self._serve_control
        self._service: Service | None = None
        self._starting = asyncio.Lock()
        self._path: Path | None = None
        self._inner: Path | None = None
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until told to stop; where that cannot be, try again now and then."""
        try:
            while not stop.is_set():
                settings = self._context.settings.control
                if settings.socket is None:
                    await self._end()
                    await self._while_same(settings, stop)
                    continue
                try:
                    await self._listen(settings, settings.socket, stop)
                except (ControlUnavailableError, OSError) as error:
                    if str(error) != self._told:
                        self._context.logger.warning(
                            "control_unavailable", socket=str(settings.socket), error=str(error)
                        )
                    self._told = str(error)
                    await wait_for_any(_RETRY_S, stop)
        finally:
            await self._end()

    async def _listen(self, settings: ControlSettings, path: Path, stop: asyncio.Event) -> None:
        listener = open_socket(path, settings.group)
        self._path = path
        made = os.stat(path).st_ino  # noqa: PTH116 - our own file in memory
        server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=_BACKLOG)
        self._context.logger.info("control_listening", socket=str(path), who=who_may_connect(path, settings.group))
        self._told = ""
        try:
            await self._while_same(settings, stop)
        finally:
            server.close()
            with suppress(OSError):
                if os.lstat(path).st_ino == made:
                    path.unlink()  # noqa: ASYNC240 - likewise

    async def _while_same(self, settings: ControlSettings, stop: asyncio.Event) -> None:
        """Wait until the settings change or the end comes."""
        renew = self._context.renew
        while not stop.is_set() and self._context.settings.control == settings:
            if await wait_for_any(_LOOK_S, stop, renew) and renew.is_set():
                await wait_for_any(_SWAP_S, stop)  # other settings come in force once the pass under way has ended

    async def _end(self) -> None:
        """End every connection, and the service."""
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
        if len(self._tasks) >= _MOST_CONNECTIONS:
            writer.close()
            return
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one connection until either side ends it."""
        name = ""
        try:
            taken: socket.socket = writer.get_extra_info("socket")
            peer = read_peer(taken)
            if peer.uid and sum(each.uid == peer.uid for each in self._peers.values()) >= _MOST_OF_A_USER:
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
            pass  # whoever was there has gone
        except Exception:  # one connection must not end the duty
            self._context.logger.exception("control_failed", method="connect")
        finally:
            self._peers.pop(name, None)
            writer.close()

    async def _address(self) -> str:
        """Return where the service listens, after starting it if need be."""
        async with self._starting:
            if self._inner is None:
                self._inner = make_inner(self._path or DEFAULT_SOCKET)
            if self._service is None:
                self._service = await self._serve(str(self._inner), self.peer_of)
        return str(self._inner)

    def peer_of(self, name: str) -> Peer | None:
        """Return who is behind a connection; ``None`` if it did not come by this way."""
        return self._peers.get(name)

    async def _serve_control(self, address: str, peer_of: Callable[[str], Peer | None]) -> Service:
        from nodeagent.daemon.control.service import serve  # noqa: PLC0415 - not before somebody asks

        return await serve(self._context, address, peer_of)


def make_inner(path: Path) -> Path:
    """Return an address that nobody else can reach, for the service behind the socket at a path.

    It is beside that socket: there it takes no room on a disk that may be full, and nobody tidies it away when it has
    grown old, as happens to what is in ``/tmp``. What a killed agent left of it goes.

    Raises:
        OSError: it cannot be made.
    """
    directory = path.with_name(f".{path.name}.d")
    if len(os.fsencode(directory / "s")) > _LONGEST_PATH:
        return Path(tempfile.mkdtemp(prefix="nodeagent-")) / "s"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return directory / "s"


def open_socket(path: Path, group: str) -> socket.socket:
    """Return a listening socket at a path, for root and a group.

    Where the group is not there, or the socket cannot be given to it, it is root's alone.

    Raises:
        ControlUnavailableError: the directory is not there, or something else is in the socket's place.
        OSError: the socket cannot be made.
    """
    if not path.parent.is_dir():
        raise ControlUnavailableError(f"{path.parent} is not there; systemd-tmpfiles --create makes it once installed")
    _make_way(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        number = group_number(group)
        if number is not None and _give(path, number):
            path.chmod(0o660)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def who_may_connect(path: Path, group: str) -> str:
    """Return for whom a socket is, in words."""
    if os.stat(path).st_mode & stat.S_IWGRP:  # noqa: PTH116 - our own file in memory
        return f"root and group {group}"
    why = "it cannot be given to that group" if group_number(group) is not None else "there is no such group"
    return f"root alone, not group {group}: {why}"


def _give(path: Path, group: int) -> bool:
    if os.lstat(path).st_gid == group:
        return True
    try:
        os.chown(path, -1, group)
    except OSError:
        return False
    return True


def _make_way(path: Path) -> None:
    """Remove the socket of an agent that is gone; nothing else."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise ControlUnavailableError(f"{path} is there and is no socket; remove it or set control.socket")
    try:
        left_behind = is_stale_socket(str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ControlUnavailableError(f"{path} is another agent's: {error}") from error
    if not left_behind:
        raise ControlUnavailableError(f"another agent listens at {path}")
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
