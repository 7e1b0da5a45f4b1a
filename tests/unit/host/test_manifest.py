"""Install manifest: valid content, and refusal of unsafe manifests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import InstallError
from nodeagent.host.manifest import NAME, Manifest, fingerprint, is_inside, parse, read_manifest, write_manifest

GOOD = {"format": 1, "version": "0.1.0", "complete": True, "environment": ["bin/python"], "files": {"/etc/x": ["a"]}}


def test_written_manifest_is_read_unchanged(tmp_path: Path) -> None:
    manifest = Manifest(
        True, frozenset({"bin/python", "lib/a b"}), {Path("/etc/x"): frozenset({"sha256:1", "link:/y"})}
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == [NAME]


def test_absent_manifest_is_read_as_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "absent") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": ["../../etc/passwd"]},
        {"environment": ["/etc/passwd"]},
        {"environment": ["lib/../../x"]},
        {"environment": ["lib//x"]},
        {"environment": ["./x"]},
        {"environment": ["."]},
        {"environment": [""]},
        {"environment": ["x\0y"]},
        {"environment": [1]},
        {"environment": "bin"},
        {"environment": None},
        {"files": {"etc/x": []}},
        {"files": {"/etc/../x": []}},
        {"files": {"/": []}},
        {"files": {"/etc/x": "a"}},
        {"files": {"/etc/x": [1]}},
        {"files": []},
        {"complete": "yes"},
        {"format": 2},
        {"format": None},
    ],
)
def test_impossible_content_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(GOOD | changes))
    with pytest.raises(InstallError, match="is not valid"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_malformed_text_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message
        parse(text)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_manifest_writable_by_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / NAME
    path.write_text(json.dumps(GOOD))
    path.chmod(mode)
    with pytest.raises(InstallError, match="writable by other users than root"):
        read_manifest(tmp_path)


def test_manifest_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(json.dumps(GOOD))
    path = tmp_path / NAME
    path.symlink_to("real")
    with pytest.raises(InstallError):
        read_manifest(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InstallError):
        read_manifest(tmp_path)


@given(st.text(alphabet="./ab\0"))
def test_path_inside_the_prefix_never_resolves_outside(name: str) -> None:
    if is_inside(name):
        resolved = os.path.normpath(f"/prefix/{name}")
        assert resolved == f"/prefix/{name}"
        assert resolved.startswith("/prefix/")


def test_fingerprints_of_files_links_and_directories_differ(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    fingerprints = {name: fingerprint(tmp_path / name) for name in ("file", "link", "dangling", "absent")}
    assert fingerprint(tmp_path) == "other"
    assert fingerprints["link"] == "link:file"
    assert fingerprints["dangling"] == "link:nowhere"
    assert fingerprints["absent"] is None
    assert str(fingerprints["file"]).startswith("sha256:")
