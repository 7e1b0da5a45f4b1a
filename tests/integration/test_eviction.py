"""Tests of evictions under disk pressure on a real containerd: one victim, freed space, other pods and images kept.

The daemon runs with default settings; only the thresholds depend on the filesystem of the test.
``NODEAGENT_TEST_RUNS`` repeats the tests with the ``campaign`` mark; see ``make campaign-eviction``.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.containerd import LoopFs
from tests.support.pressed import APP, MIB, UNUSED, Pod, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "1"))
MANY = (pytest.param(20, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.long))
WRITER_MIB = 160
SHORT_MIB = 60


@pytest.fixture
def node(containerd_factory: ContainerdFactory, tmp_path: Path) -> PressedNode:
    pressed = PressedNode(containerd_factory(imagefs=LoopFs(700, "ext4")), tmp_path)
    pressed.import_images()
    return pressed


@pytest.fixture
def _own_mounts(containerd_version: str) -> None:
    if containerd_version != "host":
        pytest.skip("mounts are not shared with a containerd in its own mount namespace")


def threshold(node: PressedNode, short_mib: int = SHORT_MIB) -> str:
    """Return a hard threshold that is currently met by ``short_mib`` MiB."""
    return f'hard = "imagefs.available<{node.available_bytes // MIB + short_mib}Mi"'


def soft_threshold(node: PressedNode, max_pod_grace_s: int) -> str:
    """Return a soft threshold that is currently met, with a pod grace period of at most ``max_pod_grace_s``."""
    return f"""
soft = "imagefs.available<{node.available_bytes // MIB + SHORT_MIB}Mi"
soft_grace_period = "imagefs.available=1s"
max_pod_grace_period = "{max_pod_grace_s}s"
"""


def run_stubborn_writer(node: PressedNode) -> Pod:
    """Run a writer that ignores SIGTERM, so that its eviction lasts as long as its termination grace period."""
    return node.run_pod("writer", f"trap '' TERM; dd if=/dev/zero of=/data bs=1M count={WRITER_MIB}; sync")


def run_quiet(node: PressedNode, count: int) -> set[str]:
    """Run ``count`` pods that write 1 MiB each; return their names."""
    names = {f"quiet-{number}" for number in range(count)}
    for name in sorted(names):
        node.run_writer(name, 1)
    return names


def wait_until_cleared(node: PressedNode, count: int = 1) -> None:
    """Wait until ``count`` thresholds are cleared, and for four more passes."""
    node.wait_for("threshold_cleared", count, timeout_s=90)
    node.wait_passes(4)


@pytest.mark.campaign
@pytest.mark.parametrize("bystanders", [20, MANY[-1]])
@pytest.mark.parametrize("run", range(RUNS))
def test_only_the_writing_pod_is_evicted_under_disk_pressure(node: PressedNode, bystanders: int, run: int) -> None:
    del run
    quiet = run_quiet(node, bystanders)
    node.run_writer("writer", WRITER_MIB)
    before = node.available_bytes
    with node.daemon(threshold(node)):
        wait_until_cleared(node)
    assert [each["pod_name"] for each in node.events("evicted")] == ["writer"]
    assert node.running() == quiet
    assert node.available_bytes - before >= WRITER_MIB * MIB * 98 // 100
    assert not node.events("pass_crashed")


@pytest.mark.campaign
@pytest.mark.parametrize("run", range(RUNS))
def test_no_image_is_removed_if_a_dead_container_frees_enough(node: PressedNode, run: int) -> None:
    del run
    node.run_writer("quiet", 1)
    dead = node.run_writer("dead", WRITER_MIB)
    node.pods.stop(dead.container)
    node.pods.run_container(dead.sandbox, "main", APP, attempt=1)
    node.pods.wait_exited(dead.container)
    again = node.pods.run_container(dead.sandbox, "main", APP, ["false"], attempt=2)
    node.pods.wait_exited(again)
    node.import_images(unused=True)
    before = node.tags()
    assert set(UNUSED) <= before
    with node.daemon(threshold(node)):
        wait_until_cleared(node)
    assert node.tags() == before
    assert [each["step"] for each in node.events("reclaimed") if each["removed"]] == ["dead-containers on imagefs"]
    assert not node.events("eviction_started")
    assert dead.container.id not in {each.id for each in node.pods.list_containers()}
    assert "quiet" in node.running()


@pytest.mark.campaign
@pytest.mark.parametrize("run", range(RUNS))
def test_no_pod_is_evicted_if_unused_images_free_enough(node: PressedNode, run: int) -> None:
    del run
    quiet = run_quiet(node, 3)
    node.import_images(unused=True)
    with node.daemon(threshold(node, short_mib=20)):
        wait_until_cleared(node)
    assert len(set(UNUSED) & node.tags()) == len(UNUSED) - 1
    assert not node.events("eviction_started")
    assert not node.events("reclaim_insufficient")
    assert node.running() == quiet


def test_second_writing_pod_is_evicted_too_and_no_other_pod(node: PressedNode) -> None:
    quiet = run_quiet(node, 3)
    node.run_pod(
        "second", "touch /done; while [ ! -e /go ]; do sleep 0.1; done; dd if=/dev/zero of=/data bs=1M count=240"
    )
    node.run_writer("first", WRITER_MIB)
    limit = node.available_bytes // MIB + SHORT_MIB
    with node.daemon(f'hard = "imagefs.available<{limit}Mi"'):
        node.touch("second", "/go")
        wait_until_cleared(node)
    assert sorted(each["pod_name"] for each in node.events("evicted")) == ["first", "second"]
    assert node.running() == quiet


def test_pod_that_writes_at_full_speed_is_evicted_after_reclaim_and_no_other(node: PressedNode) -> None:
    quiet = run_quiet(node, 3)
    node.import_images(unused=True)
    before = node.tags()
    node.run_pod("writer", "touch /done; while [ ! -e /go ]; do sleep 0.1; done; dd if=/dev/zero of=/data bs=64k")
    with node.daemon(f'hard = "imagefs.available<{node.available_bytes // MIB - 40}Mi"'):
        node.touch("writer", "/go")
        wait_until_cleared(node)
    assert [each["pod_name"] for each in node.events("evicted")] == ["writer"]
    assert node.tags() == before  # imported images, which would not end the shortage
    assert node.running() == quiet


@pytest.mark.campaign
@pytest.mark.parametrize("bystanders", [5, *MANY])
@pytest.mark.parametrize("run", range(RUNS))
def test_only_the_pod_with_many_files_is_evicted_under_inode_pressure(
    node: PressedNode, bystanders: int, run: int
) -> None:
    del run
    quiet = run_quiet(node, bystanders)
    node.run_pod(
        "hoarder", "mkdir /many; cd /many; for a in $(seq 40); do mkdir $a; (cd $a; seq 100 | xargs touch); done"
    )
    with node.daemon(f'hard = "imagefs.inodesFree<{node.inodes_free + 2000}"'):
        wait_until_cleared(node)
    assert [(each["pod_name"], each["starved"]) for each in node.events("evicted")] == [("hoarder", "inodes")]
    (measured,) = node.events("effect_measured")
    assert measured["end"] == "measured"
    assert measured["predicted_inodes"] > 4000
    assert node.running() == quiet


@pytest.mark.usefixtures("_own_mounts")
def test_layer_that_cannot_be_removed_withholds_other_evictions_and_not_reclaim(node: PressedNode) -> None:
    node.container_gc = 'sandbox_minimum_age = "0s"'
    quiet = run_quiet(node, 3)
    writer = node.run_writer("writer", WRITER_MIB)
    data = node.layer(writer) / "data"
    subprocess.run(["chattr", "+i", str(data)], check=True)
    try:
        with node.daemon(threshold(node)):
            (failed, *_) = node.wait_for("eviction_cleanup_failed")
            assert "still on the disk" in failed["detail"]
            node.wait_passes(8)
            assert [each["pod_name"] for each in node.events("eviction_started")] == ["writer"]
            (withheld, *_) = node.events("eviction_withheld")
            assert (withheld["reason"], withheld["action"]) == ("effect-outstanding", "eviction of default/writer")
            node.wait_for("eviction_ineffective")
            subprocess.run(["chattr", "-i", str(data)], check=True)
            wait_until_cleared(node)
    finally:
        subprocess.run(["chattr", "-i", str(data)], check=False, stderr=subprocess.DEVNULL)
    assert [each["pod_name"] for each in node.events("eviction_started")] == ["writer"]
    assert "dead-containers on imagefs" in {each["step"] for each in node.events("reclaimed")}
    assert node.running() == quiet


def test_no_second_pod_is_evicted_when_the_runtime_hangs_during_an_eviction(node: PressedNode) -> None:
    node.runtime = 'timeout = "2s"'
    quiet = run_quiet(node, 3)
    run_stubborn_writer(node)
    with node.daemon(f'{soft_threshold(node, 3)}\nverify_timeout = "1s"'):
        node.wait_for("eviction_started")
        node.containerd.freeze()
        (failed,) = node.wait_for("eviction_failed")
        assert failed["outcome"] == "failed"
        node.containerd.thaw()
        wait_until_cleared(node)
    assert {each["pod_name"] for each in node.events("eviction_started")} == {"writer"}
    assert node.running() == quiet


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped-and-not-removed"])
def test_daemon_killed_during_an_eviction_completes_it_after_a_restart(node: PressedNode, *, stopped: bool) -> None:
    quiet = run_quiet(node, 3)
    writer = run_stubborn_writer(node)
    eviction = soft_threshold(node, 3)
    with node.daemon(eviction) as process:
        node.wait_for("eviction_started")
        node.containerd.freeze()
        process.kill()
        process.wait(timeout=10)
    node.containerd.thaw()
    if stopped:
        node.pods.stop(writer.container)
        node.pods.wait_exited(writer.container)
    with node.daemon(eviction):
        wait_until_cleared(node)
    assert {each["pod_name"] for each in node.events("eviction_started")} == {"writer"}
    assert node.running() == quiet
    assert writer.container.id not in {each.id for each in node.pods.list_containers()}


@pytest.mark.campaign
@pytest.mark.usefixtures("_own_mounts")
@pytest.mark.parametrize("bystanders", [5, *MANY])
@pytest.mark.parametrize("run", range(RUNS))
def test_logs_of_the_victim_are_reclaimed_for_nodefs_before_another_pod(
    node: PressedNode, bystanders: int, run: int
) -> None:
    del run
    logs = node.with_nodefs(LoopFs(400, "ext4"))
    node.container_gc = 'sandbox_minimum_age = "0s"'
    quiet = run_quiet(node, bystanders)
    chatty = node.run_pod("chatty", "yes $(seq 60) | head -c 120000000")
    assert chatty.sandbox.log_directory is not None
    free = available_mib(logs)
    with node.daemon(f'hard = "nodefs.available<{free + 60}Mi"'):
        wait_until_cleared(node)
    assert [each["pod_name"] for each in node.events("evicted")] == ["chatty"]
    assert not chatty.sandbox.log_directory.exists()
    assert node.running() == quiet


@pytest.mark.campaign
@pytest.mark.usefixtures("_own_mounts")
@pytest.mark.parametrize("age_s", [10, *(pytest.param(age_s, marks=pytest.mark.long) for age_s in (75, 600))])
@pytest.mark.parametrize("run", range(RUNS))
def test_log_writer_is_the_only_victim_on_a_node_with_a_single_filesystem(
    node: PressedNode, age_s: int, run: int
) -> None:
    del run
    node.with_single_filesystem()
    node.import_images(unused=True)  # imported images cannot be pulled again
    quiet = run_quiet(node, 5)
    before = node.tags()
    command = f"touch /done; sleep {age_s}; yes $(seq 60) | head -c 200000000; touch /written"
    chatty = node.run_pod("chatty", command)
    assert chatty.sandbox.log_directory is not None
    with node.daemon(f'hard = "nodefs.available<{node.available_bytes // MIB - 40}Mi"'):
        node.wait_for("threshold_met", timeout_s=age_s + 60)
        wait_until_cleared(node)
    assert [each["pod_name"] for each in node.events("evicted")] == ["chatty"]
    assert not chatty.sandbox.log_directory.exists()
    assert node.running() == quiet
    assert node.tags() == before
    assert not node.events("eviction_ineffective")


@pytest.mark.usefixtures("_own_mounts")
def test_one_pod_is_evicted_for_each_of_two_filesystems_under_pressure(node: PressedNode) -> None:
    logs = node.with_nodefs(LoopFs(400, "ext4"))
    node.container_gc = 'sandbox_minimum_age = "0s"'
    quiet = run_quiet(node, 3)
    node.run_pod("chatty", "yes $(seq 60) | head -c 120000000")
    node.run_writer("writer", WRITER_MIB)
    limits = (
        f"nodefs.available<{available_mib(logs) + 60}Mi,imagefs.available<{node.available_bytes // MIB + SHORT_MIB}Mi"
    )
    with node.daemon(f'hard = "{limits}"'):
        wait_until_cleared(node, 3)
    assert sorted(each["pod_name"] for each in node.events("evicted")) == ["chatty", "writer"]
    assert node.running() == quiet


@pytest.mark.usefixtures("_own_mounts")
def test_one_pod_is_evicted_on_a_node_with_a_single_filesystem(node: PressedNode) -> None:
    node.with_single_filesystem()
    quiet = run_quiet(node, 3)
    node.run_writer("writer", WRITER_MIB)
    with node.daemon(f'hard = "nodefs.available<{node.available_bytes // MIB + SHORT_MIB}Mi"'):
        wait_until_cleared(node)
    assert [each["pod_name"] for each in node.events("evicted")] == ["writer"]
    assert node.running() == quiet


def available_mib(path: Path) -> int:
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize // MIB
