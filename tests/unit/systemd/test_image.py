"""Root file system and OCI image: reproducible, and independent of the build host."""

from __future__ import annotations

import gzip
import importlib.util
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
    from types import ModuleType

IMAGE = Path(__file__).parents[3] / "systemd/image"
WRITER = IMAGE / "oci.py"
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


def root_module() -> ModuleType:
    """Return the script that completes the root file system, as a module."""
    spec = importlib.util.spec_from_file_location("image_root", IMAGE / "root.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_of_the_build_host_are_replaced_and_links_to_it_are_not_followed(tmp_path: Path) -> None:
    root, host = tmp_path / "root", tmp_path / "resolv.conf"
    (root / "etc").mkdir(parents=True)
    host.write_text("nameserver 192.0.2.1\n")
    (root / "etc/resolv.conf").symlink_to(host)
    (root / "etc/hostname").write_text("builder\n")
    (root / "etc/hostname").chmod(0o600)
    root_module().add_files(root)
    written = {name: root / "etc" / name for name in ("hostname", "resolv.conf")}
    assert {name: path.read_text() for name, path in written.items()} == dict.fromkeys(written, "")
    assert {oct(path.lstat().st_mode) for path in written.values()} == {"0o100644"}
    assert host.read_text() == "nameserver 192.0.2.1\n"
