"""History of the daemon: events of passes, passes of killed processes, and an unwritable history."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from nodeagent.daemon.health import not_alive, not_ready
from nodeagent.host.processes import own_process
from nodeagent.record import replace
from nodeagent.store.history import FILE_NAME, History, PastAction, PastPass
from tests.unit.daemon_node import Place, place

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ACTION = PastAction("image", "sha256:1", "app:v1", (), "planned", "", "all-unused", "unused", 7, 0.0)


def state_of(here: Place) -> Path:
    return here.load().state_directory


def record_unfinished(here: Place, *, by_this_process: bool = False) -> None:
    """Record an unfinished pass after the first of its two removals."""
    started_at = here.sim.now - timedelta(minutes=5)
    actions = (replace(ACTION, outcome="done"), replace(ACTION, item_id="sha256:2"))
    past = PastPass(
        "killed", started_at, 1.0, "interval", "images", "", False, "running", "", 0, None, 91, None, actions
    )
    writer = own_process() if by_this_process else replace(own_process(), boot_id="an earlier boot")
    History(state_of(here), writer=writer).begin(past)


async def test_start_of_a_pass_is_logged_before_its_removals_and_a_pass_without_removals_logs_none() -> None:
    async with place(dry_run=False) as here, here.daemon() as made:
        events = [each for each in made.logged() if each["event"] in ("pass_started", "removal", "pass_finished")]
        names = [each["event"] for each in events if each.get("scope", "containers") == "containers"]
        assert names[:2] == ["pass_started", "removal"]
        (started,) = [each for each in events if each["event"] == "pass_started" and each["scope"] == "containers"]
        assert (started["planned"], started["trigger"]) == (1, "interval")
        await made.trigger("containers")
        assert len([each for each in made.logged("pass_started") if each["scope"] == "containers"]) == 1


async def test_pass_of_a_killed_daemon_is_logged_as_interrupted_at_the_next_start_once() -> None:
    async with place(dry_run=False) as here:
        record_unfinished(here)
        async with here.daemon() as made:
            (logged,) = made.logged("pass_interrupted")
            assert (logged["pass_id"], logged["removed"], logged["unknown"]) == ("killed", 1, 1)
            assert logged["level"] == "warning"
            made.context.counters.count_event(logged)
            assert made.context.counters.values["nodeagent_passes_total"]["images", "interrupted"] == 1
            await made.trigger("images")
            assert len(made.logged("pass_interrupted")) == 1
        async with here.daemon() as made:
            assert made.logged("pass_interrupted") == []
        found = next(each for each in History(state_of(here)).read() if each.id == "killed")
        assert [each.outcome for each in found.actions] == ["done", "unknown"]


async def test_pass_of_a_killed_command_is_logged_after_the_next_pass_of_the_daemon() -> None:
    async with place(dry_run=False) as here, here.daemon() as made:
        record_unfinished(here)
        await made.trigger("images")
        assert [each["pass_id"] for each in made.logged("pass_interrupted")] == ["killed"]


async def test_pass_of_a_running_process_is_not_logged_as_interrupted() -> None:
    async with place(dry_run=False) as here:
        record_unfinished(here, by_this_process=True)
        async with here.daemon() as made:
            assert made.logged("pass_interrupted") == []
        assert "running" in {each.result for each in History(state_of(here)).read()}


async def test_daemon_is_not_ready_with_an_unwritable_history() -> None:
    async with place(dry_run=False) as here:
        blocked = state_of(here) / FILE_NAME
        blocked.mkdir(parents=True)
        async with here.daemon() as made:
            assert here.removed, "removals continue"
            (reason,) = not_ready(made.context)
            assert reason.startswith(f"removals are not recorded: cannot write history {blocked}: ")
            assert not_alive(made.context) == ()
            assert any("cannot write history" in each for each in (await made.status())["warnings"])
            assert made.logged("store_degraded")
            blocked.rmdir()
            await made.trigger("containers")
            assert not_ready(made.context) == ()
            assert not any("cannot write history" in each for each in (await made.status())["warnings"])
        assert History(state_of(here)).read()


def containers_pass(here: Place) -> PastPass:
    (found,) = [each for each in History(state_of(here)).read() if each.scope == "containers"]
    return found


async def test_cancelled_pass_is_recorded_as_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.daemon.supervisor.STOP_WITHIN_S", 0.2)
    async with place(dry_run=False) as here:
        here.server.faults.delay("RemoveContainer", None, times=99)
        async with here.daemon(settled=False) as made, asyncio.timeout(30):
            while not made.logged("pass_started"):  # noqa: ASYNC110 - log writes set no asyncio.Event
                await asyncio.sleep(0.001)
        async with asyncio.timeout(30):
            while (found := containers_pass(here)).result == "running":  # noqa: ASYNC110 - the write sets no asyncio.Event
                await asyncio.sleep(0.001)
    assert found.result == "interrupted"
    assert found.detail == "cancelled before the pass finished"
    assert {each.outcome for each in found.actions} == {"unknown"}
