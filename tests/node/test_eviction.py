"""Tests of evictions in a virtual machine: pressure by memory, disk, inodes and PIDs, evicted and kept pods."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.conftest import APP, remove_pods
from tests.support import hogs, images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Disk, Node, RunningPod

pytestmark = pytest.mark.node

MIB = 1 << 20
IMAGEFS_MIB = 400
BASE = """\
role = "standalone"
[log]
format = "json"
[image_gc]
enabled = false
minimum_age = "0s"
irreplaceable = "ignore"
[container_gc]
enabled = false
[kubelet]
manifests = ""
[shutdown]
enabled = "off"
"""
INNER = "inner"
# A container with a cgroup namespace, as of kind: the runtime, the agent and the pods are below its visible root.
INNER_SCRIPT = """\
set -e
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/init
echo $$ > /sys/fs/cgroup/init/cgroup.procs
echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
sed 's/SystemdCgroup = true/SystemdCgroup = false/' /etc/containerd/config.toml > /run/inner.toml
containerd -c /run/inner.toml &
exec nodeagent run --config /etc/nodeagent/config.toml
"""
AVAILABLE = (
    "awk '/^MemTotal/ {t = $2 * 1024} /^MemAvailable/ {m = $2 * 1024}"
    ' $1 == "anon" || $1 == "file" {u += $2} $1 == "inactive_file" {u -= $2}'
    " END {print int((m < t - u ? m : t - u) / 1048576)}' /proc/meminfo /sys/fs/cgroup/memory.stat"
)


@pytest.fixture(scope="module")
def node(disk: Disk) -> Iterator[Node]:
    """Return a small node with a dedicated image filesystem."""
    with vm.Node.boot(disk, memory_mib=1024) as booted:
        booted.run(
            "systemctl stop containerd && sysctl -qw vm.min_free_kbytes=8192"
            f" && truncate -s {IMAGEFS_MIB}M /imagefs.img && mkfs.ext4 -q -N 8192 /imagefs.img"
            " && mount -o loop /imagefs.img /var/lib/containerd && systemctl start containerd"
        )
        reclaim.poll(
            "containerd answers", lambda: booted.run("ctr version", check=False).code == 0, timeout_s=60, interval_s=0.5
        )
        booted.import_images(vm.pause_image(), hogs.image(), images.image(APP))
        booted.put("/etc/systemd/system/nodeagent.service", vm.CHECKOUT / "systemd" / "nodeagent.service")
        booted.run("mkdir -p /etc/nodeagent /run/nodeagent; systemctl daemon-reload")
        yield booted


@pytest.fixture(autouse=True)
def _clean(node: Node) -> Iterator[None]:
    """Stop the agent and remove all pods after each test."""
    yield
    node.run("systemctl stop nodeagent", check=False, timeout_s=60)
    remove_pods(node)


def start(node: Node, eviction: str, command: str = "systemctl start nodeagent") -> None:
    """Start the agent with the given eviction settings and an empty journal; wait until the eviction loop runs."""
    node.put("/etc/nodeagent/config.toml", f"{BASE}[eviction]\n{eviction}\n")
    node.run("journalctl --rotate && journalctl --vacuum-time=1s", check=False)
    node.run(command, timeout_s=120)
    reclaim.poll("loop runs", lambda: bool(events(node, "eviction_monitoring_started")), timeout_s=120, interval_s=1)


def events(node: Node, name: str) -> list[dict[str, Any]]:
    lines = node.run(f"journalctl -u nodeagent -u {INNER} -o cat --no-pager").stdout.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [each for each in found if each["event"] == name]


def wait_for(node: Node, name: str, count: int = 1, timeout_s: float = 60) -> list[dict[str, Any]]:
    try:
        reclaim.poll(f"{count} x {name}", lambda: len(events(node, name)) >= count, timeout_s=timeout_s, interval_s=1)
    except TimeoutError:
        print(journal(node), node.run("nodeagent pressure", check=False).stdout)
        raise
    return events(node, name)


def journal(node: Node) -> str:
    return node.run(f"journalctl -u nodeagent -u {INNER} -o cat --no-pager | tail -30", check=False).stdout


def alive(node: Node, pod: RunningPod) -> bool:
    return node.run(f"grep -q 'populated 1' {pod.cgroup}/cgroup.events", check=False).code == 0


def begin(node: Node, pod: RunningPod) -> None:
    """Start the load of a waiting pod by SIGUSR1."""
    node.run(f"kill -USR1 $(cat {pod.cgroup}/cgroup.procs)")


def available_mib(node: Node) -> int:
    return int(node.run(AVAILABLE).stdout)


def oom_kills(node: Node) -> int:
    return int(node.get("/proc/vmstat").decode().partition("oom_kill ")[2].split()[0])


def delayed_pod(name: str, *words: str, **resources: int) -> vm.Pod:
    """Return a burstable pod with an OOM score adjustment of a 10 MiB request; its load starts on SIGUSR1."""
    return vm.Pod(name, hogs.HOG, ("/bin/hog", "delayed", *words), resources={"oom_score_adj": 990, **resources})


def test_only_the_pod_above_its_memory_request_is_evicted(node: Node) -> None:
    killed = oom_kills(node)
    small, growing = node.run_pods(
        vm.Pod("small", hogs.HOG, ("/bin/hog", "memory", "4", "1", "4"), qos="besteffort"),
        delayed_pod("growing", "memory", "4", "50", "4000"),  # 50 MiB/s: up to this rate no OOM kill may occur
    )
    node.run("sync; echo 3 > /proc/sys/vm/drop_caches")
    steady_mib = str(available_mib(node) - 400)
    (steady,) = node.run_pods(
        vm.Pod(
            "steady",
            hogs.HOG,
            ("/bin/hog", "memory", steady_mib, "1", steady_mib),
            qos="guaranteed",
            resources={"memory_limit_in_bytes": 900 * MIB},
        )
    )
    reclaim.poll("the pod has allocated its memory", lambda: available_mib(node) < 420, timeout_s=60, interval_s=1)
    start(node, 'hard = "memory.available<200Mi"\npressure_transition_period = "5s"')
    begin(node, growing)
    (evicted,) = wait_for(node, "evicted")
    assert evicted["pod_name"] == "growing"
    assert evicted["signal"] == "memory.available"
    wait_for(node, "condition_changed", 2)
    changes = [(each["condition"], each["holds"]) for each in events(node, "condition_changed")]
    assert changes == [("MemoryPressure", True), ("MemoryPressure", False)]
    assert not alive(node, growing)
    assert alive(node, small)
    assert alive(node, steady)
    assert oom_kills(node) == killed
    assert len(events(node, "eviction_started")) == 1
    (past,) = json.loads(node.run("nodeagent history -o json --limit 1").stdout)["passes"]
    assert [each["name"] for each in past["actions"]] == ["default/growing"]
    ranking = [each["name"] for each in past["eviction"]["ranking"]]
    assert ranking == ["default/growing", "default/small", "default/steady"]
    assert past["eviction"]["available_after"] > past["eviction"]["available_before"]


LIMIT_MIB = 300


def check_limited(node: Node, growing: RunningPod, cgroup: str, shown: str) -> dict[str, str]:
    """Let a pod grow; expect its eviction below the limit of a cgroup, with most of the machine available.

    Args:
        node: the node, with a running agent.
        growing: the pod, which waits.
        cgroup: directory with the limit.
        shown: the limit as reported by the agent.

    Returns:
        The reported limits by signal.
    """
    pressure = json.loads(node.run("nodeagent pressure -o json", check=False).stdout)
    signals = {each["signal"]: each for each in pressure["signals"]}
    assert signals["memory.available"]["limited_by"] == shown
    assert signals["memory.available"]["capacity"] == LIMIT_MIB * MIB
    begin(node, growing)
    (evicted,) = wait_for(node, "evicted")
    assert (evicted["pod_name"], evicted["signal"]) == ("growing", "memory.available")
    assert shown in json.dumps(evicted)
    assert int(node.run("awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo").stdout) > LIMIT_MIB
    assert "oom_kill 0\n" in node.get(f"{cgroup}/memory.events").decode(), journal(node)
    wait_for(node, "threshold_cleared")
    assert not alive(node, growing)
    return {name: each["limited_by"] for name, each in signals.items()}


@pytest.mark.long
def test_pod_is_evicted_before_the_limit_of_a_slice_above_the_pods(node: Node) -> None:
    unit, drop_in = (f"/run/systemd/system/{name}" for name in ("limited.slice", "nodeagent.service.d/slice.conf"))
    node.put(unit, f"[Slice]\nMemoryMax={LIMIT_MIB}M\n")
    node.put(drop_in, "[Service]\nSlice=limited.slice\n")
    node.run("systemctl daemon-reload && systemctl start limited.slice")
    try:
        growing, quiet = node.run_pods(
            replace(delayed_pod("growing", "memory", "80", "4", "4000"), node="limited"),
            vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "1"), node="limited"),
        )
        start(node, 'hard = "memory.available<100Mi"\npressure_transition_period = "5s"')
        cgroup = "/sys/fs/cgroup/limited.slice"
        check_limited(node, growing, cgroup, f"memory.max {LIMIT_MIB} MiB of {cgroup}")
        assert alive(node, quiet)
    finally:
        node.run(f"systemctl stop limited.slice; rm {unit} {drop_in}; systemctl daemon-reload", timeout_s=120)


@pytest.mark.long
def test_pod_is_evicted_before_the_limit_of_the_container_with_the_node(node: Node) -> None:
    node.put("/root/inner.sh", INNER_SCRIPT)
    limits = f"-p Delegate=yes -p MemoryMax={LIMIT_MIB}M -p TasksMax=400"
    cgroup = f"/sys/fs/cgroup/system.slice/{INNER}.service"
    node.run("systemctl stop containerd")
    try:
        start(
            node,
            'hard = "memory.available<100Mi"\npressure_transition_period = "5s"',
            f"systemd-run --unit={INNER} {limits} unshare --cgroup --mount /bin/sh /root/inner.sh",
        )
        growing, quiet = node.run_pods(
            replace(delayed_pod("growing", "memory", "80", "4", "4000"), node=cgroup),
            vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "1"), node=cgroup),
        )
        shown = check_limited(node, growing, cgroup, f"memory.max {LIMIT_MIB} MiB of /sys/fs/cgroup")
        assert shown["pid.available"] == "pids.max 400 of /sys/fs/cgroup"
        assert alive(node, quiet)
    finally:
        node.run(f"systemctl stop {INNER}; systemctl start containerd", check=False, timeout_s=120)


@pytest.mark.long
def test_soft_eviction_waits_for_its_grace_period_and_oscillation_evicts_once(node: Node) -> None:
    (stubborn, swinging) = node.run_pods(
        delayed_pod("stubborn", "memory", "16", "100", "200"), delayed_pod("swinging", "memory", "8", "50", "60")
    )
    room = available_mib(node)
    settings = (
        f'hard = "memory.available<30Mi"\nsoft = "memory.available<{room - 100}Mi"\n'
        'soft_grace_period = "memory.available=3s"\nminimum_reclaim = "memory.available=20Mi"\n'
        'max_pod_grace_period = "2s"\npressure_transition_period = "30s"'
    )
    start(node, settings)
    begin(node, stubborn)
    (met,) = wait_for(node, "threshold_met")
    (evicted,) = wait_for(node, "evicted")
    waited_s = moment(evicted) - moment(met)
    assert waited_s >= 3
    assert evicted["pod_name"] == "stubborn"
    assert evicted["grace_s"] == 2
    begin(node, swinging)  # its 60 MiB are not enough to meet the soft threshold again
    reclaim.poll(
        "the pod has allocated its memory", lambda: available_mib(node) < room - 40, timeout_s=60, interval_s=0.3
    )
    node.run("sleep 6")
    assert alive(node, swinging)
    assert len(events(node, "evicted")) == 1
    changes = [each["holds"] for each in events(node, "condition_changed")]
    assert changes == [True]  # the condition remains active for the transition period


def moment(event: dict[str, Any]) -> float:
    from datetime import datetime  # noqa: PLC0415

    return datetime.fromisoformat(event["timestamp"]).timestamp()


@pytest.mark.long
def test_critical_and_static_pods_are_not_evicted(node: Node) -> None:
    grown = ("/bin/hog", "memory", "120", "200", "120")
    kept = node.run_pods(
        vm.Pod("system", hogs.HOG, grown, namespace="kube-system"),
        vm.Pod("static", hogs.HOG, grown, annotations={"kubernetes.io/config.source": "file"}),
        vm.Pod("important", hogs.HOG, grown, annotations={"nodeagent.dev/priority": "2000000000"}),
    )
    (ordinary,) = node.run_pods(
        vm.Pod("ordinary", hogs.HOG, ("/bin/hog", "memory", "30", "10", "30"), resources={"oom_score_adj": 990})
    )
    reclaim.poll(
        "the pods have allocated their memory", lambda: available_mib(node) < 400, timeout_s=60, interval_s=0.3
    )
    threshold = available_mib(node) + 100
    start(node, f'hard = "memory.available<{threshold}Mi"\nannotation_namespaces = ["default"]')
    (evicted,) = wait_for(node, "evicted")
    assert evicted["pod_name"] == "ordinary"
    (no_pod,) = wait_for(node, "no_evictable_pod")
    assert all(alive(node, each) for each in kept)
    assert not alive(node, ordinary)
    shown = json.loads(node.run("nodeagent evict --dry-run -o json").stdout)
    reasons = {each["name"]: each["reason"]["code"] for each in shown["plan"]["decisions"]}
    assert reasons == {
        "kube-system/system": "protected-namespace",
        "default/static": "static-pod",
        "default/important": "critical-pod",
    }, no_pod


def unused_images(node: Node) -> list[str]:
    return re.findall(r"^node\.test/unused:.*$", node.run("ctr -n k8s.io images ls -q").stdout, re.MULTILINE)


@pytest.mark.long
def test_images_are_removed_first_and_a_pod_is_evicted_after_insufficient_reclaim(node: Node) -> None:
    node.import_images(
        *(images.image(f"node.test/unused:{n}", layers=[images.blob(f"u{n}", 40 * MIB)]) for n in range(2))
    )
    (writer, quiet) = node.run_pods(
        delayed_pod("writer", "files", "/tmp", "150", str(MIB)), vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "1"))
    )
    free = int(node.run("stat -f -c '%a * %S / 1048576' /var/lib/containerd | xargs expr").stdout)
    start(node, f'hard = "imagefs.available<{free + 20}Mi"')
    wait_for(node, "reclaimed", 2, timeout_s=120)
    wait_for(node, "threshold_cleared")
    assert len(unused_images(node)) == 1, "20 MiB are missing, and one image has 40 MiB"
    assert events(node, "eviction_started") == []
    begin(node, writer)
    (evicted,) = wait_for(node, "evicted", timeout_s=120)
    assert unused_images(node) == []
    assert evicted["pod_name"] == "writer"
    assert evicted["starved"] == "ephemeral-storage"
    assert not alive(node, writer)
    assert alive(node, quiet)


@pytest.mark.long
def test_pod_with_many_inodes_is_evicted_under_inode_pressure(node: Node) -> None:
    (writer, quiet) = node.run_pods(
        delayed_pod("writer", "files", "/tmp", "1500", "1"), vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "1"))
    )
    free = int(node.run("stat -f -c %d /var/lib/containerd").stdout)
    start(node, f'hard = "imagefs.inodesFree<{free - 800}"')
    assert events(node, "threshold_met") == []
    begin(node, writer)
    (evicted,) = wait_for(node, "evicted", timeout_s=120)
    assert (evicted["pod_name"], evicted["starved"]) == ("writer", "inodes")
    assert alive(node, quiet)


@pytest.mark.long
def test_pod_with_many_pids_is_evicted_under_pid_pressure(node: Node) -> None:
    (forking, quiet) = node.run_pods(
        delayed_pod("forking", "pids", "700"), vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "5"))
    )
    # Set after the start of the pods, since systemd limits each new scope to 15% of threads-max.
    node.run("sysctl -qw kernel.threads-max=1200")
    start(node, 'hard = "pid.available<600"')
    begin(node, forking)
    (evicted,) = wait_for(node, "evicted", timeout_s=120)
    assert (evicted["pod_name"], evicted["starved"]) == ("forking", "pids")
    changes = [each["condition"] for each in events(node, "condition_changed")]
    assert changes == ["PIDPressure"]
    assert alive(node, quiet)


@pytest.mark.long
def test_no_pod_is_evicted_without_containerd_and_the_growing_one_after_its_restart(node: Node) -> None:
    growing, quiet = node.run_pods(
        delayed_pod("growing", "memory", "16", "100", "216"), vm.Pod("quiet", hogs.HOG, ("/bin/hog", "pids", "1"))
    )
    start(node, f'hard = "memory.available<{available_mib(node) - 80}Mi"')
    node.run("systemctl stop containerd")
    begin(node, growing)
    wait_for(node, "threshold_met")
    wait_for(node, "runtime_unavailable")
    assert alive(node, growing)
    node.run("systemctl start containerd")
    (evicted,) = wait_for(node, "evicted", timeout_s=120)
    assert evicted["pod_name"] == "growing"
    assert alive(node, quiet)


@pytest.mark.long
def test_oom_kill_is_logged_with_pod_and_container(node: Node) -> None:
    start(node, 'hard = "memory.available<30Mi"')
    (limited,) = node.run_pods(delayed_pod("limited", "memory", "8", "50", "200", memory_limit_in_bytes=40 * MIB))
    begin(node, limited)
    (killed,) = wait_for(node, "oom_kill", timeout_s=30)
    assert (killed["pod_name"], killed["pod_uid"]) == ("limited", limited.pod.uid)
    assert killed["container"] in ("main", "")


@pytest.mark.long
def test_next_pod_is_evicted_if_others_are_unmeasured_or_not_stoppable(node: Node) -> None:
    grown, room = ("/bin/hog", "memory", "100", "200", "100"), available_mib(node)
    unread, stuck, _next = node.run_pods(
        vm.Pod("unread", hogs.HOG, ("/bin/hog", "memory", "140", "200", "140"), resources={"oom_score_adj": 990}),
        vm.Pod("stuck", hogs.HOG, grown, resources={"oom_score_adj": 990}),
        vm.Pod("next", hogs.HOG, ("/bin/hog", "memory", "60", "200", "60"), resources={"oom_score_adj": 990}),
    )
    reclaim.poll(
        "the pods have allocated their memory", lambda: available_mib(node) < room - 280, timeout_s=60, interval_s=0.3
    )
    node.run(f"mount --bind /dev/null {unread.pod.cgroup}/memory.current")  # memory.current is read as an empty file
    # A suspended shim answers no request.
    shim = f"pgrep -f '[c]ontainerd-shim.* -id {stuck.sandbox_id}'"
    node.run(f"kill -STOP $({shim})")
    try:
        # A grace period is configured, so that the agent stops the pods through the runtime instead of killing
        # processes.
        start(
            node,
            f'hard = "memory.available<{available_mib(node) + 30}Mi"\nverify_timeout = "2s"\nhard_grace_period = "1s"',
        )
        (failed,) = wait_for(node, "eviction_failed", timeout_s=120)
        (evicted,) = wait_for(node, "evicted", timeout_s=60)
        assert (failed["pod_name"], failed["outcome"]) == ("stuck", "failed")
        assert evicted["pod_name"] == "next"
        assert alive(node, unread)
        assert alive(node, stuck)
        shown = json.loads(node.run("nodeagent evict -s memory.available=1Mi -o json").stdout)
        reasons = {each["name"]: each["reason"]["code"] for each in shown["plan"]["decisions"]}
        assert reasons["default/unread"] == "usage-unknown"
    finally:
        node.run(f"umount {unread.pod.cgroup}/memory.current")
        node.run(f"kill -CONT $({shim})")


INNOCENT = 6


def run_innocent_pods(node: Node) -> list[RunningPod]:
    """Run pods that use less than a MiB each, far below their requests."""
    node.import_images(images.image(APP))  # reclaim of an earlier test may have removed it
    pods = [vm.Pod(f"innocent-{number}", APP, ("sh", "-c", "sleep 100000")) for number in range(INNOCENT)]
    return list(node.run_pods(*pods))


def pod_with_memory_volume(node: Node, name: str, command: str) -> RunningPod:
    """Run a pod with an emptyDir in memory at ``/cache``."""
    described = vm.Pod(name, APP, ("sh", "-c", command))
    volume = f"/var/lib/kubelet/pods/{described.uid}/volumes/kubernetes.io~empty-dir/cache"
    node.run(f"mkdir -p {volume} && mount -t tmpfs -o size=600m none {volume}")
    (running,) = node.run_pods(replace(described, mounts={volume: "/cache"}))
    return running


@pytest.fixture
def _unmount(node: Node) -> Iterator[None]:
    yield
    node.run("umount /var/lib/kubelet/pods/*/volumes/*/cache; rm -rf /var/lib/kubelet/pods", check=False)


def statement(node: Node) -> str:
    """Return the statement that no eviction ends the shortage, after three more passes without an eviction."""
    (event, *_) = wait_for(node, "no_evictable_pod", timeout_s=90)
    until = passes(node) + 3
    reclaim.poll("three more passes", lambda: passes(node) >= until, timeout_s=90, interval_s=1)
    assert len(events(node, "no_evictable_pod")) == 1
    return str(event["because"])


def passes(node: Node) -> int:
    """Return the number of finished eviction passes."""
    status = node.run("nodeagent status -o json", check=False)
    runs = {each["name"]: int(each["runs"]) for each in json.loads(status.stdout)["loops"]}
    assert "eviction" in runs, status
    return runs["eviction"]


@pytest.mark.long
@pytest.mark.usefixtures("_unmount")
def test_no_pod_is_evicted_for_memory_in_a_volume_that_outlives_its_pod(node: Node) -> None:
    innocent = run_innocent_pods(node)
    writer = pod_with_memory_volume(node, "writer", "dd if=/dev/zero of=/cache/x bs=1M count=300; sleep 100000")
    reclaim.poll(
        "the volume is filled",
        lambda: int(node.run(f"cat {writer.cgroup}/memory.current").stdout) > 295 * MIB,
        timeout_s=60,
        interval_s=0.3,
    )
    start(node, f'hard = "memory.available<{available_mib(node) + 60}Mi"')
    assert "pods use 3" in statement(node)
    assert events(node, "eviction_started") == []
    assert all(alive(node, each) for each in (writer, *innocent))


@pytest.mark.long
@pytest.mark.usefixtures("_unmount")
def test_only_the_pod_that_fills_its_memory_volume_is_evicted(node: Node) -> None:
    innocent = run_innocent_pods(node)
    grow = "while :; do dd if=/dev/zero of=/cache/x bs=64k count=100 oflag=append conv=notrunc; sleep 0.5; done"
    writer = pod_with_memory_volume(node, "writer", grow)
    start(node, f'hard = "memory.available<{available_mib(node) - 60}Mi"')
    wait_for(node, "evicted", timeout_s=90)
    statement(node)
    assert [each["pod_name"] for each in events(node, "eviction_started")] == ["writer"]
    assert not alive(node, writer)
    assert all(alive(node, each) for each in innocent)


@pytest.mark.long
def test_no_pod_is_evicted_for_the_memory_of_a_host_process(node: Node) -> None:
    innocent = run_innocent_pods(node)
    limit_mib = available_mib(node) - 60
    start(node, f'hard = "memory.available<{limit_mib}Mi"')
    node.put(hogs.PATH_IN_NODE, hogs.program(), mode=0o755)
    node.run(f"systemd-run --unit=host-hog -p OOMScoreAdjust=1000 {hogs.PATH_IN_NODE} memory 4 20 250")
    try:
        assert "hog (process" in statement(node)
        assert "no eviction ends the shortage" in node.run("nodeagent pressure", check=False).stdout
        assert "no eviction ends the shortage" in node.run("nodeagent doctor", check=False, timeout_s=120).stdout
    finally:
        node.run("systemctl stop host-hog", check=False)
    assert events(node, "eviction_started") == []
    assert all(alive(node, each) for each in innocent)
    wait_for(node, "threshold_cleared")
    assert "no eviction ends" not in node.run("nodeagent status", check=False).stdout
