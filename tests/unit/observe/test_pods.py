"""Pod reader on a simulated node, with cgroups in files and a runtime behind a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import ObservationError, RuntimeUnavailableError
from nodeagent.host.pod_disk import PodDiskWalk
from nodeagent.model import ContainerState, Role, Sandbox
from nodeagent.model.kubelet_access import KubeletAccess
from nodeagent.model.pods import PodSpec, RuntimePod
from nodeagent.model.pressure import Fact, FactSource, Footprint, QosClass
from nodeagent.observe.pod_cgroups import PodCgroups
from nodeagent.observe.pod_details import RuntimeDetails
from nodeagent.observe.pods import PodReader, PodSettings
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.eviction.protection import Protection
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from nodeagent.sim import workload
from nodeagent.sim.content import Layer
from nodeagent.sim.node import SimNode
from nodeagent.sim.server import SimServer
from tests.support.kernel_tree import GIB, add_cgroup, make_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime
    from pathlib import Path

    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import PodFacts
    from nodeagent.sim.workload import SimSandbox

MIB = 1 << 20
IMAGE = "registry.example/app:v1"
BURSTABLE, GUARANTEED, BEST_EFFORT = (
    workload.QosClass.BURSTABLE,
    workload.QosClass.GUARANTEED,
    workload.QosClass.BEST_EFFORT,
)


class Clock:
    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.at_s = 100.0

    def now(self) -> datetime:
        return self.node.now

    def monotonic_s(self) -> float:
        return self.at_s


@dataclass
class Lister:
    """A kubelet that lists pods, fails, or waits for ``gate``."""

    pods: list[PodSpec] = field(default_factory=list)
    error: str = ""
    gate: asyncio.Event | None = None
    reads: int = 0

    async def read(self) -> tuple[PodSpec, ...]:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error:
            raise ObservationError(self.error)
        return tuple(self.pods)


@dataclass
class Node:
    """A simulated node behind a socket."""

    sim: SimNode
    server: SimServer
    cri: CriClient
    root: Path
    clock: Clock
    calls: Counter[str]

    def reader(
        self,
        *,
        role: Role = Role.STANDALONE,
        kubelet: Lister | None = None,
        access: KubeletAccess | None = None,
        **more: Any,
    ) -> PodReader:
        more["kubelet"] = access
        settings = PodSettings(
            role, node_name="node-1", pod_log_root=self.root / "logs", kubelet_root=self.root / "kubelet", **more
        )
        return PodReader(self.cri, settings=settings, clock=self.clock, kubelet=kubelet, root=self.root)

    def pod(self, name: str, qos: workload.QosClass = BURSTABLE, *, containers: int = 1, **fields: Any) -> SimSandbox:
        """Run a pod in its own cgroup: 300 MiB, 50 of them inactive, and 100 MiB in each container."""
        sandbox = self.sim.add_pod(name, qos=qos, **fields)
        path = sandbox.cgroup_parent
        add_cgroup(self.root, path, memory_bytes=300 * MIB, inactive_bytes=50 * MIB, swap_bytes=MIB, pids=9)
        for number in range(containers):
            made = self.sim.add_container(sandbox, f"c{number}", IMAGE, memory_limit_bytes=64 * MIB)
            add_cgroup(self.root, f"{path}/{made.id}", memory_bytes=100 * MIB, pids=4)
        return sandbox


@pytest.fixture(params=["1.7"])
async def node(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: Any) -> AsyncIterator[Node]:
    make_tree(tmp_path, memory_bytes=16 * GIB)
    sim = SimNode(memory_bytes=16 * GIB)
    sim.root_path = str(tmp_path)
    sim.add_image(IMAGE, layers=[Layer("base", MIB)])
    calls: Counter[str] = Counter()
    socket = tmp_path_factory.mktemp("s") / "s"

    def observe(method: str, _seconds: float, _status: str) -> None:
        calls[method] += 1

    async with (
        SimServer(sim, socket, profile=request.param) as server,
        RuntimeConnection(server.endpoint, observer=observe) as connection,
    ):
        yield Node(sim, server, CriClient(connection), tmp_path, Clock(sim), calls)


def facts_of(inventory: PodInventory, name: str) -> PodFacts:
    (found,) = (each for each in inventory.facts if each.name == name)
    return found


def kept(inventory: PodInventory, name: str) -> str | None:
    reason = Protection(inventory.facts, EvictionPolicy()).keep_reason(facts_of(inventory, name))
    return None if reason is None else reason.code.value


@pytest.mark.parametrize("node", ["1.6", "1.7", "2.1", "cri-o"], indirect=True)
async def test_pod_facts_are_complete_on_every_runtime(node: Node) -> None:
    web = node.pod("web", containers=2)
    node.pod("db", GUARANTEED)
    node.pod("batch", BEST_EFFORT)
    node.pod("etcd", source="file")
    critical = node.sim.add_pod("proxy", qos=BURSTABLE)
    node.sim.add_container(critical, "c0", IMAGE, oom_score_adj=-997)
    inventory = await node.reader(annotation_namespaces=frozenset({"default"})).read()
    assert inventory.warnings == ()
    assert {each.name: each.qos.value for each in inventory.facts} == {
        "web": QosClass.BURSTABLE,
        "db": QosClass.GUARANTEED,
        "batch": QosClass.BEST_EFFORT,
        "etcd": QosClass.BURSTABLE,
        "proxy": QosClass.BURSTABLE,
    }
    assert {each.qos.source for each in inventory.facts} == {FactSource.CGROUP}
    assert {name: kept(inventory, name) for name in ("web", "db", "batch", "etcd", "proxy")} == {
        "web": None,
        "db": None,
        "batch": None,
        "etcd": "static-pod",
        "proxy": None,
    }
    assert facts_of(inventory, "db").memory_request_bytes == Fact(64 * MIB, FactSource.INFERRED)
    assert all(each.memory_request_inferred for each in facts_of(inventory, "db").containers)
    usage = facts_of(inventory, "web").usage
    assert usage is not None
    assert (usage.memory_bytes, usage.swap_bytes, usage.pids) == (250 * MIB, MIB, 9)
    assert [each.memory_bytes for each in facts_of(inventory, "web").containers] == [100 * MIB] * 2
    handle = inventory.handles[web.uid]
    assert handle.cgroup == str(node.root / "sys/fs/cgroup" / web.cgroup_parent.strip("/"))
    assert [each.cgroup for each in handle.containers] == [f"{handle.cgroup}/{key}" for key in handle.container_ids]
    assert {each.pid for each in handle.containers} == {each.pid for each in node.sim.containers_of(web.id)}
    assert handle.cgroups == (handle.cgroup,)
    assert inventory.observed_at.monotonic_s == 100.0
    assert [each.uid for each in inventory.shutdown] == [each.uid for each in inventory.facts]


async def test_systemd_slices_are_found(node: Node) -> None:
    uid = "0b5a1c9e-1111-4222-8333-abcdefabcdef"
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    sandbox = node.sim.add_pod("web", uid=uid, cgroup_parent=name)
    container = node.sim.add_container(sandbox, "c0", IMAGE, oom_score_adj=900)
    directory = add_cgroup(node.root, f"kubepods.slice/kubepods-burstable.slice/{name}", memory_bytes=5 * MIB)
    scope = add_cgroup(node.root, f"kubepods.slice/kubepods-burstable.slice/{name}/cri-containerd-{container.id}.scope")
    inventory = await node.reader().read()
    assert inventory.handles[uid].cgroup == str(directory)
    assert inventory.handles[uid].containers[0].cgroup == str(scope)
    assert facts_of(inventory, "web").usage is not None


@pytest.mark.parametrize("parent", ["", "/shared", "/kubepods/burstable/podshared"])
async def test_shared_cgroup_parent_is_not_counted_for_its_pods(node: Node, parent: str) -> None:
    made = []
    for name in ("one", "two"):
        sandbox = node.sim.add_pod(name, cgroup_parent=parent)
        container = node.sim.add_container(sandbox, "c0", IMAGE, oom_score_adj=900)
        made.append(add_cgroup(node.root, f"{parent or '/k8s.io'}/{container.id}", memory_bytes=7 * MIB, pids=2))
    add_cgroup(node.root, parent or "/k8s.io", memory_bytes=900 * MIB)
    inventory = await node.reader().read()
    for each in inventory.facts:
        assert each.usage is not None
        assert (each.usage.memory_bytes, each.usage.pids) == (7 * MIB, 2)
    assert {handle.cgroups for handle in inventory.handles.values()} == {(str(each),) for each in made}


async def test_without_memory_controller_runtime_statistics_are_used(node: Node) -> None:
    (node.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    sandbox = node.sim.add_pod("web")
    for size_bytes in (3 * MIB, 4 * MIB):
        node.sim.add_container(sandbox, f"c{size_bytes}", IMAGE, working_set_bytes=size_bytes)
    usage = facts_of(await node.reader().read(), "web").usage
    assert usage is not None
    assert (usage.memory_bytes, usage.pids) == (7 * MIB, None)


async def test_without_usage_no_statistics_are_listed(node: Node) -> None:
    node.pod("web")
    inventory = await node.reader().read(with_usage=False)
    assert facts_of(inventory, "web").usage is None
    assert "ListContainerStats" not in node.calls


async def test_second_read_of_an_idle_node_makes_two_list_calls(node: Node) -> None:
    for number in range(20):
        node.pod(f"p{number}", containers=2)
    reader = node.reader()
    first = await reader.read()
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1, "PodSandboxStatus": 20, "ContainerStatus": 40}
    node.calls.clear()
    assert (await reader.read()).facts == first.facts
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1}


async def test_status_is_read_for_new_containers_only(node: Node) -> None:
    web = node.pod("web")
    reader = node.reader()
    await reader.read()
    node.calls.clear()
    node.sim.add_container(web, "late", IMAGE)
    node.sim.stop_sandbox(node.pod("stopped").id)
    inventory = await reader.read()
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1, "ContainerStatus": 1}
    assert [each.name for each in inventory.facts] == ["web"]
    node.sim.remove_sandbox(web.id)
    assert (await reader.read()).facts == ()


async def test_resized_container_has_its_new_memory_request(node: Node) -> None:
    db = node.pod("db", GUARANTEED)
    (container,) = node.sim.containers_of(db.id)
    limit = node.root / "sys/fs/cgroup" / db.cgroup_parent.strip("/") / container.id / "memory.max"
    limit.write_text(f"{64 * MIB}\n")
    reader = node.reader()
    await reader.read()
    await reader.read()
    node.calls.clear()
    node.sim.containers[container.id] = replace(container, memory_limit_bytes=200 * MIB)
    limit.write_text(f"{200 * MIB}\n")
    assert facts_of(await reader.read(), "db").memory_request_bytes.value == 200 * MIB
    assert facts_of(await node.reader().read(), "db").memory_request_bytes.value == 200 * MIB
    node.calls.clear()
    await reader.read()
    assert "ContainerStatus" not in node.calls


async def test_container_resized_before_its_cgroup_was_read_has_its_new_memory_request(node: Node) -> None:
    db = node.pod("db", GUARANTEED)
    (container,) = node.sim.containers_of(db.id)
    reader = node.reader()
    await reader.read()
    node.sim.containers[container.id] = replace(container, memory_limit_bytes=200 * MIB)
    limit = node.root / "sys/fs/cgroup" / db.cgroup_parent.strip("/") / container.id / "memory.max"
    limit.write_text(f"{200 * MIB}\n")
    assert facts_of(await reader.read(), "db").memory_request_bytes.value == 200 * MIB


async def test_changed_memory_guarantee_of_a_pod_is_its_new_request(node: Node) -> None:
    web = node.pod("web")
    guarantee = node.root / "sys/fs/cgroup" / web.cgroup_parent.strip("/") / "memory.min"
    guarantee.write_text(f"{32 * MIB}\n")
    reader = node.reader()
    await reader.read()
    assert facts_of(await reader.read(), "web").memory_request_bytes.value == 32 * MIB
    guarantee.write_text(f"{96 * MIB}\n")
    assert facts_of(await reader.read(), "web").memory_request_bytes == Fact(96 * MIB, FactSource.CGROUP)


async def test_details_of_removed_containers_are_dropped(node: Node) -> None:
    node.pod("web")
    details, warnings = RuntimeDetails(node.cri), list[str]()
    await details.read_missing(await node.cri.list_sandboxes(), await node.cri.list_containers(), warnings)
    assert (len(details.traits), len(details.cgroup_parents), warnings) == (1, 1, [])
    await details.read_missing((), (), warnings)
    assert (details.traits, details.cgroup_parents, details.log_directories) == ({}, {}, {})


def test_cgroup_directories_of_removed_sandboxes_are_dropped(tmp_path: Path) -> None:
    make_tree(tmp_path, memory_bytes=GIB)
    parent = "/kubepods/burstable/poduid-web"
    directory = add_cgroup(tmp_path, parent, memory_bytes=MIB)
    pod = RuntimePod("uid-web", Sandbox("s", "web", "shop", "uid-web", ready=True), ("s",), cgroup_parent=parent)
    cgroups = PodCgroups(tmp_path)
    assert cgroups.find_handles([pod])["uid-web"].cgroup == str(directory)
    directory.rename(tmp_path / "elsewhere")
    assert cgroups.find_handles([pod])["uid-web"].cgroup == str(directory)
    cgroups.drop_removed(set())
    assert cgroups.find_handles([pod])["uid-web"].cgroup is None


async def test_quick_read_makes_two_list_calls(node: Node) -> None:
    node.pod("web")
    reader = node.reader()
    known = await reader.read(with_usage=False)
    node.calls.clear()
    node.pod("new")
    inventory = await reader.read(with_usage=False, quick=True)
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1}
    assert facts_of(inventory, "web") == facts_of(known, "web")
    assert kept(inventory, "new") == "facts-missing"
    assert {len(each.container_ids) for each in inventory.shutdown} == {1}


async def test_usage_of_the_last_list_is_read_without_a_call(node: Node) -> None:
    web = node.pod("web")
    reader = node.reader()
    assert await reader.read_usage() is None
    known = await reader.read()
    node.calls.clear()
    add_cgroup(node.root, web.cgroup_parent, memory_bytes=700 * MIB, inactive_bytes=50 * MIB, swap_bytes=MIB, pids=9)
    node.pod("new")
    node.clock.at_s += 59
    again = await reader.read_usage()
    assert again is not None
    usage = facts_of(again, "web").usage
    assert usage is not None
    assert (len(again.facts), usage.memory_bytes) == (1, 650 * MIB)
    assert again.observed_at == known.observed_at
    assert not node.calls
    node.clock.at_s += 2
    assert await reader.read_usage() is None


async def test_removed_cgroup_has_no_usage(node: Node) -> None:
    web = node.pod("web")
    reader = node.reader()
    handle = (await reader.read()).handles[web.uid]
    assert handle.cgroup is not None
    os.rename(handle.cgroup, node.root / "elsewhere")  # noqa: PTH104 - one call, no object
    inventory = await reader.read()
    assert facts_of(inventory, "web").usage is None


async def test_unreadable_container_status_keeps_its_pod_only(node: Node) -> None:
    bad = node.pod("bad")
    node.pod("good")
    (container,) = node.sim.containers_of(bad.id)
    node.server.faults.fail("ContainerStatus", container.id)
    inventory = await node.reader().read()
    assert (kept(inventory, "bad"), kept(inventory, "good")) == ("facts-missing", None)
    (warning,) = inventory.warnings
    assert warning.startswith("cannot read 1 of 4 sandboxes and containers: ContainerStatus")


async def test_pod_with_unreadable_sandbox_status_has_no_qos_class(node: Node) -> None:
    bad = node.pod("bad", GUARANTEED)
    node.server.faults.fail("PodSandboxStatus", bad.id)
    inventory = await node.reader().read()
    assert facts_of(inventory, "bad").qos.value is None
    assert kept(inventory, "bad") == "facts-missing"


async def test_read_fails_without_a_runtime(node: Node) -> None:
    await node.server.stop()
    with pytest.raises(RuntimeUnavailableError):
        await node.reader().read()


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
    writable = 4 * MIB + 2 * 20480
    assert facts.usage.writable == Footprint(writable, 16)
    assert facts.usage.logs == Footprint(logs, 1)
    assert facts.usage.volumes == Footprint(cache, 1)
    assert facts.usage.ephemeral_bytes == writable + logs + cache
    assert [(each.name, each.used_bytes) for each in facts.empty_dirs] == [("cache", cache)]
    (app,) = facts.containers
    assert (app.writable_bytes, app.logs_bytes) == (3 * MIB + 20480, logs)


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


@pytest.mark.parametrize("with_disk", [False, True])
async def test_unreadable_cgroup_leaves_memory_usage_unknown(node: Node, with_disk: bool) -> None:
    sandbox = node.pod("web")
    (node.root / "sys/fs/cgroup" / sandbox.cgroup_parent.strip("/") / "memory.current").write_text("")
    usage = facts_of(await node.reader().read(with_disk=with_disk), "web").usage
    assert usage is None or usage.memory_bytes is None


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
    monkeypatch.setattr("nodeagent.observe.walk_queue.HANGS_S", 0.05)
    monkeypatch.setattr("nodeagent.observe.pod_disk_usage.HANGS_S", 0.05)
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


# ---- the kubelet ----


def listed(sandbox: SimSandbox, **fields: Any) -> PodSpec:
    source = {"annotations": {"kubernetes.io/config.source": "api"}}
    return PodSpec(sandbox.uid, sandbox.namespace, sandbox.name, **(source | fields))


async def test_kubelet_list_is_read_again_after_its_maximum_age(node: Node) -> None:
    lister = Lister([listed(node.pod("web"), priority=7)])
    reader = node.reader(role=Role.BESIDE_KUBELET, kubelet=lister)
    assert facts_of(await reader.read(), "web").priority == Fact(7, FactSource.KUBELET)
    await reader.read()
    assert lister.reads == 1
    node.clock.at_s += 10
    await reader.read()
    assert lister.reads == 2


async def test_kubelet_list_is_read_again_for_a_new_pod(node: Node) -> None:
    lister = Lister([listed(node.pod("web"))])
    reader = node.reader(role=Role.BESIDE_KUBELET, kubelet=lister)
    await reader.read()
    lister.pods.append(listed(node.pod("new"), priority=3))
    assert kept(await reader.read(), "new") == "facts-contradictory"
    node.clock.at_s += 2
    inventory = await reader.read()
    assert (lister.reads, facts_of(inventory, "new").priority.value, kept(inventory, "new")) == (2, 3, None)


async def test_pods_missing_from_the_last_kubelet_list_are_kept_after_a_failure(node: Node) -> None:
    lister = Lister([listed(node.pod("web"), priority=0)])
    reader = node.reader(role=Role.STANDALONE, kubelet=lister)
    await reader.read()
    lister.error = "connection refused"
    node.pod("new")
    node.clock.at_s += 10
    inventory = await reader.read()
    assert (kept(inventory, "web"), kept(inventory, "new")) == (None, "facts-missing")
    (warning,) = inventory.warnings
    assert warning == "cannot list the kubelet's pods: connection refused; pods missing from its last list are kept"
    lister.error = ""
    node.clock.at_s += 10
    assert (await reader.read()).warnings == ()


async def test_all_pods_are_kept_before_the_first_kubelet_list(node: Node) -> None:
    node.pod("web")
    reader = node.reader(kubelet=Lister(error="connection refused"))
    inventory = await reader.read()
    assert kept(inventory, "web") == "facts-missing"
    assert len(inventory.warnings) == 1


async def test_slow_kubelet_delays_no_read_after_its_first_list(node: Node) -> None:
    web = node.pod("web")
    lister = Lister([listed(web, priority=1)])
    reader = node.reader(role=Role.BESIDE_KUBELET, kubelet=lister)
    await reader.read()
    lister.gate = asyncio.Event()
    lister.pods = [listed(web, priority=2)]
    node.clock.at_s += 10
    assert facts_of(await reader.read(), "web").priority.value == 1
    await reader.read()
    assert lister.reads == 2
    lister.gate.set()
    node.clock.at_s += 10
    assert facts_of(await reader.read(), "web").priority.value == 2
    await reader.close()


async def test_close_cancels_a_pending_kubelet_request(node: Node) -> None:
    lister = Lister([listed(node.pod("web"))])
    reader = node.reader(kubelet=lister)
    await reader.read()
    lister.gate = asyncio.Event()
    node.clock.at_s += 10
    await reader.read()
    await reader.close()
    await reader.close()


async def test_pod_of_a_manifest_is_static(node: Node) -> None:
    manifests = node.root / "manifests"
    manifests.mkdir()
    (manifests / "etcd.yaml").write_text("kind: Pod\nmetadata: {name: etcd}\nspec: {priority: 5}\n")
    (manifests / "bad.yaml").write_text("kind: [")
    sandbox = node.pod("etcd-node-1")
    node.sim.sandboxes[sandbox.id] = replace(sandbox, annotations={})
    inventory = await node.reader(manifests=manifests).read()
    assert facts_of(inventory, "etcd-node-1").static == Fact(value=True, source=FactSource.MANIFEST)
    (warning,) = inventory.warnings
    assert "bad.yaml" in warning


async def test_memory_requests_are_not_inferred_without_memory_capacity(node: Node) -> None:
    node.pod("web")
    (node.root / "proc/meminfo").write_text("")
    inventory = await node.reader().read()
    assert facts_of(inventory, "web").memory_request_bytes.value is None
    (warning,) = inventory.warnings
    assert warning.startswith("memory requests cannot be inferred: ")


async def test_pod_inventory_is_dated_by_the_clock(node: Node) -> None:
    node.pod("web")
    reader = node.reader()
    first = await reader.read()
    node.sim.advance(5)
    node.clock.at_s += 5
    second = await reader.read()
    assert second.observed_at.at - first.observed_at.at == timedelta(seconds=5)


async def test_missing_container_statistics_leave_writable_layers_unknown(node: Node) -> None:
    node.pod("web")
    node.server.faults.fail("ListContainerStats")
    inventory = await node.reader().read(with_disk=True)
    usage = facts_of(inventory, "web").usage
    assert usage is not None
    assert (usage.writable, usage.memory_bytes) == (Footprint(), 250 * MIB)
    (warning,) = inventory.warnings
    assert warning.startswith("container statistics unavailable: ")


async def test_status_timeout_keeps_the_pod(node: Node) -> None:
    web = node.pod("web")
    node.server.faults.delay("PodSandboxStatus", target=web.id)
    async with RuntimeConnection(node.server.endpoint, deadlines={"PodSandboxStatus": 0.05}) as connection:
        reader = PodReader(CriClient(connection), settings=PodSettings(Role.BESIDE_KUBELET), clock=node.clock)
        inventory = await reader.read(with_usage=False)
    assert kept(inventory, "web") == "facts-missing"
    assert "DEADLINE_EXCEEDED" in inventory.warnings[0]


async def test_kubelet_address_of_the_settings_is_used(node: Node) -> None:
    node.pod("web")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        access = KubeletAccess(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=1)
        inventory = await node.reader(access=access).read()
    assert "connection refused" in inventory.warnings[0]
    assert kept(inventory, "web") == "facts-missing"
