"""Notifications to systemd over a socket: readiness, watchdog and reloads."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from nodeagent.daemon import service_manager as service, supervisor
from nodeagent.daemon.context import DaemonContext, ReloadEffect
from nodeagent.daemon.control.server import ControlUnavailableError, refuse_second_agent
from nodeagent.daemon.service_manager import ReloadTask, WatchdogTask, differences, read_again
from nodeagent.errors import ConfigError, PassBusyError, RuntimeUnavailableError
from nodeagent.guarded_call import GuardedCall
from nodeagent.host.lock import daemon_lock
from nodeagent.host.systemd import Notifier
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import ControlSettings, Origin
from nodeagent.shutdown.settings import ShutdownSettings
from nodeagent.telemetry import logging as log
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodeagent.daemon.context import Reloaded
    from nodeagent.settings.settings import Settings


@pytest.fixture(autouse=True)
def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read configurations under a guard of the test's own: a late reading of an earlier test would refuse all."""
    monkeypatch.setattr(service, "_CHECK", GuardedCall())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(30)
        yield made


def write(path: Path, high: int) -> None:
    path.write_text(f"[image_gc]\nhigh_threshold_percent = {high}\n")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    write(path, 85)
    return path


def context(config: Path, stream: io.StringIO) -> DaemonContext:
    clock = ManualClock()
    logger = log.configure("json", "info", stream)
    return DaemonContext(checked(Origin(config)), logger, clock, LoopStatuses(clock), PassLock(clock))


async def no_effect(made: Settings, earlier: Settings, context: DaemonContext) -> ReloadEffect:
    """Return a reload effect without removals or evictions."""
    del earlier, context
    return ReloadEffect(made.dry_run)


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def received(manager: socket.socket) -> list[str]:
    manager.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_notifier_without_a_service_manager_sends_nothing() -> None:
    quiet = Notifier({})
    quiet.ready("x")
    quiet.stopping()
    assert quiet.watchdog_s is None


def test_notifications_follow_the_sd_notify_protocol(tmp_path: Path, manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog_s == 30.0
    notifier.ready("two\nlines")
    notifier.reloading()
    notifier.alive()
    notifier.stopping()
    ready, reloading, alive, stopping = received(manager)
    assert ready == "READY=1\nSTATUS=two lines"
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert (alive, stopping) == ("WATCHDOG=1", "STOPPING=1")


def test_message_with_a_long_status_is_not_ignored_by_the_service_manager(
    tmp_path: Path, manager: socket.socket
) -> None:
    for status in ("\U0001f389" * 5000, "\x1b" * 5000):
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).ready(status)
        (message,) = received(manager)
        assert message.startswith("READY=1\nSTATUS=")
        assert len(message.encode()) < 4096


def test_watchdog_of_another_process_is_ignored() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s is None


def test_watchdog_is_not_fed_while_a_task_is_stuck(tmp_path: Path, manager: socket.socket, config: Path) -> None:
    stream, clock = io.StringIO(), ManualClock()
    made = dataclasses.replace(context(config, stream), clock=clock, loop_statuses=LoopStatuses(clock))
    watchdog = WatchdogTask(made, Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}))
    made.loop_statuses.running("images", within_s=10)
    watchdog.feed()
    assert received(manager) == ["WATCHDOG=1"]
    clock.at_s = 11
    watchdog.feed()
    watchdog.feed()
    assert received(manager) == []
    assert [each["tasks"] for each in logged(stream)] == [["images"]]
    made.loop_statuses.ended("images", "complete")
    made.loop_statuses.waiting("images", 60, 10)
    watchdog.feed()
    assert received(manager) == ["WATCHDOG=1"]


async def test_valid_configuration_is_put_in_force_and_an_invalid_one_is_not(
    tmp_path: Path, manager: socket.socket, config: Path
) -> None:
    stream = io.StringIO()
    made = context(config, stream)
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    task, stop = ReloadTask(made, notifier, no_effect), asyncio.Event()
    running = asyncio.ensure_future(task.run(stop))
    write(config, 850)
    made.reload.set()
    loop = asyncio.get_running_loop()
    manager.setblocking(False)
    assert (await loop.sock_recv(manager, 100)).startswith(b"RELOADING=1")
    rejected = await loop.sock_recv(manager, 1000)
    assert rejected.startswith(b"READY=1\nSTATUS=starting or reloading; configuration file not in force: ")
    assert b"high_threshold_percent = 850" in rejected
    assert not made.renew.is_set()
    assert "high_threshold_percent = 850" in made.config_problem
    write(config, 95)
    made.reload.set()
    await asyncio.wait_for(made.renew.wait(), 30)
    assert made.config_problem == ""
    before = made.take_next()
    assert before is not None
    assert made.settings.policy.images.high_threshold_percent == 95
    assert [each["event"] for each in logged(stream)] == ["config_rejected", "config_reloaded"]
    assert logged(stream)[1]["changes"] == ["image_gc.high_threshold_percent: 85 -> 95"]
    stop.set()
    await running


async def reload_once(made: DaemonContext) -> tuple[str, ...]:
    """Request a reload as the control API does; return the changed settings."""
    task, stop = ReloadTask(made, Notifier({}), no_effect), asyncio.Event()
    waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
    made.awaiting_reload.append(waiting)
    made.reload.set()
    running = asyncio.ensure_future(task.run(stop))
    try:
        return (await asyncio.wait_for(waiting, 30)).changes
    finally:
        stop.set()
        await running


async def test_settings_replaced_before_the_pass_ends_are_never_in_force(config: Path) -> None:
    made = context(config, io.StringIO())
    write(config, 95)
    assert await reload_once(made) == ("image_gc.high_threshold_percent: 85 -> 95",)
    write(config, 85)  # a second reload before the end of the running pass
    assert await reload_once(made) == ("image_gc.high_threshold_percent: 95 -> 85",)
    made.take_next()
    assert made.settings.policy.images.high_threshold_percent == 85


async def test_request_during_a_reload_gets_the_outcome_of_the_next(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = context(config, io.StringIO())
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    made.awaiting_reload.append(first)
    made.reload.set()
    real = service.read_again

    async def read(settings: Settings) -> Settings:
        found = await real(settings)
        if not second.done() and second not in made.awaiting_reload:
            write(config, 95)
            made.awaiting_reload.append(second)
            made.reload.set()
        return found

    monkeypatch.setattr(service, "read_again", read)
    stop = asyncio.Event()
    running = asyncio.ensure_future(ReloadTask(made, Notifier({}), no_effect).run(stop))
    outcomes = [(await asyncio.wait_for(each, 30)).changes for each in (first, second)]
    stop.set()
    await running
    assert outcomes == [(), ("image_gc.high_threshold_percent: 85 -> 95",)]


async def test_file_that_is_not_readable_in_time_rejects_the_configuration(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = context(config, io.StringIO())
    readable = threading.Event()
    monkeypatch.setattr(service, "checked", lambda _: readable.wait())
    monkeypatch.setattr(service, "_CHECK_WITHIN_S", 0.01)
    try:
        with pytest.raises(ConfigError, match="cannot check the configuration: does not answer within"):
            await reload_once(made)
    finally:
        readable.set()
    assert "cannot check the configuration" in made.config_problem


async def test_command_line_options_remain_in_force_after_a_reload(config: Path) -> None:
    made = checked(Origin(config, (("image_gc.high_threshold_percent", 91),), dry_run=True))
    write(config, 88)
    again = await read_again(made)
    assert again.policy.images.high_threshold_percent == 91
    assert again.dry_run


def test_missing_file_is_a_configuration_error(config: Path) -> None:
    made = checked(Origin(config))
    config.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        asyncio.run(read_again(made))


def test_differences_are_listed_by_key() -> None:
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b: 2 -> 3", "c: (none) -> 4"]


async def test_expired_wait_without_a_request_does_not_reload(
    tmp_path: Path, manager: socket.socket, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_WAIT_S", 0.0)
    made = context(config, io.StringIO())
    task, stop = ReloadTask(made, Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})), asyncio.Event()
    running = asyncio.ensure_future(task.run(stop))
    for _ in range(100):
        await asyncio.sleep(0)
    stop.set()
    await running
    assert received(manager) == []


async def test_daemon_without_a_runtime_is_ready_for_the_service_manager(
    tmp_path: Path, manager: socket.socket, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeUnavailableError("no socket of a runtime was found")

    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(supervisor, "open_agent", fail)
    settings = replace(
        context(config, io.StringIO()).settings,
        shutdown=ShutdownSettings(enabled=False),
        state_directory=tmp_path / "state",
    )
    running = asyncio.ensure_future(
        supervisor.supervise(settings, log.configure("json", "info", io.StringIO()), once=False)
    )
    manager.setblocking(False)
    message = await asyncio.get_running_loop().sock_recv(manager, 1000)
    assert message == b"READY=1\nSTATUS=waiting for a container runtime: no socket of a runtime was found"
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 20)


async def test_second_agent_on_a_control_socket_is_refused_before_any_task(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "open_agent", Mock(side_effect=AssertionError))
    stream, path = io.StringIO(), tmp_path / "control.sock"
    settings = replace(context(config, io.StringIO()).settings, control=ControlSettings(socket=path))
    logger = log.configure("json", "info", stream)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ControlUnavailableError, match="another agent is running: it is listening on"):
            await supervisor.supervise(settings, logger, once=False)
    assert not stream.getvalue()


@pytest.mark.parametrize("kind", ["stale", "absent", "file", "directory", "disabled"])
def test_socket_without_a_listener_does_not_prevent_the_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "control.sock"
    if kind == "stale":
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    elif kind == "file":
        path.write_text("")
    elif kind == "directory":
        path = tmp_path / "none" / "control.sock"
    refuse_second_agent(None if kind == "disabled" else path)


async def test_second_daemon_of_a_state_directory_does_not_start(tmp_path: Path, config: Path) -> None:
    settings = replace(context(config, io.StringIO()).settings, state_directory=tmp_path / "state")
    stream = io.StringIO()
    with daemon_lock(settings.state_directory), pytest.raises(PassBusyError, match="another daemon"):
        await supervisor.supervise(settings, log.configure("json", "info", stream), once=False)
    assert [json.loads(each)["event"] for each in stream.getvalue().splitlines()] == ["agent_stopped"]


def test_status_text_is_escaped_to_one_line(tmp_path: Path, manager: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).ready("/s\udcff\x1b[31m\nREADY=1")
    assert received(manager) == ["READY=1\nSTATUS=/s\\xff\\x1b[31m READY=1"]
