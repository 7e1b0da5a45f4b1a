"""Connections to the D-Bus system bus: calls with deadlines, and descriptors that are always closed."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.errors import DBusFastError

from nodeagent.errors import InhibitorError
from nodeagent.record import Record

SignalHandler = Callable[[Message], None]

BUS_NAME: Final = "org.freedesktop.DBus"
_BUS_PATH: Final = "/org/freedesktop/DBus"
_CLOSE_WITHIN_S = 1.0
_REPLIES = (MessageType.METHOD_RETURN, MessageType.ERROR)


class BusCallError(InhibitorError):
    """A D-Bus call was answered with an error.

    Attributes:
        name: the error's D-Bus name, such as ``org.freedesktop.DBus.Error.AccessDenied``.
    """

    def __init__(self, member: str, name: str, text: str) -> None:
        self.name = name
        super().__init__(f"{member} failed: {text} ({name})" if text else f"{member} failed: {name}")


class Bus:
    """A D-Bus connection as an async context manager. A lost connection is not reopened."""

    def __init__(self, address: str = "", *, deadline_s: float, on_signal: SignalHandler | None = None) -> None:
        """Prepare a connection.

        Args:
            address: address of the bus; empty for the system bus of this machine.
            deadline_s: deadline in seconds for connecting, and for each call.
            on_signal: called with every received signal. The bus sets the sender, which can be trusted. The callback
                must not raise.
        """
        self._address = address
        self._deadline_s = deadline_s
        self._on_signal = on_signal
        self._bus: MessageBus | None = None
        self._end: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        with _translated("connecting to the system bus"):
            bus = MessageBus(self._address or None, BusType.SYSTEM, negotiate_unix_fd=True)
            async with asyncio.timeout(self._deadline_s):
                await bus.connect()
        bus.add_message_handler(self._incoming)
        self._bus = bus
        self._end = asyncio.create_task(_ended(bus))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bus is not None and self._end is not None:
            self._bus.disconnect()
            try:
                await asyncio.wait({self._end}, timeout=_CLOSE_WITHIN_S)
            finally:
                self._end.cancel()
                if self._end.done() and not self._end.cancelled():
                    self._end.exception()

    @property
    def ended(self) -> asyncio.Future[None]:
        """A future that is done once the connection is lost; it must not be cancelled."""
        if self._end is None:
            raise InhibitorError("the system bus is not connected")
        return self._end

    async def call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", *body: object
    ) -> Message:
        """Call a method and return its answer; the caller closes the answer's descriptors.

        Raises:
            BusCallError: the answer is an error.
            InhibitorError: no connection, or no answer in time; a late answer is discarded, and its descriptors are
                closed.
        """
        bus = self._bus
        if bus is None or not bus.connected:
            raise InhibitorError(f"{member}: the system bus is not connected")
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
        )
        pending = asyncio.ensure_future(bus.call(message))
        try:
            with _translated(member):
                async with asyncio.timeout(self._deadline_s):
                    reply: Message | None = await asyncio.shield(pending)
        except BaseException:
            pending.add_done_callback(_discard)
            raise
        if reply is None:
            raise InhibitorError(f"{member}: the connection to the system bus was closed")
        if reply.message_type is MessageType.ERROR:
            close_all(reply)
            text = reply.body[0] if reply.body and isinstance(reply.body[0], str) else ""
            raise BusCallError(member, reply.error_name or "unknown", text)
        return reply

    async def call_bus(self, member: str, signature: str = "", *body: object) -> Message:
        """Call a method of the bus itself. Raises as :meth:`call`."""
        return await self.call(BUS_NAME, _BUS_PATH, BUS_NAME, member, signature, *body)

    async def subscribe(self, rule: str) -> None:
        """Subscribe to the signals that match a rule; no signal is missed after the return. Raises as :meth:`call`."""
        await self.call_bus("AddMatch", "s", rule)

    async def own_pid(self) -> int:
        """Return the id of this process in the bus's PID namespace."""
        reply = await self.call_bus("GetConnectionUnixProcessID", "s", self._bus.unique_name if self._bus else "")
        return int(reply.body[0])

    def _incoming(self, message: Message) -> None:
        if message.message_type in _REPLIES:
            return
        close_all(message)  # descriptors in calls and signals are unwanted, and would leak
        if message.message_type is MessageType.SIGNAL and self._on_signal is not None:
            self._on_signal(message)


async def _ended(bus: MessageBus) -> None:
    await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]


def close_all(message: Message) -> None:
    """Close all file descriptors in a D-Bus message."""
    for number in message.unix_fds:
        with suppress(OSError):
            os.close(number)


def _discard(pending: asyncio.Future[Any]) -> None:
    if pending.cancelled() or pending.exception() is not None:
        return
    reply = pending.result()
    if reply is not None:
        close_all(reply)


@contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise InhibitorError(f"{action}: no answer in time") from error
    except EOFError as error:
        raise InhibitorError(f"{action}: the connection to the system bus was closed") from error
    except OSError as error:
        raise InhibitorError(f"{action}: {error.strerror or error}") from error
    except DBusFastError as error:
        raise InhibitorError(f"{action}: {error}") from error


LOGIND_NAME: Final = "org.freedesktop.login1"
LOGIND_PATH: Final = "/org/freedesktop/login1"
MANAGER: Final = "org.freedesktop.login1.Manager"
IN_PROGRESS: Final = "org.freedesktop.login1.OperationInProgress"

T = TypeVar("T", bool, int)


class InhibitorEntry(NamedTuple):
    """One inhibitor lock in logind's list. Source: org.freedesktop.login1(5), ``ListInhibitors``, fields in order."""

    what: str
    who: str
    why: str
    mode: str
    uid: int
    pid: int


class LogindFacts(Record):
    """State of logind at one reading: shutdown preparation, delay limit and inhibitor locks."""

    preparing: bool
    limit_us: int
    inhibitors: tuple[InhibitorEntry, ...]


async def acquire_lock(bus: Bus, who: str, why: str) -> int:
    """Acquire a delay inhibitor lock for shutdowns, held while the returned descriptor or a copy is open.

    Raises:
        BusCallError: logind refuses; ``IN_PROGRESS`` during a shutdown.
        InhibitorError: logind does not answer, or the answer has no descriptor.

    Source: org.freedesktop.login1(5), ``Inhibit``.
    """
    reply = await bus.call(LOGIND_NAME, LOGIND_PATH, MANAGER, "Inhibit", "ssss", "shutdown", who, why, "delay")
    if reply.signature != "h" or len(reply.unix_fds) != 1:
        close_all(reply)
        raise InhibitorError("invalid answer of Inhibit: not one descriptor")
    os.set_inheritable(reply.unix_fds[0], False)
    return int(reply.unix_fds[0])


async def read_logind(address: str = "", *, deadline_s: float = 5.0) -> LogindFacts:
    """Return logind's current state, without acquiring a lock.

    Raises:
        InhibitorError: the bus or logind does not answer.
    """
    async with Bus(address, deadline_s=deadline_s) as bus:
        await owner_of_logind(bus)
        return LogindFacts(
            preparing=await read_property(bus, "PreparingForShutdown", bool),
            limit_us=await read_limit_us(bus),
            inhibitors=await list_inhibitors(bus),
        )


async def owner_of_logind(bus: Bus) -> str:
    """Start logind if possible, and return its unique name on the bus.

    Raises:
        InhibitorError: logind is not on the bus.
    """
    with suppress(BusCallError):  # a failure is reported by the next call
        await bus.call_bus("StartServiceByName", "su", LOGIND_NAME, 0)
    try:
        reply = await bus.call_bus("GetNameOwner", "s", LOGIND_NAME)
    except BusCallError as error:
        raise InhibitorError(f"logind is not on the bus: {error}") from error
    return str(reply.body[0])


async def read_property(bus: Bus, name: str, kind: type[T]) -> T:
    """Return a property of logind's manager.

    Raises:
        InhibitorError: logind does not answer, or the value has another type.
    """
    reply = await bus.call(LOGIND_NAME, LOGIND_PATH, "org.freedesktop.DBus.Properties", "Get", "ss", MANAGER, name)
    value = reply.body[0].value if reply.body and isinstance(reply.body[0], Variant) else None
    if type(value) is not kind:  # bool is a subclass of int
        raise InhibitorError(f"invalid {name} of logind: {value!r}")
    return value


async def read_limit_us(bus: Bus) -> int:
    """Return logind's maximum inhibitor delay in microseconds; 2**64-1 without a limit.

    Raises:
        InhibitorError: logind does not answer, or the number of microseconds is invalid.

    Source: org.freedesktop.login1(5), ``InhibitDelayMaxUSec``, unsigned 64 bits.
    """
    limit_us = await read_property(bus, "InhibitDelayMaxUSec", int)
    if limit_us < 0:
        raise InhibitorError(f"invalid InhibitDelayMaxUSec of logind: {limit_us}")
    return limit_us


async def list_inhibitors(bus: Bus) -> tuple[InhibitorEntry, ...]:
    """Return logind's list of inhibitor locks.

    Raises:
        InhibitorError: logind does not answer, or the answer has another type.
    """
    reply = await bus.call(LOGIND_NAME, LOGIND_PATH, MANAGER, "ListInhibitors")
    if reply.signature != "a(ssssuu)":
        raise InhibitorError(f"invalid answer of ListInhibitors: signature {reply.signature!r}")
    return tuple(InhibitorEntry(*entry) for entry in reply.body[0])


class DelayLock:
    """A delay inhibitor lock for shutdowns, held while its descriptor is open; the lock may be missing."""

    def __init__(self, who: str, why: str, adopted: int | None) -> None:
        """Create the object without calling logind.

        Args:
            who: owner of the lock, as shown by ``systemd-inhibit --list``.
            why: reason of the lock, as shown by ``systemd-inhibit --list``.
            adopted: descriptor of a lock from an earlier run, owned by this object from now on; ignored if not open.
        """
        self._who = who
        self._why = why
        self.number = _adopt(adopted)
        """File descriptor of the lock; ``None`` without a lock."""
        self._acquired_here = False

    async def acquire(self, bus: Bus) -> None:
        """Acquire a lock, then close the former lock. Raises as :func:`nodeagent.host.dbus.acquire_lock`."""
        new = await acquire_lock(bus, self._who, self._why)
        self.release()
        self.number, self._acquired_here = new, True

    def release(self) -> None:
        """Release the lock by closing its descriptor once: later, the number may refer to another file."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)

    def check(self, entries: Iterable[InhibitorEntry], own_pid: int) -> None:
        """Check that logind lists the lock and reads its other end.

        Args:
            entries: logind's list of inhibitors.
            own_pid: id of this process, as reported by the bus.

        Raises:
            InhibitorError: logind does not list the lock, or does not read its other end.
        """
        # An adopted lock is listed with the process that acquired the lock, or without a process.
        own_entries = [
            entry
            for entry in entries
            if "shutdown" in entry.what.split(":")
            and (entry.who, entry.why, entry.mode) == (self._who, self._why, "delay")
            and (entry.pid == own_pid or not self._acquired_here)
        ]
        if not own_entries:
            raise InhibitorError("logind does not list the agent's lock")
        if self.number is None or _has_no_reader(self.number):
            raise InhibitorError("logind no longer reads the agent's lock")


def _adopt(number: int | None) -> int | None:
    """Return an open descriptor, closed on exec; ``None`` without a number, or if the descriptor is not open."""
    try:
        if number is not None:
            os.set_inheritable(number, False)
    except OSError:
        return None
    return number


def _has_no_reader(number: int) -> bool:
    """Return whether the other end of the lock has no reader. Source: poll(2), ``POLLERR`` of a pipe."""
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
