"""Disk usage of directory trees: symlinks, hard links, other filesystems, deadline."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nodeagent.host import disk_usage
from nodeagent.host.disk_usage import Tree, TreeReader


def reader(path: Path, seconds: float = 60) -> TreeReader:
    return TreeReader(path.stat().st_dev, time.monotonic() + seconds)


def fill(path: Path, size_bytes: int) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size_bytes))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_blocks * 512


def test_hard_links_count_once_and_symlinks_are_not_followed(tmp_path: Path) -> None:
    size = fill(tmp_path / "a/b/file", 100_000)
    (tmp_path / "a/other").hardlink_to(tmp_path / "a/b/file")
    outside = tmp_path / "outside"
    fill(outside / "big", 900_000)
    (tmp_path / "a/link").symlink_to(outside)
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    tree = reader(tmp_path).measure(str(tmp_path / "a"))
    assert tree.complete
    assert size <= tree.size_bytes < size + 50_000


def test_links_beyond_the_remembered_inodes_count_as_shares_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        fill(tmp_path / f"tree/a{number}", 64 << 10)
        for link in range(3):
            (tmp_path / f"tree/a{number}-{link}").hardlink_to(tmp_path / f"tree/a{number}")
    everything = reader(tmp_path).measure(str(tmp_path / "tree"))
    monkeypatch.setattr(disk_usage, "MOST_LINKED_INODES", 2)
    assert reader(tmp_path).measure(str(tmp_path / "tree")) == everything
    assert (everything.inodes, everything.complete) == (8, True)
    (tmp_path / "tree/half").mkdir()
    linked_bytes = fill(tmp_path / "outside", 64 << 10)
    (tmp_path / "tree/half/file").hardlink_to(tmp_path / "outside")
    monkeypatch.setattr(disk_usage, "MOST_LINKED_INODES", 0)
    assert reader(tmp_path).measure(str(tmp_path / "tree/half")).size_bytes == linked_bytes // 2


def test_tree_with_too_many_directories_to_be_read_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        fill(tmp_path / f"tree/{'n' * 200}{number:02d}/file", 10_000)
    monkeypatch.setattr(disk_usage, "MOST_PENDING_BYTES", 3000)
    found = reader(tmp_path).measure(str(tmp_path / "tree"))
    assert not found.complete
    assert found.inodes == 20 + 11
    (tmp_path / "few").mkdir()
    for number in range(20):
        (tmp_path / f"few/{'n' * 200}{number % 2}/{'m' * 200}{number}").mkdir(parents=True)
    assert reader(tmp_path).measure(str(tmp_path / "few")).complete


def test_cancelled_measurement_reads_no_directory_and_is_incomplete(tmp_path: Path) -> None:
    fill(tmp_path / "a/file", 100_000)
    cancelled = TreeReader(tmp_path.stat().st_dev, is_cancelled=lambda: True)
    found = cancelled.measure(str(tmp_path))
    assert (found.size_bytes, found.complete) == (0, False)
    assert cancelled.largest(str(tmp_path), (), 5)[0] == ()


def test_other_filesystem_is_skipped(tmp_path: Path) -> None:
    fill(tmp_path / "file", 100_000)
    other = TreeReader(tmp_path.stat().st_dev + 1, time.monotonic() + 60)
    assert other.measure(str(tmp_path)).size_bytes == 0


def test_skipped_and_missing_paths_do_not_count(tmp_path: Path) -> None:
    fill(tmp_path / "keep/file", 10_000)
    fill(tmp_path / "skip/file", 500_000)
    assert reader(tmp_path).measure(str(tmp_path), [str(tmp_path / "skip")]).size_bytes < 100_000
    missing = reader(tmp_path).measure(str(tmp_path / "none"))
    assert (missing.size_bytes, missing.complete) == (0, True)


def test_measurement_is_incomplete_after_the_deadline(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number}").touch()
    assert not reader(tmp_path, -1).measure(str(tmp_path)).complete


def test_directory_is_replaced_by_a_subdirectory_with_most_of_its_size(tmp_path: Path) -> None:
    fill(tmp_path / "var/lib/database/data", 800_000)
    fill(tmp_path / "var/lib/runtime/layers", 900_000)
    fill(tmp_path / "opt/one", 300_000)
    fill(tmp_path / "opt/two/x", 200_000)
    fill(tmp_path / "home/small", 1_000)
    skip = [str(tmp_path / "var/lib/runtime")]
    found, total = reader(tmp_path).largest(str(tmp_path), skip, 2)
    assert [each.path.removeprefix(f"{tmp_path}/") for each in found] == ["var/lib/database", "opt"]
    assert found[1].size_bytes >= 500_000
    assert total.size_bytes == reader(tmp_path).measure(str(tmp_path), skip).size_bytes


def test_single_large_files_are_returned_beside_the_rest_of_their_directory(tmp_path: Path) -> None:
    fill(tmp_path / "core.1234", 4 << 20)
    fill(tmp_path / "opt/dump", 8 << 20)
    fill(tmp_path / "opt/other", 2 << 20)
    fill(tmp_path / "srv/many/a", 1_500_000)
    for number in range(9):
        fill(tmp_path / f"srv/many/{number}", 1_000_000)
    found, total = reader(tmp_path).largest(str(tmp_path), (), 10)
    names = [each.path.removeprefix(f"{tmp_path}/") for each in found]
    assert names == ["srv/many", "opt/dump", "core.1234", "opt", "srv"]
    assert found[3].size_bytes < 3 << 20, "the file is not counted twice"
    assert total.size_bytes == reader(tmp_path).measure(str(tmp_path)).size_bytes


def test_number_of_files_is_bounded_and_largest_come_first(tmp_path: Path) -> None:
    for number in range(6):
        fill(tmp_path / f"d/{number}", (1 << 20) * (number + 1))
    tree = reader(tmp_path).measure(str(tmp_path / "d"))
    assert [path.rpartition("/")[2] for _, path in tree.files] == ["5", "4", "3"]


def test_directory_that_becomes_a_symlink_during_the_walk_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "outside/big", 2_000_000)
    (tmp_path / "tree/sub").mkdir(parents=True)
    opening = os.open

    def swap(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "sub":
            (tmp_path / "tree/sub").rmdir()
            (tmp_path / "tree/sub").symlink_to(tmp_path / "outside")
        return opening(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("nodeagent.host.disk_usage.os.open", swap)
    tree = reader(tmp_path).measure(str(tmp_path / "tree"))
    assert (tree.size_bytes < 100_000, tree.complete) == (True, False)


def nest(path: Path, name: str, depth: int) -> int:
    """Create ``depth`` nested directories; return a descriptor of the innermost directory."""
    current = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    return current


def write_below(directory: int, name: str, size_bytes: int) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=directory)
    os.write(file, os.urandom(size_bytes))
    os.fsync(file)
    os.close(file)


@pytest.mark.parametrize(("name", "depth"), [("d", 500), ("long" * 60, 60)], ids=["deep", "longer than PATH_MAX"])
def test_files_below_deep_paths_count_and_few_descriptors_are_open(tmp_path: Path, name: str, depth: int) -> None:
    innermost = nest(tmp_path, name, depth)
    write_below(innermost, "hidden", 3 << 20)
    os.close(innermost)
    fill(tmp_path / name / "beside", 2 << 20)
    before = open_descriptors()
    tree, most = Tree(str(tmp_path)), 0
    for _ in TreeReader(tmp_path.stat().st_dev).walk(tree):
        most = max(most, open_descriptors())
    assert tree.complete
    assert (5 << 20) <= tree.size_bytes < (5 << 20) + depth * 8192
    assert tree.inodes == depth + 2
    assert open_descriptors() == before
    assert most <= before + 40


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_tree_moved_during_the_walk_is_incomplete(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    innermost = nest(root, "d", 50)
    for number in range(300):
        write_below(innermost, str(number), 1)
    os.close(innermost)
    tree = Tree(str(root))
    steps = TreeReader(root.stat().st_dev).walk(tree)
    next(steps)  # the walk is now in the innermost directory
    (root / "d/d/d").rename(elsewhere / "d")
    for _ in steps:
        pass
    assert not tree.complete


def test_closed_walk_leaves_no_descriptor_open(tmp_path: Path) -> None:
    innermost = nest(tmp_path, "d", 50)
    for number in range(300):
        write_below(innermost, str(number), 1)
    os.close(innermost)
    before = open_descriptors()
    steps = TreeReader(tmp_path.stat().st_dev).walk(Tree(str(tmp_path)))
    next(steps)
    assert open_descriptors() > before
    steps.close()
    assert open_descriptors() == before


def test_mounts_are_omitted_without_a_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "cache/data", 100_000)
    fill(tmp_path / "cache/dead/data", 3 << 20)
    dead = str(tmp_path / "cache/dead")
    opening = os.open

    def hang(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        assert path != "dead"
        return opening(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("nodeagent.host.disk_usage.os.open", hang)
    tree = TreeReader(tmp_path.stat().st_dev, mounts=[dead]).measure(str(tmp_path / "cache"))
    assert (tree.complete, tree.inodes) == (True, 1)


def test_mounts_are_omitted_from_the_largest_directories(tmp_path: Path) -> None:
    fill(tmp_path / "opt/data", 3 << 20)
    fill(tmp_path / "dead/data", 3 << 20)
    fill(tmp_path / "var/dead/data", 3 << 20)
    mounts = [str(tmp_path / "dead"), str(tmp_path / "var/dead")]
    found, total = TreeReader(tmp_path.stat().st_dev, mounts=mounts).largest(str(tmp_path), [], 10)
    assert found[0].path == str(tmp_path / "opt/data")
    assert 3 << 20 <= total.size_bytes < 4 << 20
