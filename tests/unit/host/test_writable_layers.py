from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.pod_disk import find_layer_devices, find_upper_directories, snapshotter_of

if TYPE_CHECKING:
    from pathlib import Path

ID = "c" * 64
OTHER = "d" * 64


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw shared:3 - overlay overlay rw,lowerdir=/a:/b,upperdir=/u/1", "/u/1"),
        (f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,upperdir=/u/1,workdir=/w", "/u/1"),
        (f"31 25 0:40 / /run\\040x/{ID}/rootfs rw - overlay overlay rw,upperdir=/u\\0401/fs,workdir=/w", "/u 1/fs"),
        (f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,lowerdir=/a:/b", None),
        (f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,upperdir=u/1", None),
        (f"31 25 8:1 / /run/k8s.io/{ID}/rootfs rw - ext4 /dev/sda1 rw,upperdir=/u/1", None),
        (f"31 25 0:40 / /run/k8s.io/x{ID}/rootfs rw - overlay overlay rw,upperdir=/u/1", None),
        ("31 25 0:40 / / rw - overlay overlay rw,upperdir=/u/1", None),
        ("no mount", None),
        ("x - overlay overlay rw,upperdir=/u/1", None),
    ],
)
def test_writable_layer_is_found_by_its_mount(tmp_path: Path, line: str, expected: str | None) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{line}\n")
    assert find_upper_directories([ID, OTHER], str(mounts)).get(ID) == expected


def test_mount_inside_a_container_is_not_its_writable_layer(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    own = f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,upperdir=/u/1,workdir=/w"
    inner = f"32 31 0:41 / /run/k8s.io/{ID}/rootfs/var/lib/docker/x rw - overlay overlay rw,upperdir=/u/2,workdir=/w"
    mounts.write_text(f"{own}\n{inner}\n")
    assert find_upper_directories([ID], str(mounts)) == {ID: "/u/1"}


def test_no_layers_are_found_with_unreadable_mounts(tmp_path: Path) -> None:
    assert find_upper_directories([ID], str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("upper", "snapshotter"),
    [
        ("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/10/fs", "overlayfs"),
        ("/data/io.containerd.snapshotter.v1.stargz/snapshots/1/fs", "stargz"),
        ("/var/lib/containers/storage/overlay/0a1b/diff", ""),
    ],
)
def test_snapshotter_is_read_from_the_directory_of_a_layer(upper: str, snapshotter: str) -> None:
    assert snapshotter_of(upper) == snapshotter


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([f"31 25 8:17 /snapshots/3 /run/k8s.io/{ID}/rootfs rw - ext4 /dev/sdb1 rw"], os.makedev(8, 17)),
        ([f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,upperdir={{upper}}"], "upper"),
        ([f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,upperdir=/missing"], None),
        ([f"31 25 0:40 / /run/k8s.io/{ID}/rootfs rw - overlay overlay rw,lowerdir=/a:/b"], None),
        ([f"31 25 8:17 / /run/k8s.io/{ID}/rootfs/data rw - ext4 /dev/sdb1 rw"], None),
        ([f"31 25 8:17 / /run/k8s.io/{ID}/other rw - ext4 /dev/sdb1 rw"], None),
        ([f"31 25 8:x / /run/k8s.io/{ID}/rootfs rw - ext4 /dev/sdb1 rw"], None),
        ([f"{n} 25 8:{n} / /run{n}/{ID}/rootfs rw - ext4 /dev/sdb1 rw" for n in (1, 2)], None),
        ([f"{n} 25 8:1 / /run{n}/{ID}/rootfs rw - ext4 /dev/sdb1 rw" for n in (1, 2)], os.makedev(8, 1)),
        (["no mount"], None),
    ],
)
def test_device_of_a_writable_layer_is_that_of_its_root_filesystem(
    tmp_path: Path, lines: list[str], expected: int | str | None
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("\n".join(each.format(upper=tmp_path) for each in lines) + "\n")
    wanted = tmp_path.stat().st_dev if expected == "upper" else expected
    assert find_layer_devices([ID, OTHER], str(mounts)) == ({} if wanted is None else {ID: wanted})


def test_no_devices_are_found_with_unreadable_mounts(tmp_path: Path) -> None:
    assert find_layer_devices([ID], str(tmp_path / "none")) == {}
