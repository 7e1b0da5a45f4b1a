"""Identity of filesystems by their mounts, and nodefs on a node without a kubelet."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError
from nodeagent.eviction.signals import nodefs_path
from nodeagent.host.filesystems import filesystem_id, filesystem_type, mount_id, read_filesystem
from nodeagent.units import SystemClock

if TYPE_CHECKING:
    from pathlib import Path


def mountinfo(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def own_mount(path: Path) -> str:
    descriptor = os.open(path, os.O_PATH)
    try:
        return mount_id(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.difference("btrfs-subvolumes")
def test_filesystem_is_identified_by_the_superblock_of_its_mount(tmp_path: Path) -> None:
    mount = own_mount(tmp_path)
    listed = mountinfo(
        tmp_path,
        f"{mount}1 1 0:99 / /other rw - ext4 /dev/x rw",
        f"{mount} 1 0:40 /sub /mnt rw,relatime shared:1 - btrfs /dev/vdb rw,subvol=/sub",
    )
    assert filesystem_id(str(tmp_path), listed) == os.makedev(0, 40)
    assert filesystem_type(str(tmp_path), listed) == "btrfs"


@pytest.mark.parametrize("lines", [[], ["garbage"], ["MOUNT 1 garbage / / rw - ext4 /dev/x rw"], ["MOUNT"]])
def test_unreadable_mount_is_identified_by_the_device_of_the_path(tmp_path: Path, lines: list[str]) -> None:
    listed = mountinfo(tmp_path, *(line.replace("MOUNT", own_mount(tmp_path)) for line in lines))
    assert filesystem_id(str(tmp_path), listed) == tmp_path.stat().st_dev
    assert filesystem_id(str(tmp_path), str(tmp_path / "none")) == tmp_path.stat().st_dev
    assert isinstance(filesystem_type(str(tmp_path), listed), str)


def test_missing_path_has_no_filesystem(tmp_path: Path) -> None:
    assert filesystem_id(str(tmp_path / "none")) is None
    assert filesystem_id("\0") is None


@pytest.mark.difference("impossible-filesystem-reading")
@pytest.mark.parametrize(("blocks", "available"), [(0, 0), (0, 5), (10, 11), (10, -1)])
def test_impossible_reading_of_a_filesystem_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, available: int
) -> None:
    found = os.statvfs(tmp_path)
    numbers = SimpleNamespace(
        f_blocks=blocks, f_bavail=available, f_frsize=4096, f_files=found.f_files, f_ffree=found.f_ffree
    )
    monkeypatch.setattr(os, "statvfs", lambda _: numbers)
    with pytest.raises(ObservationError, match=f"impossible reading of {tmp_path}"):
        read_filesystem(str(tmp_path), SystemClock())


@pytest.mark.difference("nodefs")
def test_nodefs_without_a_kubelet_is_the_filesystem_of_the_pod_logs(tmp_path: Path) -> None:
    logs, kubelet = tmp_path / "log" / "pods", tmp_path / "kubelet"
    assert nodefs_path(logs, kubelet) == str(tmp_path)
    logs.mkdir(parents=True)
    assert nodefs_path(logs, kubelet) == str(logs)
    kubelet.mkdir()
    assert nodefs_path(logs, kubelet) == str(kubelet)
