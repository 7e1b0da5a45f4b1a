"""Btrfs: the subvolumes and bind mounts of one filesystem are one filesystem of the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.filesystems import filesystem_id
from nodeagent.host.signals import SignalPaths
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.observe.eviction_signals import layout_of
from nodeagent.plan.eviction.reclaim import reclaim_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real


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
