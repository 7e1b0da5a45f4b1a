"""Disk usage of directory trees, within one filesystem and a deadline.

Workloads write in these trees during a reading. Directories are therefore opened by descriptors, one below the other,
without following symlinks.

Project quotas were rejected as a source of the usage of volumes, although they include deleted files that are open:

- A process in the host's user namespace can charge its files to any project. The quota of its volume is then too small,
  and the quota of another pod too large. For pods with a user namespace the quota is an upper bound only.
- Reading a project's quota requires CAP_SYS_ADMIN. Without it, ``statfs`` shows usage only below an enforced limit
  that is smaller than the filesystem; the kubelet sets the largest limit instead.

Source: kernel ``check_quotactl_permission``, ``fileattr_set_prepare``, ``ext4_statfs_project``; kubelet ``fsquota``.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from nodeagent.files import closing_descriptor

BLOCK_BYTES = 512  # Source: stat(2), st_blocks
_STEP_ENTRIES = 256
_MOST_OPEN = 32
_MOST_SHOWN = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LARGE_FILE_BYTES = 1 << 20
_MOST_FILES = 3
_NAME_BYTES = 64  # overhead of a str object and its reference

MOST_LINKED_INODES = 1 << 17
"""Maximum number of hard-linked inodes that a reader remembers, in about 8 MiB."""

MOST_PENDING_BYTES = 16 << 20
"""Maximum memory in bytes for the names of directories that a walk has not read yet."""


@dataclass(slots=True)
class Tree:
    """Disk usage of a tree.

    Attributes:
        size_bytes: allocated bytes; a file with several hard links counts once.
        complete: false before the end of the walk, and if a directory could not be read; the sizes are then lower
            bounds.
        inodes: number of inodes counted in ``size_bytes``.
        files: size and path of the largest files in the tree, at most three of at least 1 MiB, largest first.
    """

    path: str
    size_bytes: int = 0
    complete: bool = True
    inodes: int = 0
    files: list[tuple[int, str]] = field(default_factory=list)

    def add_files(self, files: Iterable[tuple[int, str]]) -> None:
        """Add files, and keep only the largest files."""
        self.files = sorted((*self.files, *files), key=lambda each: (-each[0], each[1]))[:_MOST_FILES]

    def without_large_files(self) -> list[Tree]:
        """Return the tree as disjoint parts: each file with at least a quarter of the tree's size, then the rest."""
        large = [Tree(path, size, inodes=1) for size, path in self.files if size * 4 >= self.size_bytes]
        rest_bytes = self.size_bytes - sum(each.size_bytes for each in large)
        return [*large, Tree(self.path, rest_bytes, self.complete, self.inodes - len(large))]


class TreeReader:
    """Measures trees of one filesystem. A file with several hard links counts once over all trees of a reader.

    The memory is bounded, since a tenant can create millions of links and directories. Beyond ``MOST_LINKED_INODES``
    each link counts as its share of the file. A tree is incomplete if the names of its unread directories exceed
    ``MOST_PENDING_BYTES``.
    """

    def __init__(
        self,
        device_id: int,
        deadline_s: float = math.inf,
        mounts: Collection[str] = (),
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a reader that measures only files on ``device_id``.

        Args:
            device_id: device number of the filesystem.
            deadline_s: end of ``measure`` and ``largest``, on the clock of ``time.monotonic``.
            mounts: paths to omit without a stat, which never returns for the mount of a dead server.
            is_cancelled: returns whether to end ``measure`` and ``largest`` before the deadline.
        """
        self._device_id = device_id
        self._deadline_s = deadline_s
        self._mounts = mounts
        self._is_cancelled = is_cancelled
        self._counted_inodes: set[int] = set()
        self._shares = 0.0
        self._entries = 0

    def measure(self, path: str, skip: Collection[str] = ()) -> Tree:
        """Return the disk usage of the tree at ``path`` without the paths in ``skip``; symlinks are not followed."""
        tree = Tree(path)
        self._finish(tree, skip)
        return tree

    def walk(self, tree: Tree, skip: Collection[str] = (), *, only_files: bool = False) -> Generator[None, None, None]:
        """Add the entries below ``tree.path``, which may be a symlink itself, to the tree.

        Yields after every 256 entries; closing the iterator before the end closes its descriptors.

        Args:
            tree: receives the usage.
            skip: paths to omit.
            only_files: whether to omit the content of subdirectories.
        """
        omitted = frozenset(skip) | {each for each in self._mounts if each.startswith(_below(tree.path, ""))}
        levels = _Levels(tree.path, omitted)
        tree.complete = False
        try:
            complete = yield from self._enter(levels, tree.path, tree)
            while levels.stack and not only_files:
                if name := levels.next_directory():
                    complete = (yield from self._enter(levels, name, tree)) and complete
                elif not levels.leave():
                    return
            tree.complete = complete
        finally:
            levels.close()

    def _finish(self, tree: Tree, skip: Collection[str], *, only_files: bool = False) -> None:
        """Walk a tree until its end, the deadline or a cancellation."""
        if self._is_cancelled():
            tree.complete = False
            return
        steps = self.walk(tree, skip, only_files=only_files)
        for _ in steps:
            if time.monotonic() > self._deadline_s or self._is_cancelled():
                break
        steps.close()

    def largest(self, root: str, skip: Collection[str], count: int, depth: int = 3) -> tuple[tuple[Tree, ...], Tree]:
        """Return the largest directories and files below ``root``, and the usage of all of them.

        Directories are at most ``depth`` levels deep.

        A subdirectory with more than nine tenths of its parent's size replaces the parent. A file with at least a
        quarter of a directory's size is returned separately from the rest of the directory.
        """
        skipped = frozenset(skip)
        beside = Tree(root)
        self._finish(beside, skipped, only_files=True)
        files = [Tree(path, size, inodes=1) for size, path in beside.files]
        trees = self._split(root, skipped, depth)
        found = [part for tree in trees for part in tree.without_large_files()] + files
        found.sort(key=lambda tree: (-tree.size_bytes, tree.path))
        return tuple(tree for tree in found[:count] if tree.size_bytes), _total(root, [beside, *trees])

    def _split(self, root: str, skip: frozenset[str], depth: int) -> list[Tree]:
        """Return the directories directly below ``root``, or their largest subdirectories."""
        trees = []
        for path in self._directories(root, skip):
            if depth > 1 and any(each == path or each.startswith(f"{path}/") for each in skip):
                own = Tree(path)
                self._finish(own, skip, only_files=True)
                trees += [own, *self._split(path, skip, depth - 1)]
                continue
            parts = [self.measure(each, skip) for each in self._directories(path, skip)]
            own = Tree(path)
            self._finish(own, skip, only_files=True)
            total = _total(path, [own, *parts])
            main = max(parts, key=lambda tree: tree.size_bytes, default=None)
            if main is not None and main.size_bytes * 10 > total.size_bytes * 9:
                rest = Tree(path, total.size_bytes - main.size_bytes, total.complete, total.inodes - main.inodes)
                trees += [main, rest]
            else:
                trees.append(total)
        return trees

    def _directories(self, root: str, skip: frozenset[str]) -> list[str]:
        """Return the directories directly below ``root``, without symlinks and mount points."""
        try:
            with (
                closing_descriptor(os.open(root, _DIRECTORY | os.O_NOFOLLOW)) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                omitted = skip.union(self._mounts)  # before the status, which never returns for a dead mount
                paths = [
                    _below(root, each.name)
                    for each in entries
                    if _below(root, each.name) not in omitted and self._is_own_directory(each)
                ]
        except OSError:
            return []
        return sorted(paths)

    def _is_own_directory(self, entry: os.DirEntry[str]) -> bool:
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(status.st_mode) and status.st_dev == self._device_id

    def _enter(self, levels: _Levels, name: str, tree: Tree) -> Generator[None, None, bool]:
        """Open a subdirectory of the current directory and add its entries; return whether all entries were read."""
        try:
            descriptor, complete = levels.enter(name), True
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries % _STEP_ENTRIES == 0:
                        yield
                    complete = self._add(levels, entry, tree) and complete
        except FileNotFoundError:
            return True  # removed since its parent was listed
        except OSError:
            return False
        return complete

    def _add(self, levels: _Levels, entry: os.DirEntry[str], tree: Tree) -> bool:
        """Add an entry of the current directory; return false for a directory that will not be read."""
        if levels.is_omitted(entry.name):
            return True
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return True
        if status.st_dev != self._device_id:
            return True
        size_bytes, inodes, is_read = status.st_blocks * BLOCK_BYTES, 1, True
        if stat.S_ISDIR(status.st_mode):
            is_read = levels.add_directory(entry.name)
        elif status.st_nlink > 1:
            if status.st_ino in self._counted_inodes:
                return True
            if len(self._counted_inodes) < MOST_LINKED_INODES:
                self._counted_inodes.add(status.st_ino)
            else:
                size_bytes, inodes = size_bytes // status.st_nlink, self._share(status.st_nlink)
        if size_bytes >= _LARGE_FILE_BYTES and stat.S_ISREG(status.st_mode):
            tree.add_files([(size_bytes, levels.path_of(entry.name))])
        tree.size_bytes += size_bytes
        tree.inodes += inodes
        return is_read

    def _share(self, links: int) -> int:
        """Add the share of one hard link in its inode; return the number of whole inodes completed by this share."""
        self._shares += 1 / links
        whole = int(self._shares)
        self._shares -= whole
        return whole


def _total(path: str, parts: Sequence[Tree]) -> Tree:
    """Return the usage of all parts as one tree, with the largest files of the parts."""
    total = Tree(
        path,
        sum(each.size_bytes for each in parts),
        all(each.complete for each in parts),
        sum(each.inodes for each in parts),
    )
    total.add_files(file for each in parts for file in each.files)
    return total


@dataclass(slots=True)
class _Level:
    """One directory of the current path.

    Attributes:
        identity: device and inode of the directory.
        descriptor: descriptor of the directory; ``None`` while closed.
        directories: names of the subdirectories that are not read yet.
    """

    name: str
    identity: tuple[int, int]
    descriptor: int | None
    directories: list[str] = field(default_factory=list)


class _Levels:
    """The directories from the root of a walk to the current directory.

    The depth is unlimited, but the number of open descriptors is limited: the uppermost levels are closed, and reopened
    as the parent of the level below if the parent is still the same directory.
    """

    def __init__(self, root: str, omitted: Collection[str]) -> None:
        self.stack: list[_Level] = []
        self._pending_bytes = 0
        self._root = root
        self._omitted = omitted
        self._omitted_depth = max((each.count("/") - root.count("/") for each in omitted), default=0)

    def enter(self, name: str) -> int:
        """Open a subdirectory without following a symlink and return its descriptor; the first ``name`` is a path.

        Raises:
            OSError: the entry cannot be opened, or is not a directory.
        """
        parent = self.stack[-1].descriptor if self.stack else None
        descriptor = os.open(name, _DIRECTORY if parent is None else _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        status = os.fstat(descriptor)
        self.stack.append(_Level(name, (status.st_dev, status.st_ino), descriptor))
        if len(self.stack) > _MOST_OPEN:
            _close(self.stack[-1 - _MOST_OPEN])
        return descriptor

    def add_directory(self, name: str) -> bool:
        """Queue a subdirectory of the current directory; return false if the memory limit is reached."""
        needed_bytes = _memory_of(name)
        if self._pending_bytes + needed_bytes > MOST_PENDING_BYTES:
            return False
        self._pending_bytes += needed_bytes
        self.stack[-1].directories.append(name)
        return True

    def next_directory(self) -> str:
        """Return the name of the next queued subdirectory; empty if all were read."""
        directories = self.stack[-1].directories
        if not directories:
            return ""
        name = directories.pop()
        self._pending_bytes -= _memory_of(name)
        return name

    def leave(self) -> bool:
        """Return to the parent of the current directory; return false if the directory was moved during the walk."""
        left = self.stack.pop()
        try:
            if not self.stack or self.stack[-1].descriptor is not None or left.descriptor is None:
                return True
            parent = self.stack[-1]
            parent.descriptor = os.open("..", _DIRECTORY | os.O_NOFOLLOW, dir_fd=left.descriptor)
            status = os.fstat(parent.descriptor)
        except OSError:
            return False
        finally:
            _close(left)
        return (status.st_dev, status.st_ino) == parent.identity

    def is_omitted(self, name: str) -> bool:
        """Return whether an entry of the current directory is omitted."""
        return len(self.stack) <= self._omitted_depth and self.path_of(name) in self._omitted

    def path_of(self, name: str) -> str:
        """Return the path of an entry of the current directory; a very deep path is shortened in the middle."""
        names = [each.name for each in self.stack[1:_MOST_SHOWN]]
        if len(self.stack) > _MOST_SHOWN:
            names.append("...")
        return _below(self._root, "/".join((*names, name)))

    def close(self) -> None:
        """Close the descriptors of all levels."""
        for each in self.stack:
            _close(each)


def _close(level: _Level) -> None:
    if level.descriptor is not None:
        os.close(level.descriptor)
        level.descriptor = None


def _below(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


def _memory_of(name: str) -> int:
    """Return the memory of the name of a queued directory, in bytes."""
    return _NAME_BYTES + len(name.encode(errors="surrogateescape"))
