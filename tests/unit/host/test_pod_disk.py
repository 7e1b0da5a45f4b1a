"""Pod disk usage on real directory trees."""

from __future__ import annotations

import math
import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.host.filesystems import read_mounts
from nodeagent.host.pod_disk import PodDiskWalk
from nodeagent.model.pressure import Footprint, LayerUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nodeagent.host.pod_disk import PodDisk

KIB = 1 << 10
UID = "u-1"
EMPTY_DIRS = "kubernetes.io~empty-dir"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs/shop_web_u-1"


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    return tmp_path / "kubelet/pods" / UID / "volumes"


def write(path: Path, kib: int) -> int:
    """Write a file; return its disk usage in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * (kib * KIB))
    os.sync()
    return path.lstat().st_blocks * 512


def walk(tmp_path: Path, *, uid: str = UID, logs: str = "logs/shop_web_u-1", **more: Any) -> PodDiskWalk:
    return PodDiskWalk(uid, tmp_path / logs, tmp_path / "kubelet", mounts=read_mounts(), **more)


def read(tmp_path: Path, **more: Any) -> PodDisk:
    one = walk(tmp_path, **more)
    assert one.advance(math.inf)
    return one.reading()


def test_pod_without_directories_has_no_usage(tmp_path: Path) -> None:
    found = read(tmp_path)
    empty = Footprint(0, 0)
    assert (found.log_tree, found.logs, found.volumes, found.empty_dir_bytes) == (empty, empty, empty, {})
    assert found.complete


def test_log_usage_is_counted_by_container(tmp_path: Path, logs: Path) -> None:
    app = write(logs / "app/0.log", 64) + write(logs / "app/0.log.1", 32)
    side = write(logs / "side/0.log", 16)
    loose = write(logs / "loose.txt", 8)
    found = read(tmp_path)
    assert found.container_logs_bytes == {"app": app, "side": side}
    assert found.logs == Footprint(app + side, 3)
    assert found.log_tree == Footprint(app + side + loose, 4)


def test_volume_usage_excludes_network_volumes(tmp_path: Path, volumes: Path) -> None:
    cache = write(volumes / EMPTY_DIRS / "cache/a/data", 64)
    extra = write(volumes / EMPTY_DIRS / "extra/data", 8)
    settings = write(volumes / "kubernetes.io~configmap/settings/key", 4)
    write(volumes / "kubernetes.io~nfs/share/huge", 512)
    found = read(tmp_path)
    directory = (volumes / EMPTY_DIRS / "cache/a").lstat().st_blocks * 512
    inner = (volumes / "kubernetes.io~configmap/settings").lstat().st_blocks * 512
    assert found.empty_dir_bytes == {"cache": cache + directory, "extra": extra}
    assert found.volumes is not None
    assert found.volumes.used_bytes == cache + directory + extra + settings + inner


@pytest.mark.difference("mounted-files")
def test_files_that_the_kubelet_mounts_into_containers_count_as_volumes(tmp_path: Path, volumes: Path) -> None:
    hosts = write(volumes.parent / "etc-hosts", 512)
    message = write(volumes.parent / "containers/app/0a1b2c3d", 256)
    outside = write(tmp_path / "outside", 1024)
    (volumes.parent / "containers/linked").symlink_to(tmp_path)
    volumes.mkdir()
    found = read(tmp_path).volumes
    assert found is not None
    assert found.used_bytes is not None
    assert hosts + message <= found.used_bytes < hosts + message + outside


@pytest.mark.parametrize(
    "create",
    [lambda hosts: hosts.symlink_to("../../../outside"), os.mkfifo, os.mkdir],
    ids=["link", "pipe", "directory"],
)
def test_etc_hosts_that_is_no_regular_file_does_not_count(
    tmp_path: Path, volumes: Path, create: Callable[[Path], None]
) -> None:
    volumes.mkdir(parents=True)
    write(tmp_path / "outside", 512)
    create(volumes.parent / "etc-hosts")
    assert read(tmp_path).volumes == Footprint(0, 0)


@pytest.mark.difference("mounted-files")
def test_only_large_regular_files_of_a_sandbox_count(tmp_path: Path) -> None:
    sandbox = tmp_path / "s-1"
    used = write(sandbox / "hostname", 2048) + write(sandbox / "resolv.conf", 1024)
    write(sandbox / "hosts", 4)
    (sandbox / "link").symlink_to(sandbox / "hostname")
    names = ("hostname", "resolv.conf", "hosts", "link", "missing", "nul\0")
    found = read(tmp_path, sandbox_files=[str(sandbox / each) for each in names]).sandbox_files
    assert found == LayerUsage(Footprint(used, 2), sandbox.stat().st_dev, "")
    assert read(tmp_path, sandbox_files=[str(sandbox / "hosts")]).sandbox_files is None


@pytest.mark.difference("image-volumes")
def test_volumes_declared_by_images_count_without_links(tmp_path: Path) -> None:
    first, second = tmp_path / "containers/a/volumes/1", tmp_path / "containers/b/volumes/2"
    used = write(first / "data", 512) + write(second / "data", 256)
    (tmp_path / "link").symlink_to(first)
    paths = [str(first), str(second), str(tmp_path / "link"), str(tmp_path / "missing"), "/nul\0"]
    found = read(tmp_path, image_volumes=paths)
    assert found.image_volumes is not None
    assert found.image_volumes.used.used_bytes is not None
    assert used <= found.image_volumes.used.used_bytes < used + (64 << 10)
    assert found.image_volumes.device_id == first.stat().st_dev
    assert found.complete
    assert read(tmp_path).image_volumes is None


def test_volumes_declared_by_images_are_a_lower_bound_before_the_end_of_their_walk(tmp_path: Path) -> None:
    write(tmp_path / "containers/a/volumes/1/data", 4)
    started = walk(tmp_path, image_volumes=[str(tmp_path / "containers/a/volumes/1")]).reading().image_volumes
    assert started is not None
    assert started.used.is_lower_bound


def test_large_directory_counts_after_the_removal_of_its_files(tmp_path: Path, volumes: Path) -> None:
    volume, upper, declared = volumes / EMPTY_DIRS / "cache", tmp_path / "upper", tmp_path / "declared"
    for each in (volume, upper, declared):
        each.mkdir(parents=True)
        for number in range(1500):
            (each / f"{'n' * 200}{number}").touch()
        for path in list(each.iterdir()):
            path.unlink()
    sizes = [each.stat().st_blocks * 512 for each in (volume, upper, declared)]
    if min(sizes) < 64 * KIB:
        pytest.skip("directories of this filesystem shrink")
    found = read(tmp_path, upper_directories={"c": str(upper)}, image_volumes=[str(declared)])
    assert found.image_volumes is not None
    assert found.empty_dir_bytes == {"cache": sizes[0]}
    assert (found.layers["c"].size_bytes, found.image_volumes.used.used_bytes) == (sizes[1], sizes[2])


def test_file_with_links_in_volumes_of_two_pods_counts_for_both(tmp_path: Path) -> None:
    first, second = (tmp_path / "kubelet/pods" / uid / "volumes" / EMPTY_DIRS / "v" for uid in ("u-1", "u-2"))
    used = write(first / "data", 512)
    second.mkdir(parents=True)
    (second / "data").hardlink_to(first / "data")
    assert [read(tmp_path, uid=uid).empty_dir_bytes for uid in ("u-1", "u-2")] == [{"v": used}, {"v": used}]


@pytest.mark.difference("project-quotas")
def test_volume_with_odd_files_times_and_names_is_measured_completely(tmp_path: Path, volumes: Path) -> None:
    volume = volumes / EMPTY_DIRS / "v"
    used = write(volume / "data", 512)
    with (volume / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    os.mkfifo(volume / "pipe")
    if os.geteuid() == 0:
        with suppress(PermissionError):
            os.mknod(volume / "device", 0o600 | stat.S_IFBLK, os.makedev(7, 250))
    for name, time_s in ((b"\x1b[31m\n\xff", -(1 << 31)), (b"\r\x7f" * 100, 15_000_000_000)):
        (volume / os.fsdecode(name)).touch()
        os.utime(volume / os.fsdecode(name), (time_s, time_s))
    found = read(tmp_path)
    assert found.complete
    assert found.empty_dir_bytes == {"v": used}


def test_links_are_not_followed(tmp_path: Path, logs: Path, volumes: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "huge", 512)
    (volumes / EMPTY_DIRS / "cache").mkdir(parents=True)
    (volumes / EMPTY_DIRS / "cache/link").symlink_to(outside)
    (volumes / EMPTY_DIRS / "linked").symlink_to(outside)
    logs.mkdir(parents=True)
    (logs / "app").symlink_to(outside)
    found = read(tmp_path)
    assert found.empty_dir_bytes["cache"] < 64 * KIB
    assert set(found.empty_dir_bytes) == {"cache"}
    assert found.container_logs_bytes == {}


def test_usage_of_a_linked_log_directory_is_unknown(tmp_path: Path, logs: Path) -> None:
    logs.parent.mkdir(parents=True)
    logs.symlink_to(tmp_path)
    found = read(tmp_path)
    assert found.logs is None
    assert not found.complete


@pytest.mark.parametrize("uid", ["", "..", "../../etc", "a/b"])
def test_volumes_of_an_invalid_uid_are_not_read(tmp_path: Path, uid: str) -> None:
    found = read(tmp_path, uid=uid)
    assert found.volumes is None
    assert not found.complete


def test_usage_is_a_lower_bound_before_the_end_of_the_walk(tmp_path: Path, logs: Path, volumes: Path) -> None:
    (logs / "app").mkdir(parents=True)
    for number in range(600):
        (logs / f"app/{number}.log").write_text("x")
    write(volumes / EMPTY_DIRS / "cache/data", 64)
    one, inodes = walk(tmp_path), []
    while not one.advance(-math.inf):
        reading = one.reading()
        assert not reading.complete
        assert reading.logs is not None
        assert reading.logs.is_lower_bound
        inodes.append(reading.logs.used_inodes)
    assert inodes[:2] == [255, 511]
    complete = one.reading()
    assert complete.complete
    assert complete.logs is not None
    assert (complete.logs.used_inodes, complete.logs.is_lower_bound) == (600, False)
    assert complete.volumes == Footprint(complete.empty_dir_bytes["cache"], 1)


def test_writable_layers_are_measured_by_container(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    size = write(upper / "a", 70)
    (upper / "out").symlink_to("/usr")
    found = read(tmp_path, upper_directories={"c-1": str(upper), "c-2": str(tmp_path / "missing")}).layers
    assert {key: (tree.size_bytes, tree.inodes, tree.complete) for key, tree in found.items()} == {
        "c-1": (size + (upper / "out").lstat().st_blocks * 512, 2, True)
    }


def test_closed_walk_leaves_no_descriptor_open(tmp_path: Path, logs: Path) -> None:
    (logs / "app").mkdir(parents=True)
    for number in range(600):
        (logs / f"app/{number}.log").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    one = walk(tmp_path)
    assert not one.advance(-math.inf)
    one.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def in_memory(volumes: Path) -> Iterator[Path]:
    path = volumes / EMPTY_DIRS / "scratch"
    path.mkdir(parents=True)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a tmpfs requires root")
    yield path
    subprocess.run(["umount", path], check=True)


def test_emptydir_in_memory_does_not_count_as_disk_usage(tmp_path: Path, in_memory: Path) -> None:
    (in_memory / "data").write_bytes(b"x" * (256 * KIB))
    found = read(tmp_path)
    assert found.empty_dir_bytes == {"scratch": 256 * KIB}
    assert found.volumes == Footprint(0, 0)


@pytest.mark.parametrize("logs", ["lo\0gs", "\0/logs", "\0"])
def test_usage_of_names_with_a_nul_is_unknown(tmp_path: Path, logs: str) -> None:
    assert not read(tmp_path, uid="u\0").complete
    found = read(tmp_path, logs=logs)
    assert (found.logs, found.complete) == (None, False)
