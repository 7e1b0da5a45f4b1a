"""Shortages that evictions cannot end, on a real containerd: no pod is evicted in vain, and the cause is stated.

``NODEAGENT_TEST_RUNS`` repeats the tests; see ``make campaign-relief``.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support import images, reclaim
from tests.support.containerd import LoopFs
from tests.support.pressed import APP, MIB, Pod, PressedNode

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = [pytest.mark.real, pytest.mark.campaign, pytest.mark.usefixtures("_own_mounts")]

RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "1"))
IMPORTED = "pressed.test/imported:v1"
QUIET = 4


@pytest.fixture
def _own_mounts(containerd_version: str) -> None:
    if containerd_version != "host":
        pytest.skip("mounts are not shared with a containerd in its own mount namespace")


@pytest.fixture(params=range(RUNS))
def node(containerd_factory: ContainerdFactory, tmp_path: Path) -> PressedNode:
    """Return a node with one filesystem, four quiet pods, and an unused image that cannot be pulled again."""
    pressed = PressedNode(containerd_factory(imagefs=LoopFs(900, "ext4")), tmp_path)
    pressed.nodefs = pressed.containerd.root
    imported = images.image(IMPORTED, layers=[images.blob("imported", 8 * MIB)])
    tar = images.write_oci(tmp_path / "imported.tar", images.image(APP), imported)
    pressed.containerd.import_images(tar)
    for number in range(QUIET):
        pressed.run_writer(f"quiet-{number}", 0)
    return pressed


def names(*more: str) -> set[str]:
    return {*(f"quiet-{number}" for number in range(QUIET)), *more}


def threshold(node: PressedNode, short_mib: int = 120) -> str:
    """Return a hard threshold that is currently met by ``short_mib`` MiB."""
    return f'hard = "nodefs.available<{node.available_bytes // MIB + short_mib}Mi"'


def run_with_volume(node: PressedNode, name: str, command: str) -> Pod:
    """Run a pod with an emptyDir on disk at ``/vol``, in which its command runs."""
    uid = str(uuid.uuid4())
    volume = node.containerd.root / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "data"
    volume.mkdir(parents=True)
    return node.run_pod(name, f"cd /vol; {command}", mounts={volume: "/vol"}, pod_uid=uid)


def write_to_host(node: PressedNode, mib: int) -> None:
    path = node.containerd.root / "host-file"
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=fsync"], check=True, stderr=-3)


def evicted(node: PressedNode) -> list[str]:
    return [each["pod_name"] for each in node.events("eviction_started")]


def wait_for_statement(node: PressedNode) -> str:
    """Wait for the statement that no eviction ends the shortage, and for five more passes; return the statement."""
    (event, *_) = node.wait_for("no_evictable_pod", timeout_s=120)
    node.wait_passes(5)
    assert len(node.events("no_evictable_pod")) == 1
    return str(event["because"])


def test_no_pod_is_evicted_for_a_file_of_the_host(node: PressedNode) -> None:
    write_to_host(node, 300)
    with node.daemon(threshold(node)):
        statement = wait_for_statement(node)
    assert evicted(node) == []
    file = node.containerd.root / "host-file"  # in a directory of root, whose entries only root may know
    assert any(f"{directory} 30" in statement for directory in file.parents)
    assert node.running() == names()
    assert IMPORTED in node.tags()


def test_no_pod_is_evicted_while_a_process_of_the_host_fills_the_disk(node: PressedNode) -> None:
    node.run_writer("modest", 4)
    limit = f'hard = "nodefs.available<{node.available_bytes // MIB - 20}Mi"'
    with node.daemon(limit):
        write_to_host(node, 200)
        wait_for_statement(node)
    assert evicted(node) == []
    assert node.running() == names("modest")


def test_pod_whose_volume_outlives_it_is_not_evicted_after_its_growth(node: PressedNode) -> None:
    run_with_volume(node, "writer", "dd if=/dev/zero of=data bs=1M count=300; sync")
    with node.daemon(threshold(node, 60)):
        statement = wait_for_statement(node)
    assert evicted(node) == []
    assert "pods use 30" in statement
    assert node.running() == names("writer")
    assert IMPORTED in node.tags()


def test_only_the_pod_that_fills_its_volume_is_evicted(node: PressedNode) -> None:
    append = "dd if=/dev/zero of=data bs=64k count=800 oflag=append conv=notrunc,fsync"
    grow = f"touch /done; while :; do {append}; sleep 0.5; done"
    run_with_volume(node, "writer", grow)
    with node.daemon(f'hard = "nodefs.available<{node.available_bytes // MIB - 20}Mi"'):
        node.wait_for("evicted", timeout_s=120)
        wait_for_statement(node)
    assert evicted(node) == ["writer"]
    assert node.running() == names()
    assert IMPORTED in node.tags()


def test_no_innocent_pod_is_evicted_for_deleted_files_that_a_pod_holds_open(node: PressedNode) -> None:
    node.run_pod("holder", "exec 3>/data; dd if=/dev/zero bs=1M count=300 >&3; sync; rm /data")
    with node.daemon(threshold(node, 60)):
        statement = wait_for_statement(node)
    assert set(evicted(node)) <= {"holder"}
    assert re.search(r"\w+ \(process \d+\) of \S+/holder 30\d MiB", statement), statement
    assert node.running() >= names()
    assert IMPORTED in node.tags()


def test_exactly_the_pods_that_help_are_evicted_in_rank_order(node: PressedNode) -> None:
    run_with_volume(node, "volume", "dd if=/dev/zero of=data bs=1M count=200; sync")
    node.run_writer("large", 90)
    node.run_writer("larger", 110)
    node.run_writer("small", 3)
    write_to_host(node, 100)
    with node.daemon(threshold(node, 180)):
        node.wait_for("threshold_cleared", timeout_s=120)
        node.wait_passes(4)
    assert evicted(node) == ["larger", "large"]
    assert node.running() == names("volume", "small")
    assert IMPORTED in node.tags()


def test_statement_is_repeated_after_the_threshold_was_cleared(node: PressedNode) -> None:
    write_to_host(node, 300)
    host_file = node.containerd.root / "host-file"
    with node.daemon(threshold(node)):
        wait_for_statement(node)
        host_file.unlink()
        node.wait_for("threshold_cleared", timeout_s=60)
        write_to_host(node, 300)
        reclaim.poll("a second statement", lambda: len(node.events("no_evictable_pod")) == 2, timeout_s=60)
    assert evicted(node) == []
