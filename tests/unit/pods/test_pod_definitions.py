"""Pod definitions from the kubelet and static manifests: age of the kubelet's list, failures, static pods."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from nodeagent.model.kubernetes import KubeletAccess
from nodeagent.model.node import Role
from nodeagent.model.pods import PodSpec
from nodeagent.model.pressure import Fact, FactSource, QosClass
from nodeagent.pods.plan.watch import WatchState, after_interruption, after_list, compact
from nodeagent.pods.watched import WatchedPods
from nodeagent.record import replace
from tests.unit.pods.pod_node import Lister, Node, facts_of, kept

if TYPE_CHECKING:
    from tests.sim.workload import SimSandbox


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


async def test_kubelet_address_of_the_settings_is_used(node: Node) -> None:
    node.pod("web")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        access = KubeletAccess(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=1)
        inventory = await node.reader(access=access).read()
    assert "connection refused" in inventory.warnings[0]
    assert kept(inventory, "web") == "facts-missing"


# ---- the API server ----


def watched(node: Node, *pods: PodSpec, connected: bool = True) -> WatchedPods:
    """Return a pod watch with these pods, listed at the current time."""
    made = WatchedPods(node.clock)
    made.address = "API server"
    now_s = node.clock.monotonic_s()
    specs = [compact(each) for each in pods]
    made.state = after_list(WatchState(), specs, "7", requested_s=now_s, now_s=now_s, now=node.clock.now())
    if not connected:
        made.state = after_interruption(made.state, "connection lost")
    return made


async def test_current_watch_replaces_the_list_of_the_kubelet(node: Node) -> None:
    web = node.pod("web", annotations={"kubernetes.io/config.source": "api"})
    lister = Lister([listed(web, priority=1)])
    source = watched(node, listed(web, priority=7, qos=QosClass.BURSTABLE, termination_grace_s=5.0))
    inventory = await node.reader(role=Role.BESIDE_KUBELET, kubelet=lister, watched=source).read()
    facts = facts_of(inventory, "web")
    assert facts.priority == Fact(7, FactSource.API_SERVER)
    assert facts.termination_grace_s == Fact(5.0, FactSource.API_SERVER)
    assert (facts.static, facts.mirror) == (
        Fact(value=False, source=FactSource.API_SERVER),
        Fact(value=False, source=FactSource.API_SERVER),
    )
    assert (lister.reads, inventory.warnings, kept(inventory, "web")) == (0, (), None)
    (stopped,) = inventory.shutdown
    assert (stopped.priority, stopped.priority_source) == (7, "API server")


async def test_pod_missing_in_a_current_watch_is_kept_only_if_it_is_from_the_api_server(node: Node) -> None:
    node.pod("new", annotations={"kubernetes.io/config.source": "api"})
    node.pod("local")
    inventory = await node.reader(role=Role.STANDALONE, watched=watched(node)).read()
    assert facts_of(inventory, "new").contradictions == ("not in the API server's list",)
    assert (kept(inventory, "new"), kept(inventory, "local")) == ("facts-contradictory", None)


async def test_interrupted_watch_complements_the_list_of_the_kubelet(node: Node) -> None:
    web, job = (node.pod(each, annotations={"kubernetes.io/config.source": "api"}) for each in ("web", "job"))
    lister = Lister([listed(web, priority=1)])
    source = watched(node, listed(web, priority=7), listed(job, priority=9), connected=False)
    inventory = await node.reader(role=Role.BESIDE_KUBELET, kubelet=lister, watched=source).read()
    assert facts_of(inventory, "web").priority == Fact(1, FactSource.KUBELET)
    assert facts_of(inventory, "job").priority == Fact(9, FactSource.API_SERVER)
    assert inventory.warnings == ("the pods of the API server are not current: connection lost",)


async def test_interrupted_watch_alone_keeps_its_facts_and_contradicts_nothing(node: Node) -> None:
    web = node.pod("web", annotations={"kubernetes.io/config.source": "api"})
    node.pod("new", annotations={"kubernetes.io/config.source": "api"})
    source = watched(node, listed(web, priority=7), connected=False)
    inventory = await node.reader(role=Role.BESIDE_KUBELET, watched=source).read()
    assert facts_of(inventory, "web").priority == Fact(7, FactSource.API_SERVER)
    assert facts_of(inventory, "new").contradictions == ()
    assert kept(inventory, "new") == "facts-missing"


async def test_malformed_pod_of_the_watch_is_kept(node: Node) -> None:
    web = node.pod("web", annotations={"kubernetes.io/config.source": "api"})
    broken = listed(web, malformed="pod 0: spec.priority is 'high'")
    inventory = await node.reader(role=Role.STANDALONE, watched=watched(node, broken)).read()
    assert kept(inventory, "web") == "facts-contradictory"
    assert "malformed pod in the API server's list, kept" in inventory.warnings[0]


async def test_mirror_pod_of_the_watch_has_the_facts_of_its_static_pod(node: Node) -> None:
    digest = "1c3acc3412271b66af706930b4c44d37"
    node.pod("etcd", uid=digest, annotations={"kubernetes.io/config.source": "file"})
    marks = {"kubernetes.io/config.mirror": digest, "kubernetes.io/config.hash": digest}
    mirror = PodSpec("uid-mirror", "default", "etcd", annotations={**marks, "kubernetes.io/config.source": "file"})
    inventory = await node.reader(role=Role.BESIDE_KUBELET, watched=watched(node, mirror)).read()
    facts = facts_of(inventory, "etcd")
    assert (facts.static.value, facts.mirror.value) == (True, True)
    assert kept(inventory, "etcd") == "static-pod"
