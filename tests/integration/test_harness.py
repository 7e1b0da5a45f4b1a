"""Tests of the test harness: real containerd daemons and pods, and their complete removal at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.support import images, reclaim
from tests.support.containerd import Containerd, ContainerdError, LoopFs, Version
from tests.support.pods import Pods, link_log

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def apps(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> images.Archive:
    """Import five images with one shared layer and two tags each into the session's containerd."""
    shared = images.blob("shared", MIB)
    described = [
        images.image(
            f"harness.test/app{number}:v1",
            f"harness.test/app{number}:latest",
            layers=[shared, images.blob(f"own{number}", MIB)],
        )
        for number in range(5)
    ]
    archive = images.write_oci(tmp_path_factory.mktemp("apps") / "apps.tar", *described)
    containerd.import_images(archive)
    return archive


def test_daemon_has_the_chosen_version(pods: Pods, containerd_version: Version) -> None:
    name, version = pods.version()
    assert name == "containerd"
    if containerd_version != "host":
        assert version.lstrip("v").startswith(containerd_version)


def test_five_images_share_their_base_layer(containerd: Containerd, pods: Pods, apps: images.Archive) -> None:
    listed = {image.id: image for image in pods.list_images()}
    for built in apps.images:
        image = listed[built.config_digest]
        assert set(image.tags) == set(built.tags)
        assert image.digests == (f"{images.repository(built.tags[0])}@{built.digest}",)
    stored = containerd.ctr("content", "ls", "-q").split()
    layers = {digest for built in apps.images for digest in built.layer_digests}
    assert len(layers) == 2 + 5
    assert layers <= set(stored)
    assert len({built.diff_ids[:2] for built in apps.images}) == 1


def test_pod_runs_and_writes_a_log(pods: Pods, apps: images.Archive, tmp_path: Path) -> None:
    sandbox = pods.run_sandbox("web", namespace="shop", log_directory=tmp_path / "pods" / "shop_web_u-1", uid="u-1")
    running = pods.run_container(sandbox, "serve", apps.tags[0])
    ended = pods.run_container(sandbox, "once", apps.tags[2], ["sh", "-c", "echo hello; exit 3"], attempt=2)
    exit_ = pods.wait_exited(ended)
    assert (exit_.exit_code, exit_.reason) == (3, "Error")
    assert ended.log_file == tmp_path / "pods/shop_web_u-1/once/2.log"
    reclaim.poll("the log is written", lambda: " stdout F hello\n" in _text(ended.log_file))
    link = link_log(tmp_path / "containers", ended)
    assert link.name == f"web_shop_once-{ended.id}.log"
    assert " stdout F hello\n" in link.read_text()

    (listed,) = [one for one in pods.list_sandboxes() if one.id == sandbox.id]
    assert (listed.name, listed.namespace, listed.uid, listed.state) == ("web", "shop", "u-1", "READY")
    assert listed.labels["io.kubernetes.pod.uid"] == "u-1"
    states = {one.name: (one.state, one.attempt) for one in pods.list_containers() if one.sandbox_id == sandbox.id}
    assert states == {"serve": ("RUNNING", 0), "once": ("EXITED", 2)}
    assert pods.status(running.id).state == "RUNNING"


def test_container_is_stopped_and_removed(pods: Pods, apps: images.Archive) -> None:
    sandbox = pods.run_sandbox("brief")
    command = ("/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 1000 & wait $!; done")
    container = pods.run_container(sandbox, "main", apps.tags[0], command)
    log = container.log_file
    assert log is not None
    reclaim.poll("the container handles SIGTERM", lambda: log.exists() and "ready" in log.read_text())
    pods.stop(container, grace_s=10)
    assert pods.wait_exited(container).exit_code == 0
    pods.remove_container(container)
    assert container.id not in {one.id for one in pods.list_containers()}
    pods.remove_sandbox(sandbox)
    assert sandbox.id not in {one.id for one in pods.list_sandboxes()}


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_pods_outlive_the_daemon(containerd: Containerd, pods: Pods, apps: images.Archive, way: str) -> None:
    sandbox = pods.run_sandbox(f"lasting-{way}")
    container = pods.run_container(sandbox, "main", apps.tags[0])
    before, shims = containerd.pid, containerd.shims()
    if way == "restart":
        containerd.restart()
    else:
        containerd.kill()
        containerd.start()
    assert containerd.pid != before
    assert containerd.shims() == shims
    assert pods.status(container.id).state == "RUNNING"


def test_suspended_daemon_does_not_respond_until_resumed(containerd: Containerd, pods: Pods) -> None:
    pods.version()
    containerd.freeze()
    try:
        with pytest.raises(grpc.RpcError) as refused:
            pods.call("Version", timeout_s=0.2)
    finally:
        containerd.thaw()
    assert "DEADLINE_EXCEEDED" in str(refused.value)
    assert pods.version()[0] == "containerd"


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_import_into_a_full_image_filesystem_fails(containerd_factory: ContainerdFactory, kind: str) -> None:
    daemon = containerd_factory(imagefs=LoopFs(320, "xfs" if kind == "xfs" else "ext4", reserved_percent=0))
    assert daemon.root.is_mount()
    before = os.statvfs(daemon.root)
    assert before.f_blocks * before.f_frsize < 321 * MIB
    fat = images.image("harness.test/fat:v1", layers=[images.blob("fat", 20 * MIB)])
    daemon.import_images(images.write_oci(daemon.base / "fat.tar", fat))
    after = os.statvfs(daemon.root)
    assert (before.f_bavail - after.f_bavail) * after.f_frsize > 40 * MIB  # blob and unpacked layer, 20 MiB each

    daemon.fill(10 * MIB)
    filled = os.statvfs(daemon.root)
    assert 9 * MIB < filled.f_bavail * filled.f_frsize <= 10 * MIB
    fatter = images.image("harness.test/fatter:v1", layers=[images.blob("fatter", 20 * MIB)])
    with pytest.raises(ContainerdError, match="no space left"):
        daemon.import_images(images.write_oci(daemon.base / "fatter.tar", fatter))


def test_docker_archives_are_imported(containerd: Containerd, pods: Pods, tmp_path: Path) -> None:
    described = images.image("harness.test/saved:v1", layers=[images.blob("plain", MIB, gzip_level=None)])
    archive = images.write_docker(tmp_path / "saved.tar", described)
    containerd.import_images(archive)
    assert archive["harness.test/saved:v1"].config_digest in {image.id for image in pods.list_images()}


def test_image_of_an_index_runs_without_the_other_platforms(containerd: Containerd, pods: Pods, tmp_path: Path) -> None:
    member = images.image(layers=[images.blob("multi", MIB)])
    index = images.Index(("harness.test/multi:v1",), (member,), absent=("s390x", "ppc64le"))
    containerd.import_images(images.write_oci(tmp_path / "multi.tar", index))
    sandbox = pods.run_sandbox("multi")
    assert pods.run_container(sandbox, "main", "harness.test/multi:v1").id


def test_artifact_is_listed_after_its_import(containerd: Containerd, tmp_path: Path) -> None:
    artifact = images.Artifact(("harness.test/chart:v1",), (images.File("chart.tgz", 10_000),))
    archive = images.write_oci(tmp_path / "chart.tar", artifact)
    containerd.import_images(archive)
    assert "harness.test/chart:v1" in containerd.ctr("images", "ls", "-q").split()


def test_equal_descriptions_give_equal_archives(tmp_path: Path) -> None:
    described = images.image("harness.test/same:v1", layers=[images.blob("same", 1000, gzip_level=6)])
    first, second = (images.write_oci(tmp_path / name, described) for name in ("one.tar", "two.tar"))
    assert first.images == second.images
    assert first.path.read_bytes() == second.path.read_bytes()


class SimulatedError(Exception):
    """Simulated failure of a test within the daemon's context."""


@pytest.mark.parametrize("end", ["in order", "crashed", "frozen", "shim killed", "test failed"])
def test_all_resources_are_removed_at_the_end(containerd_version: Version, end: str) -> None:
    daemon = Containerd(containerd_version, imagefs=LoopFs(64))
    with contextlib.suppress(SimulatedError), daemon:
        pods = daemon.pods()
        daemon.import_images(images.write_oci(daemon.base / "app.tar", images.image("harness.test/app:v1")))
        sandbox = pods.run_sandbox("doomed")
        pods.run_container(sandbox, "main", "harness.test/app:v1")
        pods.run_container(sandbox, "other", "harness.test/app:v1", ["sleep", "10000"])
        running, sockets = reclaim.processes(daemon.base), reclaim.shim_sockets(daemon.base)
        assert len(running) >= 5  # the daemon, a shim, pause and two containers
        assert reclaim.loops(daemon.base)
        assert reclaim.mounts(daemon.base)
        match end:
            case "crashed":
                daemon.kill()
            case "frozen":
                daemon.freeze()
            case "shim killed":
                os.kill(daemon.shims()[0], signal.SIGKILL)
            case "test failed":
                raise SimulatedError
    assert reclaim.leftovers(daemon.base) == []
    assert not [pid for pid in running if reclaim.alive(pid)]
    assert not [socket for socket in sockets if socket.exists()]


def test_leftovers_of_a_killed_run_are_removed(containerd_version: Version) -> None:
    code = f"""
import os, signal
from tests.support.containerd import Containerd, LoopFs
with Containerd({containerd_version!r}, imagefs=LoopFs(64)) as daemon:
    daemon.pods().run_sandbox("orphan")
    print(daemon.base, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    base = Path(done.stdout.strip())
    assert reclaim.leftovers(base)
    reclaim.sweep()
    assert reclaim.leftovers(base) == []


def _text(file: Path | None) -> str:
    return file.read_text() if file is not None and file.exists() else ""
