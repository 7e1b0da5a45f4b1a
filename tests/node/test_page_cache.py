"""Tests of page cache under memory thresholds, in a virtual machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.test_eviction import alive, available_mib, events, start, wait_for
from tests.support import hogs, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Node, RunningPod

pytestmark = [pytest.mark.node, pytest.mark.long]

MIB = 1 << 20
CACHE_MIB = 300
DROP_INS = "/etc/systemd/system/nodeagent.service.d"
QUIET_S = 35
"""Wait in seconds that is longer than several passes, and than the suspension of a repeated cache reclaim."""


@pytest.fixture(scope="module")
def node(disk: vm.Disk) -> Iterator[Node]:
    with vm.Node.boot(disk, memory_mib=1024) as booted:
        booted.import_images(vm.pause_image(), hogs.image())
        booted.put("/etc/systemd/system/nodeagent.service", vm.CHECKOUT / "systemd" / "nodeagent.service")
        booted.run("mkdir -p /etc/nodeagent; sysctl -qw vm.min_free_kbytes=8192; systemctl daemon-reload")
        yield booted


def active_mib(node: Node, pod: RunningPod) -> int:
    stat = node.get(f"{pod.pod.cgroup}/memory.stat").decode()
    return int(stat.partition("\nactive_file ")[2].split()[0]) // MIB


def kernel_available_mib(node: Node) -> int:
    return int(node.get("/proc/meminfo").decode().partition("MemAvailable:")[2].split()[0]) // 1024


def run_reader(node: Node, name: str, times: int = 2) -> RunningPod:
    """Run a pod with an active page cache; return the pod after the cache has been filled."""
    words = ("/bin/hog", "cache", "/cached", str(CACHE_MIB), str(times))
    (reader,) = node.run_pods(vm.Pod(name, hogs.HOG, words, resources={"oom_score_adj": 990}))
    reclaim.poll("the cache is active", lambda: active_mib(node, reader) > CACHE_MIB * 0.9, timeout_s=120, interval_s=1)
    return reader


def remove(node: Node, pod: RunningPod, *, stop: bool = True) -> None:
    if stop:
        node.run("systemctl stop nodeagent", check=False, timeout_s=60)
    node.python(
        "from pathlib import Path\n"
        "from tests.support.pods import Pods\n"
        "with Pods(Path('/run/containerd/containerd.sock'), log_root=Path('/var/log/pods')) as pods:\n"
        f"    pods.call('StopPodSandbox', {{'pod_sandbox_id': '{pod.sandbox_id}'}})\n"
        f"    pods.call('RemovePodSandbox', {{'pod_sandbox_id': '{pod.sandbox_id}'}})\n",
        timeout_s=120,
    )


def permit(node: Node) -> None:
    """Install the page cache drop-in on a node without pods, as after a boot."""
    node.put(f"{DROP_INS}/page-cache.conf", vm.CHECKOUT / "systemd" / "page-cache.conf")
    node.run("systemctl daemon-reload; systemctl stop kubepods.slice", check=False)


def start_below(node: Node) -> None:
    """Start the agent with a threshold that is met by ``memory.available`` but not by the kernel's ``MemAvailable``."""
    threshold = available_mib(node) + 60
    assert kernel_available_mib(node) > threshold + 60
    start(node, f'hard = "memory.available<{threshold}Mi"')


def assert_kept(node: Node, reader: RunningPod) -> None:
    """Assert that a pod is kept, and that the contradiction of the estimates is reported."""
    (reported,) = wait_for(node, "memory_estimates_differ")
    assert "page-cache-active" in reported["why"], reported
    node.run(f"sleep {QUIET_S}")
    assert [events(node, each) for each in ("eviction_started", "page_cache_reclaimed", "threshold_met")] == [
        [],
        [],
        [],
    ]
    assert alive(node, reader)
    assert "warning  memory-thresholds" in node.run("nodeagent doctor", check=False, timeout_s=120).stdout
    shown = node.run("nodeagent pressure -o wide", timeout_s=60).stdout
    assert "page-cache-active" in shown
    assert "anonymous-of-pods" in shown
    print(reported)


@pytest.mark.parametrize("lru", ["lru-gen", "classic-lru"])
@pytest.mark.parametrize("drop_in", [False, True], ids=["not-permitted", "permitted"])
def test_pod_with_an_idle_page_cache_is_kept(node: Node, lru: str, *, drop_in: bool) -> None:
    node.run(f"echo {'y' if lru == 'lru-gen' else 'n'} > /sys/kernel/mm/lru_gen/enabled")
    node.run(f"rm -rf {DROP_INS}; systemctl daemon-reload")
    if drop_in:
        permit(node)
        shown = node.run("systemd-analyze security nodeagent --no-pager", timeout_s=120).stdout
        assert float(shown.rpartition("exposure level for nodeagent.service:")[2].split()[0]) <= 1.8, shown
    reader = run_reader(node, "reader")
    try:
        start_below(node)
        assert_kept(node, reader)
    finally:
        remove(node, reader)


def test_pod_that_reads_its_page_cache_without_a_shortage_is_kept(node: Node) -> None:
    reader = run_reader(node, "busy", times=0)
    try:
        start_below(node)
        assert_kept(node, reader)
    finally:
        remove(node, reader)


def test_drop_in_permits_the_reclaim_from_pods_that_start_after_the_agent_and_after_the_last_pod_ended(
    node: Node,
) -> None:
    permit(node)
    start(node, 'hard = "memory.available<10Mi"')
    process = node.run("systemctl show nodeagent -p MainPID --value").stdout.strip()
    for name in ("first", "second"):
        reader = run_reader(node, name)
        reclaimed = f"echo 100M > {reader.pod.cgroup}/memory.reclaim"
        node.run(["nsenter", "--target", process, "--mount", "sh", "-c", reclaimed])
        assert active_mib(node, reader) < CACHE_MIB * 0.8
        others = "echo 1M > /sys/fs/cgroup/system.slice/memory.reclaim"
        assert node.run(["nsenter", "--target", process, "--mount", "sh", "-c", others], check=False).code != 0
        remove(node, reader, stop=name == "second")
