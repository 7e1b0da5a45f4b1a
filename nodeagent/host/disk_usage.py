"""Disk usage of directory trees, within one filesystem and a deadline.

Tenants write in these trees while they are read. Directories are therefore opened by descriptors, one below the other,
without following symlinks.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_BLOCK_BYTES = 512  # Source: stat(2), st_blocks
_DEADLINE_CHECK_ENTRIES = 256
_MAX_DEPTH = 256
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LARGE_FILE_BYTES = 1 << 20
_MOST_FILES = 3
_OpenDirectory = tuple[int, str, list[str]]
"""Descriptor, path, and the names of the directories in it that are still to be read."""


@dataclass(slots=True)
class Tree:
    """Disk usage of a tree.

    Attributes:
        size_bytes: allocated bytes; a file with several hard links counts once.
        complete: false if the deadline expired or a directory could not be read; the sizes are then lower bounds.
        inodes: number of inodes behind ``size_bytes``.
        files: size and path of its largest files, at most three of at least 1 MiB, largest first.
    """

    path: str
    size_bytes: int = 0
    complete: bool = True
    inodes: int = 0
    files: list[tuple[int, str]] = field(default_factory=list)

    def add_files(self, files: Iterable[tuple[int, str]]) -> None:
        """Add files to the largest ones."""
        self.files = sorted((*self.files, *files), key=lambda each: (-each[0], each[1]))[:_MOST_FILES]

    def without_large_files(self) -> list[Tree]:
        """Return the tree as disjoint parts: each file with at least a quarter of its size, then the rest."""
        large = [Tree(path, size, inodes=1) for size, path in self.files if size * 4 >= self.size_bytes]
        rest_bytes = self.size_bytes - sum(each.size_bytes for each in large)
        return [*large, Tree(self.path, rest_bytes, self.complete, self.inodes - len(large))]


class TreeReader:
    """Measures trees of one filesystem. A file with several hard links counts once over all trees of a reader."""

    def __init__(self, device_id: int, deadline_s: float) -> None:
        """Measure only files on ``device_id``, until ``deadline_s`` on the clock of ``time.monotonic``."""
        self._device_id = device_id
        self._deadline_s = deadline_s
        self._counted_inodes: set[int] = set()
        self._entries = 0

    def measure(self, path: str, skip: Collection[str] = ()) -> Tree:
        """Return the disk usage of the tree at ``path`` without the paths in ``skip``; links are not followed."""
        tree = Tree(path)
        self._walk(path, frozenset(skip), tree)
        return tree

    def largest(self, root: str, skip: Collection[str], count: int, depth: int = 3) -> tuple[Tree, ...]:
        """Return the largest directories below ``root``, at most ``depth`` deep, and the largest files of both.

        A subdirectory with more than nine tenths of its parent's size is returned instead of the parent, a file with at
        least a quarter of a directory's size beside the rest of it.
        """
        skipped = frozenset(skip)
        beside = Tree(root)
        self._walk(root, skipped, beside, only_files=True)
        files = [Tree(path, size, inodes=1) for size, path in beside.files]
        found = [part for tree in self._split(root, skipped, depth) for part in tree.without_large_files()] + files
        found.sort(key=lambda tree: (-tree.size_bytes, tree.path))
        return tuple(tree for tree in found[:count] if tree.size_bytes)

    def _split(self, root: str, skip: frozenset[str], depth: int) -> list[Tree]:
        """Return the directories directly below ``root``, or their largest subdirectories."""
        trees = []
        for path in self._directories(root, skip):
            if depth > 1 and any(each == path or each.startswith(f"{path}/") for each in skip):
                trees += self._split(path, skip, depth - 1)
                continue
            parts = [self.measure(each, skip) for each in self._directories(path, skip)]
            own = Tree(path)
            self._walk(path, skip, own, only_files=True)
            total = Tree(
                path,
                own.size_bytes + sum(each.size_bytes for each in parts),
                all(each.complete for each in parts),
                own.inodes + sum(each.inodes for each in parts),
            )
            total.add_files(file for each in (own, *parts) for file in each.files)
            main = max(parts, key=lambda tree: tree.size_bytes, default=None)
            trees.append(main if main is not None and main.size_bytes * 10 > total.size_bytes * 9 else total)
        return trees

    def _directories(self, root: str, skip: frozenset[str]) -> list[str]:
        """Return the directories directly below ``root``, without symlinks and mount points."""
        try:
            descriptor = os.open(root, _DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return []
        try:
            with os.scandir(descriptor) as entries:
                names = [each.name for each in entries if self._is_own_directory(each)]
        except OSError:
            return []
        finally:
            os.close(descriptor)
        return sorted(path for name in names if (path := _below(root, name)) not in skip)

    def _is_own_directory(self, entry: os.DirEntry[str]) -> bool:
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) and status.st_dev == self._device_id

    def _walk(self, root: str, skip: frozenset[str], tree: Tree, *, only_files: bool = False) -> None:
        """Add the entries below ``root``, which may be a symlink itself; with ``only_files`` those directly in it."""
        opened: list[_OpenDirectory] = []  # from the root to the current one
        try:
            self._enter(None, root, root, opened, skip, tree)
            while opened:
                descriptor, path, names = opened[-1]
                if only_files or not names:
                    os.close(descriptor)
                    opened.pop()
                else:
                    name = names.pop()
                    self._enter(descriptor, name, _below(path, name), opened, skip, tree)
        except _DeadlineError:
            tree.complete = False
        finally:
            for descriptor, _, _ in opened:
                os.close(descriptor)

    def _enter(  # noqa: PLR0913, PLR0917 - the state of a walk
        self,
        parent: int | None,
        name: str,
        path: str,
        opened: list[_OpenDirectory],
        skip: frozenset[str],
        tree: Tree,
    ) -> None:
        """Open a directory below another one and add its entries; without ``parent``, ``name`` is a path."""
        if len(opened) >= _MAX_DEPTH:
            tree.complete = False
            return
        try:
            descriptor = os.open(name, _DIRECTORY if parent is None else _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            opened.append((descriptor, path, names := []))
            names += self._read(descriptor, path, skip, tree)
        except FileNotFoundError:
            pass  # removed since its parent was listed
        except OSError:
            tree.complete = False

    def _read(self, descriptor: int, path: str, skip: frozenset[str], tree: Tree) -> list[str]:
        """Add the entries of one open directory; return the names of its directories.

        Raises:
            OSError: it cannot be read.
            _DeadlineError: the deadline expired.
        """
        names = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries % _DEADLINE_CHECK_ENTRIES == 0 and time.monotonic() > self._deadline_s:
                    raise _DeadlineError
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if status.st_dev != self._device_id or (skip and _below(path, entry.name) in skip):
                    continue
                size_bytes = status.st_blocks * _BLOCK_BYTES
                if stat.S_ISDIR(status.st_mode):
                    names.append(entry.name)
                elif status.st_nlink > 1:
                    if status.st_ino in self._counted_inodes:
                        continue
                    self._counted_inodes.add(status.st_ino)
                if size_bytes >= _LARGE_FILE_BYTES and stat.S_ISREG(status.st_mode):
                    tree.add_files([(size_bytes, _below(path, entry.name))])
                tree.size_bytes += size_bytes
                tree.inodes += 1
        return names


class _DeadlineError(Exception):
    """The deadline of a reader expired."""


def _below(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


def mount_point(path: str) -> str:
    """Return the mount point of a path."""
    current = os.path.realpath(path)
    while not os.path.ismount(current):
        current = os.path.dirname(current)  # noqa: PTH120 - the path is a text
    return current
