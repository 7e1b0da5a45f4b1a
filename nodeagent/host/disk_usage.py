"""Disk usage of directory trees, within one filesystem and a deadline."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_BLOCK_BYTES = 512  # Source: stat(2), st_blocks
_DEADLINE_CHECK_ENTRIES = 256


@dataclass(slots=True)
class Tree:
    """Disk usage of a tree.

    Attributes:
        size_bytes: allocated bytes; a file with several hard links counts once.
        complete: false if the deadline expired or a directory could not be read; the sizes are then lower bounds.
        inodes: number of inodes behind ``size_bytes``.
    """

    path: str
    size_bytes: int = 0
    complete: bool = True
    inodes: int = 0


class TreeReader:
    """Measures trees of one filesystem. A file with several hard links counts once over all trees of a reader."""

    def __init__(self, device_id: int, deadline_s: float) -> None:
        """Measure only files on ``device_id``, until ``deadline_s`` on the clock of ``time.monotonic``."""
        self._device_id = device_id
        self._deadline_s = deadline_s
        self._counted_inodes: set[int] = set()

    def measure(self, path: str, skip: Collection[str] = ()) -> Tree:
        """Return the disk usage of the tree at ``path`` without the paths in ``skip``; links are not followed."""
        tree = Tree(path)
        self._walk(path, frozenset(skip), tree)
        return tree

    def largest(self, root: str, skip: Collection[str], count: int, depth: int = 3) -> tuple[Tree, ...]:
        """Return the largest directories below ``root``, at most ``depth`` deep.

        A subdirectory with more than nine tenths of its parent's size is returned instead of the parent.
        """
        found = self._split(root, frozenset(skip), depth)
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
            main = max(parts, key=lambda tree: tree.size_bytes, default=None)
            trees.append(main if main is not None and main.size_bytes * 10 > total.size_bytes * 9 else total)
        return trees

    def _directories(self, root: str, skip: frozenset[str]) -> list[str]:
        try:
            with os.scandir(root) as entries:
                return sorted(
                    entry.path
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False)
                    and entry.path not in skip
                    and entry.stat(follow_symlinks=False).st_dev == self._device_id
                )
        except OSError:
            return []

    def _walk(self, root: str, skip: frozenset[str], tree: Tree, *, only_files: bool = False) -> None:  # noqa: C901 - one loop with a line per kind of entry
        pending, count = [root], 0
        while pending:
            path = pending.pop()
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        count += 1
                        if count % _DEADLINE_CHECK_ENTRIES == 0 and time.monotonic() > self._deadline_s:
                            tree.complete = False
                            return
                        status = entry.stat(follow_symlinks=False)
                        if status.st_dev != self._device_id or entry.path in skip:
                            continue
                        if stat.S_ISDIR(status.st_mode):
                            if not only_files:
                                pending.append(entry.path)
                        elif status.st_nlink > 1:
                            if status.st_ino in self._counted_inodes:
                                continue
                            self._counted_inodes.add(status.st_ino)
                        tree.size_bytes += status.st_blocks * _BLOCK_BYTES
                        tree.inodes += 1
            except FileNotFoundError:
                continue  # removed since its parent was listed
            except OSError:
                tree.complete = False


def mount_point(path: str) -> str:
    """Return the mount point of a path."""
    current = os.path.realpath(path)
    while not os.path.ismount(current):
        current = os.path.dirname(current)  # noqa: PTH120 - the path is a text
    return current
