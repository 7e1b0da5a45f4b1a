"""Identity of filesystems by their mounts, and nodefs on a node without a kubelet."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError
from nodeagent.eviction.signals import nodefs_path
from nodeagent.host.filesystems import (
    FilesystemMounts,
    filesystem_id,
    filesystem_type,
    mount_id,
    mount_point,
    read_filesystem,
)
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


MOUNTS = (
    "20 1 0:2 / /proc rw - proc proc rw",
    "21 1 8:1 / / rw - ext4 /dev/sda1 rw",
    "22 21 8:2 / /data rw - ext4 /dev/sdb rw",
    "23 21 8:2 /kubelet /var/lib/kubelet rw - ext4 /dev/sdb rw",
    "24 21 8:2 /run\\040time /var/lib/containerd rw - ext4 /dev/sdb rw",
    "25 21 8:1 /opt /opt ro - ext4 /dev/sda1 rw",
    "26 23 8:2 /kubelet/pods/1/cache /var/lib/kubelet/pods/1/volume-subpaths/0 rw - ext4 /dev/sdb rw",
    "27 21 0:9 / /mnt/nfs rw - nfs server:/ rw",
    "28 21 0:30 /@home /home rw - btrfs /dev/sdc rw",
    "29 21 0:30 /@home/a /a rw - btrfs /dev/sdc rw",
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/containerd/io.containerd.x", "/data"),
        ("/data", "/data"),
        ("/usr", "/"),
        ("/opt/x", "/"),
        ("/a", "/home"),
        ("/none/of/these", "/"),
    ],
)
def test_mount_point_shows_the_largest_part_of_the_filesystem(tmp_path: Path, path: str, expected: str) -> None:
    assert mount_point(path, mountinfo(tmp_path, *MOUNTS)) == expected


@pytest.mark.parametrize(
    ("top", "path", "expected"),
    [
        ("/data", "/var/lib/kubelet/pods", "/data/kubelet/pods"),
        ("/data", "/var/lib/containerd", "/data/run time"),
        ("/data", "/data", "/data"),
        ("/data", "/usr", "/usr"),
        ("/", "/opt/x", "/opt/x"),
        ("/var/lib/kubelet", "/data/kubelet/pods", "/var/lib/kubelet/pods"),
        ("/var/lib/kubelet", "/data/kubelet-2", "/data/kubelet-2"),
        ("/var/lib/kubelet", "/data/kubelet", "/var/lib/kubelet"),
        ("/home", "/a/x", "/home/a/x"),
        ("/unmounted", "/data/x", "/data/x"),
    ],
)
def test_path_of_a_bind_mount_is_found_below_the_mount_point(
    tmp_path: Path, top: str, path: str, expected: str
) -> None:
    assert FilesystemMounts(top, mountinfo(tmp_path, *MOUNTS)).path_below_top(path) == expected


def test_link_is_resolved_below_the_mount_point(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/var/lib/kubelet/pods")
    mounts = FilesystemMounts("/data", mountinfo(tmp_path, *MOUNTS))
    assert mounts.path_below_top(str(tmp_path / "link")) == "/data/kubelet/pods"


def test_walk_omits_other_filesystems_and_directories_shown_twice(tmp_path: Path) -> None:
    listed = mountinfo(tmp_path, *MOUNTS)
    others = FilesystemMounts("/", listed).others
    assert "/opt" not in others, "a read-only bind mount of a directory on itself shows the same files"
    assert {"/data", "/mnt/nfs", "/var/lib/kubelet"} <= others
    assert "/var/lib/kubelet/pods/1/volume-subpaths/0" in FilesystemMounts("/data", listed).others


def test_mounts_without_a_mount_table_are_unknown(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    mounts = FilesystemMounts("/", missing)
    assert (mount_point("/usr", missing), mounts.others, mounts.path_below_top("/usr")) == ("/", frozenset(), "/usr")
