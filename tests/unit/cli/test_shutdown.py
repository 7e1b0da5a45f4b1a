"""``nodeagent shutdown`` as a process, with a simulated runtime and a simulated logind on a private bus."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import pytest_asyncio

from nodeagent.host.dbus import Bus, acquire_lock
from nodeagent.model.stops import NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.store.history import History, Retention
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.login1 import Login1

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.login1 import PrivateBus

ROOT = Path(__file__).parents[3]
IMAGE = "registry.test/app:v1"


class Ended(NamedTuple):
    code: int | None
    out: str
    err: str


class Node:
    """A node with a simulated logind and runtime, for successive commands."""

    def __init__(self, directory: Path, bus: PrivateBus, login1: Login1, server: SimServer) -> None:
        self.directory = directory
        self.bus = bus
        self.login1 = login1
        self.server = server
        self.config = directory / "config.toml"
        self.configure()

    def configure(self, shutdown: str = "") -> None:
        self.config.write_text(
            f'role = "standalone"\n[runtime]\nendpoint = "{self.server.endpoint}"\n'
            f'[state]\ndirectory = "{self.directory}/state"\n[shutdown]\n{shutdown}\n'
        )

    async def run(self, *words: str, bus: str | None = None, of: str = "shutdown") -> Ended:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodeagent", of, *words, "--config", str(self.config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus or self.bus.address, "COLUMNS": "200"},
        )
        out, err = await asyncio.wait_for(process.communicate(), 30)
        return Ended(process.returncode, out.decode(), err.decode())


@pytest_asyncio.fixture
async def node(private_bus: PrivateBus, tmp_path: Path) -> AsyncIterator[Node]:
    login1 = Login1(private_bus.address, tmp_path, limit_us=10_000_000)
    await login1.start()
    sim = SimNode()
    sim.add_image(IMAGE, layers=[Layer("base", 1000)])
    for name, namespace, priority in (("web", "shop", "0"), ("dns", "kube-system", "2000000000")):
        annotations = {"nodeagent.dev/priority": priority}
        sim.add_container(sim.add_pod(name, namespace=namespace, annotations=annotations), "main", IMAGE)
    async with SimServer(sim, tmp_path / "cri.sock") as server:
        yield Node(tmp_path, private_bus, login1, server)
    await login1.stop()


async def test_rehearsal_lists_phases_pods_and_sources(node: Node) -> None:
    ended = await node.run("--dry-run", "--output", "json")
    assert ended.code == 0, ended.err
    shown = json.loads(ended.out)
    assert (shown["schema"], shown["enabled"], shown["scaled"]) == ("nodeagent/shutdown/v1", True, True)
    assert (shown["limit"]["seconds"], shown["limit"]["reported_by"]) == (10.0, "logind")
    assert (shown["wanted_s"], shown["granted_s"]) == (30.0, 9.5)
    assert "scaled to 9.5s" in shown["warnings"][0]
    assert [(each["name"], [pod["name"] for pod in each["pods"]]) for each in shown["phases"]] == [
        ("ordinary", ["web"]),
        ("critical", ["dns"]),
    ]
    (web,) = shown["phases"][0]["pods"]
    assert (web["priority"], web["priority_source"]) == (0, "annotation nodeagent.dev/priority")
    assert {call.method for call in node.server.calls}.isdisjoint({"StopContainer", "StopPodSandbox"})


async def test_rehearsal_is_printed_as_a_table(node: Node) -> None:
    node.configure('enabled = "off"')
    ended = await node.run("--dry-run")
    assert ended.code == 0, ended.err
    assert 'disabled: shutdown.enabled = "off"; plan if graceful shutdown were enabled' in ended.out
    for part in ("shop/web", "kube-system/dns", "ordinary: 1 pod,", "all pods stopped after 9.5 s at most"):
        assert part in ended.out


async def test_limit_of_zero_is_reported(node: Node) -> None:
    node.login1.limit_us = 0
    async with Bus(node.bus.address, deadline_s=5) as bus:
        lock = await acquire_lock(bus, "nodeagent", "test")
        ended = await node.run("status", "-o", "json")
        table = await node.run("status")
        os.close(lock)
    shown = json.loads(ended.out)
    assert (ended.code, table.code) == (1, 1)
    assert (shown["inhibitor"]["held"], shown["stops_at_signal"], shown["limit"]["seconds"]) == (True, False, 0.0)
    assert "no pod is stopped at the signal" in shown["warnings"][0]
    assert "no pod is stopped at the signal" in table.out.replace("\n", " ")

    shown = json.loads((await node.run("--dry-run", "-o", "json")).out)
    assert (shown["granted_s"], shown["stops_at_signal"]) == (0.0, False)
    assert "no pod is stopped at the signal" in shown["warnings"][0]
    assert [pod["grace_s"] for phase in shown["phases"] for pod in phase["pods"]] == [20.0, 10.0]
    table = await node.run("--dry-run")
    assert "phases: 30 s requested, delegated to the unit's stop hook" in table.out


async def test_limit_is_read_from_the_files_without_logind(node: Node) -> None:
    ended = await node.run("--dry-run", "-o", "json", bus="unix:path=/nowhere")
    shown = json.loads(ended.out)
    assert shown["limit"]["reported_by"] == "files"
    assert any("cannot read logind" in each for each in shown["warnings"])


async def test_missing_dry_run_is_a_usage_error(node: Node) -> None:
    ended = await node.run()
    assert ended.code == 2
    assert "add --dry-run" in ended.err


@pytest.mark.parametrize("text", ['grace_period_critical = "40s"', "by_priority = [{min_priority = 1, seconds = -1}]"])
async def test_invalid_configuration_exits_with_2(node: Node, text: str) -> None:
    node.configure(text)
    for words in (("--dry-run",), ("status",)):
        ended = await node.run(*words)
        assert ended.code == 2
        assert str(node.config) in ended.err


async def test_status_shows_the_lock_and_the_last_stops(node: Node) -> None:
    pods = (StoppedPod("u1", "shop", "web", "ordinary", "", PodOutcome.KILLED, 5, 3000),)
    stop = NodeStop("b1", StopKind.SIGNAL, datetime(2026, 1, 10, tzinfo=UTC), 1.0, 9500, StopEnd.COMPLETE, pods=pods)
    ShutdownFiles(node.directory / "state").write_stop(stop)
    ended = await node.run("status", "-o", "json")
    assert ended.code == 1
    shown = json.loads(ended.out)
    assert (shown["schema"], shown["inhibitor"]["held"]) == ("nodeagent/shutdown-status/v1", False)
    assert "is the daemon running?" in shown["inhibitor"]["because"]
    (stop_shown,) = shown["stops"]
    assert (
        stop_shown["kind"],
        stop_shown["end"],
        stop_shown["pods"][0]["outcome"],
        stop_shown["pods"][0]["took_s"],
    ) == (
        "signal",
        "complete",
        "killed",
        3.0,
    )
    async with Bus(node.bus.address, deadline_s=5) as bus:
        lock = await acquire_lock(bus, "nodeagent", "test")
        ended = await node.run("status")
        os.close(lock)
    assert ended.code == 0, ended.err
    assert f"held: listed by logind (pid {os.getpid()})" in ended.out
    assert "killed" in ended.out


async def test_history_lists_stops_of_the_node(node: Node) -> None:
    stop = NodeStop("b1", StopKind.UNCLEAN, datetime.now(UTC), end=StopEnd.UNKNOWN)
    History(node.directory / "state").add_stop(stop, Retention(timedelta(days=1), 1 << 20), datetime.now(UTC))
    shown = json.loads((await node.run("-o", "json", of="history")).out)
    assert [(each["kind"], each["end"]) for each in shown["node_stops"]] == [("unclean", "unknown")]
    assert (await node.run(of="history")).out.splitlines()[1].split()[-3:] == ["unclean", "unknown", "0"]
    assert "node stop, unclean: unknown, 0 pods" in (await node.run("--details", of="history")).out


async def test_stop_hook_stops_no_pod_while_the_node_runs(node: Node) -> None:
    ended = await node.run("at-stop", "--unit", "nodeagent.service")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert node.server.calls == []
