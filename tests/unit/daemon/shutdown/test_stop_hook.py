"""The unit's stop command: it acts when the whole node goes down and nobody did, and never otherwise."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from nodeagent.clock import SystemClock
from nodeagent.config.models import Config
from nodeagent.config.policies import settings as settings_of
from nodeagent.daemon.shutdown.stop_hook import stop_pods_at_unit_stop
from nodeagent.host import kubelet_detection
from nodeagent.host.systemd import STOPPING, UnitStop
from nodeagent.model import PodOutcome
from nodeagent.model.node_stop import LastActivity, NodeStop, StopEnd, StopKind, StoppedPod
from nodeagent.sim.content import Layer
from nodeagent.sim.node import SimNode
from nodeagent.sim.server import SimServer
from nodeagent.store.shutdown import ShutdownFiles
from nodeagent.telemetry import logging as log
from tests.support.kubelet_tree import add_process, make_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodeagent.config.settings import Settings

BOOT = "11111111-0000"
IMAGE = "registry.test/app:v1"
DOWN = UnitStop(STOPPING, 60_000_000)


class Net:
    """A node with a web and a dns pod, and its stop command."""

    def __init__(self, directory: Path, server: SimServer) -> None:
        self.server = server
        self.files = ShutdownFiles(directory / "state")
        self.settings = self.configured(directory)
        self.stream = io.StringIO()
        for name, priority in (("web", "0"), ("dns", "2000")):
            notes = {"nodeagent.dev/priority": priority}
            sandbox = server.node.add_pod(name, namespace="shop", uid=f"uid-{name}", annotations=notes)
            server.node.add_container(sandbox, "main", IMAGE)

    def configured(self, directory: Path, **shutdown: Any) -> Settings:
        bands = [{"min_priority": 0, "seconds": 1.0}, {"min_priority": 1000, "seconds": 0.5}]
        return settings_of(
            Config.model_validate(
                {
                    "role": "standalone",
                    "runtime": {"endpoint": self.server.endpoint, "timeout": "1s"},
                    "state": {"directory": str(directory / "state")},
                    "shutdown": {"by_priority": bands, **shutdown},
                }
            )
        )

    async def stop(self, told: UnitStop = DOWN, settings: Settings | None = None) -> StopEnd | None:
        logger = log.configure("json", "debug", self.stream)
        return await stop_pods_at_unit_stop(settings or self.settings, logger, told, this_boot=BOOT)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.stream.getvalue().splitlines()]

    def stopped(self) -> list[str]:
        node = self.server.node
        return [
            node.sandboxes[node.containers[each].sandbox_id].name
            for each in self.server.faults.targets("StopContainer")
        ]


@pytest_asyncio.fixture
async def net(tmp_path: Path) -> AsyncIterator[Net]:
    node = SimNode()
    node.add_image(IMAGE, layers=[Layer("base", 1000)])
    async with SimServer(node, tmp_path / "cri.sock") as server:
        yield Net(tmp_path, server)


async def test_it_stops_the_pods_in_order_when_nobody_did(net: Net) -> None:
    assert await net.stop() is StopEnd.COMPLETE
    assert net.stopped() == ["web", "dns"]
    stop = net.files.read_stop()
    assert stop is not None
    assert (stop.kind, stop.end) == (StopKind.UNIT_STOP, StopEnd.COMPLETE)
    seen = net.files.read_boot()
    assert seen is not None
    assert seen.activity is LastActivity.GOING_DOWN


@pytest.mark.parametrize("state", ["running", "degraded", "starting", ""])
async def test_a_plain_stop_of_the_unit_touches_no_pod(net: Net, state: str) -> None:
    assert await net.stop(UnitStop(state)) is None
    assert net.server.calls == []


async def test_what_the_daemon_has_done_is_not_done_again(net: Net) -> None:
    net.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    assert await net.stop() is StopEnd.COMPLETE
    assert net.server.calls == []


async def test_it_waits_for_the_daemon_that_is_at_it(net: Net) -> None:
    net.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC)))
    with net.files.claim() as ours:
        assert ours
        assert await net.stop(UnitStop(STOPPING, 10_200_000)) is None
    assert net.server.calls == []
    assert net.events() == ["shutdown_delegated"]


async def test_it_goes_on_where_the_daemon_died(net: Net) -> None:
    pods = (
        StoppedPod("uid-web", "shop", "web", "priority-0", "", PodOutcome.STOPPED, 5, 10),
        StoppedPod("uid-dns", "shop", "dns", "priority-1000", "", PodOutcome.STOPPING, 20),
    )
    started_s = SystemClock().monotonic_s() - 3
    net.files.write_stop(NodeStop(BOOT, StopKind.SIGNAL, datetime.now(UTC), started_s, 1500, pods=pods))
    web = next(each for each in net.server.node.containers.values() if each.name == "main")
    net.server.node.exit_container(web)
    assert await net.stop() is StopEnd.COMPLETE
    assert net.stopped() == ["dns"]
    assert "shutdown_resumed" in net.events()


async def test_an_earlier_boot_s_shutdown_does_not_count(net: Net) -> None:
    net.files.write_stop(NodeStop("22222222-0000", StopKind.SIGNAL, datetime.now(UTC), end=StopEnd.COMPLETE))
    assert await net.stop() is StopEnd.COMPLETE
    assert net.stopped() == ["web", "dns"]


async def test_it_is_off_where_the_daemon_s_is(net: Net, tmp_path: Path) -> None:
    assert await net.stop(settings=net.configured(tmp_path, enabled="off")) is None
    assert net.server.calls == []


@pytest.mark.parametrize("enabled", ["auto", "on"])
async def test_pods_are_left_to_a_running_kubelet(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    root = make_node(tmp_path / "node")
    add_process(root, 812, "kubelet", ("/usr/bin/kubelet",))
    monkeypatch.setattr(kubelet_detection, "HOST_ROOT", root)
    assert await net.stop(settings=net.configured(tmp_path, enabled=enabled)) is None
    assert net.server.calls == []
    assert net.events() == ["role_contradiction", "shutdown_disabled"]


async def test_nothing_is_touched_in_a_dry_run(net: Net) -> None:
    assert await net.stop(settings=replace(net.settings, dry_run=True)) is None
    assert net.stopped() == []
    assert net.events().count("would_stop") == 2


async def test_a_short_time_to_stop_scales_the_phases(net: Net) -> None:
    hung = asyncio.Event()
    net.server.faults.delay("StopContainer", hung, times=None)
    assert await net.stop(UnitStop(STOPPING, 10_500_000)) is StopEnd.COMPLETE
    stop = net.files.read_stop()
    assert stop is not None
    assert stop.granted_ms <= 450
    assert {each.outcome for each in stop.pods} == {PodOutcome.FAILED}


@pytest.mark.parametrize("timeout_us", [0, 10_000_000])
async def test_no_time_to_stop_kills_no_pod(net: Net, timeout_us: int) -> None:
    assert await net.stop(UnitStop(STOPPING, timeout_us)) is None
    assert net.stopped() == []
    assert net.events() == ["shutdown_delegated"]


async def test_without_a_runtime_it_ends_in_time(net: Net) -> None:
    await net.server.stop()
    assert await net.stop() is StopEnd.COMPLETE
    assert "shutdown_pods_unavailable" in net.events()
