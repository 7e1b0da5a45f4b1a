"""Private message bus with a simulated logind that delays shutdowns as logind does.

Inhibitor locks are FIFOs in a directory, as in logind: they outlive a restart, are released when the last copy of the
file descriptor is closed, and are refused during a shutdown. The simulation never shuts a machine down.

Source: org.freedesktop.login1(5); for behaviour that it does not define, systemd-logind 257.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbus_fast import BusType, Message, MessageType, NameFlag, RequestNameReply, Variant
from dbus_fast.aio import MessageBus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
IN_PROGRESS = "org.freedesktop.login1.OperationInProgress"
WITHIN_S = 10.0

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""


def unavailable() -> str | None:
    """Return the reason why no private bus can be started on this machine; ``None`` if a bus can be started."""
    return None if shutil.which("dbus-daemon") else "no dbus-daemon on this machine (Debian: apt install dbus-daemon)"


class PrivateBus:
    """dbus-daemon that can be stopped and started again at the same address."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "bus"
        self.address = f"unix:path={self._socket}"
        self._config = directory / "bus.conf"
        self._config.write_text(_CONFIG.format(address=self.address))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the bus and wait until it accepts connections."""
        self._socket.unlink(missing_ok=True)
        process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile", "--print-address=1"],
            stdout=subprocess.PIPE,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stdout.readline(), "dbus-daemon did not start"

    def stop(self) -> None:
        """Kill the bus, which breaks all connections."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@dataclass(eq=False)
class Lock:
    """Granted inhibitor lock."""

    what: str
    who: str
    why: str
    mode: str
    uid: int
    pid: int
    fifo: Path
    reader: int = -1
    listed: bool = True

    @property
    def entry(self) -> tuple[str, str, str, str, int, int]:
        return self.what, self.who, self.why, self.mode, self.uid, self.pid


@dataclass(eq=False)
class Login1:
    """Manager object of the simulated logind.

    Attributes:
        calls: names of the called D-Bus methods, in order.
        executed: number of shutdowns that were executed after the locks were released or the limit expired.
        refuse: name of the D-Bus error that Inhibit returns; empty for success.
        descriptors: number of file descriptors in a response of Inhibit.
        before_inhibit: function that is awaited before each Inhibit call is handled.
        before_answer: function that is awaited between the grant of a lock and the response.
        after_get: function that is called with the name of a property after each response with its value.
    """

    address: str
    directory: Path
    preparing: bool = False
    limit_us: Any = 5_000_000
    limit_type: str = "t"
    locks: list[Lock] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    executed: int = 0
    refuse: str = ""
    descriptors: int = 1
    before_inhibit: Callable[[], Any] | None = None
    before_answer: Callable[[], Any] | None = None
    after_get: Callable[[str], None] | None = None
    _bus: MessageBus | None = None
    _number: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _timeout: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Restore the locks of an earlier run, and request the bus name."""
        for lock in self.locks:
            self._open(lock)
            os.close(os.open(lock.fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        bus = MessageBus(self.address, BusType.SESSION, negotiate_unix_fd=True)
        await bus.connect()
        bus.add_message_handler(self._incoming)
        self._bus = bus
        assert await bus.request_name(NAME, NameFlag.DO_NOT_QUEUE) is RequestNameReply.PRIMARY_OWNER

    async def stop(self) -> None:
        """Disconnect from the bus. Locks are kept; a delayed shutdown is cancelled, as when logind is stopped."""
        self._drop_shutdown()
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.disconnect()
            with suppress(EOFError, OSError):
                await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lock in self.locks:
            self.close_reader(lock)

    async def rejoin(self) -> None:
        """Reconnect to a restarted bus; all state is kept."""
        preparing, timeout = self.preparing, self._timeout
        self._timeout = None
        await self.stop()
        self.preparing, self._timeout = preparing, timeout
        await self.start()

    def request_shutdown(self, operation: str = "poweroff") -> None:
        """Signal a shutdown and wait up to the limit for the release of the locks.

        Without ``operation`` the signal is that of systemd before 255.
        """
        assert not self.preparing
        if operation:
            self.emit("PrepareForShutdownWithMetadata", "ba{sv}", True, {"type": Variant("s", operation)})
        self.emit("PrepareForShutdown", "b", True)
        self.preparing = True
        self._timeout = asyncio.get_running_loop().call_later(self.limit_us / 10**6, self._execute)
        self._proceed()

    def cancel_shutdown(self) -> None:
        """Cancel the shutdown and signal the cancellation."""
        self._drop_shutdown()
        self.emit("PrepareForShutdown", "b", False)

    def emit(self, member: str, signature: str, *body: object) -> None:
        assert self._bus is not None
        self._bus.send(Message.new_signal(PATH, MANAGER, member, signature, list(body)))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the calls and locks is true."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _drop_shutdown(self) -> None:
        self.preparing = False
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _proceed(self) -> None:
        if self.preparing and self._timeout is not None and not any("shutdown" in lock.what for lock in self.locks):
            self._execute()

    def _execute(self) -> None:
        assert self._timeout is not None
        self._timeout.cancel()
        self._timeout = None
        self.executed += 1
        self._changed.set()

    def _open(self, lock: Lock) -> None:
        lock.reader = os.open(lock.fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(lock.reader, self._ended, lock)

    def close_reader(self, lock: Lock) -> None:
        """Close the read end of a lock's FIFO, which logind polls."""
        if lock.reader >= 0:
            asyncio.get_running_loop().remove_reader(lock.reader)
            os.close(lock.reader)
            lock.reader = -1

    def _ended(self, lock: Lock) -> None:
        """Remove a lock whose FIFO has no writer left."""
        self.close_reader(lock)
        lock.fifo.unlink()
        self.locks.remove(lock)
        self._changed.set()
        self._proceed()

    def _incoming(self, message: Message) -> bool:
        if message.message_type is not MessageType.METHOD_CALL or message.path != PATH:
            return False
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _answer(self, message: Message) -> None:
        assert self._bus is not None
        assert message.member is not None
        self.calls.append(message.member)
        self._changed.set()
        if message.member == "Inhibit":
            await self._inhibit(message)
        elif message.member == "ListInhibitors":
            entries = [list(lock.entry) for lock in self.locks if lock.listed]
            await self._bus.send(Message.new_method_return(message, "a(ssssuu)", [entries]))
        elif message.member == "Get" and message.body[0] == MANAGER:
            values = {
                "PreparingForShutdown": Variant("b", self.preparing),
                "InhibitDelayMaxUSec": Variant(self.limit_type, self.limit_us),
            }
            sent = self._bus.send(Message.new_method_return(message, "v", [values[message.body[1]]]))
            if self.after_get is not None:
                self.after_get(message.body[1])
            await sent
        else:
            error = "org.freedesktop.DBus.Error.UnknownMethod"
            await self._bus.send(Message.new_error(message, error, f"no {message.member}"))

    async def _inhibit(self, message: Message) -> None:
        assert self._bus is not None
        self.clients.append(message.sender or "")
        if self.before_inhibit is not None:
            await self.before_inhibit()
        what, who, why, mode = message.body
        if self.refuse:
            await self._bus.send(Message.new_error(message, self.refuse, "refused"))
            return
        if self.preparing and "shutdown" in what.split(":"):
            await self._bus.send(Message.new_error(message, IN_PROGRESS, "already running"))
            return
        reply = await self._bus.call(
            Message(
                destination="org.freedesktop.DBus",
                path="/org/freedesktop/DBus",
                interface="org.freedesktop.DBus",
                member="GetConnectionUnixProcessID",
                signature="s",
                body=[message.sender],
            )
        )
        self._number += 1
        lock = Lock(what, who, why, mode, os.getuid(), reply.body[0], self.directory / f"{self._number}.ref")
        os.mkfifo(lock.fifo, 0o600)
        self._open(lock)
        writer = os.open(lock.fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.locks.append(lock)
        self._changed.set()
        try:
            if self.before_answer is not None:
                await self.before_answer()
            if self.descriptors:
                answer = Message.new_method_return(message, "h", [0], [writer] * self.descriptors)
            else:
                answer = Message.new_method_return(message, "s", ["no descriptor"])
            await self._bus.send(answer)
        finally:
            os.close(writer)
