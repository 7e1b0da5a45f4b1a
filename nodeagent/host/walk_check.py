"""Check of a directory walk for data that was moved during it.

A process can observe the walk of its own directories by inotify, and move its data into those that were read already.
It leaves traces, since a tenant cannot set a change time: at least one entry has a change time after the begin of the
walk, or was listed and is missing. Such a walk is checked in two steps:

1. Changed directories are found by their change times. A descriptor with ``O_PATH`` and a stat cause no inotify
   events, so that the process cannot observe this step.
2. The changed directories are read repeatedly in random order, with repetitions, each one on average 16 times. The
   mean difference to the walk is added to its result. Data that is always in one of the directories is found
   in the expected quantity, wherever the process moves it, since it cannot predict the next directory.

Two complete walks, also in different order, would not find the data: both can be observed.
"""

from __future__ import annotations

import os
import random
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

MOST_DIRECTORIES: Final = 1 << 15
"""Number of directories of a walk that are remembered, in about 10 MiB."""

MOST_ENTRIES: Final = 1 << 17
"""Maximum number of entries that are read again in changed directories."""

_MOST_OTHER_ENTRIES: Final = 1 << 14
_MOST_INODES: Final = 1 << 15
_MOST_OPEN: Final = 64
_DEEPEST: Final = 64
_READS: Final = 16
_OTHER_READS: Final = 4
_READ_COST: Final = 4  # of a directory, in entries
_STEP: Final = 128
_MISSED: Final = 6  # listings in which an entry is missing at its stat before the result is a lower bound
_BLOCK_BYTES: Final = 512  # Source: stat(2), st_blocks
_DIRECTORY: Final = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

# The kernel stamps inodes with this clock, by the tick (ktime_get_coarse_real_ts64). Absent in the module time.
_COARSE: Final = 5


class Tree(Protocol):
    """Result of a walk, which the check corrects."""

    size_bytes: int
    inodes: int
    complete: bool


@dataclass(slots=True)
class Directory:
    """A directory of a walk.

    Attributes:
        parent: position of the parent among the remembered directories; -1 for the root of a tree.
        name: path for the root of a tree.
        identity: device and inode.
        changed_ns: change time before the walk read it; -1 if a later change could have the same.
        size_bytes: of its files with one link, from the walk.
        omitted: names in it that the walk omitted.
        reads: number of reads by the check.
        differences: sums over these reads, in bytes and inodes.
        descriptor: of a directory found by the check, which is read wherever it is moved.
    """

    tree: Tree
    parent: int
    name: str
    identity: tuple[int, int]
    changed_ns: int
    depth: int
    size_bytes: int = 0
    inodes: int = 0
    omitted: tuple[str, ...] = ()
    reads: int = 0
    differences: tuple[int, int] = (0, 0)
    descriptor: int | None = None


@dataclass(slots=True)
class _Listed:
    """Usage of the files of a directory.

    Attributes:
        inodes_missed: of entries that were missing at their stat.
    """

    size_bytes: int = 0
    inodes: int = 0
    inodes_missed: list[int] = field(default_factory=list)
    entries: int = 0


class WalkCheck:  # 11 attributes: the traces, the remembered directories and sizes, and the bounds of the effort
    """Remembers the directories of walks, and corrects their results for data moved meanwhile."""

    def __init__(self) -> None:
        """Begin before the first walk."""
        self._started_ns = _now_ns()
        self._directories: list[Directory] = []
        self._known: dict[tuple[int, int], int] = {}
        self._random = random.Random(os.urandom(16))  # noqa: S311 - seeded by the kernel
        self._sizes: dict[int, tuple[int, int]] = {}
        self._missed: dict[int, int] = {}
        self._has_unremembered = False
        self._entries = 0
        self._open_count = 0
        self.directories_changed = False
        self.files_changed = False

    def add(self, tree: Tree, parent: int | None, name: str, status: os.stat_result) -> int | None:
        """Remember a directory before it is read; return its position, ``None`` if it is not remembered."""
        self.note_change(status)
        depth = 0 if parent is None or parent < 0 else self._directories[parent].depth + 1
        if parent is None or depth > _DEEPEST or len(self._directories) >= MOST_DIRECTORIES:
            self._has_unremembered = True
            return None
        return self._append(Directory(tree, parent, name, _identity(status), _settled_ns(status), depth))

    def _append(self, directory: Directory) -> int:
        self._directories.append(directory)
        self._known[directory.identity] = len(self._directories) - 1
        return len(self._directories) - 1

    def note_change(self, status: os.stat_result) -> None:
        """Note whether an entry changed since the begin."""
        if status.st_ctime_ns >= self._started_ns:
            if stat.S_ISDIR(status.st_mode):
                self.directories_changed = True
            else:
                self.files_changed = True

    def note_entry(self, position: int | None, status: os.stat_result) -> None:
        """Note an entry that the walk counts; a file with several links counts for no directory."""
        if status.st_ctime_ns >= self._started_ns:
            self.note_change(status)
        if position is not None and status.st_nlink == 1 and not stat.S_ISDIR(status.st_mode):
            directory = self._directories[position]
            directory.size_bytes += status.st_blocks * _BLOCK_BYTES
            directory.inodes += 1

    def note_omitted(self, position: int | None, name: str) -> None:
        """Remember an entry that must not be read."""
        if position is not None:
            self._directories[position].omitted += (name,)

    def correct(self) -> Generator[None, None, None]:
        """Add moved data to the trees, or mark them as incomplete if it cannot be measured; yields between reads."""
        try:
            if self.directories_changed:
                yield from self._correct_moves()
            if self.files_changed:
                yield from self._correct_allocations()
        finally:
            for each in self._directories:
                if each.descriptor is not None:
                    os.close(each.descriptor)
                    each.descriptor = None
        self._apply()

    def _correct_moves(self) -> Generator[None, None, None]:
        """Read the changed directories; all directories if further ones change meanwhile.

        Without the second step, a process could move its data into an unchanged directory each time. A busy process
        changes further directories as well, so that this alone makes no result incomplete.
        """
        selected = yield from self._find_changed()
        is_complete = yield from self._read_repeatedly(selected)
        if is_complete and not (yield from self._find_changed()) <= selected:
            selected = set(range(len(self._directories)))
            is_complete = yield from self._read_repeatedly(selected)
        if not is_complete:
            self._mark_incomplete(selected)
        if self._has_unremembered:
            self._mark_incomplete(range(len(self._directories)))
        elif max(self._missed.values(), default=0) >= _MISSED:
            self._mark_incomplete(selected)

    def _correct_allocations(self) -> Generator[None, None, None]:
        """Read random directories, since a file can have grown in any of them without a change of the directory."""
        limit = self._entries + _MOST_OTHER_ENTRIES
        total = len(self._directories)
        for number in range(total * _OTHER_READS):
            if self._entries > limit:
                return
            self._read(self._random.randrange(total), use_known_sizes=False)
            if number % _STEP == 0:
                yield

    def _find_changed(self) -> Generator[None, None, set[int]]:
        """Return the positions of directories that changed since they were read."""
        found = set[int]()
        parent, parent_position = -1, -2
        try:
            for position, each in enumerate(self._directories):
                if position % _STEP == 0:
                    yield
                if each.descriptor is not None:
                    continue
                if each.parent != parent_position or parent < 0:
                    _close(parent)
                    parent_position = each.parent
                    parent = self._open(each.parent) if each.parent >= 0 else -1
                status = _status(each.name, parent if each.parent >= 0 else None)
                if status is None or _identity(status) != each.identity:
                    self._known.pop(each.identity, None)  # counts where it is found
                    found.add(position)
                elif status.st_ctime_ns != each.changed_ns:
                    found.add(position)
        finally:
            _close(parent)
        return found

    def _read_repeatedly(self, selected: set[int]) -> Generator[None, None, bool]:
        """Read directories in random order; adds new ones below them. Return false if they are too many."""
        order = list(selected)
        self._missed.clear()
        for position in order:  # data could have been in other directories
            self._directories[position].reads, self._directories[position].differences = 0, (0, 0)
        reads = 0
        while reads < len(order) * _READS:
            if self._entries > MOST_ENTRIES:
                return False
            new = self._read(self._random.choice(order))
            selected |= set(new)
            order += new
            reads += 1
            if reads % _STEP == 0:
                yield
        return True

    def _read(self, position: int, *, use_known_sizes: bool = True) -> list[int]:
        """Read a directory again and add its difference from the walk; return the positions of new subdirectories."""
        each, new, found = self._directories[position], list[int](), _Listed()
        descriptor = self._open(position, os.O_RDONLY) if each.descriptor is None else each.descriptor
        try:
            if descriptor >= 0:
                new = self._list(position, descriptor, found, use_known_sizes=use_known_sizes)
            elif self._known.get(each.identity) == position:
                del self._known[each.identity]
        except OSError:
            each.tree.complete = False
        finally:
            _close(-1 if each.descriptor is not None else descriptor)
        self._entries += found.entries + _READ_COST
        for inode in found.inodes_missed:
            if inode in self._missed or len(self._missed) < _MOST_INODES:
                self._missed[inode] = self._missed.get(inode, 0) + 1
        each.reads += 1
        size_bytes, inodes = each.differences
        each.differences = (size_bytes + found.size_bytes - each.size_bytes, inodes + found.inodes - each.inodes)
        return new

    def _list(self, position: int, descriptor: int, found: _Listed, *, use_known_sizes: bool) -> list[int]:
        """Add the files of a directory to ``found``; return the positions of directories that the walk did not read."""
        each, new = self._directories[position], list[int]()
        with os.scandir(descriptor) as scanned:
            entries = list(scanned)  # before the first stat, so that a moved entry is missed and not absent
        found.entries = len(entries)
        omitted = frozenset(each.omitted)
        unknown = []
        for entry in entries:
            known = self._sizes.get(entry.inode()) if use_known_sizes else None
            if known is not None:
                found.size_bytes += known[0]
                found.inodes += known[1]
            elif entry.name not in omitted and (each.identity[0], entry.inode()) not in self._known:
                unknown.append(entry)
        for entry in unknown:
            try:
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != each.identity[0]:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    new += self._add_new(position, entry.name, status, descriptor)
                else:
                    size_bytes, inodes = _size(status)
                    found.size_bytes += size_bytes
                    found.inodes += inodes
                    if len(self._sizes) < _MOST_INODES:
                        self._sizes[status.st_ino] = (size_bytes, inodes)
            except FileNotFoundError:
                found.inodes_missed.append(entry.inode())
            else:
                self._missed.pop(status.st_ino, None)
        return new

    def _add_new(self, position: int, name: str, status: os.stat_result, above: int) -> list[int]:
        """Remember a directory that the walk did not read, by an open descriptor while they are few.

        Raises:
            FileNotFoundError: it was moved.
        """
        each = self._directories[position]
        if each.depth >= _DEEPEST or len(self._directories) >= MOST_DIRECTORIES:
            self._has_unremembered = True
            return []
        added = Directory(each.tree, position, name, _identity(status), -1, each.depth + 1)
        if self._open_count < _MOST_OPEN:
            added.descriptor = os.open(name, os.O_RDONLY | _DIRECTORY, dir_fd=above)
            self._open_count += 1
            added.identity = _identity(os.fstat(added.descriptor))
        return [self._append(added)]

    def _open(self, position: int, flags: int = os.O_PATH) -> int:
        """Return a descriptor of a directory, by descriptors of its parents; -1 if it was moved."""
        path = [self._directories[position]]
        while path[-1].parent >= 0:
            path.append(self._directories[path[-1].parent])
        descriptor, above = -1, None
        for each in reversed(path):
            try:
                descriptor = os.open(each.name, (flags if each is path[0] else os.O_PATH) | _flags(above), dir_fd=above)
            except OSError:
                descriptor = -1
            finally:
                _close(-1 if above is None else above)
            if descriptor < 0:
                return -1
            above = descriptor
        if _identity(os.fstat(descriptor)) != path[0].identity:
            os.close(descriptor)
            return -1
        return descriptor

    def _mark_incomplete(self, positions: Iterable[int]) -> None:
        for position in positions:
            self._directories[position].tree.complete = False

    def _apply(self) -> None:
        """Add the mean differences to the trees; a negative sum is ignored."""
        found: dict[int, tuple[Tree, float, float]] = {}
        for each in self._directories:
            if each.reads:
                tree, size_bytes, inodes = found.get(id(each.tree), (each.tree, 0.0, 0.0))
                size_bytes += each.differences[0] / each.reads
                inodes += each.differences[1] / each.reads
                found[id(tree)] = (tree, size_bytes, inodes)
        for tree, size_bytes, inodes in found.values():
            tree.size_bytes += max(0, round(size_bytes))
            tree.inodes += max(0, round(inodes))


def _flags(above: int | None) -> int:
    """Return flags for the root of a tree, which can be a symlink of root, or for a directory below it."""
    return _DIRECTORY & ~os.O_NOFOLLOW if above is None else _DIRECTORY


def _status(name: str, parent: int | None) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=parent is None)
    except OSError:
        return None


def _size(status: os.stat_result) -> tuple[int, int]:
    """Return bytes and inodes of a file; one with several links is counted by the walk."""
    return (status.st_blocks * _BLOCK_BYTES, 1) if status.st_nlink == 1 else (0, 0)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _settled_ns(status: os.stat_result) -> int:
    return status.st_ctime_ns if status.st_ctime_ns < _now_ns() else -1


def _now_ns() -> int:
    return time.clock_gettime_ns(_COARSE)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
