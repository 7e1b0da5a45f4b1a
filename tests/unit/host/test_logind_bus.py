"""Inhibitor lock with a lock of an earlier process, invalid responses and other senders, on a private bus."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest
from dbus_fast import Message, MessageType

from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus, BusCallError, DelayLock, read_logind
from nodeagent.shutdown.logind import Timings
from tests.support.login1 import MANAGER, NAME, PATH, Login1, PrivateBus
from tests.unit.host.logind_agent import (
    CANCELLED,
    FREQUENT,
    HELD,
    STARTED,
    Agent,
    agent_on,
    open_descriptors,
    other_client_on,
)

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
        assert agent.state.because == "shutdown in progress; logind grants no lock during a shutdown"
        assert agent.reported == [STARTED]


async def test_adopted_lock_is_kept_during_a_shutdown(private_bus: PrivateBus, login1: Login1) -> None:
    async with agent_on(private_bus) as first:
        await first.expect(HELD)
        number = first.inhibitor.descriptor
        assert number is not None
        stored = os.dup(number)
        login1.request_shutdown()
    login1.locks[0].pid = 0  # the process that acquired the lock has ended
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
        async with other_client_on(private_bus) as other_client:
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
            await other_client.send(forged)
            ping = Message(
                destination=login1.clients[0], path="/", interface="org.freedesktop.DBus.Peer", member="Ping"
            )
            assert (await other_client.call(ping)).message_type is MessageType.METHOD_RETURN
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


# --- the client and the descriptor


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


def test_lock_of_an_earlier_run_is_closed_once() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    lock = DelayLock("owner", "reason", writer)
    assert not os.get_inheritable(writer)
    lock.release()
    other = os.dup(reader)
    assert (other, lock.number) == (writer, None)
    lock.release()
    assert DelayLock("owner", "reason", 2**20).number is None
    os.close(other)
    os.close(reader)
