"""The inhibitor task, with a simulated logind on a private bus and a simulated runtime."""

from __future__ import annotations

import asyncio
import io
import json
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from nodeagent.clock import SystemClock
from nodeagent.config.models import Config
from nodeagent.config.policies import settings as settings_of
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.loop_status import Activity, LoopStatuses
from nodeagent.daemon.pass_lock import PassLock
from nodeagent.daemon.shutdown.environment import HostServices, Intervals
from nodeagent.daemon.shutdown.stop_hook import stop_pods_at_unit_stop
from nodeagent.daemon.shutdown.task import InhibitorTask
from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus
from nodeagent.host.fdstore import DescriptorStore
from nodeagent.host.login1 import acquire_lock
from nodeagent.host.systemd import STOPPING, UnitStop
from nodeagent.model import PodOutcome, Role
from nodeagent.model.node_stop import BootRecord, LastActivity, NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.observe.node_role import RoleWatch
from nodeagent.sim.content import Layer
from nodeagent.sim.node import SimNode
from nodeagent.sim.server import SimServer
from nodeagent.store.history import History
from nodeagent.store.shutdown import ShutdownFiles
from nodeagent.telemetry import logging as log
from tests.support.login1 import Login1
from tests.unit.kubelet_double import KUBELET, NO_KUBELET, KubeletDouble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.config.settings import Settings
    from tests.support.login1 import PrivateBus

WITHIN_S = 10.0
BOOT = "11111111-0000"
QUICK = Intervals(retry_s=0.05, role_poll_s=0.05)
IMAGE = "registry.test/app:v1"
BANDS: list[dict[str, float]] = [{"min_priority": 0, "seconds": 1.0}, {"min_priority": 1000, "seconds": 0.5}]


class Store(DescriptorStore):
    """A descriptor store that copies descriptors as systemd does."""

    def __init__(self) -> None:
        super().__init__(environment={})
        self.number: int | None = None
        self.copies = 0

    def keep(self, number: int) -> bool:
        self.forget()
        self.number = os.dup(number)
        self.copies += 1
        return True

    def forget(self) -> bool:
        number, self.number = self.number, None
        if number is not None:
            os.close(number)
        return True


class LogindUnit:
    """logind's unit; restarts are counted."""

    def __init__(self) -> None:
        self.active = True
        self.restarts = 0
        self.refuse = False

    def runs_beside_the_bus(self) -> bool:
        return self.active

    def restart(self) -> None:
        self.restarts += 1
        if self.refuse:
            raise InhibitorError("not restarted")


class Place:
    """A node with a runtime, a logind and a state directory, for one daemon after another."""

    def __init__(self, directory: Path, bus: PrivateBus, login1: Login1, server: SimServer) -> None:
        self.directory = directory
        self.bus = bus
        self.login1 = login1
        self.server = server
        self.files = ShutdownFiles(directory / "state")
        self.history = History(directory / "state")
        self.store = Store()
        self.logind = LogindUnit()

    def settings(self, **shutdown: Any) -> Settings:
        dry_run = shutdown.pop("dry_run", False)
        return settings_of(
            Config.model_validate(
                {
                    "role": "standalone",
                    "dry_run": dry_run,
                    "runtime": {"endpoint": self.server.endpoint, "timeout": "1s"},
                    "state": {"directory": str(self.directory / "state")},
                    "shutdown": {"by_priority": BANDS, **shutdown},
                }
            )
        )

    def pod(self, name: str, priority: int | None = 0, **more: Any) -> str:
        """Run a pod with one container; return the container's id."""
        annotations = {} if priority is None else {"nodeagent.dev/priority": str(priority)}
        sandbox = self.server.node.add_pod(name, namespace="shop", uid=f"uid-{name}", annotations=annotations, **more)
        return self.server.node.add_container(sandbox, "main", IMAGE).id

    def running(self) -> set[str]:
        node = self.server.node
        return {node.sandboxes[each.sandbox_id].name for each in node.containers.values() if each.running}

    def recorded_end(self) -> StopEnd | None:
        """Return the end in the state file; ``None`` until the first write, which is asynchronous."""
        stop = self.files.read_stop()
        return None if stop is None else stop.end

    def last(self) -> NodeStop:
        stop = self.files.read_stop()
        assert stop is not None
        return stop

    def outcomes(self) -> dict[str, str]:
        stop = self.files.read_stop()
        return {each.name: each.outcome.value if each.outcome else "" for each in (stop.pods if stop else ())}


class Daemon:
    """The inhibitor task of one daemon, with its log."""

    def __init__(
        self,
        place: Place,
        settings: Settings,
        *,
        adopted: int | None = None,
        kubelet: KubeletDouble | None = None,
        intervals: Intervals | None = None,
    ) -> None:
        self.stream = io.StringIO()
        logger = log.configure("json", "debug", self.stream)
        clock = SystemClock()
        self.context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
        if kubelet is not None:
            self.context.roles = RoleWatch(kubelet.clock, logger, reader=kubelet)
        host = HostServices(place.bus.address, place.directory, place.store, place.logind, BOOT)
        self.inhibitor = InhibitorTask(self.context, host=host, adopted=adopted, intervals=intervals)
        self.directory = place.directory
        self.stop = asyncio.Event()
        self.task = asyncio.ensure_future(self.inhibitor.run(self.stop))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == name]

    async def until(self, target: str | Callable[[], object], times: int = 1) -> None:
        """Wait for an event in the log, or until a condition is true."""
        async with asyncio.timeout(WITHIN_S):
            while not (len(self.events(target)) >= times if isinstance(target, str) else target()):
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)  # the log has no waiters

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, WITHIN_S)

    async def kill(self) -> None:
        """End without a record on disk, as by SIGKILL."""
        self.inhibitor.recorder.files = ShutdownFiles(self.directory / "elsewhere")
        self.task.cancel()
        await asyncio.wait({self.task})


@pytest_asyncio.fixture
async def place(private_bus: PrivateBus, tmp_path: Path) -> AsyncIterator[Place]:
    login1 = Login1(private_bus.address, tmp_path)
    await login1.start()
    node = SimNode()
    node.add_image(IMAGE, layers=[Layer("base", 1000)])
    async with SimServer(node, tmp_path / "cri.sock") as server:
        yield Place(tmp_path, private_bus, login1, server)
    await login1.stop()


@asynccontextmanager
async def daemon_on(
    place: Place,
    *,
    settings: Settings | None = None,
    adopted: int | None = None,
    kubelet: KubeletDouble | None = None,
    intervals: Intervals | None = None,
) -> AsyncIterator[Daemon]:
    """Run a daemon on the node."""
    daemon = Daemon(place, settings or place.settings(), adopted=adopted, kubelet=kubelet, intervals=intervals)
    try:
        yield daemon
    finally:
        if not daemon.task.done():
            await daemon.end()
        place.store.forget()


async def ready(daemon: Daemon) -> None:
    await daemon.until("inhibitor_lock_acquired")
    await daemon.until("shutdown_ready")


# --- shutdowns


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
    assert killed.took_ms >= 1000


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


async def test_shorter_limit_scales_the_phases_and_names_the_file(place: Place) -> None:
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
async def test_limit_too_short_for_the_phases_stops_nothing_at_the_signal(place: Place, limit_us: int) -> None:
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
        assert place.login1.locks == []
        assert place.server.faults.count("StopContainer") == 0
        assert place.running() == {"web", "dns"}
        assert place.files.read_stop() is None
        (delegated,) = daemon.events("shutdown_delegated")
        assert "the unit's stop hook stops pods within TimeoutStopSec" in delegated["because"]

        unit_stop = UnitStop(STOPPING, 60_000_000)
        ended = await stop_pods_at_unit_stop(daemon.context.settings, daemon.context.logger, unit_stop, this_boot=BOOT)
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
        assert place.outcomes() == {"web": "stopping", "dns": ""}

        place.server.faults.clear()
        await place.login1.until(lambda: bool(place.login1.locks))
        await daemon.until(lambda: daemon.context.lock_held)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until(lambda: place.last().end is StopEnd.COMPLETE)
        assert place.outcomes() == {"web": "stopped", "dns": "stopped"}


async def test_complete_shutdown_is_recorded_as_cancelled_after_a_cancellation(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        other = await _other_lock(place)
        place.login1.request_shutdown()
        await daemon.until("shutdown_finished")
        place.login1.cancel_shutdown()
        os.close(other)
        await daemon.until("inhibitor_lock_acquired", times=2)
        await daemon.until(lambda: place.recorded_end() is StopEnd.CANCELLED)
        assert daemon.context.pass_lock.pause() is None
        assert place.store.number is not None


async def test_dry_run_stops_no_pod(place: Place) -> None:
    place.pod("web")
    async with daemon_on(place, settings=place.settings(dry_run=True)) as daemon:
        await ready(daemon)
        place.login1.request_shutdown()
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_rehearsed")
        assert [each["pod"] for each in daemon.events("would_stop")] == ["shop/web"]
        assert place.running() == {"web"}
        assert place.server.faults.count("StopContainer") == 0


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


async def test_shutdown_is_left_in_progress_when_the_daemon_stops(place: Place) -> None:
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
async def test_logind_that_lost_the_bus_is_restarted_once(
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


async def test_missing_bus_is_reported_in_log_and_loop_status(place: Place) -> None:
    place.bus.stop()
    async with daemon_on(place) as daemon:
        await daemon.until("inhibitor_lock_missing")
        (line,) = daemon.context.loop_statuses.all
        assert (line.name, line.activity) == ("shutdown", Activity.PAUSED)
        assert line.reason.startswith("inhibitor lock not held:")


class BrokenStatuses(LoopStatuses):
    def waiting(self, name: str, wait_s: float, slack_s: float) -> None:
        raise RuntimeError("a bug", name, wait_s, slack_s)


async def test_exception_in_a_session_does_not_end_the_task(place: Place) -> None:
    async with daemon_on(place) as daemon:
        daemon.context.loop_statuses = BrokenStatuses(daemon.context.clock)
        await daemon.until("inhibitor_task_crashed")
        assert not daemon.task.done()


# --- settings


async def test_disabled_shutdown_closes_an_adopted_lock(place: Place) -> None:
    reader, writer = os.pipe()
    async with daemon_on(place, settings=place.settings(enabled="off"), adopted=writer) as daemon:
        await daemon.until("shutdown_disabled")
        (line,) = daemon.context.loop_statuses.all
        assert (line.activity, line.reason) == (Activity.DISABLED, "it is not enabled")
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


async def test_lock_is_released_when_a_kubelet_starts_and_acquired_after_it_left(place: Place) -> None:
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


# --- stops without a signal


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


async def test_shutdown_cut_short_in_an_earlier_boot_is_reported(place: Place) -> None:
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


async def _other_lock(place: Place) -> int:
    """Acquire the lock of another process, so that logind waits on."""
    async with Bus(place.bus.address, deadline_s=WITHIN_S) as bus:
        lock = await acquire_lock(bus, "other", "test")
        assert lock.number is not None
        return os.dup(lock.number)
