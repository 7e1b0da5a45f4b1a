"""Snapshot, blob and mount directories of containerd on the host, read from a temporary tree."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from nodeagent.errors import ObservationError
from nodeagent.host.bolt import read_bolt
from nodeagent.host.runtime_objects import read_objects
from nodeagent.model.runtime_objects import HostObjects, ObjectKind, RuntimePaths

DATABASE = Path(__file__).parents[2] / "data" / "snapshotter.db.gz"
"""Database of an overlayfs snapshotter of containerd 1.6, with 117 snapshots on several bbolt pages."""
ID, OTHER = "a" * 64, "b" * 64
SOCKET = "/run/containerd/containerd.sock"


def database(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.decompress(DATABASE.read_bytes()))
    return path


def read(tmp_path: Path, *, mounts: str = "") -> HostObjects:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(mounts)
    (tmp_path / "content").mkdir(exist_ok=True)
    paths = RuntimePaths(
        {"overlayfs": str(tmp_path / "overlayfs"), "": str(tmp_path / "content")},
        (str(tmp_path / "cri"),),
        (str(tmp_path / "tasks"),),
        SOCKET,
    )
    return read_objects(paths, tmp_path, str(mountinfo))


def found(objects: HostObjects, kind: ObjectKind) -> list[tuple[str, str]]:
    return [(each.scope, each.key) for each in objects.objects if each.kind is kind]


def test_snapshots_are_read_from_the_database_of_the_snapshotter(tmp_path: Path) -> None:
    database(tmp_path / "overlayfs" / "metadata.db")
    for name in ("1", "9999", "new-123"):
        (tmp_path / "overlayfs" / "snapshots" / name).mkdir(parents=True)
    objects = read(tmp_path)
    assert objects.warnings == ()
    assert found(objects, ObjectKind.SNAPSHOT_DIRECTORY) == [("overlayfs", "1"), ("overlayfs", "9999")]
    numbers = objects.directories["overlayfs"]
    assert len(numbers) == len(found(objects, ObjectKind.SNAPSHOT_RECORD)) > 100
    assert {each.namespace for each in objects.objects if each.kind is ObjectKind.SNAPSHOT_RECORD} == {"k8s.io"}
    assert "1" in numbers
    assert "9999" not in numbers


@pytest.mark.parametrize("damage", ["no database", "cut", "both metas", "root page"])
def test_damaged_database_is_an_error_and_no_directory_is_compared(tmp_path: Path, damage: str) -> None:
    path = database(tmp_path / "overlayfs" / "metadata.db")
    (tmp_path / "overlayfs" / "snapshots" / "9999").mkdir(parents=True)
    content = bytearray(path.read_bytes())
    match damage:
        case "no database":
            content = bytearray(b"not a database" * 1000)
        case "cut":
            content = content[: 3 * 4096]
        case "both metas":
            content[20:24] = content[4096 + 20 : 4096 + 24] = b"\0\0\0\0"
        case _:
            for page in range(2, len(content) // 4096):
                struct.pack_into("<H", content, page * 4096 + 8, 0x40)
    path.write_bytes(content)
    objects = read(tmp_path)
    assert objects.directories == {}
    assert len(objects.warnings) == 1
    assert "snapshots of overlayfs not compared: cannot read" in objects.warnings[0]


def test_older_transaction_is_used_if_the_newest_meta_page_is_invalid(tmp_path: Path) -> None:
    path = database(tmp_path / "metadata.db")
    content = bytearray(path.read_bytes())
    transactions = [struct.unpack_from("<Q", content, page * 4096 + 64)[0] for page in (0, 1)]
    newest = transactions.index(max(transactions))
    content[newest * 4096 + 72] ^= 0xFF  # corrupts the checksum of the meta page
    path.write_bytes(content)
    assert read_bolt(str(path), b"v1", b"snapshots")
    assert read_bolt(str(path), b"v1", b"none") == {}


def test_missing_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObservationError, match="No such file"):
        read_bolt(str(tmp_path / "metadata.db"))


def test_files_and_directories_have_their_identity(tmp_path: Path) -> None:
    (tmp_path / "content" / "blobs" / "sha256").mkdir(parents=True)
    (tmp_path / "content" / "blobs" / "sha256" / ID).write_text("x" * 7)
    ingest = tmp_path / "content" / "ingest" / "f00"
    ingest.mkdir(parents=True)
    (ingest / "ref").write_text("k8s.io/12/layer-sha256:1/2")
    (ingest / "data").write_text("x" * 9)
    (tmp_path / "content" / "ingest" / "empty").mkdir()
    (tmp_path / "cri" / "sandboxes" / ID).mkdir(parents=True)
    (tmp_path / "cri" / "sandboxes" / "io.plugin").mkdir()
    (tmp_path / "tasks" / "moby" / "short").mkdir(parents=True)
    objects = read(tmp_path)
    assert found(objects, ObjectKind.BLOB) == [("", f"sha256:{ID}")]
    assert found(objects, ObjectKind.INGEST) == [("k8s.io", "layer-sha256:1/2")]
    assert found(objects, ObjectKind.CRI_DIRECTORY) == [("", ID)]
    assert found(objects, ObjectKind.TASK_DIRECTORY) == [("moby", "short")]
    assert [each.size_bytes for each in objects.objects if each.size_bytes] == [7, 9]


def test_mounts_belong_to_the_task_or_sandbox_of_their_path(tmp_path: Path) -> None:
    points = [
        f"{tmp_path}/tasks/k8s.io/{ID}/rootfs",
        f"{tmp_path}/cri/sandboxes/{OTHER}/shm",
        f"{tmp_path}/tasks-of-another/k8s.io/{ID}/rootfs",
        f"{tmp_path}/cri",
    ]
    mounts = "".join(f"{n} 1 0:{n} / {point} rw - tmpfs shm rw\n" for n, point in enumerate(points, 30))
    assert found(read(tmp_path, mounts=mounts), ObjectKind.MOUNT) == [("k8s.io", OTHER), ("k8s.io", ID)]


@pytest.mark.parametrize(
    ("words", "shim"),
    [
        (["/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", ID, "-address", SOCKET], True),
        (["containerd-shim-kata-v2", "-namespace", "k8s.io", "-address", f"unix://{SOCKET}", "-id", ID], True),
        (["containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", ID, "-address", "/run/other.sock"], False),
        (["containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", SOCKET], False),
        (["sleep", "-namespace", "k8s.io", "-id", ID, "-address", SOCKET], False),
        ([""], False),
    ],
)
def test_shims_are_those_of_the_socket(tmp_path: Path, words: list[str], *, shim: bool) -> None:
    process = tmp_path / "proc" / "77"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    (tmp_path / "proc" / "self").mkdir()
    assert found(read(tmp_path), ObjectKind.SHIM) == ([("k8s.io", ID)] if shim else [])


def test_missing_content_store_is_a_warning(tmp_path: Path) -> None:
    objects = read_objects(RuntimePaths({"": str(tmp_path / "none")}), tmp_path, str(tmp_path / "mountinfo"))
    assert objects.warnings == (f"blobs not compared: cannot read the content store {tmp_path}/none",)


def test_cgroups_are_named_by_their_container(tmp_path: Path) -> None:
    base = tmp_path / "sys" / "fs" / "cgroup"
    (base / "kubepods.slice" / f"cri-containerd-{ID}.scope").mkdir(parents=True)
    (base / "system.slice" / f"docker-{OTHER}.scope").mkdir(parents=True)
    assert found(read(tmp_path), ObjectKind.CGROUP) == [("", ID)]
