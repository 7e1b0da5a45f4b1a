"""The delay lock that makes logind wait for us, and the news of a shutdown.

The lock is a file descriptor: as long as a copy of it is open, logind waits, up to its own limit. logind keeps its
locks over a restart of itself, so an old lock is given up only when a new one is held. Once a shutdown is under way
logind gives out no more locks; then the old one is all there is.
"""

from __future__ import annotations

import asyncio
import select
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import BUS_NAME, Bus, BusCallError, Descriptor
from nodeagent.host.login1 import (
    IN_PROGRESS,
    LOGIND_NAME,
    LOGIND_PATH,
    MANAGER,
    list_inhibitors,
    owner_of_logind,
    read_limit_us,
    read_property,
    take_lock,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dbus_fast import Message

    EventHandler = Callable[["LogindEvent"], None]
    Sleep = Callable[[float], Awaitable[None]]

_PREPARE_RULE = (
    f"type='signal',sender='{LOGIND_NAME}',path='{LOGIND_PATH}',interface='{MANAGER}',member='PrepareForShutdown'"
)
_OWNER_RULE = f"type='signal',sender='{BUS_NAME}',interface='{BUS_NAME}',member='NameOwnerChanged',arg0='{LOGIND_NAME}'"


class LogindEventKind(StrEnum):
    """What happened."""

    LOCK_HELD = "lock-held"
    LOCK_LOST = "lock-lost"
    SHUTDOWN_BEGINS = "shutdown-begins"
    SHUTDOWN_CANCELLED = "shutdown-cancelled"


@dataclass(frozen=True, slots=True)
class LogindState:
    """Where we stand.

    Attributes:
        held: whether logind is known to hold our lock.
        because: why, or why not; in words, without a full stop.
        preparing: whether a shutdown is under way; ``None`` as long as logind has not told.
        limit_us: how long logind waits, in microseconds; ``None`` as long as it has not told.
    """

    held: bool = False
    because: str = "it was not asked for yet"
    preparing: bool | None = None
    limit_us: int | None = None

    def __str__(self) -> str:
        return f"inhibitor held: {self.because}" if self.held else f"inhibitor not held because {self.because}"


@dataclass(frozen=True, slots=True)
class LogindEvent:
    """One change, with the state right after it."""

    kind: LogindEventKind
    state: LogindState


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds.

    Attributes:
        deadline_s: for connecting, and for each call.
        first_retry_s: before the first new attempt; it doubles with each one.
        last_retry_s: the longest wait between two attempts.
        steady_s: how long a connection must have lasted for the waits to start anew.
        confirm_every_s: between two looks at logind's list and limit.
    """

    deadline_s: float = 5.0
    first_retry_s: float = 0.1
    last_retry_s: float = 2.0
    steady_s: float = 10.0
    confirm_every_s: float = 30.0


class ShutdownInhibitor:
    """Holds the lock for as long as :meth:`run` runs, and reports what logind does.

    Events come through a callback on the event loop, the begin of a shutdown straight from the arriving message. The
    callback must not block or raise.
    """

    def __init__(  # noqa: PLR0913 - what the lock is called, and where it is asked for
        self,
        on_event: EventHandler,
        *,
        address: str = "",
        who: str = "nodeagent",
        why: str = "pods are stopped in order before the node goes down",
        timings: Timings | None = None,
        adopted: int | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Compose an inhibitor; nothing is asked for yet.

        Args:
            on_event: told of every change.
            address: of the bus; empty for this machine's system bus.
            who: shown by ``systemd-inhibit --list``.
            why: likewise.
            timings: other than the usual ones.
            adopted: a lock that an earlier run of the agent left open for us (such as through systemd's descriptor
                store); it becomes ours. It is kept where a shutdown is under way, and replaced otherwise.
            sleep: waits between two attempts.
        """
        self._on_event = on_event
        self._address = address
        self._who = who
        self._why = why
        self._timings = timings or Timings()
        self._sleep = sleep
        self._lock = _adopt(adopted)
        self._taken_by_us = False
        self._released = ""
        self._state = LogindState()
        self._owner = ""
        self._missing = False
        self._signals = 0
        self._again = asyncio.Event()

    @property
    def state(self) -> LogindState:
        """Where we stand now."""
        return self._state

    @property
    def descriptor(self) -> int | None:
        """The lock's descriptor, to be copied for a successor but not closed; ``None`` where there is none."""
        return None if self._lock is None else self._lock.number

    @property
    def logind_is_missing(self) -> bool:
        """Whether the bus is there and logind is not on it."""
        return self._missing

    def release(self, because: str) -> None:
        """Let logind go on, and ask for no lock until the shutdown is cancelled. Doing it again closes nothing.

        Where a copy of the descriptor was stored elsewhere, that has to go too.
        """
        self._released = because or "it was released"
        self._drop()
        self._set_not_held(self._released)

    async def run(self) -> None:
        """Hold the lock until cancelled; however that ends, the lock is given up and the connection closed."""
        retry_s = self._timings.first_retry_s
        loop = asyncio.get_running_loop()
        try:
            while True:
                begun_s = loop.time()
                try:
                    await self._one_connection()
                except InhibitorError as error:
                    self._lose(str(error))
                if loop.time() - begun_s >= self._timings.steady_s:
                    retry_s = self._timings.first_retry_s
                await self._sleep(retry_s)
                retry_s = min(2 * retry_s, self._timings.last_retry_s)
        finally:
            self._drop()
            self._set_not_held(self._released or "the agent is stopping")

    async def _one_connection(self) -> None:
        """Hold the lock over one connection; returns when it is time for another, with the lock reported lost."""
        self._owner = ""
        bus = Bus(self._address, deadline_s=self._timings.deadline_s, on_signal=self._signal)
        self._missing = False
        async with bus:
            self._missing = True
            await bus.subscribe(_OWNER_RULE)
            await bus.subscribe(_PREPARE_RULE)
            self._owner = await owner_of_logind(bus)
            self._missing = False
            while True:
                await self._secure(bus)
                await self._watch(bus)
                if not self._owner:
                    self._missing = True
                    self._lose("logind has left the bus")
                    return

    async def _watch(self, bus: Bus) -> None:
        """Look at the lock now and then; returns when it has to be taken again.

        Raises:
            InhibitorError: the bus is gone, or the lock is.
        """
        again = asyncio.ensure_future(self._again.wait())
        news: set[asyncio.Future[Any]] = {again, bus.ended}
        try:
            while True:
                done, _ = await asyncio.wait(
                    news, timeout=self._timings.confirm_every_s, return_when=asyncio.FIRST_COMPLETED
                )
                if again in done:
                    return
                if done:
                    raise InhibitorError("the connection to the system bus was lost")
                if self._lock is None and not self._released:
                    return
                await self._read_properties(bus)
                await self._confirm(bus)
        finally:
            again.cancel()

    async def _secure(self, bus: Bus) -> None:
        """Take the lock and confirm it; the old one goes once the new one is here."""
        await self._read_properties(bus)
        if self._owner:
            self._again.clear()  # whatever asked for this is being done
        if self._released or (self._state.preparing and self._lock is not None):
            await self._confirm(bus)
            return
        try:
            new = await take_lock(bus, self._who, self._why)
        except BusCallError as error:
            if error.name != IN_PROGRESS or not self._state.preparing:
                raise
            if self._lock is None:
                self._set_not_held("a shutdown is under way, and logind gives out no locks any more")
                return
        else:
            self._replace(new)
        await self._confirm(bus)

    async def _read_properties(self, bus: Bus) -> None:
        limit_us = await read_limit_us(bus)
        self._state = replace(self._state, limit_us=limit_us)  # first: whoever is told of a shutdown needs it
        before = self._signals
        preparing = await read_property(bus, "PreparingForShutdown", bool)
        if self._signals == before:  # else the signal is the newer word
            self._note_preparing(preparing=preparing)

    async def _confirm(self, bus: Bus) -> None:
        """Report the lock as held if logind lists it.

        Raises:
            InhibitorError: it does not.
        """
        if self._lock is None:
            return
        entries, pid = await list_inhibitors(bus), await bus.own_pid()
        number = self.descriptor
        if number is None or not self._owner:  # released meanwhile, or logind has left
            return
        # An adopted lock is listed with the process that took it, or with none.
        ours = [
            entry
            for entry in entries
            if "shutdown" in entry.what.split(":")
            and (entry.who, entry.why, entry.mode) == (self._who, self._why, "delay")
            and (entry.pid == pid or not self._taken_by_us)
        ]
        if not ours:
            raise InhibitorError("logind does not list our lock")
        if _has_no_reader(number):
            raise InhibitorError("logind no longer looks at our lock")
        was_held = self._state.held
        self._state = replace(self._state, held=True, because="logind lists it")
        if not was_held:
            self._emit(LogindEventKind.LOCK_HELD)

    def _signal(self, message: Message) -> None:
        if message.member == "NameOwnerChanged" and message.sender == BUS_NAME:
            if message.signature == "sss" and message.body[0] == LOGIND_NAME and message.body[1] == self._owner != "":
                self._owner = ""
                self._lose("logind has left the bus")
                self._again.set()
            return
        if message.member != "PrepareForShutdown" or message.interface != MANAGER or message.path != LOGIND_PATH:
            return
        if not self._owner or message.sender != self._owner or message.signature != "b":
            return
        self._signals += 1
        self._note_preparing(preparing=message.body[0])

    def _note_preparing(self, *, preparing: bool) -> None:
        before = self._state.preparing
        self._state = replace(self._state, preparing=preparing)
        if preparing and not before:
            self._emit(LogindEventKind.SHUTDOWN_BEGINS)
        elif before and not preparing:
            self._released = ""
            self._again.set()  # logind gives out locks again, and may have forgotten ours
            self._emit(LogindEventKind.SHUTDOWN_CANCELLED)

    def _lose(self, because: str) -> None:
        was_held = self._state.held
        if not self._released:
            self._set_not_held(because)
        if was_held:
            self._emit(LogindEventKind.LOCK_LOST)

    def _set_not_held(self, because: str) -> None:
        self._state = replace(self._state, held=False, because=because)

    def _replace(self, new: Descriptor) -> None:
        """Keep the new lock and give up the old one; after a release in the meantime, keep neither."""
        self._drop()
        if self._released:
            new.close()
        else:
            self._lock, self._taken_by_us = new, True

    def _drop(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _emit(self, kind: LogindEventKind) -> None:
        self._on_event(LogindEvent(kind, self._state))


def _adopt(number: int | None) -> Descriptor | None:
    """Take over a lock; one that is not even open is as good as none, and the state will tell."""
    if number is None:
        return None
    try:
        return Descriptor(number)
    except OSError:
        return None


def _has_no_reader(number: int) -> bool:
    """Return whether nobody reads the other end of the lock any more. Source: poll(2), ``POLLERR`` of a pipe."""
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
