"""Check of walks against processes that move their data during them."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.host import walk_check
from nodeagent.host.disk_usage import Tree, TreeReader
from nodeagent.host.pod_disk import PodDiskWalk
from nodeagent.host.walk_check import WalkCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MIB = 1 << 20
DIRECTORIES = 12


class Mover:
    """Moves the data into each directory immediately after its listing, faster than any process could."""

    def __init__(self, root: Path, move: Callable[[Path, Path], None]) -> None:
        self._places = {(each.stat().st_dev, each.stat().st_ino): each for each in sorted(root.iterdir())}
        self._current = min(self._places.values())
        self._move = move
        self._scandir = os.scandir

    def scandir(self, descriptor: int | str) -> AbstractContextManager[Iterable[os.DirEntry[Any]]]:
        with self._scandir(descriptor) as scanned:
            listed = list(scanned)
        if isinstance(descriptor, int):
            status = os.fstat(descriptor)
            place = self._places.get((status.st_dev, status.st_ino))
            if place is not None and place != self._current:
                self._move(self._current, place)
                self._current = place
        return nullcontext(listed)


def move_files(source: Path, target: Path) -> None:
    for each in source.glob("data*"):
        each.rename(target / each.name)


def move_directory(source: Path, target: Path) -> None:
    (source / "moving").rename(target / "moving")


def move_blocks(source: Path, target: Path) -> None:
    """Truncate the file with the data and allocate the same number of blocks in another one."""
    size_bytes = (source / "file").stat().st_size
    os.truncate(source / "file", 0)
    allocate(target / "file", size_bytes)


def allocate(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size_bytes)
    os.close(descriptor)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return an emptyDir of directories with one file of 64 KiB each."""
    found = tmp_path / "kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/scratch"
    for number in range(DIRECTORIES):
        (found / f"d{number:02d}").mkdir(parents=True)
        allocate(found / f"d{number:02d}/file", 64 << 10)
    return found


def measure(tmp_path: Path) -> tuple[int, bool]:
    """Return the measured bytes of the emptyDir, and whether they are a lower bound."""
    walk = PodDiskWalk("u-1", tmp_path / "logs", tmp_path / "kubelet")
    assert walk.advance(math.inf)
    volumes = walk.reading().volumes
    assert volumes is not None
    assert volumes.used_bytes is not None
    return volumes.used_bytes, volumes.is_lower_bound


@pytest.mark.parametrize("method", [move_files, move_directory, move_blocks])
def test_data_moved_into_directories_that_were_already_read_is_measured_or_a_lower_bound(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch, method: Callable[[Path, Path], None]
) -> None:
    first = volume / "d00"
    if method is move_directory:
        (first / "moving").mkdir()
        first /= "moving"
    for number in range(8):
        allocate(first / f"data{number}", 4 * MIB)
    if method is move_blocks:
        allocate(first / "file", 32 * MIB)
    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, method).scandir)
    for _ in range(5):
        used_bytes, is_lower_bound = measure(tmp_path)
        assert is_lower_bound or used_bytes > 8 * MIB


def test_quiet_directories_are_read_once(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_check, "_now_ns", lambda: 1 << 62)  # all changes are older
    check, tree, scandir, listed = WalkCheck(), Tree(str(volume)), os.scandir, list[int]()

    def count(descriptor: int) -> object:
        listed.append(descriptor)
        return scandir(descriptor)

    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", count)
    for _ in TreeReader(volume.stat().st_dev, check=check).walk(tree):
        pass
    assert list(check.correct()) == []
    assert len(listed) == DIRECTORIES + 1
    assert tree.complete


def test_changes_that_move_no_data_leave_the_usage_and_complete_it(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = measure(tmp_path)

    def rename(source: Path, target: Path) -> None:
        (source / "file").rename(source / "renamed")
        (source / "renamed").rename(source / "file")
        (target / "temporary").touch()
        (target / "temporary").unlink()

    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, rename).scandir)
    assert measure(tmp_path) == expected


def test_directory_renamed_during_the_walk_counts_once(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, is_lower_bound = measure(tmp_path)
    assert not is_lower_bound

    def rename(_: Path, __: Path) -> None:
        for each in volume.glob("d0[0-3]"):
            each.rename(volume / f"renamed-{each.name}")

    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, rename).scandir)
    used_bytes, _ = measure(tmp_path)
    assert used_bytes == pytest.approx(expected, abs=DIRECTORIES * 4096)


def test_changes_in_a_tree_with_more_directories_than_are_remembered_are_a_lower_bound(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_check, "MOST_DIRECTORIES", 4)
    allocate(volume / "d00/data", 8 * MIB)
    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, move_files).scandir)
    assert measure(tmp_path)[1]


def test_more_changed_directories_than_the_limit_are_a_lower_bound(
    tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_check, "MOST_ENTRIES", 20)
    for number in range(8):
        allocate(volume / f"d00/data{number}", MIB)
    monkeypatch.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, move_files).scandir)
    assert measure(tmp_path)[1]


def test_descriptors_are_closed_after_the_check(tmp_path: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (volume / "d00/moving").mkdir()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with monkeypatch.context() as patched:
        patched.setattr("nodeagent.host.disk_usage.os.scandir", Mover(volume, move_directory).scandir)
        measure(tmp_path)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
