"""Inhibitor lock with a simulated logind on a private bus."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nodeagent.shutdown.logind import Timings
from nodeagent.shutdown.plan.inhibitor import LogindState
from tests.unit.host.logind_agent import (
    CANCELLED,
    FREQUENT,
    HELD,
    LOST,
    STARTED,
    agent_on,
    open_descriptors,
)

if TYPE_CHECKING:
    from tests.support.login1 import Login1, PrivateBus

# --- acquisition


async def test_acquired_lock_is_listed_and_not_inherited(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        assert str(agent.state) == "inhibitor lock not held: not requested yet"
        state = await agent.expect(HELD)
        assert state == LogindState(held=True, because="logind lists the lock", preparing=False, limit_us=5_000_000)
        assert str(state) == "inhibitor lock held: logind lists the lock"
        assert [lock.entry for lock in login1.locks] == [
            (
                "shutdown",
                "nodeagent",
                "stop pods in order before the node shuts down",
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


async def test_release_ends_the_delay_of_logind(private_bus: PrivateBus, login1: Login1) -> None:
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
        assert number in {reader, writer}, "the descriptor number must be in use again"
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
        agent.release("no longer required")
        released.set()

    login1.before_answer = release
    async with agent_on(private_bus) as agent:
        await released.wait()
        await login1.until(lambda: not login1.locks)
        assert agent.reported == []
        assert not agent.state.held


# --- loss of the lock


async def test_lock_is_replaced_after_a_restart_of_logind(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as agent:
        await agent.expect(HELD)
        first = login1.locks[0]
        await login1.stop()
        state = await agent.expect(LOST)
        assert str(state) == "inhibitor lock not held: logind disconnected from the bus"
        await agent.attempts(2)
        assert "logind is not on the bus" in agent.state.because
        await login1.start()
        assert login1.locks == [first], "a restarted logind restores the former lock"
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


async def test_release_without_a_bus_ends_the_delay_of_logind(private_bus: PrivateBus, login1: Login1) -> None:
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


async def test_wait_between_attempts_is_reset_after_a_steady_connection(
    private_bus: PrivateBus, login1: Login1
) -> None:
    async with agent_on(private_bus, timings=Timings(first_retry_s=0.005, last_retry_s=0.02, steady_s=0.0)) as agent:
        await agent.expect(HELD)
        await login1.stop()
        await agent.attempts(4)
        assert set(agent.waits) == {0.005}


async def test_unlisted_lock_is_reported_lost_and_replaced(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        lock = login1.locks[0]
        login1.locks.append(replace(lock, pid=1, reader=-1))  # logind lists only a lock with another PID
        lock.listed = False
        state = await agent.expect(LOST)
        assert state.because == "logind does not list the agent's lock"
        await agent.expect(HELD)


async def test_lock_without_a_reader_is_reported_lost(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1.close_reader(login1.locks[0])
        state = await agent.expect(LOST)
        assert state.because == "logind no longer reads the agent's lock"


async def test_changed_limit_is_read(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus, timings=FREQUENT) as agent:
        await agent.expect(HELD)
        login1.limit_us = 45_000_000
        calls = len(login1.calls)
        await login1.until(lambda: login1.calls[calls:].count("ListInhibitors") >= 2)
        assert agent.state.limit_us == 45_000_000
