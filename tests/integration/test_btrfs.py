"""Tests on Btrfs: subvolumes and bind mounts of one Btrfs count as one filesystem of the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.reclaim import reclaim_steps
from nodeagent.eviction.signals import layout_of
from nodeagent.host.filesystems import filesystem_id
from nodeagent.model.pressure import FilesystemLayout, Signal
from tests.support.containerd import LoopFs
from tests.support.pressed import MIB, UNUSED, PressedNode
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real


TOP = "btrfs"


@dataclass(frozen=True, slots=True)
class Subvolumes(LoopFs):
    """Btrfs with two subvolumes: ``containerd`` for the image filesystem and ``kubelet`` for nodefs."""

    def mount(self, file: Path, point: Path) -> None:
        top = point.parent / TOP
        top.mkdir()
        file.touch()
        os.truncate(file, self.size_mib << 20)
        subprocess.run(["mkfs.btrfs", "-q", str(file)], check=True)
        subprocess.run(["mount", "-o", "loop", str(file), str(top)], check=True)
        for name in ("containerd", "kubelet"):
            subprocess.run(["btrfs", "subvolume", "create", str(top / name)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["mount", "--bind", str(top / "containerd"), str(point)], check=True)


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """Return the mount point of a Btrfs with the subvolumes ``kubelet`` and ``containerd``."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs (btrfs-progs) is not installed")
    image, root = tmp_path / "btrfs.img", tmp_path / "root"
    root.mkdir()
    image.touch()
    os.truncate(image, 128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(root)], check=True)
    try:
        for name in ("kubelet", "containerd"):
            subprocess.run(["btrfs", "subvolume", "create", str(root / name)], check=True, stdout=subprocess.DEVNULL)
        yield root
    finally:
        subprocess.run(["umount", "--recursive", str(root)], check=True)


@pytest.mark.difference("btrfs-subvolumes")
def test_images_are_removed_before_pods_on_subvolumes_of_one_filesystem(btrfs: Path) -> None:
    kubelet, containerd, bound = btrfs / "kubelet", btrfs / "containerd", btrfs / "bound"
    bound.mkdir()
    subprocess.run(["mount", "-o", "bind", str(containerd), str(bound)], check=True)
    assert kubelet.stat().st_dev != containerd.stat().st_dev
    assert len({filesystem_id(str(each)) for each in (btrfs, kubelet, containerd, bound)}) == 1
    layout = layout_of(SignalPaths(str(kubelet), str(bound), str(containerd)))
    assert layout is FilesystemLayout.SINGLE
    steps = [each.text for each in reclaim_steps(Signal.NODEFS_AVAILABLE, layout)]
    assert "unused-images on nodefs" in steps
    assert filesystem_id(str(btrfs)) != filesystem_id(str(btrfs.parent))


@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="mkfs.btrfs (btrfs-progs) is not installed")
def test_images_and_then_one_pod_suffice_since_freed_space_is_committed(
    containerd_factory: ContainerdFactory, tmp_path: Path
) -> None:
    containerd = containerd_factory(imagefs=Subvolumes(700))
    node = PressedNode(containerd, tmp_path, nodefs=containerd.log_root)
    kubelet = containerd.base / TOP / "kubelet"
    subprocess.run(["mount", "--bind", str(kubelet), str(containerd.log_root)], check=True)
    node.import_images(unused=True)
    node.run_writer("writer", 60)
    node.run_writer("quiet", 1)
    with node.daemon(f'hard = "nodefs.available<{node.available_bytes // MIB + 10}Mi"'):
        cleared = len(node.wait_for("threshold_cleared", timeout_s=60))
        node.wait_passes(2)
    removals = [each["step"] for each in node.events("reclaimed") if each["removed"]]
    assert removals in (["unused-images on nodefs"], ["irreplaceable-images on nodefs"])
    kept = set(UNUSED) & node.tags()
    assert len(kept) == len(UNUSED) - 1
    assert not node.events("eviction_started")
    assert node.running() == {"writer", "quiet"}
    expected_bytes = node.available_bytes + len(kept) * 20 * MIB  # an image has two copies of 12 MiB
    for each in kept:
        node.pods.remove_image(each)

    def is_committed() -> bool:
        os.sync()
        return node.available_bytes >= expected_bytes

    poll("the space of the removed images is available", is_committed)
    with node.daemon(f'hard = "nodefs.available<{node.available_bytes // MIB + 30}Mi"'):
        node.wait_for("threshold_cleared", cleared + 1, timeout_s=60)
        node.wait_passes(2)
    assert [each["pod_name"] for each in node.events("evicted")] == ["writer"]
    assert node.running() == {"quiet"}
