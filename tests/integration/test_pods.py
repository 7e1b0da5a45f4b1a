"""Tests of pod facts read from a real containerd: cgroup parents, annotations, OOM scores and limits.

Memory usage is not tested here, since it requires a node with cgroup v2.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.host.meminfo import read_totals
from nodeagent.model.node import Role
from nodeagent.model.pressure import Fact, FactSource, QosClass
from nodeagent.pods.reader import PodReader, PodSettings
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from nodeagent.units import SystemClock
from tests.support import images, reclaim

if TYPE_CHECKING:
    from nodeagent.model.pods import PodInventory
    from nodeagent.model.pressure import PodFacts
    from tests.support.containerd import Containerd
    from tests.support.pods import Pods, Sandbox

pytestmark = pytest.mark.real

MIB = 1 << 20
SLEEP = ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]
WRITE = ["sh", "-c", "dd if=/dev/zero of=/data bs=1M count=4 2>/dev/null; echo written; sleep 600"]


@pytest.fixture(scope="module")
def image(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> str:
    archive = images.write_oci(tmp_path_factory.mktemp("app") / "app.tar", images.image("facts.test/app:v1"))
    containerd.import_images(archive)
    return archive.tags[0]


def run(
    pods: Pods, name: str, image: str, *scores: int, qos: str = "", limit: int = 0, command: Any = SLEEP, **sandbox: Any
) -> Sandbox:
    """Run a pod as the kubelet does, with one container per OOM score adjustment; return its sandbox."""
    uid = str(uuid.uuid4())
    parent = f"{pods.cgroup_parent}/kubepods{qos and f'/{qos}'}/pod{uid}"
    made = pods.run_sandbox(name, uid=uid, cgroup_parent=parent, **sandbox)
    for number, score in enumerate(scores):
        resources = {"oom_score_adj": score, **({"memory_limit_in_bytes": limit} if limit else {})}
        container = pods.create_container(made, f"c{number}", image, command, resources=resources)
        pods.start(container)
    return made


def read_pods(containerd: Containerd, tmp_path: Path, **options: bool) -> tuple[PodInventory, Counter[str]]:
    """Read the pods twice; return the second reading and the number of its runtime calls by method."""
    calls: Counter[str] = Counter()

    def observe(method: str, _seconds: float, _status: str) -> None:
        calls[method] += 1

    async def gather() -> PodInventory:
        async with RuntimeConnection(str(containerd.socket), observer=observe) as connection:
            settings = PodSettings(pod_log_root=tmp_path / "none", kubelet_root=tmp_path / "kubelet")
            watcher = PodReader(
                CriClient(connection), settings=settings, clock=SystemClock(), role=lambda: Role.STANDALONE
            )
            await watcher.read(**options)
            calls.clear()
            return await watcher.read(**options)

    return asyncio.run(gather()), calls


def facts_of(inventory: PodInventory, sandbox: Sandbox) -> PodFacts:
    (found,) = (each for each in inventory.facts if each.uid == sandbox.uid)
    return found


def kept(inventory: PodInventory, sandbox: Sandbox) -> str | None:
    reason = Protection(inventory.facts, EvictionPolicy()).keep_reason(facts_of(inventory, sandbox))
    return None if reason is None else reason.code.value


def test_facts_of_real_pods_match_their_definitions(
    containerd: Containerd, pods: Pods, image: str, tmp_path: Path
) -> None:
    burstable = run(pods, "burstable", image, 900, 999, qos="burstable", labels={"app": "web"})
    guaranteed = run(pods, "guaranteed", image, -997, limit=64 * MIB)
    best_effort = run(pods, "besteffort", image, 1000, qos="besteffort")
    static = run(pods, "static", image, 900, qos="burstable", annotations={"kubernetes.io/config.source": "file"})
    critical = run(pods, "critical", image, -997, qos="burstable")
    annotated = run(pods, "annotated", image, 0, annotations={"nodeagent.dev/priority": "-10"})
    inventory, calls = read_pods(containerd, tmp_path, with_usage=False)

    capacity = read_totals().memory
    assert len(inventory.warnings) == 2  # two pods have annotations that are ignored
    assert calls == {"ListPodSandbox": 1, "ListContainers": 1}
    found = facts_of(inventory, burstable)
    assert found.qos == Fact(QosClass.BURSTABLE, FactSource.CGROUP)
    assert found.memory_request_bytes == Fact(capacity * 101 // 1000 + capacity * 2 // 1000, FactSource.INFERRED)
    assert found.termination_grace_s == Fact(30.0, FactSource.CRI)
    assert (found.priority, kept(inventory, burstable)) == (Fact(0, FactSource.ASSUMED), None)
    assert facts_of(inventory, guaranteed).qos.value is QosClass.GUARANTEED
    assert facts_of(inventory, guaranteed).memory_request_bytes == Fact(64 * MIB, FactSource.INFERRED)
    assert kept(inventory, guaranteed) is None
    assert facts_of(inventory, best_effort).memory_request_bytes == Fact(0, FactSource.INFERRED)
    assert kept(inventory, best_effort) is None
    assert kept(inventory, static) is None  # its annotation is ignored, since the author of a pod controls annotations
    assert facts_of(inventory, static).static == Fact(value=False, source=FactSource.ASSUMED)
    assert kept(inventory, critical) is None
    assert facts_of(inventory, annotated).priority == Fact(0, FactSource.ASSUMED)

    shutdown_pods = {each.uid: each for each in inventory.shutdown}
    assert shutdown_pods[burstable.uid].labels == {"app": "web"}
    assert shutdown_pods[critical.uid].node_critical_source == "oom_score_adj"
    assert shutdown_pods[static.uid].static
    listed = {each.id: each for each in pods.list_containers()}
    assert [listed[key].name for key in shutdown_pods[burstable.uid].container_ids] == ["c1", "c0"]
    handle = inventory.handles[burstable.uid]
    assert (handle.sandbox_ids, handle.container_ids) == ((burstable.id,), shutdown_pods[burstable.uid].container_ids)
    for each in handle.containers:
        assert each.pid is not None
        assert each.id in _text(f"/proc/{each.pid}/cgroup")


def test_disk_usage_of_a_real_pod_is_measured(containerd: Containerd, pods: Pods, image: str, tmp_path: Path) -> None:
    sandbox = run(pods, "writer", image, 999, qos="burstable", command=WRITE)
    data = tmp_path / "kubelet/pods" / sandbox.uid / "volumes/kubernetes.io~empty-dir/cache/data"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"x" * MIB)

    def measured() -> PodFacts | None:
        facts = facts_of(read_pods(containerd, tmp_path, with_disk=True)[0], sandbox)
        usage = facts.usage
        enough = usage is not None and (usage.writable.used_bytes or 0) >= 4 * MIB and usage.logs.used_bytes
        return facts if enough else None

    reclaim.poll("the runtime has measured the written bytes", lambda: measured() is not None, timeout_s=30)
    facts = measured()
    assert facts is not None
    assert facts.usage is not None
    assert facts.usage.writable.used_bytes is not None
    assert 4 * MIB <= facts.usage.writable.used_bytes < 5 * MIB
    assert facts.usage.memory_bytes is not None  # read from a visible cgroup, else from the runtime
    assert [each.used_bytes for each in facts.empty_dirs] == [data.stat().st_blocks * 512]
    assert (facts.usage.ephemeral_bytes or 0) >= 5 * MIB
    handle = read_pods(containerd, tmp_path)[0].handles[sandbox.uid]
    Path(f"/proc/{handle.containers[0].pid}/root/more").write_bytes(b"x" * (8 * MIB))
    at_once = facts_of(read_pods(containerd, tmp_path, with_disk=True)[0], sandbox).usage
    assert at_once is not None
    assert (at_once.writable.used_bytes or 0) >= 12 * MIB


def test_ended_pod_is_no_longer_listed(containerd: Containerd, pods: Pods, image: str, tmp_path: Path) -> None:
    ending = run(pods, "ending", image, 1000, qos="besteffort")
    assert ending.uid in read_pods(containerd, tmp_path)[0].handles
    pods.stop_sandbox(ending)
    inventory, _ = read_pods(containerd, tmp_path)
    assert ending.uid not in inventory.handles
    assert ending.uid not in {each.uid for each in inventory.facts}


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a single call, without a Path object
        return file.read()
