"""Deleted files that a process keeps open."""

from __future__ import annotations

import os
import time
from pathlib import Path

from nodeagent.host.deleted_files import read_deleted_files

WITHIN_S = 60.0
SIZE_BYTES = 300_000


def sizes(directory: Path, *, within_s: float = WITHIN_S) -> list[int]:
    found, _ = read_deleted_files({directory.stat().st_dev}, time.monotonic() + within_s)
    return [each.size_bytes for each in found if each.pid == os.getpid()]


def test_deleted_file_counts_until_the_last_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        before = sizes(tmp_path)
        path.unlink()
        second = os.dup(file.fileno())
        added = sizes(tmp_path)
    assert sum(added) - sum(before) >= SIZE_BYTES
    assert len(added) == len(before) + 1, "two descriptors of one file count once"
    assert sizes(tmp_path) == added
    os.close(second)
    assert sizes(tmp_path) == before


def test_existing_file_with_the_mark_of_a_deleted_one_in_its_name_does_not_count(tmp_path: Path) -> None:
    before = sizes(tmp_path)
    with (tmp_path / "log (deleted)").open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        assert sizes(tmp_path) == before


def test_deleted_file_on_another_filesystem_does_not_count(tmp_path: Path) -> None:
    with Path("/dev/shm", f"nodeagent-test-{os.getpid()}").open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))
        file.flush()
        before = sizes(tmp_path)
        Path(file.name).unlink()
        assert sizes(tmp_path) == before


def test_reading_after_the_deadline_is_incomplete(tmp_path: Path) -> None:
    found, complete = read_deleted_files({tmp_path.stat().st_dev}, time.monotonic() - 1)
    assert (found, complete) == ((), False)
