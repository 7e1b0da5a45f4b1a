"""Tests of ``gc leaks --deep`` on a real containerd: every planted leak is reported, and no object in use."""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.model.runtime_objects import ObjectKind
from tests.support import images
from tests.support.command import nodeagent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

OF_EACH_KIND = 34
KINDS = 6
FEW = 3
TAG = "registry.example.com/leaks/app:v1"


def new_id() -> str:
    return secrets.token_hex(32)


@pytest.fixture
def containerd(containerd_factory: ContainerdFactory) -> Containerd:
    made = containerd_factory()
    made.import_images(images.write_oci(made.base / "app.tar", images.image(TAG, layers=[images.busybox_layer()])))
    return made


def audit(containerd: Containerd) -> dict[str, Any]:
    config = containerd.base / "nodeagent.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n'
    )
    ended = nodeagent("gc", "leaks", "--deep", "--minimum-age", "0s", "-o", "json", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["warnings"] == []
    return found


def leaks(containerd: Containerd) -> set[tuple[str, str]]:
    return {(each["kind"], each["name"]) for each in audit(containerd)["leaks"]}


def plant(containerd: Containerd, count: int) -> set[tuple[str, str]]:
    """Create ``count`` leaks of each of six kinds."""
    root, state = containerd.root, containerd.state
    content = root / "io.containerd.content.v1.content"
    planted = set()
    for number in range(count):
        snapshot = root / "io.containerd.snapshotter.v1.overlayfs" / "snapshots" / str(900_000 + number)
        (snapshot / "fs").mkdir(parents=True)
        planted.add((ObjectKind.SNAPSHOT_DIRECTORY.value, str(snapshot)))
        blob = content / "blobs" / "sha256" / new_id()
        blob.write_bytes(b"leak")
        planted.add((ObjectKind.BLOB.value, str(blob)))
        reference = f"k8s.io/{number}/layer-sha256:{new_id()}"
        ingest = content / "ingest" / hashlib.sha256(reference.encode()).hexdigest()
        ingest.mkdir()
        (ingest / "ref").write_text(reference)
        (ingest / "data").write_bytes(b"leak")
        planted.add((ObjectKind.INGEST.value, str(ingest)))
        sandbox = root / "io.containerd.grpc.v1.cri" / "sandboxes" / new_id()
        sandbox.mkdir(parents=True)
        planted.add((ObjectKind.CRI_DIRECTORY.value, str(sandbox)))
        task = root / "io.containerd.runtime.v2.task" / "k8s.io" / new_id()
        task.mkdir(parents=True)
        planted.add((ObjectKind.TASK_DIRECTORY.value, str(task)))
        rootfs = state / "io.containerd.runtime.v2.task" / "k8s.io" / new_id() / "rootfs"
        rootfs.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "leak", str(rootfs)], check=True)
        planted |= {
            (ObjectKind.MOUNT.value, str(rootfs)),
            (ObjectKind.TASK_DIRECTORY.value, str(rootfs.parent)),
        }
    return planted


@pytest.fixture
def shims(containerd: Containerd) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes with the arguments of containerd shims but without a container."""
    started = []
    for _ in range(FEW):
        words = ["containerd-shim-runc-v2", "-c", "read x", "-namespace", "k8s.io", "-id", new_id()]
        command = [*words, "-address", str(containerd.socket)]
        started.append(subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE))
    yield started
    for each in started:
        each.kill()
        each.wait()
        if each.stdin is not None:
            each.stdin.close()


def test_planted_leaks_are_found_without_objects_in_use_and_removed_as_documented(
    containerd: Containerd, shims: list[subprocess.Popen[bytes]]
) -> None:
    expected = {(ObjectKind.SHIM.value, str(each.pid)) for each in shims}
    with containerd.pods() as pods:
        pods.run_container(pods.run_sandbox("web"), "app", TAG, ["sleep", "1000"])
        assert leaks(containerd) == expected
        planted = plant(containerd, OF_EACH_KIND)
        try:
            assert leaks(containerd) == expected | planted
        finally:
            for kind, name in planted:
                if kind == ObjectKind.MOUNT.value:
                    subprocess.run(["umount", name], check=True)
        assert len(planted) >= KINDS * OF_EACH_KIND > 200
        pods.remove_made()
    containerd.ctr("images", "rm", "--sync", *containerd.ctr("images", "ls", "-q").split())
    remaining = {kind for kind, _ in leaks(containerd)}
    assert remaining == {ObjectKind.SHIM.value, ObjectKind.TASK_DIRECTORY.value, ObjectKind.CRI_DIRECTORY.value}
    containerd.restart()
    assert leaks(containerd) == expected
