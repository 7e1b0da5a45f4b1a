"""OCI image writer: the image is reproducible and depends only on the files."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITER = Path(__file__).parents[3] / "systemd/image/oci.py"
EPOCH = 1_700_000_000


def write_image(root: Path, output: Path) -> bytes:
    """Write the image of a root filesystem; return the bytes of the OCI layout archive."""
    words = ["--architecture", "arm64", "--version", "1.2", "--reference", "registry.example.com/nodeagent:1.2"]
    environment = {"SOURCE_DATE_EPOCH": str(EPOCH), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-I", str(WRITER), str(root), str(output), *words]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return output.read_bytes()


def make_root(root: Path, names: Sequence[str], *, mode: int, time: int) -> Path:
    """Create a root filesystem with files in the given order, with this mode and modification time."""
    (root / "tmp").mkdir(parents=True)
    (root / "tmp").chmod(mode)
    for name in names:
        path = root / name
        path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(mode)
        os.utime(path, (time, time))
    (root / "usr/link").symlink_to("/usr/b")
    return root


def read_layer(layout: bytes) -> tarfile.TarFile:
    """Return the tar file of the only layer in an OCI layout archive."""
    with tarfile.open(fileobj=io.BytesIO(layout)) as tar:
        files = {each.name: tar.extractfile(each) for each in tar.getmembers() if each.isfile()}
        contents = {name: file.read() for name, file in files.items() if file is not None}

    def blob(digest: str) -> bytes:
        return contents[f"blobs/sha256/{digest.removeprefix('sha256:')}"]

    (described,) = json.loads(contents["index.json"])["manifests"]
    assert described["platform"] == {"architecture": "arm64", "os": "linux"}
    (layer,) = json.loads(blob(described["digest"]))["layers"]
    return tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layer["digest"]))))


def test_image_is_identical_for_other_paths_order_of_creation_times_and_umask(tmp_path: Path) -> None:
    one = make_root(tmp_path / "one", ("usr/b", "usr/a"), mode=0o755, time=1)
    other = make_root(tmp_path / "another/root", ("usr/a", "usr/b"), mode=0o700, time=EPOCH + 5)
    assert write_image(one, tmp_path / "one.tar") == write_image(other, tmp_path / "other.tar")


def test_entries_are_sorted_and_belong_to_root_without_set_user_id(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", ("usr/b", "usr/a"), mode=0o4755, time=1)
    with read_layer(write_image(root, tmp_path / "image.tar")) as layer:
        entries = layer.getmembers()
    assert [each.name for each in entries] == ["tmp", "usr", "usr/a", "usr/b", "usr/link"]
    assert {(each.uid, each.gid, each.uname, each.mtime) for each in entries} == {(0, 0, "", EPOCH)}
    assert [oct(each.mode) for each in entries] == ["0o1777", "0o755", "0o755", "0o755", "0o777"]


def test_device_in_the_root_is_refused(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root", ("usr/a",), mode=0o755, time=1)
    os.mkfifo(root / "pipe")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        write_image(root, tmp_path / "image.tar")
    assert b"neither a regular file nor a directory nor a symbolic link" in refused.value.stderr
    assert not (tmp_path / "image.tar").exists()
