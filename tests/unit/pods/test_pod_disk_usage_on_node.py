"""Pod disk usage read on a simulated node: directory walks, writable layers, failures."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nodeagent.host.pod_disk import PodDiskWalk
from nodeagent.model.pressure import Footprint
from nodeagent.model.runtime import ContainerState
from tests.unit.pods.pod_node import IMAGE, MIB, Node, facts_of


@pytest.mark.difference("disk-usage-measured")
async def test_disk_usage_is_measured_on_request(node: Node) -> None:
    sandbox = node.sim.add_pod("web")
    node.sim.add_container(sandbox, "app", IMAGE, writable_bytes=3 * MIB)
    node.sim.add_container(sandbox, "old", IMAGE, state=ContainerState.EXITED, writable_bytes=MIB)
    log = node.root / "logs" / sandbox.log_directory_name / "app/0.log"
    data = node.root / "kubelet/pods" / sandbox.uid / "volumes/kubernetes.io~empty-dir/cache/data"
    for path in (log, data):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * MIB)
    node.sim.pod_log_root = str(node.root / "logs")
    reader = node.reader()
    assert facts_of(await reader.read(), "web").empty_dirs == ()
    facts = facts_of(await reader.read(with_disk=True), "web")
    assert facts.usage is not None
    logs, cache = log.stat().st_blocks * 512, data.stat().st_blocks * 512
    app_bytes, old_bytes = 3 * MIB + 20480, MIB + 20480
    assert facts.usage.writable == Footprint(app_bytes + old_bytes, 16)
    assert facts.usage.logs == Footprint(logs, 1)
    assert facts.usage.volumes == Footprint(cache, 1)
    assert facts.usage.ephemeral_bytes == app_bytes + logs + cache  # restarts do not accumulate usage
    assert [(each.name, each.used_bytes) for each in facts.empty_dirs] == [("cache", cache)]
    (app,) = facts.containers
    assert (app.writable_bytes, app.logs_bytes) == (app_bytes, logs)


async def test_measured_writable_layer_replaces_the_runtimes_statistics(node: Node) -> None:
    sandbox = node.sim.add_pod("web")
    app = node.sim.add_container(sandbox, "app", IMAGE, writable_bytes=MIB)
    upper = node.root / "snapshots/7/fs"
    upper.mkdir(parents=True)
    (upper / "data").write_bytes(b"x" * (5 * MIB))
    mounts = node.root / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True, exist_ok=True)
    mounts.write_text(f"9 1 0:9 / /run/task/{app.id}/rootfs rw - overlay overlay rw,upperdir={upper},workdir=/w\n")
    facts = facts_of(await node.reader().read(with_disk=True), "web")
    assert facts.usage is not None
    assert facts.usage.writable == Footprint((upper / "data").stat().st_blocks * 512, 1)
    node.server.faults.fail("ListContainerStats")
    facts = facts_of(await node.reader().read(with_disk=True), "web")
    assert facts.containers[0].writable_bytes == (upper / "data").stat().st_blocks * 512


async def test_result_of_an_abandoned_walk_is_discarded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = node.sim.add_pod("web")
    node.sim.add_container(sandbox, "app", IMAGE)
    node.sim.pod_log_root = str(node.root / "logs")
    log = node.root / "logs" / sandbox.log_directory_name / "app/0.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"")
    started, release = threading.Event(), threading.Event()

    def slowly(walk: PodDiskWalk, until_s: float) -> bool:
        ended = advance(walk, until_s)
        started.set()
        release.wait(20)
        return ended

    advance = PodDiskWalk.advance
    monkeypatch.setattr(PodDiskWalk, "advance", slowly)
    reader = node.reader()
    interrupted = asyncio.ensure_future(reader.read(with_disk=True))
    assert await asyncio.to_thread(started.wait, 20)
    interrupted.cancel()
    await asyncio.wait({interrupted})
    release.set()
    log.write_bytes(b"x" * MIB)
    facts = facts_of(await reader.read(with_disk=True), "web")
    assert facts.usage is not None
    assert facts.usage.logs == Footprint(log.stat().st_blocks * 512, 1)


async def test_failed_walk_is_reported_and_repeated(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.pod("web")
    reader = node.reader()
    with monkeypatch.context() as patch:
        patch.setattr(PodDiskWalk, "advance", lambda *_: 1 / 0)
        inventory = await reader.read(with_disk=True)
    assert (
        inventory.warnings[0] == "cannot measure the disk usage of default/web: ZeroDivisionError('division by zero')"
    )
    usage = facts_of(await reader.read(with_disk=True), "web").usage
    assert usage is not None
    assert usage.logs == Footprint(0, 0)


async def test_hanging_directory_hides_only_the_usage_of_its_pod(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sim.pod_log_root = str(node.root / "logs")
    logs = {name: node.root / "logs" / node.pod(name).log_directory_name / "c0" for name in ("dead", "web")}
    for each in logs.values():
        each.mkdir(parents=True)
        (each / "0.log").write_bytes(b"x" * MIB)
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.2)
    monkeypatch.setattr("nodeagent.pods.usage.HANGS_S", 0.2)
    release, calls = threading.Event(), []

    def hang(walk: PodDiskWalk, until_s: float) -> bool:
        if "_dead_" in walk.name:
            calls.append(walk)
            release.wait(20)
        return advance(walk, until_s)

    advance = PodDiskWalk.advance
    monkeypatch.setattr(PodDiskWalk, "advance", hang)
    reader = node.reader()
    for _ in range(3):
        inventory = await reader.read(with_disk=True)
        used = {each.name: each.usage.logs for each in inventory.facts if each.usage is not None}
        assert used == {"dead": Footprint(), "web": Footprint((logs["web"] / "0.log").stat().st_blocks * 512, 1)}
        assert inventory.warnings == ("pod disk usage is incomplete for default/dead: a directory does not answer",)
    assert len(calls) == 1
    release.set()


async def test_missing_container_statistics_leave_writable_layers_unknown(node: Node) -> None:
    node.pod("web")
    node.server.faults.fail("ListContainerStats")
    inventory = await node.reader().read(with_disk=True)
    usage = facts_of(inventory, "web").usage
    assert usage is not None
    assert (usage.writable, usage.memory_bytes) == (Footprint(), 250 * MIB)
    (warning,) = inventory.warnings
    assert warning.startswith("container statistics unavailable: ")
