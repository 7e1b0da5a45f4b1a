"""Pod reader on a simulated node with cgroup files and a runtime on a socket."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeUnavailableError
from nodeagent.model.node import Role
from nodeagent.model.pods import RuntimePod
from nodeagent.model.pressure import Fact, FactSource, QosClass
from nodeagent.model.runtime import Sandbox
from nodeagent.pods.reader import PodReader, PodSettings, RuntimeDetails
from nodeagent.pods.usage import PodCgroups
from nodeagent.record import replace
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from tests.support.kernel_tree import GIB, add_cgroup, make_tree
from tests.unit.pods.pod_node import BEST_EFFORT, BURSTABLE, GUARANTEED, IMAGE, MIB, Node, facts_of, kept

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("proc")


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


async def test_memory_volumes_count_up_to_the_shared_memory_of_their_pod(node: Node) -> None:
    pods = {name: node.pod(name) for name in ("small-share", "large-share", "elsewhere")}
    lines = []
    for number, (name, sandbox) in enumerate(pods.items()):
        shared_bytes = (4 if name == "small-share" else 400) * MIB
        stat = node.root / "sys/fs/cgroup" / sandbox.cgroup_parent.strip("/") / "memory.stat"
        stat.write_text(f"shmem {shared_bytes}\ninactive_file 0\n")
        uid = "other" if name == "elsewhere" else sandbox.uid
        path = node.root / "kubelet/pods" / uid / "volumes/kubernetes.io~empty-dir/cache"
        path.mkdir(parents=True)
        lines.append(f"{number} 1 0:{number} / {path} rw - tmpfs none rw\n")
    (node.root / "proc/self").mkdir(parents=True, exist_ok=True)
    (node.root / "proc/self/mountinfo").write_text("".join(lines))
    used = os.statvfs(node.root)
    used_bytes = (used.f_blocks - used.f_bfree) * used.f_frsize
    reader = node.reader()
    facts = {each.name: each.usage for each in (await reader.read()).facts}
    found = {name: None if each is None else each.memory_volumes_bytes for name, each in facts.items()}
    assert found["small-share"] == 4 * MIB
    assert found["large-share"] is not None
    assert abs(found["large-share"] - min(400 * MIB, used_bytes)) <= 100 * MIB
    assert found["elsewhere"] == 0


@pytest.mark.parametrize("wanted", [False, True])
async def test_memory_stalls_of_pods_are_read_only_for_a_threshold_on_stalls(node: Node, wanted: bool) -> None:
    web = node.pod("web")
    directory = node.root / "sys/fs/cgroup" / web.cgroup_parent.strip("/")
    (directory / "memory.pressure").write_text("some avg10=24.00 total=1\nfull avg10=3.50 total=1\n")
    usage = facts_of(await node.reader(memory_stalls=wanted).read(), "web").usage
    assert usage is not None
    stalls = (usage.stalled_some_percent, usage.stalled_full_percent)
    assert stalls == ((24.0, 3.5) if wanted else (None, None))


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
    os.rename(handle.cgroup, node.root / "elsewhere")  # noqa: PTH104 - a string path
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


async def test_pod_with_a_status_too_large_for_a_message_is_not_kept_and_its_usage_is_a_lower_bound(
    node: Node,
) -> None:
    large = node.pod("large")
    node.pod("other")
    (container,) = node.sim.containers_of(large.id)
    too_large = "grpc: trying to send message larger than max (17000000 vs. 16777216)"
    node.server.faults.fail("ContainerStatus", container.id, status="RESOURCE_EXHAUSTED", detail=too_large)
    inventory = await node.reader().read(with_disk=True)
    assert (kept(inventory, "large"), kept(inventory, "other")) == (None, None)
    usages = [facts_of(inventory, each).usage for each in ("large", "other")]
    layers = [None if each is None else each.writable for each in usages]
    assert [each is not None and each.is_lower_bound for each in layers] == [True, False]
    assert None not in layers


async def test_pod_is_kept_while_the_runtime_is_too_busy_for_its_status(node: Node) -> None:
    (container,) = node.sim.containers_of(node.pod("busy").id)
    node.server.faults.fail("ContainerStatus", container.id, status="RESOURCE_EXHAUSTED", detail="too many requests")
    assert kept(await node.reader().read(), "busy") == "facts-missing"


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


@pytest.mark.parametrize("with_disk", [False, True])
async def test_unreadable_cgroup_leaves_memory_usage_unknown(node: Node, with_disk: bool) -> None:
    sandbox = node.pod("web")
    (node.root / "sys/fs/cgroup" / sandbox.cgroup_parent.strip("/") / "memory.current").write_text("")
    usage = facts_of(await node.reader().read(with_disk=with_disk), "web").usage
    assert usage is None or usage.memory_bytes is None


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


async def test_status_timeout_keeps_the_pod(node: Node) -> None:
    web = node.pod("web")
    node.server.faults.delay("PodSandboxStatus", target=web.id)
    async with RuntimeConnection(node.server.endpoint, deadlines={"PodSandboxStatus": 0.05}) as connection:
        reader = PodReader(
            CriClient(connection), settings=PodSettings(), clock=node.clock, role=lambda: Role.BESIDE_KUBELET
        )
        inventory = await reader.read(with_usage=False)
    assert kept(inventory, "web") == "facts-missing"
    assert "DEADLINE_EXCEEDED" in inventory.warnings[0]
