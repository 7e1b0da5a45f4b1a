"""A running shutdown inhibitor for tests, and other senders on its private bus."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbus_fast import BusType
from dbus_fast.aio import MessageBus

from nodeagent.shutdown.logind import ShutdownInhibitor, Timings
from nodeagent.shutdown.plan.inhibitor import Command, CommandKind, Disabled, LogindState, PodsStopped
from tests.support.login1 import WITHIN_S, PrivateBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HELD, LOST = CommandKind.REPORT_HELD, CommandKind.REPORT_LOST
STARTED, CANCELLED = CommandKind.START_SHUTDOWN, CommandKind.CANCEL_SHUTDOWN
QUICK = Timings(first_retry_s=0.005, last_retry_s=0.02)
FREQUENT = Timings(first_retry_s=0.005, last_retry_s=0.02, confirm_every_s=0.01)


class Agent:
    """A running shutdown inhibitor with its reported commands."""

    def __init__(self, address: str, **more: Any) -> None:
        self._events: asyncio.Queue[tuple[Command, LogindState]] = asyncio.Queue()
        self.reported: list[CommandKind] = []
        self.waits: list[float] = []
        self._waited = asyncio.Event()
        self.inhibitor = ShutdownInhibitor(self._note, address=address, sleep=self._sleep, **{"timings": QUICK, **more})
        self._task = asyncio.get_running_loop().create_task(self.inhibitor.run())

    @property
    def state(self) -> LogindState:
        return self.inhibitor.state

    async def expect(self, *kinds: CommandKind) -> LogindState:
        """Wait for exactly these commands, in order; return the state after the last command."""
        state = self.state
        async with asyncio.timeout(WITHIN_S):
            for kind in kinds:
                command, state = await self._events.get()
                assert command.kind is kind, (command, self.reported)
        return state

    async def attempts(self, more: int) -> None:
        """Wait until ``more`` further attempts to acquire the lock have ended."""
        target = len(self.waits) + more
        async with asyncio.timeout(WITHIN_S):
            while len(self.waits) < target:
                self._waited.clear()
                await self._waited.wait()

    def release(self, because: str) -> None:
        """Release the inhibitor lock, as after the stop of all pods or after disabling graceful shutdown."""
        down = self.inhibitor.machine.is_stopping_pods
        self.inhibitor.apply(PodsStopped(because) if down else Disabled(because))

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _note(self, command: Command, state: LogindState) -> None:
        self.reported.append(command.kind)
        self._events.put_nowait((command, state))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._waited.set()
        await asyncio.sleep(min(seconds, QUICK.last_retry_s))


@asynccontextmanager
async def agent_on(bus: PrivateBus, **more: Any) -> AsyncIterator[Agent]:
    agent = Agent(bus.address, **more)
    try:
        yield agent
    finally:
        await agent.stop()
        assert not agent.state.held
        assert agent.inhibitor.descriptor is None


@asynccontextmanager
async def other_client_on(bus: PrivateBus) -> AsyncIterator[MessageBus]:
    stranger = await MessageBus(bus.address, BusType.SESSION, negotiate_unix_fd=True).connect()
    try:
        yield stranger
    finally:
        stranger.disconnect()
        await stranger.wait_for_disconnect()  # type: ignore[no-untyped-call]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
