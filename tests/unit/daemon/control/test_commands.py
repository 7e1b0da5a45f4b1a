"""Pause, trigger and reload requests of the control API."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nodeagent.api import requests as api
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.service_manager import ReloadTask
from nodeagent.daemon.supervisor import agent_tasks
from nodeagent.gc.loop import Loop
from nodeagent.host.systemd import Notifier
from nodeagent.loops.passes import LoopStatuses, PassLock, Pause, PausedBy
from nodeagent.loops.pause import restore_pause
from nodeagent.loops.pause_file import PauseFile
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.control_node import Node


async def test_pause_refuses_passes_and_is_restored_after_a_restart(node: Node) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="maintenance"))
    assert (await node.ask("Status"))["paused"]["why"].startswith("maintenance (by root, until ")
    code, why = await node.refused("Apply", api.ApplyRequest(scope="containers"))
    assert (code, "the agent is paused" in why) == (400, True)
    assert len(node.sim.containers) == 2
    again = DaemonContext(
        node.context.settings,
        node.context.logger,
        node.context.clock,
        LoopStatuses(SystemClock()),
        PassLock(SystemClock()),
    )
    restore_pause(again)
    pause = again.pass_lock.pause()
    assert pause is not None
    assert pause.until_s is not None
    assert 590 < pause.until_s - again.clock.monotonic_s() <= 600
    assert (await node.ask("Resume"))["was_paused"] is True
    assert (await node.ask("Resume"))["was_paused"] is False
    assert PauseFile(node.context.settings.state_directory).read() is None


async def test_pause_during_a_resume_is_stored(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.ask("Pause", api.PauseRequest(seconds=600, why="one"))
    real, started, release = PauseFile.clear, threading.Event(), threading.Event()

    def clear_slowly(file: PauseFile) -> None:
        started.set()
        release.wait(20)
        real(file)

    monkeypatch.setattr(PauseFile, "clear", clear_slowly)
    resumed = asyncio.ensure_future(node.ask("Resume"))
    assert await asyncio.to_thread(started.wait, 20)
    paused = asyncio.ensure_future(node.ask("Pause", api.PauseRequest(seconds=600, why="two")))
    while len(node.logged("control_request")) != 3:  # noqa: ASYNC110 - only the log shows the request
        await asyncio.sleep(0)
    await asyncio.wait({paused}, timeout=0.2)
    release.set()
    await asyncio.gather(resumed, paused)
    kept = PauseFile(node.context.settings.state_directory).read()
    assert kept is not None
    assert kept.why == "two"
    assert node.context.pass_lock.pause() is not None


def test_unreadable_pause_file_is_a_pause_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "pause.json").write_text("{")
    stream, clock = io.StringIO(), SystemClock()
    made = replace(checked(Origin(None, (("state.directory", str(tmp_path)),))))
    context = DaemonContext(made, log.configure("json", "info", stream), clock, LoopStatuses(clock), PassLock(clock))
    restore_pause(context)
    pause = context.pass_lock.pause()
    assert pause is not None
    assert pause.until_s is None


async def test_trigger_wakes_its_loop_and_returns_the_result(node: Node) -> None:
    loop_statuses, wake = node.context.loop_statuses, asyncio.Event()
    node.context.wake["images"] = wake
    loop_statuses.waiting("images", 600, 600)
    pending = asyncio.ensure_future(node.ask("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(wake.wait(), 20)
    loop_statuses.running("images", 60)
    loop_statuses.ended("images", "complete", detail="all well")
    triggered = await pending
    assert (triggered["result"], triggered["detail"]) == ("complete", "all well")


async def test_pass_started_by_a_trigger_is_recorded_with_that_trigger(node: Node) -> None:
    agent = node.context.agent
    assert agent is not None
    containers = next(each for each in agent_tasks(node.context, agent) if isinstance(each, Loop))
    await containers.run_once()
    await node.ask("Trigger", api.TriggerRequest(loop="containers"))
    await containers.run_once()
    await containers.run_once()
    passes = (await node.ask("History", api.HistoryRequest(quiet=True)))["passes"]
    assert [each["trigger"] for each in passes] == ["interval", "trigger", "interval"]


async def test_trigger_of_eviction_beside_a_kubelet_is_refused_with_the_reason(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True))
    assert (code, "is not running: a kubelet manages this node" in why) == (400, True)
    assert "running loops: eviction" not in why


async def test_trigger_that_waits_is_refused_when_its_loop_is_disabled(node: Node) -> None:
    node.context.wake["eviction"] = asyncio.Event()
    node.context.loop_statuses.waiting("eviction", 600, 600)
    pending = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="eviction", wait=True)))
    await asyncio.wait_for(node.context.wake["eviction"].wait(), 20)
    node.context.loop_statuses.disabled("eviction", "a kubelet manages this node")
    code, why = await pending
    assert (code, "is not running: a kubelet manages this node" in why) == (400, True)


class CountingPassLock(PassLock):
    """A pass lock that counts its requests."""

    requests = 0

    @asynccontextmanager
    async def take(self, *, urgent: bool = False) -> AsyncIterator[asyncio.Event]:
        self.requests += 1
        async with super().take(urgent=urgent) as end:
            yield end


@pytest.mark.parametrize("how", ["scope", "plan"])
@pytest.mark.parametrize("reload", ["requested", "done"])
async def test_pass_is_refused_when_a_reload_replaces_its_settings(node: Node, how: str, reload: str) -> None:
    request = api.ApplyRequest(scope="containers")
    if how == "plan":
        saved = await node.ask("Plan", api.PlanRequest(scope="containers", lasts_seconds=60))
        request = api.ApplyRequest(plan=json.dumps(saved))
    pass_lock = node.context.pass_lock = CountingPassLock(node.context.clock)
    async with pass_lock.take():
        applying = asyncio.ensure_future(node.refused("Apply", request))
        while pass_lock.requests < 2:  # noqa: ASYNC110 - the pass lock sets no asyncio.Event
            await asyncio.sleep(0)
        if reload == "requested":
            node.context.renew.set()
        else:
            node.context.agent = dataclasses.replace(node.context.agent)  # type: ignore[type-var]
    code, why = await applying
    assert (code, "the configuration changed during the request" in why) == (409, True)
    assert len(node.sim.containers) == 2


@pytest.mark.parametrize("wait", [False, True])
async def test_trigger_is_refused_before_the_daemon_is_ready(node: Node, wait: bool) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    node.context.agent = None
    code, why = await node.refused("Trigger", api.TriggerRequest(loop="images", wait=wait))
    assert (code, "not ready: starting or reloading" in why) == (503, True)


async def test_trigger_that_waits_is_refused_when_a_pause_begins(node: Node) -> None:
    node.context.wake["images"] = asyncio.Event()
    node.context.loop_statuses.waiting("images", 600, 600)
    pending = asyncio.ensure_future(node.refused("Trigger", api.TriggerRequest(loop="images", wait=True)))
    await asyncio.wait_for(node.context.wake["images"].wait(), 20)
    node.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
    code, why = await pending
    assert (code, "the agent is paused" in why) == (400, True)


async def test_reload_returns_the_changes_or_the_error(node: Node) -> None:
    stop = asyncio.Event()
    running = asyncio.ensure_future(ReloadTask(node.context, Notifier({})).run(stop))
    node.context.settings = checked(Origin(node.config))
    text = node.config.read_text()
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 90\n")
    assert (await node.ask("Reload"))["changes"] == ["image_gc.high_threshold_percent: 85 -> 90"]
    node.config.write_text(text + "[image_gc]\nhigh_threshold_percent = 900\n")
    code, why = await node.refused("Reload")
    assert (code, "high_threshold_percent = 900" in why) == (400, True)
    stop.set()
    await running
