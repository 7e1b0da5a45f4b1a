"""The inhibitor lock: logind's delay lock, and the start and cancellation of a shutdown.

The lock is a file descriptor: as long as a copy of it is open, logind waits, up to its own limit. The decisions are
made in :mod:`nodeagent.shutdown.plan.inhibitor`; this module reads the events from the bus, and acquires and releases
the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from nodeagent.errors import InhibitorError
from nodeagent.host import dbus
from nodeagent.record import Record
from nodeagent.shutdown.plan import inhibitor

if TYPE_CHECKING:
    from dbus_fast import Message, Variant


_PREPARE_RULE = (
    f"type='signal',sender='{dbus.LOGIND_NAME}',path='{dbus.LOGIND_PATH}',interface='{dbus.MANAGER}'"
    ",member='PrepareForShutdown'"
)
_METADATA_RULE = _PREPARE_RULE.replace("'PrepareForShutdown'", "'PrepareForShutdownWithMetadata'")
_OWNER_RULE = (
    f"type='signal',sender='{dbus.BUS_NAME}',interface='{dbus.BUS_NAME}'"
    f",member='NameOwnerChanged',arg0='{dbus.LOGIND_NAME}'"
)

_WHO = "nodeagent"
_WHY = "stop pods in order before the node shuts down"
_OPERATIONS = frozenset({"poweroff", "power-off", "reboot", "halt", "kexec", "soft-reboot"})


class Timings(Record):
    """Deadlines and intervals of the connection to logind, in seconds.

    Attributes:
        deadline_s: deadline for connecting, and for each call.
        first_retry_s: wait before the first retry; the wait doubles with each retry.
        last_retry_s: the longest wait between two attempts.
        steady_s: minimum lifetime of a connection after which waits restart at ``first_retry_s``.
        confirm_every_s: interval between two readings of logind's list and limit.
    """

    deadline_s: float = 5.0
    first_retry_s: float = 0.1
    last_retry_s: float = 2.0
    steady_s: float = 10.0
    confirm_every_s: float = 30.0


class ShutdownInhibitor:
    """Holds the inhibitor lock while :meth:`run` runs, and reports commands to the inhibitor task.

    A callback on the event loop receives the commands; the handler of a D-Bus message delivers them directly. The
    callback must not block or raise.

    Attributes:
        machine: state of the inhibitor's state machine.
        operation: operation of the announced shutdown, such as ``reboot``; empty where logind does not report it.

    Source: org.freedesktop.login1(5), ``type`` of ``PrepareForShutdownWithMetadata``, since systemd 255.
    """

    def __init__(  # noqa: PLR0913 - the bus, the lock of an earlier run and the seams of tests
        self,
        on_command: Callable[[inhibitor.Command, inhibitor.LogindState], None],
        *,
        address: str = "",
        timings: Timings | None = None,
        adopted: int | None = None,
        has_earlier: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create an inhibitor; :meth:`run` requests the lock.

        Args:
            on_command: called with each command caused by a bus event, and the state after it.
            address: D-Bus address; empty for the system bus of this machine.
            timings: deadlines and intervals other than the defaults.
            adopted: descriptor of a lock from an earlier run of the agent (such as through systemd's descriptor store),
                owned by this object from now on. The lock is kept during a shutdown, and replaced otherwise.
            has_earlier: whether an earlier run of the agent recorded a shutdown in this boot.
            sleep: waits between two attempts.
        """
        self._on_command = on_command
        self._address = address
        self._timings = timings or Timings()
        self._sleep = sleep
        self._lock = dbus.DelayLock(_WHO, _WHY, adopted)
        self.machine = inhibitor.InhibitorState(has_lock=self._lock.number is not None, has_earlier=has_earlier)
        self._owner = ""
        self._signals = 0
        self.operation = ""
        self._again = asyncio.Event()

    @property
    def state(self) -> inhibitor.LogindState:
        """State of logind and the lock, as reported to operators."""
        return self.machine.logind

    @property
    def descriptor(self) -> int | None:
        """Descriptor of the lock, which callers may copy but must not close; ``None`` without a lock."""
        return self._lock.number

    def apply(self, event: inhibitor.Event) -> tuple[inhibitor.Command, ...]:
        """Apply an event to the state machine; return its commands. The lock is already released or requested.

        After a release the caller must close every copy of the descriptor stored elsewhere.
        """
        self.machine, commands = inhibitor.step(self.machine, event)
        for command in commands:
            if command.kind is inhibitor.CommandKind.ACQUIRE:
                self._again.set()
            elif command.kind is inhibitor.CommandKind.RELEASE:
                self._lock.release()
        return commands

    async def run(self) -> None:
        """Hold the lock until cancelled; then release the lock and close the connection."""
        retry_s = self._timings.first_retry_s
        loop = asyncio.get_running_loop()
        try:
            while True:
                started_s = loop.time()
                try:
                    await self._one_connection()
                except InhibitorError as error:
                    self._report(inhibitor.ConnectionLost(str(error)))
                if loop.time() - started_s >= self._timings.steady_s:
                    retry_s = self._timings.first_retry_s
                await self._sleep(retry_s)
                retry_s = min(2 * retry_s, self._timings.last_retry_s)
        finally:
            self.apply(inhibitor.AgentStopping())

    async def _one_connection(self) -> None:
        """Hold the lock over one connection; return when logind has disconnected from the bus."""
        self._owner = ""
        bus = dbus.Bus(self._address, deadline_s=self._timings.deadline_s, on_signal=self._signal)
        self._report(inhibitor.Connecting())
        async with bus:
            self._report(inhibitor.BusConnected())
            await bus.subscribe(_OWNER_RULE)
            await bus.subscribe(_PREPARE_RULE)
            await bus.subscribe(_METADATA_RULE)
            self._owner = await dbus.owner_of_logind(bus)
            self._report(inhibitor.LogindConnected())
            while True:
                await self._secure(bus)
                await self._watch(bus)
                if not self._owner:
                    self._report(inhibitor.LogindDisconnected())
                    return

    async def _watch(self, bus: dbus.Bus) -> None:
        """Confirm the lock at intervals; return when a new lock is needed.

        Raises:
            InhibitorError: the bus or the lock is lost.
        """
        again = asyncio.ensure_future(self._again.wait())
        wakers: set[asyncio.Future[Any]] = {again, bus.ended}
        try:
            while True:
                done, _ = await asyncio.wait(
                    wakers, timeout=self._timings.confirm_every_s, return_when=asyncio.FIRST_COMPLETED
                )
                if again in done:
                    return
                if done:
                    raise InhibitorError("the connection to the system bus was lost")
                if self._lock.number is None and self.machine.needs_lock:
                    return
                await self._read_properties(bus)
                await self._confirm(bus)
        finally:
            again.cancel()

    async def _secure(self, bus: dbus.Bus) -> None:
        """Acquire a lock if needed, and confirm it; an old lock is closed after the new lock is acquired."""
        await self._read_properties(bus)
        if self._owner:
            self._again.clear()  # the request is served below
        if self.machine.needs_lock:
            try:
                await self._lock.acquire(bus)
            except dbus.BusCallError as error:
                if error.name != dbus.IN_PROGRESS or not self.state.preparing:
                    raise
                if self._lock.number is None:
                    self._report(inhibitor.LockRefused())
            else:
                self._report(inhibitor.LockAcquired())
        await self._confirm(bus)

    async def _read_properties(self, bus: dbus.Bus) -> None:
        self._report(inhibitor.DelayChanged(await dbus.read_limit_us(bus)))  # read first: the shutdown handler uses it
        signals = self._signals
        preparing = await dbus.read_property(bus, "PreparingForShutdown", bool)
        if self._signals == signals:  # a signal received since is newer than the property
            self._report(inhibitor.PrepareForShutdown(preparing))

    async def _confirm(self, bus: dbus.Bus) -> None:
        """Report the lock as held if logind lists it.

        Raises:
            InhibitorError: logind does not list the lock, or does not read its other end.
        """
        if self._lock.number is None:
            return
        entries, pid = await dbus.list_inhibitors(bus), await bus.own_pid()
        if self.descriptor is None or not self._owner:  # the lock was released, or logind disconnected from the bus
            return
        self._lock.check(entries, pid)
        self._report(inhibitor.LockListed())

    def _signal(self, message: Message) -> None:
        if message.member == "NameOwnerChanged" and message.sender == dbus.BUS_NAME:
            if (
                message.signature == "sss"
                and message.body[0] == dbus.LOGIND_NAME
                and message.body[1] == self._owner != ""
            ):
                self._owner = ""
                self._report(inhibitor.LogindDisconnected())
                self._again.set()
            return
        if message.interface != dbus.MANAGER or message.path != dbus.LOGIND_PATH:
            return
        if not self._owner or message.sender != self._owner:
            return
        if (message.member, message.signature) == ("PrepareForShutdownWithMetadata", "ba{sv}"):
            self.operation = _operation(message.body[1]) if message.body[0] else ""
        elif (message.member, message.signature) == ("PrepareForShutdown", "b"):  # sent after the metadata
            self._signals += 1
            self._report(inhibitor.PrepareForShutdown(message.body[0]))

    def _report(self, event: inhibitor.Event) -> None:
        for command in self.apply(event):
            if command.kind not in (inhibitor.CommandKind.ACQUIRE, inhibitor.CommandKind.RELEASE):
                self._on_command(command, self.state)


def _operation(metadata: Mapping[str, Variant]) -> str:
    value = metadata.get("type")
    return value.value if value is not None and value.value in _OPERATIONS else ""
