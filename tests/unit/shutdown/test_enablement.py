"""Inhibitor task at enablement and disablement of graceful shutdown."""

from __future__ import annotations

import os

import pytest

from nodeagent.loops.passes import Activity, Pause, PausedBy
from nodeagent.model.node import Role
from tests.unit.kubelet_double import KUBELET, NO_KUBELET, KubeletDouble
from tests.unit.shutdown.inhibitor_node import (
    QUICK,
    Place,
    daemon_on,
    ready,
)


async def test_disabled_shutdown_closes_an_adopted_lock(place: Place) -> None:
    reader, writer = os.pipe()
    async with daemon_on(place, settings=place.settings(enabled="off"), adopted=writer) as daemon:
        await daemon.until("shutdown_disabled")
        (line,) = daemon.context.loop_statuses.all
        assert (line.activity, line.reason) == (Activity.DISABLED, 'shutdown.enabled = "off"')
        assert os.read(reader, 1) == b""
        assert place.login1.calls == []
    os.close(reader)


async def test_shutdown_is_refused_beside_a_kubelet_even_if_configured_on(place: Place) -> None:
    settings = place.settings()
    assert settings.shutdown.off_because(Role.STANDALONE) == ""
    assert "kubelet" in settings.shutdown.off_because(Role.BESIDE_KUBELET)
    reader, writer = os.pipe()
    on = place.settings(enabled="on")
    async with daemon_on(place, settings=on, adopted=writer, kubelet=KubeletDouble(KUBELET)) as daemon:
        await daemon.until("shutdown_disabled")
        (event,) = daemon.events("shutdown_disabled")
        assert event["level"] == "warning"
        assert event["because"].startswith('shutdown.enabled = "on" is refused: a kubelet manages this node')
        assert os.read(reader, 1) == b""
        assert place.login1.calls == []
    os.close(reader)


async def test_lock_is_released_at_the_start_of_a_kubelet_and_acquired_after_its_removal(place: Place) -> None:
    kubelet = KubeletDouble()
    async with daemon_on(place, kubelet=kubelet, intervals=QUICK) as daemon:
        await ready(daemon)
        kubelet.set(KUBELET)
        await daemon.until("shutdown_disabled")
        await place.login1.until(lambda: place.login1.locks == [])
        assert place.store.number is None
        assert daemon.context.lock_held is None
        (event,) = daemon.events("inhibitor_lock_released")
        assert "kubelet process 812" in event["because"]
        (line,) = daemon.context.loop_statuses.all
        assert (line.activity, "kubelet process 812" in line.reason) == (Activity.DISABLED, True)
        kubelet.set(NO_KUBELET)
        kubelet.set(NO_KUBELET, 5)
        assert len(daemon.events("inhibitor_lock_acquired")) == 1
        await daemon.until(lambda: "absent for" in line.reason)
        kubelet.set(NO_KUBELET, 300)
        await daemon.until("inhibitor_lock_acquired", 2)


async def test_signal_right_after_the_start_of_a_kubelet_stops_no_pod(place: Place) -> None:
    place.pod("web")
    kubelet = KubeletDouble()
    async with daemon_on(place, kubelet=kubelet) as daemon:
        await ready(daemon)
        kubelet.set(KUBELET)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_disabled")
        await daemon.until(lambda: daemon.context.pass_lock.pause() is None)
    assert place.server.faults.count("StopContainer") == 0
    assert place.running() == {"web"}


async def test_kubelet_that_starts_during_a_shutdown_does_not_interrupt_it(place: Place) -> None:
    web, dns = place.pod("web"), place.pod("dns", 2000)
    place.server.faults.delay("StopContainer", target=web)
    kubelet = KubeletDouble()
    async with daemon_on(place, kubelet=kubelet, intervals=QUICK) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await daemon.until("shutdown_started")
        kubelet.set(KUBELET)
        await daemon.until("shutdown_finished")
    assert place.running() == set()
    assert set(place.server.faults.targets("StopContainer")) == {web, dns}


async def test_reload_that_disables_shutdown_releases_the_lock(place: Place) -> None:
    async with daemon_on(place) as daemon:
        await ready(daemon)
        daemon.context.settings = place.settings(enabled="off")
        daemon.inhibitor.wake.set()
        await daemon.until("shutdown_disabled")
        await place.login1.until(lambda: place.login1.locks == [])
        assert place.store.number is None


@pytest.mark.parametrize("reason", ["off", "dry-run", "paused", "kubelet"])
async def test_agent_that_stops_no_pod_takes_no_part_in_a_shutdown(place: Place, reason: str) -> None:
    place.pod("web")
    settings = place.settings(enabled="off" if reason == "off" else "auto", dry_run=reason == "dry-run")
    kubelet = KubeletDouble(KUBELET) if reason == "kubelet" else None
    async with daemon_on(place, settings=settings, kubelet=kubelet, intervals=QUICK) as daemon:
        if reason == "paused":
            daemon.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
        await daemon.until("shutdown_disabled")
        await daemon.until(lambda: place.slices.changes and not place.slices.exempted)
        await place.login1.until(lambda: place.login1.locks == [])
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        assert (place.store.number, daemon.context.lock_held) == (None, None)
    assert place.running() == {"web"}
    assert place.files.read_stop() is None
    assert not place.slices.exempted


async def test_slices_are_exempt_while_the_daemon_will_stop_the_pods(place: Place) -> None:
    async with daemon_on(place, intervals=QUICK) as daemon:
        await ready(daemon)
        assert place.slices.exempted
        daemon.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "maintenance"))
        await daemon.until(lambda: not place.slices.exempted)
        daemon.context.pass_lock.end_pause(PausedBy.OPERATOR)
        await daemon.until(lambda: place.slices.exempted)
        await daemon.end()
        assert not place.slices.exempted, "restored by a daemon that ends in order"


async def test_slices_remain_exempt_after_a_crash(place: Place) -> None:
    async with daemon_on(place) as daemon:
        await ready(daemon)
        await daemon.kill()
    assert place.slices.exempted


async def test_slices_that_cannot_be_changed_are_reported(place: Place) -> None:
    place.slices.refuse = True
    async with daemon_on(place) as daemon:
        await ready(daemon)
        assert daemon.events("shutdown_warning")[0]["note"] == "cannot write the drop-in"
