"""Atomic file writes: complete content, requested mode, no remaining temporary file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nodeagent.files import create_file, open_regular, read_file, read_text, replace_file

if TYPE_CHECKING:
    from pathlib import Path


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0, 0o077])
def test_file_is_replaced_with_the_given_mode(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    before = os.umask(umask)
    try:
        replace_file(path, "new\n", mode=0o644)
    finally:
        os.umask(before)
    assert (path.read_text(), mode_of(path), list(tmp_path.iterdir())) == ("new\n", 0o644, [path])


def test_file_gets_the_mode_of_the_one_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    replace_file(path, "new", like=path.stat())
    assert (path.read_text(), mode_of(path)) == ("new", 0o640)


def test_link_is_itself_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", "new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "kept"


def test_failed_write_keeps_the_file_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    (tmp_path / "directory/inner").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "directory", "new")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["directory", "file"]


def test_existing_file_is_not_created_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert create_file(path, "first", mode=0o640)
    assert not create_file(path, "second")
    assert (path.read_text(), mode_of(path), list(tmp_path.iterdir())) == ("first", 0o640, [path])


def test_one_of_many_concurrent_writers_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda number: create_file(path, f"{number:02}"), range(32)))
    assert created.count(True) == 1
    assert path.read_text() == f"{created.index(True):02}"
    assert list(tmp_path.iterdir()) == [path]


def test_pipe_in_place_of_a_file_is_an_error_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_file, open_regular):
        with pytest.raises(OSError, match="not a regular file"):
            read(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "No such file or directory"),
        (b"12345", "larger than 4 bytes"),
        (b"\xff", "not UTF-8 text"),
        (b"1234", ""),
    ],
)
def test_text_that_cannot_be_read_is_an_error_with_its_cause(tmp_path: Path, content: bytes | None, cause: str) -> None:
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    try:
        found = read_text(tmp_path / "a", 4)
    except OSError as error:
        found = error.strerror or ""
    assert found == (cause or "1234")


def test_path_with_a_null_character_is_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not UTF-8 text"):
        read_text(tmp_path / "a\0b")
