"""Readiness, the watchdog and reloads, against a real notification socket."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.config.handoff import checked
from nodeagent.config.settings import Origin
from nodeagent.config.shutdown import ShutdownSettings
from nodeagent.daemon import service_manager as service
from nodeagent.daemon import supervisor
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock
from nodeagent.daemon.reload_effect import Effect
from nodeagent.daemon.service_manager import ReloadTask, WatchdogTask, differences, read_again
from nodeagent.errors import ConfigError, RuntimeUnavailableError
from nodeagent.host.notify import Notifier
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.reload_effect import Reloaded


class Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 10, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        yield made


def write(path: Path, high: int) -> None:
    path.write_text(f"[image_gc]\nhigh_threshold_percent = {high}\n")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    write(path, 85)
    return path


def context(config: Path, stream: io.StringIO) -> DaemonContext:
    clock = Clock()
    logger = log.configure("json", "info", stream)
    return DaemonContext(checked(Origin(config)), logger, clock, LoopStatuses(clock), PassLock(clock))


async def no_effect(made: Settings, earlier: Settings, context: DaemonContext) -> Effect:
    """Stand for the preview of a node without a runtime."""
    del earlier, context
    return Effect(made.dry_run)


def told(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def heard(manager: socket.socket) -> list[str]:
    manager.setblocking(False)
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def test_without_a_manager_nothing_happens() -> None:
    quiet = Notifier({})
    quiet.ready("x")
    quiet.stopping()
    assert quiet.watchdog_s is None


def test_what_is_said_is_in_the_managers_words(tmp_path: Path, manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog_s == 30.0
    notifier.ready("two\nlines")
    notifier.reloading()
    notifier.alive()
    notifier.stopping()
    ready, reloading, alive, stopping = heard(manager)
    assert ready == "READY=1\nSTATUS=two lines"
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert (alive, stopping) == ("WATCHDOG=1", "STOPPING=1")


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s is None


def test_a_stuck_duty_starves_the_watchdog(tmp_path: Path, manager: socket.socket, config: Path) -> None:
    stream, clock = io.StringIO(), Clock()
    made = replace(context(config, stream), clock=clock, loop_statuses=LoopStatuses(clock))
    duty = WatchdogTask(made, Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}))
    made.loop_statuses.running("images", within_s=10)
    duty.look()
    assert heard(manager) == ["WATCHDOG=1"]
    clock.at_s = 11
    duty.look()
    duty.look()
    assert heard(manager) == []
    assert [each["duties"] for each in told(stream)] == [["images"]]
    made.loop_statuses.ended("images", "complete")
    made.loop_statuses.waiting("images", 60, 10)
    duty.look()
    assert heard(manager) == ["WATCHDOG=1"]


async def test_a_good_file_is_put_in_force_and_a_bad_one_is_not(
    tmp_path: Path, manager: socket.socket, config: Path
) -> None:
    stream = io.StringIO()
    made = context(config, stream)
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    duty, stop = ReloadTask(made, notifier, no_effect), asyncio.Event()
    running = asyncio.ensure_future(duty.run(stop))
    write(config, 850)
    made.reload.set()
    loop = asyncio.get_running_loop()
    manager.setblocking(False)
    assert (await loop.sock_recv(manager, 100)).startswith(b"RELOADING=1")
    assert await loop.sock_recv(manager, 100) == b"READY=1"
    assert not made.renew.is_set()
    assert "high_threshold_percent = 850" in made.config_problem
    write(config, 95)
    made.reload.set()
    await asyncio.wait_for(made.renew.wait(), 30)
    assert made.config_problem == ""
    before = made.take_next()
    assert before is not None
    assert made.settings.policy.images.high_threshold_percent == 95
    assert [each["event"] for each in told(stream)] == ["config_rejected", "config_reloaded"]
    assert told(stream)[1]["changes"] == ["image_gc.high_threshold_percent: 85 -> 95"]
    stop.set()
    await running


async def reload_once(made: DaemonContext) -> tuple[str, ...]:
    """Ask for a reload as the socket does; return what it told."""
    duty, stop = ReloadTask(made, Notifier({}), no_effect), asyncio.Event()
    waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
    made.awaiting_reload.append(waiting)
    made.reload.set()
    running = asyncio.ensure_future(duty.run(stop))
    try:
        return (await asyncio.wait_for(waiting, 30)).changes
    finally:
        stop.set()
        await running


async def test_a_mistake_that_is_mended_at_once_is_never_in_force(config: Path) -> None:
    made = context(config, io.StringIO())
    write(config, 95)
    assert await reload_once(made) == ("image_gc.high_threshold_percent: 85 -> 95",)
    write(config, 85)  # before the pass under way has ended
    assert await reload_once(made) == ("image_gc.high_threshold_percent: 95 -> 85",)
    made.take_next()
    assert made.settings.policy.images.high_threshold_percent == 85


async def test_who_asks_during_a_reload_is_told_of_the_next(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    told = [(await asyncio.wait_for(each, 30)).changes for each in (first, second)]
    stop.set()
    await running
    assert told == [(), ("image_gc.high_threshold_percent: 85 -> 95",)]


async def test_a_check_that_cannot_be_started_ends_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = context(config, io.StringIO())
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(ConfigError, match=r"could not be checked: .*No such file"):
        await reload_once(made)
    assert "could not be checked" in made.config_problem


async def test_options_of_the_command_line_stay_in_force(config: Path) -> None:
    made = checked(Origin(config, (("image_gc.high_threshold_percent", 91),), dry_run=True))
    write(config, 88)
    again = await read_again(made)
    assert again.policy.images.high_threshold_percent == 91
    assert again.dry_run


def test_a_file_that_is_gone_is_told(config: Path) -> None:
    made = checked(Origin(config))
    config.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        asyncio.run(read_again(made))


def test_differences_are_told_by_key() -> None:
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b: 2 -> 3", "c: (none) -> 4"]


async def test_nothing_is_reloaded_unless_it_is_asked_for(
    tmp_path: Path, manager: socket.socket, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_LONG_S", 0.0)
    made = context(config, io.StringIO())
    duty, stop = ReloadTask(made, Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})), asyncio.Event()
    running = asyncio.ensure_future(duty.run(stop))
    for _ in range(100):
        await asyncio.sleep(0)
    stop.set()
    await running
    assert heard(manager) == []


async def test_the_manager_is_not_kept_waiting_for_a_runtime(
    tmp_path: Path, manager: socket.socket, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise RuntimeUnavailableError("no socket of a runtime was found")

    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(supervisor, "open_agent", away)
    settings = replace(context(config, io.StringIO()).settings, shutdown=ShutdownSettings(enabled=False))
    running = asyncio.ensure_future(
        supervisor.supervise(settings, log.configure("json", "info", io.StringIO()), once=False)
    )
    manager.setblocking(False)
    said = await asyncio.get_running_loop().sock_recv(manager, 1000)
    assert said == b"READY=1\nSTATUS=waiting for a container runtime: no socket of a runtime was found"
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 20)


def test_a_status_of_any_text_is_one_line_that_can_be_sent(tmp_path: Path, manager: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).status("/s\udcff\x1b[31m\nREADY=1")
    assert heard(manager) == ["STATUS=/s\\xff\\x1b[31m READY=1"]
