"""The pods of a simulated node, its cgroups being files and its runtime a real socket."""

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
from nodeagent.host.pod_disk import read_pod_disk
from nodeagent.model import ContainerState, Role
from nodeagent.model.kubelet_access import KubeletAccess
from nodeagent.model.pods import PodSpec
from nodeagent.model.pressure import Fact, FactSource, Footprint, QosClass
from nodeagent.observe.pods import PodSettings, PodWatcher
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
    """A kubelet that lists what it is told, fails, or waits until it is let go."""

    pods: list[PodSpec] = field(default_factory=list)
    error: str = ""
    gate: asyncio.Event | None = None
    asked: int = 0

    async def read(self) -> tuple[PodSpec, ...]:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.error:
            raise ObservationError(self.error)
        return tuple(self.pods)


@dataclass
class Node:
    """A simulated node, served."""

    sim: SimNode
    server: SimServer
    cri: CriClient
    root: Path
    clock: Clock
    calls: Counter[str]

    def watcher(
        self,
        *,
        role: Role = Role.STANDALONE,
        kubelet: Lister | None = None,
        access: KubeletAccess | None = None,
        **more: Any,
    ) -> PodWatcher:
        more["kubelet"] = access
        settings = PodSettings(
            role, node_name="node-1", pod_log_root=self.root / "logs", kubelet_root=self.root / "kubelet", **more
        )
        return PodWatcher(self.cri, settings=settings, clock=self.clock, kubelet=kubelet, root=self.root)

    def pod(self, name: str, qos: workload.QosClass = BURSTABLE, *, containers: int = 1, **fields: Any) -> SimSandbox:
        """Run a pod with cgroups of its own: 300 MiB in all, of that 50 inactive; 100 in each container."""
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


def facts_of(seen: PodInventory, name: str) -> PodFacts:
    (found,) = (each for each in seen.facts if each.name == name)
    return found


def kept(seen: PodInventory, name: str) -> str | None:
    reason = Protection(seen.facts, EvictionPolicy()).why_kept(facts_of(seen, name))
    return None if reason is None else reason.code.value


@pytest.mark.parametrize("node", ["1.6", "1.7", "2.1", "cri-o"], indirect=True)
async def test_every_runtime_tells_enough(node: Node) -> None:
    web = node.pod("web", containers=2)
    node.pod("db", GUARANTEED)
    node.pod("batch", BEST_EFFORT)
    node.pod("etcd", source="file")
    critical = node.sim.add_pod("proxy", qos=BURSTABLE)
    node.sim.add_container(critical, "c0", IMAGE, oom_score_adj=-997)
    seen = await node.watcher().gather()
    assert seen.warnings == ()
    assert {each.name: each.qos.value for each in seen.facts} == {
        "web": QosClass.BURSTABLE,
        "db": QosClass.GUARANTEED,
        "batch": QosClass.BEST_EFFORT,
        "etcd": QosClass.BURSTABLE,
        "proxy": QosClass.BURSTABLE,
    }
    assert {each.qos.source for each in seen.facts} == {FactSource.CGROUP}
    assert {name: kept(seen, name) for name in ("web", "db", "batch", "etcd", "proxy")} == {
        "web": None,
        "db": None,
        "batch": None,
        "etcd": "static-pod",
        "proxy": "critical-pod",
    }
    assert facts_of(seen, "db").memory_request_bytes == Fact(64 * MIB, FactSource.INFERRED)
    usage = facts_of(seen, "web").usage
    assert usage is not None
    assert (usage.memory_bytes, usage.swap_bytes, usage.pids) == (250 * MIB, MIB, 9)
    assert [each.memory_bytes for each in facts_of(seen, "web").containers] == [100 * MIB] * 2
    handle = seen.handles[web.uid]
    assert handle.cgroup == str(node.root / "sys/fs/cgroup" / web.cgroup_parent.strip("/"))
    assert [each.cgroup for each in handle.containers] == [f"{handle.cgroup}/{key}" for key in handle.container_ids]
    assert {each.pid for each in handle.containers} == {each.pid for each in node.sim.containers_of(web.id)}
    assert handle.cgroups == (handle.cgroup,)
    assert seen.observed_at.monotonic_s == 100.0
    assert [each.uid for each in seen.shutdown] == [each.uid for each in seen.facts]


async def test_systemd_slices_are_found(node: Node) -> None:
    uid = "0b5a1c9e-1111-4222-8333-abcdefabcdef"
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    sandbox = node.sim.add_pod("web", uid=uid, cgroup_parent=name)
    container = node.sim.add_container(sandbox, "c0", IMAGE, oom_score_adj=900)
    directory = add_cgroup(node.root, f"kubepods.slice/kubepods-burstable.slice/{name}", memory_bytes=5 * MIB)
    scope = add_cgroup(node.root, f"kubepods.slice/kubepods-burstable.slice/{name}/cri-containerd-{container.id}.scope")
    seen = await node.watcher().gather()
    assert seen.handles[uid].cgroup == str(directory)
    assert seen.handles[uid].containers[0].cgroup == str(scope)
    assert facts_of(seen, "web").usage is not None


@pytest.mark.parametrize("parent", ["", "/shared", "/kubepods/burstable/podshared"])
async def test_a_cgroup_that_pods_share_is_no_pods_own(node: Node, parent: str) -> None:
    made = []
    for name in ("one", "two"):
        sandbox = node.sim.add_pod(name, cgroup_parent=parent)
        container = node.sim.add_container(sandbox, "c0", IMAGE, oom_score_adj=900)
        made.append(add_cgroup(node.root, f"{parent or '/k8s.io'}/{container.id}", memory_bytes=7 * MIB, pids=2))
    add_cgroup(node.root, parent or "/k8s.io", memory_bytes=900 * MIB)
    seen = await node.watcher().gather()
    for each in seen.facts:
        assert each.usage is not None
        assert (each.usage.memory_bytes, each.usage.pids) == (7 * MIB, 2)
    assert {handle.cgroups for handle in seen.handles.values()} == {(str(each),) for each in made}


async def test_without_memory_in_cgroups_the_runtimes_count_serves(node: Node) -> None:
    (node.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu\n")
    sandbox = node.sim.add_pod("web")
    for size_bytes in (3 * MIB, 4 * MIB):
        node.sim.add_container(sandbox, f"c{size_bytes}", IMAGE, working_set_bytes=size_bytes)
    usage = facts_of(await node.watcher().gather(), "web").usage
    assert usage is not None
    assert (usage.memory_bytes, usage.pids) == (7 * MIB, None)


async def test_without_usage_nothing_is_read(node: Node) -> None:
    node.pod("web")
    seen = await node.watcher().gather(with_usage=False)
    assert facts_of(seen, "web").usage is None
    assert "ListContainerStats" not in node.calls


async def test_a_node_at_rest_costs_two_lists(node: Node) -> None:
    for number in range(20):
        node.pod(f"p{number}", containers=2)
    watcher = node.watcher()
    first = await watcher.gather()
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1, "PodSandboxStatus": 20, "ContainerStatus": 40}
    node.calls.clear()
    assert (await watcher.gather()).facts == first.facts
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1}


async def test_only_what_is_new_is_asked_for(node: Node) -> None:
    web = node.pod("web")
    watcher = node.watcher()
    await watcher.gather()
    node.calls.clear()
    node.sim.add_container(web, "late", IMAGE)
    node.sim.stop_sandbox(node.pod("gone").id)
    seen = await watcher.gather()
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1, "ContainerStatus": 1}
    assert [each.name for each in seen.facts] == ["web"]
    node.sim.remove_sandbox(web.id)
    assert (await watcher.gather()).facts == ()
    assert not watcher._traits
    assert not watcher._sandboxes
    assert not watcher._directories


async def test_a_quick_look_asks_nothing_else(node: Node) -> None:
    node.pod("web")
    watcher = node.watcher()
    known = await watcher.gather(with_usage=False)
    node.calls.clear()
    node.pod("new")
    seen = await watcher.gather(with_usage=False, quick=True)
    assert node.calls == {"ListPodSandbox": 1, "ListContainers": 1}
    assert facts_of(seen, "web") == facts_of(known, "web")
    assert kept(seen, "new") == "facts-missing"
    assert {len(each.container_ids) for each in seen.shutdown} == {1}


async def test_a_vanished_cgroup_is_no_usage(node: Node) -> None:
    web = node.pod("web")
    watcher = node.watcher()
    handle = (await watcher.gather()).handles[web.uid]
    assert handle.cgroup is not None
    os.rename(handle.cgroup, node.root / "elsewhere")  # noqa: PTH104 - one call, no object
    seen = await watcher.gather()
    assert facts_of(seen, "web").usage is None


async def test_what_cannot_be_read_keeps_its_pod_alone(node: Node) -> None:
    bad = node.pod("bad")
    node.pod("good")
    (container,) = node.sim.containers_of(bad.id)
    node.server.faults.fail("ContainerStatus", container.id)
    seen = await node.watcher().gather()
    assert (kept(seen, "bad"), kept(seen, "good")) == ("facts-missing", None)
    (warning,) = seen.warnings
    assert warning.startswith("1 of 4 sandboxes and containers could not be read; their pods are kept: ContainerStatus")


async def test_a_sandbox_that_cannot_be_read_has_no_class(node: Node) -> None:
    bad = node.pod("bad", GUARANTEED)
    node.server.faults.fail("PodSandboxStatus", bad.id)
    seen = await node.watcher().gather()
    assert facts_of(seen, "bad").qos.value is None
    assert kept(seen, "bad") == "critical-pod"


async def test_a_runtime_that_is_gone_ends_the_pass(node: Node) -> None:
    await node.server.stop()
    with pytest.raises(RuntimeUnavailableError):
        await node.watcher().gather()


async def test_disk_is_measured_when_asked_for(node: Node) -> None:
    sandbox = node.sim.add_pod("web")
    node.sim.add_container(sandbox, "app", IMAGE, writable_bytes=3 * MIB)
    node.sim.add_container(sandbox, "old", IMAGE, state=ContainerState.EXITED, writable_bytes=MIB)
    log = node.root / "logs" / sandbox.log_directory_name / "app/0.log"
    data = node.root / "kubelet/pods" / sandbox.uid / "volumes/kubernetes.io~empty-dir/cache/data"
    for path in (log, data):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * MIB)
    node.sim.pod_log_root = str(node.root / "logs")
    watcher = node.watcher()
    assert facts_of(await watcher.gather(), "web").empty_dirs == ()
    facts = facts_of(await watcher.gather(with_disk=True), "web")
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


async def test_what_is_written_now_counts_before_the_runtime_has_measured_it(node: Node) -> None:
    sandbox = node.sim.add_pod("web")
    app = node.sim.add_container(sandbox, "app", IMAGE, writable_bytes=MIB)
    upper = node.root / "snapshots/7/fs"
    upper.mkdir(parents=True)
    (upper / "data").write_bytes(b"x" * (5 * MIB))
    mounts = node.root / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True, exist_ok=True)
    mounts.write_text(f"9 1 0:9 / /run/task/{app.id}/rootfs rw - overlay overlay rw,upperdir={upper},workdir=/w\n")
    facts = facts_of(await node.watcher().gather(with_disk=True), "web")
    assert facts.usage is not None
    assert facts.usage.writable == Footprint((upper / "data").stat().st_blocks * 512, 1)
    node.server.faults.fail("ListContainerStats")
    facts = facts_of(await node.watcher().gather(with_disk=True), "web")
    assert facts.containers[0].writable_bytes == (upper / "data").stat().st_blocks * 512


@pytest.mark.parametrize("with_disk", [False, True])
async def test_a_file_that_cannot_be_read_leaves_the_use_unknown_whoever_asks(node: Node, with_disk: bool) -> None:
    sandbox = node.pod("web")
    (node.root / "sys/fs/cgroup" / sandbox.cgroup_parent.strip("/") / "memory.current").write_text("")
    usage = facts_of(await node.watcher().gather(with_disk=with_disk), "web").usage
    assert usage is None or usage.memory_bytes is None


async def test_a_walk_that_nobody_waited_for_tells_nothing_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = node.sim.add_pod("web")
    node.sim.add_container(sandbox, "app", IMAGE)
    node.sim.pod_log_root = str(node.root / "logs")
    log = node.root / "logs" / sandbox.log_directory_name / "app/0.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"")
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*words: Any, **more: Any) -> Any:
        disk = read_pod_disk(*words, **more)
        begun.set()
        go_on.wait(20)
        return disk

    monkeypatch.setattr("nodeagent.observe.pods.read_pod_disk", slowly)
    watcher = node.watcher()
    interrupted = asyncio.ensure_future(watcher.gather(with_disk=True))
    assert await asyncio.to_thread(begun.wait, 20)
    interrupted.cancel()
    await asyncio.wait({interrupted})
    go_on.set()
    log.write_bytes(b"x" * MIB)
    facts = facts_of(await watcher.gather(with_disk=True), "web")
    assert facts.usage is not None
    assert facts.usage.logs == Footprint(log.stat().st_blocks * 512, 1)


async def test_a_walk_that_fails_is_made_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.pod("web")
    watcher = node.watcher()
    with monkeypatch.context() as patch:
        patch.setattr("nodeagent.observe.pods.read_pod_disk", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await watcher.gather(with_disk=True)
    usage = facts_of(await watcher.gather(with_disk=True), "web").usage
    assert usage is not None
    assert usage.logs == Footprint(0, 0)


# ---- the kubelet ----


def listed(sandbox: SimSandbox, **fields: Any) -> PodSpec:
    source = {"annotations": {"kubernetes.io/config.source": "api"}}
    return PodSpec(sandbox.uid, sandbox.namespace, sandbox.name, **(source | fields))


async def test_the_kubelets_list_is_asked_for_once_in_a_while(node: Node) -> None:
    lister = Lister([listed(node.pod("web"), priority=7)])
    watcher = node.watcher(role=Role.BESIDE_KUBELET, kubelet=lister)
    assert facts_of(await watcher.gather(), "web").priority == Fact(7, FactSource.KUBELET)
    await watcher.gather()
    assert lister.asked == 1
    node.clock.at_s += 10
    await watcher.gather()
    assert lister.asked == 2


async def test_a_new_pod_makes_it_ask_again(node: Node) -> None:
    lister = Lister([listed(node.pod("web"))])
    watcher = node.watcher(role=Role.BESIDE_KUBELET, kubelet=lister)
    await watcher.gather()
    lister.pods.append(listed(node.pod("new"), priority=3))
    assert kept(await watcher.gather(), "new") == "facts-contradictory"
    node.clock.at_s += 2
    seen = await watcher.gather()
    assert (lister.asked, facts_of(seen, "new").priority.value, kept(seen, "new")) == (2, 3, None)


async def test_a_kubelet_that_fails_keeps_what_it_did_not_list_before(node: Node) -> None:
    lister = Lister([listed(node.pod("web"), priority=0)])
    watcher = node.watcher(role=Role.STANDALONE, kubelet=lister)
    await watcher.gather()
    lister.error = "it is down"
    node.pod("new")
    node.clock.at_s += 10
    seen = await watcher.gather()
    assert (kept(seen, "web"), kept(seen, "new")) == (None, "facts-missing")
    (warning,) = seen.warnings
    assert warning == "the kubelet's list of pods is not known; pods it did not list before are kept: it is down"
    lister.error = ""
    node.clock.at_s += 10
    assert (await watcher.gather()).warnings == ()


async def test_a_kubelet_that_never_answered_keeps_all(node: Node) -> None:
    node.pod("web")
    watcher = node.watcher(kubelet=Lister(error="it is down"))
    seen = await watcher.gather()
    assert kept(seen, "web") == "facts-missing"
    assert len(seen.warnings) == 1


async def test_a_slow_kubelet_holds_nothing_up_after_its_first_answer(node: Node) -> None:
    web = node.pod("web")
    lister = Lister([listed(web, priority=1)])
    watcher = node.watcher(role=Role.BESIDE_KUBELET, kubelet=lister)
    await watcher.gather()
    lister.gate = asyncio.Event()
    lister.pods = [listed(web, priority=2)]
    node.clock.at_s += 10
    assert facts_of(await watcher.gather(), "web").priority.value == 1
    await watcher.gather()
    assert lister.asked == 2
    lister.gate.set()
    node.clock.at_s += 10
    assert facts_of(await watcher.gather(), "web").priority.value == 2
    await watcher.close()


async def test_closing_ends_a_question_that_is_not_answered(node: Node) -> None:
    lister = Lister([listed(node.pod("web"))])
    watcher = node.watcher(kubelet=lister)
    await watcher.gather()
    lister.gate = asyncio.Event()
    node.clock.at_s += 10
    await watcher.gather()
    await watcher.close()
    await watcher.close()


async def test_manifests_make_static_pods(node: Node) -> None:
    manifests = node.root / "manifests"
    manifests.mkdir()
    (manifests / "etcd.yaml").write_text("kind: Pod\nmetadata: {name: etcd}\nspec: {priority: 5}\n")
    (manifests / "bad.yaml").write_text("kind: [")
    sandbox = node.pod("etcd-node-1")
    node.sim.sandboxes[sandbox.id] = replace(sandbox, annotations={})
    seen = await node.watcher(manifests=manifests).gather()
    assert facts_of(seen, "etcd-node-1").static == Fact(value=True, source=FactSource.MANIFEST)
    (warning,) = seen.warnings
    assert "bad.yaml" in warning


async def test_without_the_nodes_memory_requests_are_not_inferred(node: Node) -> None:
    node.pod("web")
    (node.root / "proc/meminfo").write_text("")
    seen = await node.watcher().gather()
    assert facts_of(seen, "web").memory_request_bytes.value is None
    (warning,) = seen.warnings
    assert warning.startswith("memory requests cannot be inferred: ")


async def test_ages_are_of_the_node_and_what_is_seen_is_dated(node: Node) -> None:
    node.pod("web")
    watcher = node.watcher()
    first = await watcher.gather()
    node.sim.advance(5)
    node.clock.at_s += 5
    second = await watcher.gather()
    assert second.observed_at.at - first.observed_at.at == timedelta(seconds=5)


async def test_writable_layers_that_are_not_told_are_not_zero(node: Node) -> None:
    node.pod("web")
    node.server.faults.fail("ListContainerStats")
    seen = await node.watcher().gather(with_disk=True)
    usage = facts_of(seen, "web").usage
    assert usage is not None
    assert (usage.writable, usage.memory_bytes) == (Footprint(), 250 * MIB)
    (warning,) = seen.warnings
    assert warning.startswith("what containers use by the runtime's own count is not known: ")


async def test_a_status_that_does_not_come_keeps_its_pod(node: Node) -> None:
    web = node.pod("web")
    node.server.faults.delay("PodSandboxStatus", target=web.id)
    async with RuntimeConnection(node.server.endpoint, deadlines={"PodSandboxStatus": 0.05}) as hasty:
        watcher = PodWatcher(CriClient(hasty), settings=PodSettings(Role.BESIDE_KUBELET), clock=node.clock)
        seen = await watcher.gather(with_usage=False)
    assert kept(seen, "web") == "facts-missing"
    assert "DEADLINE_EXCEEDED" in seen.warnings[0]


async def test_the_settings_tell_where_the_kubelet_is(node: Node) -> None:
    node.pod("web")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        access = KubeletAccess(f"http://127.0.0.1:{taken.getsockname()[1]}", timeout_s=1)
        seen = await node.watcher(access=access).gather()
    assert "nothing listens there" in seen.warnings[0]
    assert kept(seen, "web") == "facts-missing"
