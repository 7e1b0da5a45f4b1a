"""What directory trees occupy, without leaving their filesystem and within a time."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_BLOCK_BYTES = 512  # Source: stat(2), st_blocks
_LOOK_EVERY = 256


@dataclass(slots=True)
class Tree:
    """What a tree occupies; ``complete`` is false where the time ran out or something could not be read.

    ``inodes`` counts what ``size_bytes`` does, so a file with several names once.
    """

    path: str
    size_bytes: int = 0
    complete: bool = True
    inodes: int = 0


class TreeReader:
    """Walks trees of one filesystem. A file with several names counts once over all walks of a reader."""

    def __init__(self, device_id: int, deadline_s: float) -> None:
        """Walk only what lies on ``device_id``; ``deadline_s`` is on the clock of ``time.monotonic``."""
        self._device_id = device_id
        self._deadline_s = deadline_s
        self._seen: set[int] = set()

    def measure(self, path: str, skip: Collection[str] = ()) -> Tree:
        """Return what the tree at ``path`` occupies, links never followed; ``skip`` are paths left out."""
        tree = Tree(path)
        self._walk(path, frozenset(skip), tree)
        return tree

    def largest(self, root: str, skip: Collection[str], count: int, depth: int = 3) -> tuple[Tree, ...]:
        """Return the largest directories below ``root``, at most ``depth`` deep.

        Where most of a directory is in one below it, that one is told instead of it.
        """
        left_out = frozenset(skip)
        found = self._split(root, left_out, depth)
        found.sort(key=lambda tree: (-tree.size_bytes, tree.path))
        return tuple(tree for tree in found[:count] if tree.size_bytes)

    def _split(self, root: str, skip: frozenset[str], depth: int) -> list[Tree]:
        """Return the directories right below ``root``, each split again while that tells more."""
        trees = []
        for path in self._directories(root, skip):
            if depth > 1 and any(each == path or each.startswith(f"{path}/") for each in skip):
                trees += self._split(path, skip, depth - 1)
                continue
            parts = [self.measure(each, skip) for each in self._directories(path, skip)]
            own = Tree(path)
            self._walk(path, skip, own, only_files=True)
            whole = Tree(
                path,
                own.size_bytes + sum(each.size_bytes for each in parts),
                all(each.complete for each in parts),
                own.inodes + sum(each.inodes for each in parts),
            )
            main = max(parts, key=lambda tree: tree.size_bytes, default=None)
            trees.append(main if main is not None and main.size_bytes * 10 > whole.size_bytes * 9 else whole)
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

    def _walk(self, root: str, skip: frozenset[str], tree: Tree, *, only_files: bool = False) -> None:  # noqa: C901 - one loop over entries, one line a case
        waiting, looked = [root], 0
        while waiting:
            path = waiting.pop()
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        looked += 1
                        if looked % _LOOK_EVERY == 0 and time.monotonic() > self._deadline_s:
                            tree.complete = False
                            return
                        about = entry.stat(follow_symlinks=False)
                        if about.st_dev != self._device_id or entry.path in skip:
                            continue
                        if stat.S_ISDIR(about.st_mode):
                            if not only_files:
                                waiting.append(entry.path)
                        elif about.st_nlink > 1:
                            if about.st_ino in self._seen:
                                continue
                            self._seen.add(about.st_ino)
                        tree.size_bytes += about.st_blocks * _BLOCK_BYTES
                        tree.inodes += 1
            except FileNotFoundError:
                continue  # it went while we looked
            except OSError:
                tree.complete = False


def mount_point(path: str) -> str:
    """Return the mount point that a path lies under."""
    current = os.path.realpath(path)
    while not os.path.ismount(current):
        current = os.path.dirname(current)  # noqa: PTH120 - a plain text is at hand
    return current
