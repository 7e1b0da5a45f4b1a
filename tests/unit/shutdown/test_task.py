"""Node shutdowns with the inhibitor task, a simulated logind on a private bus and a simulated runtime."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.systemd import STOPPING, UnitStop
from nodeagent.model.stops import LastActivity, PodOutcome, StopEnd, StopKind
from nodeagent.shutdown import session
from nodeagent.shutdown.environment import Enablement, read_enablement
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.shutdown.stop_hook import stop_pods_at_unit_stop
from nodeagent.units import SystemClock
from tests.unit.shutdown.inhibitor_node import (
    BOOT,
    QUICK,
    Place,
    daemon_on,
    other_lock,
    ready,
)

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.model.stops import BootRecord, NodeStop


async def test_pods_are_stopped_in_order_and_the_lock_is_released(place: Place) -> None:
    web, dns = place.pod("web"), place.pod("dns", 2000)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        assert place.store.copies == 1
        assert daemon.context.lock_held
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        assert daemon.context.pass_lock.pause() is not None
        await daemon.until("shutdown_finished")
        await daemon.until(lambda: place.server.faults.count("StopPodSandbox") == 2)
        assert place.server.faults.targets("StopContainer") == (web, dns)
        assert place.running() == set()
        assert place.store.number is None
    stop = place.last()
    assert (stop.boot_id, stop.kind, stop.end, stop.dry_run) == (BOOT, StopKind.SIGNAL, StopEnd.COMPLETE, False)
    assert [(each.name, each.phase, each.outcome) for each in stop.pods] == [
        ("web", "priority-0", PodOutcome.STOPPED),
        ("dns", "priority-1000", PodOutcome.STOPPED),
    ]
    assert place.history.read_stops() == (stop,)
    boot = place.files.read_boot()
    assert boot is not None
    assert (boot.boot_id, boot.activity) == (BOOT, LastActivity.GOING_DOWN)
    logged = [(each["pod"], each["outcome"], each["phase"]) for each in daemon.events("pod_stopped")]
    assert logged == [("shop/web", "stopped", "priority-0"), ("shop/dns", "stopped", "priority-1000")]
    assert daemon.events("pod_stopped")[0]["why"] == "priority 0 (annotation nodeagent.dev/priority)"


async def test_shutdown_without_a_writable_state_directory_is_recorded_for_the_stop_hook(place: Place) -> None:
    (place.directory / "state").write_text("")
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
        await daemon.end()
    assert place.outcomes() == {"web": "stopped"}
    assert place.recorded_end() is StopEnd.COMPLETE


async def test_pod_that_ignores_the_signal_is_killed_at_the_end_of_its_phase(place: Place) -> None:
    stubborn, dns = place.pod("stubborn"), place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=stubborn)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
    assert place.outcomes() == {"stubborn": "killed", "dns": "stopped"}
    assert place.server.faults.count("StopContainer", stubborn) == 2
    assert place.server.faults.count("StopContainer", dns) == 1
    (killed,) = [each for each in place.last().pods if each.name == "stubborn"]
    assert killed.took_ms is not None
    assert killed.requested_at_ms + killed.took_ms >= 1000


async def test_shutdown_begins_at_the_signal_and_not_at_the_first_stop_request(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled, proceed = asyncio.Event(), asyncio.Event()

    async def slow(context: DaemonContext, *, max_age_s: float = 0.0) -> Enablement:
        if context.pass_lock.pause() is not None:
            signalled.set()
            await proceed.wait()
        return await read_enablement(context, max_age_s=max_age_s)

    monkeypatch.setattr(session, "read_enablement", slow)
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await signalled.wait()
        at_s = daemon.context.clock.monotonic_s()
        proceed.set()
        await daemon.until("shutdown_finished")
    assert place.last().started_s <= at_s, "the delay of logind starts at its signal"
    assert place.outcomes() == {"web": "stopped"}


class SteppedClock(SystemClock):
    """System clock with a wall time offset set by the test."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


@pytest.mark.parametrize("step", [timedelta(days=400), timedelta(days=-400)], ids=["forward", "backward"])
async def test_step_of_the_wall_time_changes_neither_outcomes_nor_durations(place: Place, step: timedelta) -> None:
    clock = SteppedClock()
    web = place.pod("web")
    place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=web)
    async with daemon_on(place, clock=clock) as daemon:
        await ready(daemon)
        began_s = clock.monotonic_s()
        place.login1.request_shutdown()
        await place.server.faults.arrival("StopContainer")
        clock.ahead = step
        place.server.faults.clear()
        await daemon.until("shutdown_finished")
        (finished,) = daemon.events("shutdown_finished")
    assert 0 <= finished["seconds"] <= clock.monotonic_s() - began_s
    assert all(0 <= (each.took_ms or 0) <= finished["seconds"] * 1000 + 1 for each in place.last().pods)


async def test_call_without_an_answer_does_not_delay_the_release(place: Place) -> None:
    hung = place.pod("hung")
    place.server.faults.delay("StopContainer", target=hung, times=None)
    place.login1.limit_us = 2_000_000
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
        assert place.login1.locks == []
    assert place.outcomes() == {"hung": "failed"}


async def test_lock_is_released_without_a_runtime(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        await place.server.stop()
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
        assert place.login1.locks == []
    assert place.outcomes() == {"web": "failed"}


async def test_shorter_limit_scales_the_phases_with_a_warning_that_names_the_file(place: Place) -> None:
    drop_in = place.directory / "etc/systemd/logind.conf.d/30-unattended-upgrades.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Login]\nInhibitDelayMaxSec=1\n")
    place.login1.limit_us = 1_000_000
    async with daemon_on(place) as daemon:
        await daemon.until("shutdown_warning")
        (note,) = daemon.events("shutdown_warning")
        assert str(drop_in) in note["note"]
        assert daemon.events("shutdown_ready")[0]["phases"] == {"priority-0": 0.6, "priority-1000": 0.3}


@pytest.mark.parametrize("limit_us", [0, 1, 999, 400_000, 1_000_000])
async def test_no_pod_is_stopped_at_the_signal_if_the_limit_is_too_short(place: Place, limit_us: int) -> None:
    web, dns = place.pod("web"), place.pod("dns", 2000)
    place.login1.limit_us = limit_us
    async with daemon_on(place) as daemon:
        await ready(daemon)
        (ready_,) = daemon.events("shutdown_ready")
        assert ready_["at_signal"] is False
        (note,) = daemon.events("shutdown_warning")
        assert "no pod is stopped at the signal" in note["note"]
        assert note["hint"] == "nodeagent doctor --fix-logind"
        await daemon.until(lambda: any(note["note"] == each.reason for each in daemon.context.loop_statuses.all))
        place.login1.request_shutdown()
        await daemon.until("inhibitor_lock_released")
        await place.login1.until(lambda: place.login1.executed == 1)
        await place.login1.until(lambda: not place.login1.locks)
        assert place.server.faults.count("StopContainer") == 0
        assert place.running() == {"web", "dns"}
        assert place.files.read_stop() is None
        (delegated,) = daemon.events("shutdown_delegated")
        assert "the unit's stop hook stops pods within TimeoutStopSec" in delegated["because"]

        unit_stop = UnitStop(STOPPING, 60_000_000)
        ended = await stop_pods_at_unit_stop(
            daemon.context.settings,
            daemon.context.logger,
            unit_stop,
            this_boot=BOOT,
            runtime_directory=place.directory / "run",
        )
        assert ended is StopEnd.COMPLETE
    assert place.server.faults.targets("StopContainer") == (web, dns)
    assert place.outcomes() == {"web": "stopped", "dns": "stopped"}
    assert place.last().kind is StopKind.UNIT_STOP


async def test_infinite_limit_grants_the_configured_time(place: Place) -> None:
    place.pod("web")
    place.login1.limit_us = 2**64 - 1
    async with daemon_on(place) as daemon:
        await ready(daemon)
        (ready_,) = daemon.events("shutdown_ready")
        assert (ready_["granted_s"], ready_["limit_s"], ready_["at_signal"]) == (1.5, None, True)
        assert daemon.events("shutdown_warning") == []


async def test_negative_limit_is_reported_as_a_missing_lock(place: Place) -> None:
    place.login1.limit_type, place.login1.limit_us = "x", -1
    async with daemon_on(place) as daemon:
        await daemon.until("inhibitor_lock_missing")
        assert daemon.events("inhibitor_lock_missing")[-1]["because"] == "invalid InhibitDelayMaxUSec of logind: -1"
        assert daemon.events("inhibitor_task_crashed") == []


async def test_pods_are_not_listed_at_every_retry_without_the_lock(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.login1.limit_type, place.login1.limit_us = "x", -1
    async with daemon_on(place, intervals=QUICK) as daemon:
        polls, paused = list[str](), daemon.context.loop_statuses.paused

        def count(name: str, because: str, wait_s: float) -> None:
            polls.append(name)
            paused(name, because, wait_s)

        monkeypatch.setattr(daemon.context.loop_statuses, "paused", count)
        await daemon.until(lambda: len(polls) >= 4)
        listed = [each for each in place.server.calls if each.method == "ListPodSandbox"]
    assert len(listed) == 1


async def test_lock_is_acquired_after_the_cancellation_of_a_delegated_shutdown(place: Place) -> None:
    place.pod("web")
    place.login1.limit_us = 0
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until("inhibitor_lock_released")
        place.login1.limit_us = 60_000_000
        place.login1.cancel_shutdown()
        await daemon.until("inhibitor_lock_acquired", times=2)
        await daemon.until("shutdown_ready", times=2)
        assert daemon.context.pass_lock.pause() is None
        await daemon.until(lambda: daemon.context.lock_held)
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
    assert place.outcomes() == {"web": "stopped"}


async def test_cancelled_shutdown_is_recorded_and_the_next_one_stops_the_pods(place: Place) -> None:
    web = place.pod("web")
    place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=web)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.server.faults.arrival("StopContainer")
        place.login1.cancel_shutdown()
        await daemon.until("shutdown_cancelled")
        await daemon.until("inhibitor_lock_acquired", times=1)
        await daemon.until(lambda: place.recorded_end() is StopEnd.CANCELLED)
        assert daemon.context.pass_lock.pause() is None
        assert place.running() == {"web", "dns"}
        assert place.outcomes() == {"web": "failed", "dns": ""}

        place.server.faults.clear()
        await place.login1.until(lambda: bool(place.login1.locks))
        await daemon.until(lambda: daemon.context.lock_held)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until(lambda: place.last().end is StopEnd.COMPLETE)
        assert place.outcomes() == {"web": "stopped", "dns": "stopped"}


async def test_shutdown_is_on_disk_before_the_record_of_running_pods_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ShutdownFiles.write_boot
    at_replacement: list[NodeStop | None] = []

    def write_boot(files: ShutdownFiles, record: BootRecord) -> None:
        if record.activity is LastActivity.GOING_DOWN:
            at_replacement.append(files.read_stop())
        write(files, record)

    monkeypatch.setattr(ShutdownFiles, "write_boot", write_boot)
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
    (found,) = at_replacement
    assert found is not None, "after a crash, a new daemon reads the pods from one of the two files"
    assert [each.name for each in found.pods] == ["web"]


async def test_last_of_several_announcements_in_a_row_decides(place: Place) -> None:
    web = place.pod("web")
    place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=web)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.server.faults.arrival("StopContainer")
        place.server.faults.clear()
        for _ in range(3):
            place.login1.cancel_shutdown()
            place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until(lambda: place.recorded_end() is StopEnd.COMPLETE)
    assert place.outcomes() == {"web": "stopped", "dns": "stopped"}
    assert place.running() == set()


@pytest.mark.parametrize("lost", ["bus", "logind"])
async def test_loss_of_the_bus_or_logind_during_a_shutdown_interrupts_no_phase(place: Place, lost: str) -> None:
    web = place.pod("web")
    place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=web)
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.server.faults.arrival("StopContainer")
        if lost == "bus":
            place.bus.stop()
        else:
            await place.login1.stop()
        await daemon.until("inhibitor_lock_lost")
        place.server.faults.clear()
        await daemon.until("shutdown_finished")
        assert place.last().end is StopEnd.COMPLETE
        if lost == "bus":
            place.bus.start()
    assert place.outcomes()["dns"] == "stopped"
    assert place.running() == set()


async def test_cancellation_during_the_last_write_of_a_shutdown_is_the_recorded_end(place: Place) -> None:
    place.pod("web")
    other_end = threading.Event()
    async with daemon_on(place) as daemon:
        await ready(daemon)
        other = await other_lock(place)
        close = daemon.inhibitor.recorder.close

        def slow_close(stop: NodeStop) -> None:
            if stop.end is StopEnd.COMPLETE:
                other_end.wait(0.5)
                close(stop)
            else:
                close(stop)
                other_end.set()

        daemon.inhibitor.recorder.close = slow_close  # type: ignore[method-assign]
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
        place.login1.cancel_shutdown()
        os.close(other)
        await daemon.until(other_end.is_set)
    assert place.recorded_end() is StopEnd.CANCELLED


async def test_complete_shutdown_is_recorded_as_cancelled_after_a_cancellation(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        other = await other_lock(place)
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
        place.login1.cancel_shutdown()
        os.close(other)
        await daemon.until("inhibitor_lock_acquired", times=2)
        await daemon.until(lambda: place.recorded_end() is StopEnd.CANCELLED)
        assert daemon.context.pass_lock.pause() is None
        assert place.store.number is not None
