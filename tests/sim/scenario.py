"""Example nodes: a typical worker for demos and tests, and nodes of any size for benchmarks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from nodeagent.model.runtime import ContainerState
from nodeagent.record import Record
from tests.sim.clock import START, SimClock
from tests.sim.content import Layer
from tests.sim.disk import GIB
from tests.sim.logs import write_logs
from tests.sim.node import PAUSE, SimNode
from tests.sim.workload import QosClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from tests.sim.workload import SimContainer, SimSandbox

MIB: Final = 1024 * 1024
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S

_DEBIAN: Final = Layer("debian-12", 78 * MIB, 29 * MIB, 3400)
_ALPINE: Final = Layer("alpine-3.20", 8 * MIB, 3 * MIB, 520)
_PYTHON: Final = (_DEBIAN, Layer("python-3.12", 182 * MIB, 64 * MIB, 7900))
_NODE: Final = (_DEBIAN, Layer("node-22", 176 * MIB, 55 * MIB, 5200))
_JAVA: Final = (_DEBIAN, Layer("jre-21", 214 * MIB, 88 * MIB, 960))
_SHOP: Final = "registry.example.com/shop"
_DATA: Final = "registry.example.com/data"
_SYSTEM: Final = "registry.k8s.io"


class _Family(Record):
    """Images of successive versions of one application: common base layers, then one or two layers per version."""

    repository: str
    base: tuple[Layer, ...]
    dependencies_mib: int
    code_mib: int
    versions: int
    every_days: float = 4.0


_FAMILIES: Final = (
    _Family(f"{_SHOP}/frontend", _NODE, 620, 180, 6),
    _Family(f"{_SHOP}/payments", _JAVA, 540, 210, 6),
    _Family(f"{_SHOP}/search", _PYTHON, 880, 340, 5, 6),
    _Family(f"{_SHOP}/catalog", _PYTHON, 480, 150, 4, 5),
    _Family(f"{_DATA}/report", _PYTHON, 1450, 120, 4, 7),
    _Family(f"{_DATA}/ml-train", _PYTHON, 4200, 260, 2, 12),
)


class Scenario(Record):
    """Simulated node, and deleted pods with logs on its disk.

    Attributes:
        node: state of the node.
        former_pods: pods deleted from the runtime, of which only the logs remain.
    """

    node: SimNode
    former_pods: tuple[tuple[SimSandbox, tuple[SimContainer, ...]], ...] = ()

    def write_logs(self, root: Path) -> None:
        """Write the pod log tree and the container log links below ``root``."""
        write_logs(self.node, root, former_pods=self.former_pods)


def example_node(seed: int = 1, *, now: datetime = START, root_path: str = "/var/lib/containerd") -> Scenario:
    """Return a worker node of a small cluster, with an image filesystem of 40 GiB at 91 percent; equal for equal seeds.

    Fourteen pods run: system pods, a shop, batch jobs. Some containers are in a crash loop with four dead attempts,
    some deleted pods still have sandboxes and logs. About forty images share layers; older versions are unused, one
    image was pulled a moment ago, and the pause image is pinned.
    """
    dice = random.Random(seed)
    node = SimNode(clock=SimClock(now), capacity_bytes=40 * GIB, other_inodes=21_000, root_path=root_path, seed=seed)
    _add_system_images(node)
    for family in _FAMILIES:
        _add_family(node, family, dice)
    _add_special_images(node)
    _run_system_pods(node)
    _run_shop(node, dice)
    _add_dead_pods(node, dice)
    former = _add_former_pods(node, dice)
    node.collect_garbage()
    node.fill_to(91)
    return Scenario(node, former)


def scale_node(
    images: int,
    layers_per_image: int = 10,
    containers: int = 0,
    *,
    now: datetime = START,
    root_path: str = "/var/lib/containerd",
    used_percent: float = 91,
    sharing: int = 8,
    seed: int = 1,
) -> SimNode:
    """Return a node of any size, for benchmarks.

    Half of the layers of an image are shared by ``sharing`` images; ``sharing`` 1 disables sharing. Every third
    container is dead, pods have up to four containers, and a tenth of the images is in use. The size of the filesystem
    is chosen so that ``used_percent`` of it is used.
    """
    dice = random.Random(seed)
    node = SimNode(clock=SimClock(now), root_path=root_path, seed=seed)
    node.add_image(PAUSE, layers=[Layer("pause", 728 * 1024, inodes=3)], pinned=True, age_s=90 * DAY_S)
    shared_count = layers_per_image // 2
    names = []
    for number in range(images - 1):
        family, version = divmod(number, sharing)
        shared = [Layer(f"base-{family}-{depth}", (4 + depth) * MIB) for depth in range(shared_count)]
        own = [
            Layer(f"own-{number}-{depth}", dice.randrange(1, 40) * MIB)
            for depth in range(layers_per_image - shared_count)
        ]
        name = f"registry.example.com/team-{family % 20}/app-{family}:v{version}"
        node.add_image(name, layers=[*shared, *own], age_s=dice.uniform(HOUR_S, 60 * DAY_S))
        names.append(name)
    in_use = names[:: max(1, len(names) // max(1, images // 10))] or [PAUSE]
    pod: SimSandbox | None = None
    for number in range(containers):
        if pod is None or number % 4 == 0:
            pod = node.add_pod(f"pod-{number // 4}", namespace=f"team-{number % 20}", age_s=2 * DAY_S)
        dead = number % 3 == 0
        node.add_container(
            pod,
            f"app-{number % 4}",
            in_use[number % len(in_use)],
            state=ContainerState.EXITED if dead else ContainerState.RUNNING,
            age_s=DAY_S,
            ended_s=HOUR_S if dead else None,
            exit_code=1 if dead else 0,
            writable_bytes=64 * 1024,
        )
    node.capacity_bytes = max(GIB, int(node.store.used_bytes * 105 / used_percent))
    node.inodes = max(node.inodes, node.store.inodes_used * 2)
    node.fill_to(used_percent)
    return node


def _add_system_images(node: SimNode) -> None:
    node.add_image(PAUSE, layers=[Layer("pause", 728 * 1024, 312 * 1024, 3)], pinned=True, age_s=120 * DAY_S)
    distroless = Layer("distroless-static", 3 * MIB, MIB, 1200)
    system = (
        (f"{_SYSTEM}/coredns/coredns:v1.11.1", (distroless, Layer("coredns", 58 * MIB, 17 * MIB, 4)), 120),
        (f"{_SYSTEM}/kube-proxy:v1.30.4", (distroless, Layer("kube-proxy-1.30", 81 * MIB, 26 * MIB, 40)), 60),
        (f"{_SYSTEM}/kube-proxy:v1.29.8", (distroless, Layer("kube-proxy-1.29", 80 * MIB, 26 * MIB, 40)), 120),
        ("docker.io/flannel/flannel:v0.25.6", (_ALPINE, Layer("flannel", 66 * MIB, 24 * MIB, 90)), 60),
        ("docker.io/flannel/flannel-cni-plugin:v1.5.1", (_ALPINE, Layer("flannel-cni", 3 * MIB, MIB, 4)), 60),
        ("quay.io/prometheus/node-exporter:v1.8.2", (Layer("node-exporter", 24 * MIB, 11 * MIB, 12),), 45),
        ("docker.io/fluent/fluent-bit:3.1.9", (_DEBIAN, Layer("fluent-bit", 61 * MIB, 22 * MIB, 130)), 30),
        ("docker.io/library/redis:7.4", (_DEBIAN, Layer("redis-7.4", 39 * MIB, 13 * MIB, 60)), 30),
        ("docker.io/library/postgres:16.4", (_DEBIAN, Layer("postgres-16", 341 * MIB, 121 * MIB, 2100)), 40),
    )
    for tag, layers, age_days in system:
        node.add_image(tag, layers=layers, age_s=age_days * DAY_S, docker=tag.startswith("docker.io"))


def _add_family(node: SimNode, family: _Family, dice: random.Random) -> None:
    """Pull the versions of an application in order; every third version also changes the layer of dependencies."""
    dependencies = family.base
    for version in range(1, family.versions + 1):
        if version % 3 == 1:
            size_bytes = int(family.dependencies_mib * dice.uniform(0.9, 1.1)) * MIB
            dependencies = (*family.base, Layer(f"{family.repository} dependencies {version}", size_bytes))
        code = Layer(f"{family.repository} code {version}", int(family.code_mib * dice.uniform(0.8, 1.2)) * MIB)
        age_s = (family.versions - version + 1) * family.every_days * DAY_S + dice.uniform(0, 6 * HOUR_S)
        tags = [f"{family.repository}:v{version}"]
        if version == family.versions:
            tags.append(f"{family.repository}:stable")
        node.add_image(*tags, layers=(*dependencies, code), age_s=age_s)


def _add_special_images(node: SimNode) -> None:
    """Add a multi-platform index, a debug tool, a dangling image and an image pulled a moment ago."""
    nginx = (_DEBIAN, Layer("nginx-1.27", 118 * MIB, 41 * MIB, 240))
    node.add_image("docker.io/library/nginx:1.27", layers=nginx, age_s=20 * DAY_S, index=True)
    older = (_DEBIAN, Layer("nginx-1.25", 115 * MIB, 40 * MIB, 240))
    node.add_image("docker.io/library/nginx:1.25", layers=older, age_s=75 * DAY_S, index=True)
    node.add_image("docker.io/library/busybox:1.36", layers=[Layer("busybox", 4 * MIB, 2 * MIB, 410)], age_s=50 * DAY_S)
    tool = (*_PYTHON, Layer("debug-tools", 410 * MIB))
    node.add_image("registry.example.com/ops/debug:latest", layers=tool, age_s=33 * DAY_S)
    dangling = (*_NODE, Layer("frontend-nightly", 730 * MIB))
    node.add_image(f"{_SHOP}/frontend:nightly", layers=dangling, age_s=9 * DAY_S, digest_only=True)
    fresh = (*_PYTHON, Layer("checkout dependencies", 390 * MIB), Layer("checkout code", 88 * MIB))
    node.add_image(f"{_SHOP}/checkout:v1", layers=fresh, age_s=20)


def _run_system_pods(node: SimNode) -> None:
    system, old_s = "kube-system", 30 * DAY_S
    for name in ("coredns-7db6d8ff4d-2xkfp", "coredns-7db6d8ff4d-9qvzl"):
        pod = node.add_pod(name, namespace=system, qos=QosClass.BURSTABLE, age_s=old_s, labels={"k8s-app": "kube-dns"})
        _run(node, pod, "coredns", f"{_SYSTEM}/coredns/coredns:v1.11.1", age_s=old_s, memory_mib=70)
    proxy = node.add_pod("kube-proxy-8m4tw", namespace=system, age_s=old_s, labels={"k8s-app": "kube-proxy"})
    _run(node, proxy, "kube-proxy", f"{_SYSTEM}/kube-proxy:v1.30.4", age_s=old_s, memory_mib=30)
    cni = node.add_pod("kube-flannel-ds-w5r8c", namespace="kube-flannel", qos=QosClass.BURSTABLE, age_s=old_s)
    node.add_container(
        cni,
        "install-cni-plugin",
        "docker.io/flannel/flannel-cni-plugin:v1.5.1",
        state=ContainerState.EXITED,
        age_s=old_s,
        ended_s=old_s - 2,
    )
    _run(node, cni, "kube-flannel", "docker.io/flannel/flannel:v0.25.6", age_s=old_s, memory_mib=40)
    exporter = node.add_pod("node-exporter-h7dnb", namespace="monitoring", age_s=old_s)
    _run(node, exporter, "node-exporter", "quay.io/prometheus/node-exporter:v1.8.2", age_s=old_s, memory_mib=22)
    shipper = node.add_pod(
        "fluent-bit-zk2vq", namespace="monitoring", qos=QosClass.BURSTABLE, age_s=old_s, source="file"
    )
    _run(node, shipper, "fluent-bit", "docker.io/fluent/fluent-bit:3.1.9", age_s=old_s, memory_mib=55)


def _run_shop(node: SimNode, dice: random.Random) -> None:
    burstable, guaranteed = QosClass.BURSTABLE, QosClass.GUARANTEED
    for suffix in ("lq9zs", "mt4xb"):
        pod = node.add_pod(f"shop-frontend-6c9f7d5b8-{suffix}", namespace="shop", qos=burstable, age_s=2 * DAY_S)
        _run(node, pod, "frontend", f"{_SHOP}/frontend:v6", age_s=2 * DAY_S, memory_mib=310)
        _run(node, pod, "nginx", "docker.io/library/nginx:1.27", age_s=2 * DAY_S, memory_mib=24)
    payments = node.add_pod("payments-5f6d8c7b9-tw2kd", namespace="shop", qos=guaranteed, age_s=3 * DAY_S)
    _crash_loop(node, payments, "payments", f"{_SHOP}/payments:v6", dice, runs_since_s=5 * HOUR_S)
    search = node.add_pod("search-0", namespace="shop", qos=burstable, age_s=6 * DAY_S)
    _crash_loop(node, search, "search", f"{_SHOP}/search:v5", dice, runs_since_s=40 * 60)
    catalog = node.add_pod("catalog-84b7c9f6d-r8v5n", namespace="shop", qos=burstable, age_s=4 * DAY_S)
    _run(node, catalog, "catalog", f"{_SHOP}/catalog:v4", age_s=4 * DAY_S, memory_mib=420)
    redis = node.add_pod("redis-0", namespace="shop", attempt=1, qos=burstable, age_s=12 * DAY_S)
    _run(node, redis, "redis", "docker.io/library/redis:7.4", age_s=12 * DAY_S, memory_mib=180)
    database = node.add_pod("postgres-0", namespace="shop", qos=guaranteed, age_s=25 * DAY_S)
    _run(node, database, "postgres", "docker.io/library/postgres:16.4", age_s=25 * DAY_S, memory_mib=900)
    batch = node.add_pod("report-28999440-x7c2m", namespace="batch", age_s=40 * 60)
    _run(node, batch, "report", f"{_DATA}/report:v4", age_s=40 * 60, memory_mib=1500)


def _add_dead_pods(node: SimNode, dice: random.Random) -> None:
    """Add finished and deleted pods: sandboxes that are not ready, and dead containers."""
    for number, (name, image, count) in enumerate(
        (
            ("report-28998000-4gk9p", f"{_DATA}/report:v3", 1),
            ("report-28996560-b2qhw", f"{_DATA}/report:v3", 1),
            ("ml-train-weekly-8xnvd", f"{_DATA}/ml-train:v1", 4),
            ("catalog-6d5f9b7c4-hj2kl", f"{_SHOP}/catalog:v3", 1),
        )
    ):
        pod = node.add_pod(name, namespace="batch" if number < 3 else "shop", ready=False, age_s=(number + 2) * DAY_S)
        for attempt in range(count):
            ended_s = (number + 1) * DAY_S - attempt * 1800
            node.add_container(
                pod,
                "main",
                image,
                state=ContainerState.EXITED,
                attempt=attempt,
                age_s=ended_s + 1500,
                ended_s=ended_s,
                exit_code=0 if attempt == count - 1 else 137,
                writable_bytes=dice.randrange(20, 300) * MIB,
            )
    for name in ("smoke-test-5mz8t", "migrate-catalog-q4w7r"):
        node.add_pod(name, namespace="batch", ready=False, age_s=dice.uniform(2, 9) * HOUR_S)
    redis = next(sandbox for sandbox in node.sandboxes.values() if sandbox.name == "redis-0")
    node.add_pod("redis-0", namespace="shop", uid=redis.uid, attempt=0, ready=False, age_s=25 * DAY_S)
    unmanaged = node.add_pod("toolbox", namespace="default", labelled=False, ready=False, age_s=8 * DAY_S)
    node.add_container(
        unmanaged,
        "shell",
        "docker.io/library/busybox:1.36",
        state=ContainerState.EXITED,
        age_s=8 * DAY_S,
        ended_s=7 * DAY_S,
        labelled=False,
    )


def _add_former_pods(node: SimNode, dice: random.Random) -> tuple[tuple[SimSandbox, tuple[SimContainer, ...]], ...]:
    """Add pods, remove them from the runtime and return the removed pods, of which only the logs remain."""
    former = []
    for name in ("shop-frontend-5b8d6f9c7-c6wjx", "report-28995120-n9s4f"):
        pod = node.add_pod(name, namespace="shop", ready=False, age_s=9 * DAY_S)
        containers = tuple(
            node.add_container(
                pod,
                part,
                "docker.io/library/busybox:1.36",
                state=ContainerState.EXITED,
                age_s=9 * DAY_S,
                ended_s=dice.uniform(5, 8) * DAY_S,
            )
            for part in ("main", "sidecar")
        )
        former.append((pod, containers))
        node.remove_sandbox(pod.id)
    return tuple(former)


def _run(node: SimNode, pod: SimSandbox, name: str, image: str, *, age_s: float, memory_mib: int) -> SimContainer:
    return node.add_container(
        pod,
        name,
        image,
        age_s=age_s,
        working_set_bytes=memory_mib * MIB,
        memory_request_bytes=memory_mib * MIB,
        memory_limit_bytes=2 * memory_mib * MIB,
        writable_bytes=memory_mib * 1024,
    )


def _crash_loop(
    node: SimNode,
    pod: SimSandbox,
    name: str,
    image: str,
    dice: random.Random,
    *,
    runs_since_s: float,
    crashes: int = 4,
) -> Sequence[SimContainer]:
    """Add dead attempts of a container with the kubelet's back-off, and a running attempt of age ``runs_since_s``."""
    attempts = []
    ended_s = runs_since_s + 10.0 * 2**crashes
    for attempt in range(crashes):
        lived_s = dice.uniform(5, 60)
        started_s = ended_s + lived_s
        attempts.append(
            node.add_container(
                pod,
                name,
                image,
                state=ContainerState.EXITED,
                attempt=attempt,
                age_s=started_s + (crashes - attempt) * 300,
                ended_s=ended_s + (crashes - attempt) * 300,
                exit_code=dice.choice((1, 137)),
                writable_bytes=dice.randrange(10, 120) * MIB,
            )
        )
    attempts.append(
        node.add_container(pod, name, image, attempt=crashes, age_s=runs_since_s, working_set_bytes=400 * MIB)
    )
    return attempts
