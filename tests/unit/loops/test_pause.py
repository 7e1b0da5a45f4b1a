"""Pauses across restarts, reboots and wall clock jumps: no pause ends early or lasts indefinitely."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon.context import DaemonContext
from nodeagent.loops import clock_reading
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.loops.pause import PauseTask, pause, restore_pause
from nodeagent.loops.pause_file import FILE_NAME, PauseFile
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.store.clock_record import GRACE_S
from nodeagent.telemetry import logging as log
from tests.sim.clock import SimClock

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S, DAY_S = 3600.0, 86_400.0
PAUSE_S = 2 * HOUR_S
WRONG_CLOCKS = pytest.mark.parametrize("wrong_s", [0.0, 60.0, HOUR_S, -HOUR_S, 3650 * DAY_S, -3650 * DAY_S])


class Node:
    """A node that can reboot, with a daemon that can restart."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.clock = SimClock()
        self.boot = "boot 0"
        monkeypatch.setattr(clock_reading, "read_boot_id", lambda: self.boot)
        self.start()

    def start(self) -> None:
        """Start a new daemon on the same state directory."""
        settings = checked(Origin(None, (("state.directory", str(self.directory)),)))
        logger = log.configure("json", "info", io.StringIO())
        self.context = DaemonContext(settings, logger, self.clock, LoopStatuses(self.clock), PassLock(self.clock))
        self.task = PauseTask(self.context, restore_pause(self.context))

    def reboot(self, *, off_s: float = 30.0, wrong_s: float = 0.0) -> None:
        """Reboot after ``off_s`` without power, with a wall clock error of ``wrong_s``; start a daemon."""
        self.clock = SimClock(self.clock.now() + timedelta(seconds=off_s + wrong_s), monotonic_s=20.0)
        self.boot += "+"
        self.start()

    def step(self, seconds: float) -> None:
        """Step the wall clock by ``seconds``."""
        self.clock.set_wall_time(self.clock.now() + timedelta(seconds=seconds))

    async def wait(self, seconds: float) -> bool:
        """Run the pause task for ``seconds``; return whether the agent is paused afterwards."""
        for _ in range(20):
            await self.task.check()
            self.clock.advance(seconds / 20)
        await self.task.check()
        return self.context.pass_lock.pause() is not None

    async def pause(self, seconds: float = PAUSE_S) -> None:
        await pause(self.context, by="ann", is_root=True, why="maintenance", seconds=seconds)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@WRONG_CLOCKS
async def test_pause_of_this_boot_has_its_length_after_a_restart_and_a_jump(node: Node, wrong_s: float) -> None:
    await node.pause()
    assert await node.wait(HOUR_S)
    node.step(wrong_s)
    node.start()
    assert await node.wait(HOUR_S - 1)
    assert not await node.wait(2)


@WRONG_CLOCKS
async def test_pause_is_not_cut_short_by_a_boot_with_a_wrong_clock_that_is_corrected(
    node: Node, wrong_s: float
) -> None:
    await node.pause()
    assert await node.wait(HOUR_S)
    node.reboot(wrong_s=wrong_s)
    assert await node.wait(60)
    node.step(-wrong_s)
    assert await node.wait(HOUR_S - 60 - 40)
    assert not await node.wait(GRACE_S), "ended by the corrected clock"


@WRONG_CLOCKS
async def test_pause_ends_after_a_boot_with_a_clock_that_remains_wrong(node: Node, wrong_s: float) -> None:
    await node.pause()
    node.reboot(wrong_s=wrong_s)
    assert not await node.wait(PAUSE_S)


async def test_pause_that_ended_while_the_node_was_off_ends_once_the_clock_was_steady(node: Node) -> None:
    await node.pause()
    node.reboot(off_s=DAY_S)
    assert await node.wait(GRACE_S - 60)
    assert not await node.wait(120)


async def test_ended_pause_is_removed_so_that_the_next_boot_does_not_restore_it(node: Node) -> None:
    await node.pause()
    assert not await node.wait(PAUSE_S + 60)
    assert PauseFile(node.directory).read() is None
    node.reboot()
    assert node.context.pass_lock.pause() is None


async def test_pause_placed_after_a_boot_replaces_the_earlier_one(node: Node) -> None:
    await node.pause(HOUR_S)
    node.reboot(off_s=DAY_S)
    await node.pause(DAY_S)
    assert await node.wait(DAY_S - 60)
    stored = PauseFile(node.directory).read()
    assert stored is not None
    assert stored.seconds == DAY_S


@pytest.mark.parametrize("value", ['"1h"', "-1", "NaN", "[]", "1e999", "true"])
def test_pause_with_an_invalid_duration_is_unreadable_and_without_an_end(node: Node, value: str) -> None:
    text = '{"schema": "nodeagent/pause/v1", "by": "a", "why": "", "until": "2026-01-01T00:00:00Z", "seconds": %s}'
    (node.directory / FILE_NAME).write_text(text % value)
    node.start()
    in_force = node.context.pass_lock.pause()
    assert in_force is not None
    assert in_force.until_s is None
    assert "cannot read pause" in in_force.reason
