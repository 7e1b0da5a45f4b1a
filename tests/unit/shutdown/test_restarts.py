"""Crashes and restarts of the daemon, logind, the bus and the node."""

from __future__ import annotations

import asyncio
import math
import os
from datetime import UTC, datetime
from typing import Any

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.host.systemd import STOPPING, UnitStop
from nodeagent.loops.passes import Activity, LoopStatuses
from nodeagent.model.stops import BootRecord, LastActivity, NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace
from nodeagent.shutdown import executor, executor as execution, pods as pod_monitor
from nodeagent.shutdown.plan import inhibitor
from nodeagent.shutdown.pods import PodRuntime
from nodeagent.shutdown.stop_hook import stop_pods_at_unit_stop
from nodeagent.units import SystemClock
from tests.unit.shutdown.inhibitor_node import (
    BOOT,
    QUICK,
    Place,
    daemon_on,
    ready,
)

# --- crashes and restarts


async def test_successor_of_a_killed_daemon_resumes_with_the_stored_lock(place: Place) -> None:
    done, slow, dns = place.pod("done"), place.pod("slow"), place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=slow)
    place.login1.limit_us = 4_000_000
    settings = place.settings(by_priority=[{"min_priority": 0, "seconds": 3}, {"min_priority": 1000, "seconds": 1}])
    async with daemon_on(place, settings=settings) as first:
        await ready(first)
        place.login1.request_shutdown()
        await first.until(lambda: "pod_stopped" in first.stream.getvalue())
        await first.until(lambda: place.outcomes().get("done") == "stopped")
        await first.kill()
        assert place.login1.executed == 0
        first_record = place.last()
        assert first_record.end is StopEnd.IN_PROGRESS
        number, place.store.number = place.store.number, None
        async with daemon_on(place, settings=settings, adopted=number) as second:
            await place.login1.until(lambda: place.login1.executed == 1)
            await second.until("shutdown_finished")
            (continued,) = second.events("shutdown_resumed")
            assert continued["granted_s"] == first.events("shutdown_started")[0]["granted_s"] == 3.6
    assert place.outcomes() == {"done": "stopped", "slow": "stopped", "dns": "stopped"}
    assert place.server.faults.count("StopContainer", done) == 1
    assert place.server.faults.targets("StopContainer")[-2:] == (slow, dns)
    assert place.last().started_at == first_record.started_at
    assert place.last().end is StopEnd.COMPLETE


@pytest.mark.parametrize("crashed", ["before the shutdown", "in the first phase"])
async def test_successor_stops_all_pods_after_an_outage_of_the_runtime(
    place: Place, monkeypatch: pytest.MonkeyPatch, crashed: str
) -> None:
    monkeypatch.setattr(executor, "_LIST_WITHIN_S", 0.3)  # shorter than the simulated outage
    monkeypatch.setattr(pod_monitor, "_FIRST_LIST_WITHIN_S", 0.1)
    place.pod("slow")
    place.pod("dns", 2000)
    place.login1.limit_us = 20_000_000
    settings = place.settings(by_priority=[{"min_priority": 0, "seconds": 10}, {"min_priority": 1000, "seconds": 10}])
    async with daemon_on(place, settings=settings) as first:
        await ready(first)
        await first.until(lambda: place.files.read_boot() is not None)
        place.server.faults.fail("ListContainers", times=None, status="UNAVAILABLE")
        place.server.faults.fail("StopContainer", times=None)
        if crashed == "in the first phase":
            place.login1.request_shutdown()
            await first.until(lambda: place.outcomes().get("slow") == "stopping")
        await first.kill()
        if crashed == "before the shutdown":
            place.login1.request_shutdown()
        number, place.store.number = place.store.number, None
        async with daemon_on(place, settings=settings, adopted=number) as second:
            await second.until("shutdown_phase")
            calls = len(place.server.faults.calls)
            await second.until(lambda: len(place.server.faults.calls) > calls + 5)
            place.server.faults.clear()
            await place.login1.until(lambda: place.login1.executed == 1)
            await second.until("shutdown_finished")
    assert place.running() == set()
    assert place.outcomes() == {"slow": "stopped", "dns": "stopped"}


async def test_runtime_is_awaited_if_it_is_found_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with daemon_on(place) as daemon:
        await ready(daemon)
        monitor = pod_monitor.RunningPodMonitor(daemon.context, daemon.inhibitor.recorder)
        attempts = iter(range(3))

        def connect(*collaborators: Any) -> object:
            if next(attempts) < 2:
                raise RuntimeUnavailableError("no socket exists")
            return PodRuntime(*collaborators)

        monkeypatch.setattr(pod_monitor, "_RETRY_S", 0.01)
        monkeypatch.setattr(pod_monitor, "PodRuntime", connect)
        assert await monitor.connected_within(0) is None
        assert await monitor.connected_within(10) is not None
        await monitor.close()


async def test_shutdown_remains_in_progress_when_the_daemon_stops(place: Place) -> None:
    slow = place.pod("slow")
    place.server.faults.delay("StopContainer", target=slow)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.server.faults.arrival("StopContainer")
        await daemon.end()
        assert place.store.number is not None
        assert (place.last().end, place.outcomes()) == (StopEnd.IN_PROGRESS, {"slow": "stopping"})
        assert place.running() == {"slow"}


async def test_successor_of_a_complete_shutdown_releases_the_lock_at_once(place: Place) -> None:
    place.pod("web")
    stop = NodeStop(BOOT, StopKind.SIGNAL, datetime(2026, 1, 10, tzinfo=UTC), 1.0, 1500, StopEnd.COMPLETE)
    place.files.write_stop(stop)
    async with daemon_on(place) as first:
        await ready(first)
        await first.until(lambda: place.last().end is StopEnd.CANCELLED)
        number = os.dup(place.store.number or -1)
        place.login1.before_inhibit = asyncio.Event().wait
        await first.kill()
    place.files.write_stop(stop)
    place.login1.request_shutdown()
    async with daemon_on(place, adopted=number) as second:
        await second.until("shutdown_already_done")
        await place.login1.until(lambda: place.login1.executed == 1)
        assert place.running() == {"web"}


async def test_shutdown_that_the_stop_hook_completed_while_the_daemon_was_stopped_is_not_repeated(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        done = NodeStop(BOOT, StopKind.UNIT_STOP, datetime.now(UTC), 1.0, 1500, StopEnd.COMPLETE)
        place.files.write_stop(done)
        place.login1.request_shutdown()  # received late
        await daemon.until("shutdown_already_done")
        await place.login1.until(lambda: place.login1.executed == 1)
    assert (place.running(), place.last()) == ({"web"}, done)


class StoppedClock(SystemClock):
    """System clock whose time since boot is ahead by the duration for which the process was stopped."""

    def __init__(self) -> None:
        self.stopped_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.stopped_s


async def test_daemon_stopped_beyond_the_granted_time_leaves_the_other_pods_to_the_stop_hook(place: Place) -> None:
    slow, _ = place.pod("slow"), place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=slow)
    clock = StoppedClock()
    async with daemon_on(place, clock=clock) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until(lambda: place.outcomes().get("slow") == "stopping")
        clock.stopped_s = 40.0
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_delegated")
        await daemon.end()
    (left,) = [each for each in place.last().pods if each.name == "dns"]
    assert (place.last().end, left.outcome, left.detail) == (StopEnd.IN_PROGRESS, None, "no TERM")
    assert "dns" in place.running()
    place.server.node.exit_container(place.server.node.containers[slow])
    ended = await stop_pods_at_unit_stop(
        place.settings(by_priority=[{"min_priority": 0, "seconds": 20}, {"min_priority": 1000, "seconds": 20}]),
        daemon.context.logger,
        UnitStop(STOPPING, 60_000_000),
        this_boot=BOOT,
        runtime_directory=place.directory / "run",
    )
    assert (ended, place.running()) == (StopEnd.COMPLETE, set())
    assert place.outcomes()["dns"] == "stopped"


async def test_record_of_a_shutdown_shows_progress_without_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "HEARTBEAT_S", 0.01)
    slow = place.pod("slow")
    place.server.faults.delay("StopContainer", target=slow)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until(lambda: place.outcomes().get("slow") == "stopping")
        first_s = place.last().progress_s
        assert first_s is not None
        await daemon.until(lambda: (place.last().progress_s or math.inf) > first_s + 0.1)
        await daemon.until(lambda: place.recorded_end() is StopEnd.COMPLETE)
        assert place.last().progress_s is None


@pytest.mark.parametrize("restarted", ["logind", "bus"])
async def test_lock_is_acquired_again_after_a_restart_of_logind_or_the_bus(place: Place, restarted: str) -> None:
    async with daemon_on(place) as daemon:
        await ready(daemon)
        if restarted == "bus":
            place.bus.stop()
            await daemon.until("inhibitor_lock_lost")
            place.bus.start()
            await place.login1.rejoin()
        else:
            await place.login1.stop()
            await daemon.until("inhibitor_lock_lost")
            await place.login1.start()
        await daemon.until("inhibitor_lock_acquired", times=2)
        assert place.store.copies == 2
        assert daemon.context.lock_held


@pytest.mark.parametrize(
    ("active", "restart_logind", "restarts"),
    [(True, True, 1), (False, True, 0), (True, False, 0)],
    ids=["off-the-bus", "stopped", "disabled"],
)
async def test_logind_without_a_bus_connection_is_restarted_once(
    place: Place, active: bool, restart_logind: bool, restarts: int
) -> None:
    place.logind.active, place.logind.refuse = active, True
    async with daemon_on(place, settings=place.settings(restart_logind=restart_logind)) as daemon:
        await ready(daemon)
        await place.login1.stop()
        await daemon.until("inhibitor_lock_lost")
        if restarts:
            await daemon.until("logind_restart_failed")
        await daemon.until("inhibitor_lock_missing", times=1)
        await place.login1.start()
        await daemon.until("inhibitor_lock_acquired", times=2)
        assert place.logind.restarts == restarts


async def test_shutdown_without_effect_is_cancelled_by_a_restart_of_logind_that_lost_the_bus(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inhibitor, "ABANDONED_AFTER_S", 0.0)
    place.logind.refuse = True
    place.login1.limit_us = 2_000_000
    place.pod("web")
    async with daemon_on(place, intervals=replace(QUICK, refresh_s=0.05, restart_after_s=0.1)) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
        await place.login1.stop()
        await daemon.until("logind_restart_failed")
        await place.login1.start()
        await daemon.until("shutdown_cancelled")
        await daemon.until("inhibitor_lock_acquired", times=2)
        await daemon.until(lambda: place.recorded_end() is StopEnd.CANCELLED)
        assert place.logind.restarts == 1


async def test_missing_bus_is_reported_in_log_and_loop_status(place: Place) -> None:
    place.bus.stop()
    async with daemon_on(place) as daemon:
        await daemon.until("inhibitor_lock_missing")
        (line,) = daemon.context.loop_statuses.all
        assert (line.name, line.activity) == ("shutdown", Activity.PAUSED)
        assert line.reason.startswith("inhibitor lock not held:")


class BrokenStatuses(LoopStatuses):
    def waiting(self, name: str, wait_s: float, slack_s: float, *, removes: bool = False) -> None:
        raise RuntimeError("a bug", name, wait_s, slack_s, removes)


async def test_exception_in_a_session_does_not_end_the_task(place: Place) -> None:
    async with daemon_on(place) as daemon:
        daemon.context.loop_statuses = BrokenStatuses(daemon.context.clock)
        await daemon.until("inhibitor_task_crashed")
        assert not daemon.task.done()


# --- stops of the node without a signal


async def test_unclean_stop_is_recorded_with_the_running_pods_after_a_power_loss(place: Place) -> None:
    recorded_at = datetime.now(UTC)
    pods = (StoppedPod("uid-web", "shop", "web"),)
    place.files.write_boot(BootRecord("22222222-0000", LastActivity.WATCHING, recorded_at, pods))
    async with daemon_on(place) as daemon:
        await daemon.until("unclean_stop")
        (event,) = daemon.events("unclean_stop")
        assert (event["boot_id"], event["running"]) == ("22222222-0000", ["shop/web"])
        await ready(daemon)
    (stop,) = place.history.read_stops()
    assert (stop.kind, stop.end, stop.pods, stop.started_at) == (StopKind.UNCLEAN, StopEnd.UNKNOWN, pods, recorded_at)


@pytest.mark.parametrize("presence", [LastActivity.AGENT_STOPPED, LastActivity.GOING_DOWN])
async def test_recorded_end_of_a_boot_is_not_reported_as_unclean(place: Place, presence: LastActivity) -> None:
    place.files.write_boot(BootRecord("22222222-0000", presence, datetime(2026, 1, 10, tzinfo=UTC)))
    async with daemon_on(place) as daemon:
        await ready(daemon)
        assert daemon.events("unclean_stop") == []
    assert place.history.read_stops() == ()


async def test_running_pods_and_the_stop_of_the_agent_are_recorded(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        await daemon.until(lambda: place.files.read_boot() is not None)
        boot = place.files.read_boot()
        assert boot is not None
        assert (boot.activity, [each.name for each in boot.pods]) == (LastActivity.WATCHING, ["web"])
        await daemon.end()
    boot = place.files.read_boot()
    assert boot is not None
    assert (boot.activity, [each.name for each in boot.pods]) == (LastActivity.AGENT_STOPPED, ["web"])


async def test_incomplete_shutdown_of_an_earlier_boot_is_reported(place: Place) -> None:
    pods = (
        StoppedPod("uid-web", "shop", "web", "priority-0", outcome=PodOutcome.STOPPED, took_ms=1),
        StoppedPod("uid-dns", "shop", "dns", "priority-1000"),
    )
    unfinished = NodeStop("22222222-0000", StopKind.SIGNAL, datetime.now(UTC), 1.0, 1500, pods=pods)
    place.files.write_stop(unfinished)
    async with daemon_on(place) as daemon:
        await daemon.until("shutdown_incomplete")
        (event,) = daemon.events("shutdown_incomplete")
        assert event["running"] == ["shop/dns"]
    assert place.history.read_stops() == (replace(unfinished, end=StopEnd.INCOMPLETE),)


async def test_shutdown_of_an_earlier_boot_that_the_history_lacks_is_added(place: Place) -> None:
    finished = NodeStop("22222222-0000", StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE)
    place.files.write_stop(finished)
    place.files.write_boot(BootRecord(finished.boot_id, LastActivity.GOING_DOWN, finished.started_at))
    async with daemon_on(place) as daemon:
        await ready(daemon)
        assert daemon.events("shutdown_incomplete") == []
    assert place.history.read_stops() == (finished,)
