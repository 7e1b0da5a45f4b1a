"""Plan key: created once, and refused if accessible to other users or malformed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import StoreError
from nodeagent.store.plan_key import FILE_NAME, KEY_BYTES, PlanKeyFile

if TYPE_CHECKING:
    from pathlib import Path

HEX = "ab" * KEY_BYTES


def test_key_is_created_on_first_use_and_read_afterwards(tmp_path: Path) -> None:
    file = PlanKeyFile(tmp_path / "state")
    assert file.read() is None
    assert not (tmp_path / "state").exists()
    key = file.read_or_create()
    assert len(key) == KEY_BYTES
    assert file.read() == file.read_or_create() == PlanKeyFile(tmp_path / "state").read() == key
    (created,) = (tmp_path / "state").iterdir()
    assert (created.name, created.stat().st_mode & 0o7777) == (FILE_NAME, 0o600)


def test_removed_key_is_replaced_by_another(tmp_path: Path) -> None:
    first = PlanKeyFile(tmp_path).read_or_create()
    (tmp_path / FILE_NAME).unlink()
    assert PlanKeyFile(tmp_path).read_or_create() != first


def test_key_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        PlanKeyFile(tmp_path).read_or_create()
    finally:
        os.umask(before)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o7777 == 0o600


def test_concurrent_creation_results_in_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        keys = set(threads.map(lambda _: PlanKeyFile(tmp_path).read_or_create(), range(64)))
    assert len(keys) == 1
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_key_accessible_to_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(HEX)
    path.chmod(mode)
    for use in (PlanKeyFile(tmp_path).read, PlanKeyFile(tmp_path).read_or_create):
        with pytest.raises(StoreError, match=f"mode {mode:04o} gives access to others; remove it"):
            use()
    assert path.read_text() == HEX


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner of a file requires root")
def test_key_of_another_owner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(HEX)
    path.chmod(0o600)
    os.chown(path, 4711, 4711)
    with pytest.raises(StoreError, match="owned by uid 4711; remove it"):
        PlanKeyFile(tmp_path).read()


@pytest.mark.parametrize("content", ["", "\n", HEX[:-2], HEX + "00", "not hexadecimal", "é", HEX[:-1]])
def test_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="not 64 hexadecimal digits; remove it"):
        PlanKeyFile(tmp_path).read_or_create()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_special_file_is_refused_without_blocking(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / FILE_NAME, tmp_path / "target"
    target.write_text(HEX)
    target.chmod(0o600)
    match kind:
        case "link":
            path.symlink_to(target)
        case "pipe":
            os.mkfifo(path, 0o600)
        case _:
            path.mkdir(mode=0o700)
    with pytest.raises(StoreError, match=r"cannot (use|read) plan key"):
        PlanKeyFile(tmp_path).read_or_create()


def test_directory_that_cannot_be_created_is_an_error_with_the_path_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=rf"plan key {tmp_path}/file/state/{FILE_NAME}: Not a directory"):
        PlanKeyFile(tmp_path / "file/state").read_or_create()
