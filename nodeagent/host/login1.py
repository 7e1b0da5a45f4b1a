"""D-Bus calls of logind's manager object."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from dbus_fast import Variant

from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus, BusCallError, Descriptor, close_all
from nodeagent.record import Record

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


async def acquire_lock(bus: Bus, who: str, why: str) -> Descriptor:
    """Acquire a delay inhibitor lock for shutdowns, which is held while the descriptor or a copy is open.

    Raises:
        BusCallError: logind refuses; ``IN_PROGRESS`` during a shutdown.
        InhibitorError: logind does not answer, or the answer has no descriptor.

    Source: org.freedesktop.login1(5), ``Inhibit``.
    """
    reply = await bus.call(LOGIND_NAME, LOGIND_PATH, MANAGER, "Inhibit", "ssss", "shutdown", who, why, "delay")
    if reply.signature != "h" or len(reply.unix_fds) != 1:
        close_all(reply)
        raise InhibitorError("invalid answer of Inhibit: not one descriptor")
    return Descriptor(reply.unix_fds[0])


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
