"""The inhibitor lock, against a simulated logind on a private bus."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from dbus_fast import BusType, Message, MessageType
from dbus_fast.aio import MessageBus

from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus, BusCallError, Descriptor
from nodeagent.host.login1 import read_logind
from nodeagent.host.logind import ShutdownInhibitor, Timings
from nodeagent.plan.shutdown.inhibitor import CommandKind, Disabled, LogindState, PodsStopped
from tests.support.login1 import MANAGER, NAME, PATH, WITHIN_S, Login1, PrivateBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.host.logind import ReportedCommand

HELD, LOST = CommandKind.REPORT_HELD, CommandKind.REPORT_LOST
STARTED, CANCELLED = CommandKind.START_SHUTDOWN, CommandKind.CANCEL_SHUTDOWN
QUICK = Timings(first_retry_s=0.005, last_retry_s=0.02)
FREQUENT = Timings(first_retry_s=0.005, last_retry_s=0.02, confirm_every_s=0.01)


class Agent:
    """A running inhibitor with its reported commands."""

    def __init__(self, address: str, **more: Any) -> None:
        self._events: asyncio.Queue[ReportedCommand] = asyncio.Queue()
        self.reported: list[CommandKind] = []
        self.waits: list[float] = []
        self._waited = asyncio.Event()
        self.inhibitor = ShutdownInhibitor(self._note, address=address, sleep=self._sleep, **{"timings": QUICK, **more})
        self._task = asyncio.get_running_loop().create_task(self.inhibitor.run())

    @property
    def state(self) -> LogindState:
        return self.inhibitor.state

    async def expect(self, *kinds: CommandKind) -> LogindState:
        """Wait for exactly these commands, in order; return the state of the last one."""
        state = self.state
        async with asyncio.timeout(WITHIN_S):
            for kind in kinds:
                event = await self._events.get()
                assert event.kind is kind, (event, self.reported)
                state = event.state
        return state

    async def attempts(self, more: int) -> None:
        """Wait until so many more attempts have ended."""
        target = len(self.waits) + more
        async with asyncio.timeout(WITHIN_S):
            while len(self.waits) < target:
                self._waited.clear()
                await self._waited.wait()

    def release(self, because: str) -> None:
        """Release the lock, as after the pods have ended or after graceful shutdown was disabled."""
        down = self.inhibitor.machine.going_down
        self.inhibitor.apply(PodsStopped(because) if down else Disabled(because))

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _note(self, event: ReportedCommand) -> None:
        self.reported.append(event.kind)
        self._events.put_nowait(event)

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
async def stranger_on(bus: PrivateBus) -> AsyncIterator[MessageBus]:
    stranger = await MessageBus(bus.address, BusType.SESSION, negotiate_unix_fd=True).connect()
    try:
        yield stranger
    finally:
        stranger.disconnect()
        await stranger.wait_for_disconnect()  # type: ignore[no-untyped-call]


@pytest_asyncio.fixture
async def login1(private_bus: PrivateBus, tmp_path: Path) -> AsyncIterator[Login1]:
    login1 = Login1(private_bus.address, tmp_path)
    await login1.start()
    yield login1
    await login1.stop()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- acquisition


async def test_acquired_lock_is_listed_and_not_inherited(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        assert str(agent.state) == "inhibitor lock not held: not requested yet"
        state = await agent.expect(HELD)
        assert state == LogindState(held=True, because="logind lists it", preparing=False, limit_us=5_000_000)
        assert str(state) == "inhibitor lock held: logind lists it"
        assert [lock.entry for lock in login1.locks] == [
            (
                "shutdown",
                "nodeagent",
                "pods are stopped in order before the node goes down",
                "delay",
                os.getuid(),
                os.getpid(),
            )
        ]
        number = agent.inhibitor.descriptor
        assert number is not None
        assert not os.get_inheritable(number)


async def test_stop_releases_the_lock_and_all_descriptors(private_bus: PrivateBus, login1: Login1) -> None:
    before = open_descriptors()
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
    assert agent.state.because == "the agent is stopping"
    await login1.until(lambda: not login1.locks)
    assert open_descriptors() == before


async def test_shutdown_is_reported_while_the_lock_is_being_acquired(private_bus: PrivateBus, login1: Login1) -> None:
    async def shut_down() -> None:
        login1.before_answer = None
        login1.request_shutdown()

    login1.before_answer = shut_down
    async with agent_on(private_bus) as agent:
        state = await agent.expect(STARTED, HELD)
        assert state.preparing
        assert login1.executed == 0


async def test_lock_is_acquired_after_the_cancellation_of_a_shutdown_that_preceded_it(
    private_bus: PrivateBus, login1: Login1
) -> None:
    async def shut_down() -> None:
        login1.before_inhibit = None
        login1.request_shutdown()

    login1.before_inhibit = shut_down
    async with agent_on(private_bus) as agent:
        await agent.expect(STARTED)
        await login1.until(lambda: "Inhibit" in login1.calls)
        login1.cancel_shutdown()
        await agent.expect(CANCELLED, HELD)


@pytest.mark.parametrize("name", ["PreparingForShutdown", "InhibitDelayMaxUSec"])
async def test_signal_after_a_property_reading_is_not_overwritten_by_it(
    private_bus: PrivateBus, login1: Login1, name: str
) -> None:
    def shut_down(property_name: str) -> None:
        if property_name == name:
            login1.after_get = None
            login1.request_shutdown()

    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1.after_get = shut_down
        await agent.expect(STARTED)
        calls = len(login1.calls)
        await login1.until(lambda: login1.calls[calls:].count("ListInhibitors") >= 2)
        assert agent.reported == [HELD, STARTED]
        assert agent.state.preparing


# --- a shutdown


async def test_release_lets_logind_proceed(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        login1.request_shutdown()
        state = await agent.expect(STARTED)
        assert (state.held, state.preparing, login1.executed) == (True, True, 0)
        agent.release("all pods are stopped")
        await login1.until(lambda: login1.executed == 1)
        assert str(agent.state) == "inhibitor lock not held: all pods are stopped"
        assert agent.reported == [HELD, STARTED]
    assert agent.state.because == "all pods are stopped"


async def test_second_release_closes_no_other_descriptor(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        number = agent.inhibitor.descriptor
        agent.release("once")
        await login1.until(lambda: not login1.locks)
        reader, writer = os.pipe()
        assert number in {reader, writer}, "the number must be in use again"
        agent.release("twice")
        os.close(reader)
        os.close(writer)


async def test_lock_is_replaced_after_a_cancellation_before_the_release(
    private_bus: PrivateBus, login1: Login1
) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        first = login1.locks[0]
        login1.request_shutdown()
        await agent.expect(STARTED)
        login1.cancel_shutdown()
        state = await agent.expect(CANCELLED)
        assert (state.held, state.preparing) == (True, False)
        await login1.until(lambda: first not in login1.locks)
        assert len(login1.locks) == 1
        login1.request_shutdown()
        await agent.expect(STARTED)
        assert login1.executed == 0


async def test_lock_is_acquired_after_a_cancellation_after_the_release(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        login1.request_shutdown()
        await agent.expect(STARTED)
        agent.release("all pods are stopped")
        await login1.until(lambda: login1.executed == 1)
        login1.cancel_shutdown()
        await agent.expect(CANCELLED, HELD)
        assert len(login1.locks) == 1


async def test_lock_acquired_after_its_release_is_closed(private_bus: PrivateBus, login1: Login1) -> None:
    released = asyncio.Event()

    async def release() -> None:
        agent.release("not needed any more")
        released.set()

    login1.before_answer = release
    async with agent_on(private_bus) as agent:
        await released.wait()
        await login1.until(lambda: not login1.locks)
        assert agent.reported == []
        assert not agent.state.held


# --- loss


async def test_lock_is_replaced_after_a_restart_of_logind(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        first = login1.locks[0]
        await login1.stop()
        state = await agent.expect(LOST)
        assert str(state) == "inhibitor lock not held: logind left the bus"
        await agent.attempts(2)
        assert "logind is not on the bus" in agent.state.because
        await login1.start()
        assert login1.locks == [first], "a restarted logind restores the old lock"
        await agent.expect(HELD)
        await login1.until(lambda: first not in login1.locks)
        assert len(login1.locks) == 1


async def test_lock_is_replaced_after_a_restart_of_the_bus(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        private_bus.stop()
        state = await agent.expect(LOST)
        assert state.because == "the connection to the system bus was lost"
        await agent.attempts(2)
        assert agent.state.because.startswith("connecting to the system bus: ")
        private_bus.start()
        await login1.rejoin()
        await agent.expect(HELD)
        await login1.until(lambda: len(login1.locks) == 1)


async def test_lock_is_kept_over_a_restart_of_the_bus_during_a_shutdown(
    private_bus: PrivateBus, login1: Login1
) -> None:
    login1.limit_us = 60_000_000
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        login1.request_shutdown()
        await agent.expect(STARTED)
        first = login1.locks[0]
        private_bus.stop()
        await agent.expect(LOST)
        private_bus.start()
        await login1.rejoin()
        await agent.expect(HELD)
        assert login1.locks == [first]
        assert login1.executed == 0
        agent.release("all pods are stopped")
        await login1.until(lambda: login1.executed == 1)
        assert agent.reported.count(STARTED) == 1


async def test_release_without_a_bus_lets_logind_proceed(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        login1.request_shutdown()
        await agent.expect(STARTED)
        private_bus.stop()
        await agent.expect(LOST)
        agent.release("all pods are stopped")
        await login1.until(lambda: login1.executed == 1)
        assert agent.state.because == "all pods are stopped"


async def test_shutdown_is_cancelled_by_a_restart_of_logind(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        login1.request_shutdown()
        await agent.expect(STARTED)
        await login1.stop()
        await agent.expect(LOST)
        await login1.start()
        await agent.expect(CANCELLED, HELD)


async def test_lock_is_acquired_on_a_bus_that_starts_later(private_bus: PrivateBus, login1: Login1) -> None:
    private_bus.stop()
    async with agent_on(private_bus) as agent:
        await agent.attempts(1)
        assert agent.reported == []
        private_bus.start()
        await login1.rejoin()
        await agent.expect(HELD)


async def test_waits_between_attempts_double_up_to_two_seconds(private_bus: PrivateBus) -> None:
    async with agent_on(private_bus, timings=Timings()) as agent:
        await agent.attempts(8)
        assert agent.waits[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


async def test_waits_start_over_after_a_steady_connection(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=Timings(first_retry_s=0.005, last_retry_s=0.02, steady_s=0.0)) as agent:
        await agent.expect(HELD)
        await login1.stop()
        await agent.attempts(4)
        assert set(agent.waits) == {0.005}


async def test_unlisted_lock_is_reported_lost_and_replaced(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        ours = login1.locks[0]
        login1.locks.append(replace(ours, pid=1, reader=-1))  # of another process
        ours.listed = False
        state = await agent.expect(LOST)
        assert state.because == "logind does not list our lock"
        await agent.expect(HELD)


async def test_lock_without_a_reader_is_reported_lost(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1._close(login1.locks[0])
        state = await agent.expect(LOST)
        assert state.because == "logind no longer reads our lock"


async def test_changed_limit_is_read(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1.limit_us = 45_000_000
        calls = len(login1.calls)
        await login1.until(lambda: login1.calls[calls:].count("ListInhibitors") >= 2)
        assert agent.state.limit_us == 45_000_000


# --- start during a shutdown


async def test_shutdown_in_progress_is_reported_at_the_start(private_bus: PrivateBus, login1: Login1) -> None:
    login1.preparing = True
    async with agent_on(private_bus) as agent:
        await agent.expect(STARTED)
        await login1.until(lambda: "Inhibit" in login1.calls)
        login1.cancel_shutdown()
        await agent.expect(CANCELLED, HELD)


async def test_state_explains_a_lock_refused_during_a_shutdown(private_bus: PrivateBus, login1: Login1) -> None:
    login1.preparing = True
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(STARTED)
        await login1.until(lambda: login1.calls.count("Inhibit") >= 2)
        assert agent.state.because == "a shutdown is in progress, and logind grants no lock during one"
        assert agent.reported == [STARTED]


async def test_adopted_lock_is_kept_during_a_shutdown(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as first:
        await first.expect(HELD)
        number = first.inhibitor.descriptor
        assert number is not None
        stored = os.dup(number)
        login1.request_shutdown()
    login1.locks[0].pid = 0  # its process has ended
    async with agent_on(private_bus, adopted=stored) as second:
        await second.expect(STARTED, HELD)
        assert second.inhibitor.descriptor == stored
        assert "Inhibit" not in login1.calls[login1.calls.index("Inhibit") + 1 :]
        second.release("all pods are stopped")
        await login1.until(lambda: login1.executed == 1)


async def test_adopted_lock_is_replaced_outside_a_shutdown(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as first:
        await first.expect(HELD)
        number = first.inhibitor.descriptor
        assert number is not None
        stored = os.dup(number)
    old = login1.locks[0]
    async with agent_on(private_bus, adopted=stored) as second:
        await second.expect(HELD)
        await login1.until(lambda: old not in login1.locks)
        assert len(login1.locks) == 1


async def test_closed_adopted_descriptor_is_ignored(private_bus: PrivateBus, login1: Login1) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    agent = Agent(private_bus.address, adopted=writer)
    await agent.expect(HELD)
    await agent.stop()
    assert login1.calls.count("Inhibit") == 1


# --- invalid answers


async def test_refused_lock_is_requested_again(private_bus: PrivateBus, login1: Login1) -> None:
    login1.refuse = "org.freedesktop.DBus.Error.AccessDenied"
    async with agent_on(private_bus) as agent:
        await agent.attempts(2)
        assert agent.state.because == "Inhibit failed: refused (org.freedesktop.DBus.Error.AccessDenied)"
        login1.refuse = ""
        await agent.expect(HELD)


@pytest.mark.parametrize("descriptors", [0, 2])
async def test_answer_without_exactly_one_descriptor_is_rejected(
    private_bus: PrivateBus, login1: Login1, descriptors: int
) -> None:
    login1.descriptors = descriptors
    async with agent_on(private_bus) as agent:
        await agent.attempts(2)
        assert agent.state.because == "invalid answer of Inhibit: not one descriptor"
        await login1.until(lambda: not login1.locks)
        login1.descriptors = 1
        await agent.expect(HELD)


async def test_lock_of_a_late_answer_is_closed(private_bus: PrivateBus, login1: Login1) -> None:
    slow, proceed = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        login1.before_answer = None
        slow.set()
        await proceed.wait()

    login1.before_answer = wait
    async with agent_on(private_bus, timings=Timings(deadline_s=0.2, first_retry_s=0.005)) as agent:
        await slow.wait()
        late = login1.locks[0]
        await agent.attempts(1)
        assert agent.state.because == "Inhibit: no answer in time"
        await agent.expect(HELD)
        proceed.set()
        await login1.until(lambda: late not in login1.locks)
        assert len(login1.locks) == 1


async def test_late_answer_on_an_open_connection_is_discarded(private_bus: PrivateBus, login1: Login1) -> None:
    proceed = asyncio.Event()
    login1.before_answer = proceed.wait
    async with Bus(private_bus.address, deadline_s=0.2) as bus:
        with pytest.raises(InhibitorError, match="Inhibit: no answer in time"):
            await bus.call(NAME, PATH, MANAGER, "Inhibit", "ssss", "shutdown", "a", "b", "delay")
        assert len(login1.locks) == 1
        proceed.set()
        await login1.until(lambda: not login1.locks)


@pytest.mark.parametrize(("kind", "value"), [("s", "long"), ("b", True), ("x", -1), ("i", -5_000_000)])
async def test_invalid_limit_is_reported(private_bus: PrivateBus, login1: Login1, kind: str, value: object) -> None:
    login1.limit_type, login1.limit_us = kind, value
    async with agent_on(private_bus) as agent:
        await agent.attempts(1)
        assert agent.state.because == f"invalid InhibitDelayMaxUSec of logind: {value!r}"


# --- other senders on the bus


async def test_shutdown_signal_of_another_sender_is_ignored(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        reader, writer = os.pipe()
        async with stranger_on(private_bus) as stranger:
            before = open_descriptors()
            forged = Message(
                destination=login1.clients[0],
                path=PATH,
                interface=MANAGER,
                member="PrepareForShutdown",
                message_type=MessageType.SIGNAL,
                signature="b",
                body=[True],
                unix_fds=[writer],
            )
            await stranger.send(forged)
            ping = Message(
                destination=login1.clients[0], path="/", interface="org.freedesktop.DBus.Peer", member="Ping"
            )
            assert (await stranger.call(ping)).message_type is MessageType.METHOD_RETURN
            after = open_descriptors()
        os.close(writer)
        os.close(reader)
        assert agent.reported == [HELD]
        assert agent.state.preparing is False
        assert after == before, "an unexpected descriptor is closed"


async def test_signals_with_another_signature_are_ignored(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1.emit("PrepareForShutdown", "s", "true")
        login1.emit("PrepareForShutdown", "")
        login1.emit("PrepareForSleep", "b", True)
        calls = len(login1.calls)
        await login1.until(lambda: login1.calls[calls:].count("ListInhibitors") >= 2)
        assert agent.reported == [HELD]


# --- parts


async def test_read_logind_acquires_no_lock(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        facts = await read_logind(private_bus.address)
    assert (facts.preparing, facts.limit_us) == (False, 5_000_000)
    assert [(each.what, each.who, each.mode, each.pid) for each in facts.inhibitors] == [
        ("shutdown", "nodeagent", "delay", os.getpid())
    ]
    assert login1.calls.count("Inhibit") == 1


async def test_read_logind_fails_without_logind(private_bus: PrivateBus) -> None:
    with pytest.raises(InhibitorError, match="logind is not on the bus: GetNameOwner failed"):
        await read_logind(private_bus.address)


@pytest.mark.parametrize("address", ["unix:path=/nonexistent/bus", "nonsense"])
async def test_unreachable_address_is_reported(address: str) -> None:
    with pytest.raises(InhibitorError, match="connecting to the system bus: "):
        await read_logind(address)


async def test_calls_on_a_closed_connection_fail_at_once(private_bus: PrivateBus) -> None:
    async with Bus(private_bus.address, deadline_s=5) as bus:
        with pytest.raises(BusCallError, match="UnknownMethod"):
            await bus.call_bus("NoSuchThing")
        private_bus.stop()
        with suppress(EOFError, OSError):
            await bus.ended
        with pytest.raises(InhibitorError, match="ListNames: the system bus is not connected"):
            await bus.call_bus("ListNames")
    never = Bus(private_bus.address, deadline_s=5)
    with pytest.raises(InhibitorError, match="not connected"):
        _ = never.ended


def test_descriptor_is_closed_once() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    mine = Descriptor(writer)
    assert not os.get_inheritable(writer)
    mine.close()
    other = os.dup(reader)
    assert (other, mine.number) == (writer, None)
    mine.close()
    os.close(other)
    os.close(reader)
