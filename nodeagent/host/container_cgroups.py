"""Running containers by their cgroups, a source independent of the runtime's lists.

Runtimes name the cgroup of a container by its id: ``cri-containerd-ID.scope``, ``crio-ID.scope``, or the id alone below
a parent such as ``kubepods`` or ``k8s.io``. Other runtimes on the node use other prefixes and parents, so only cgroups
with the name pattern of a known id's cgroup are returned.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from nodeagent.clock import Clock

MAX_DIRECTORIES: Final = 100_000
"""Maximum number of cgroups to read."""

MAX_S: Final = 5.0
"""Time limit in seconds for reading the names of the cgroups."""

_V1_HIERARCHIES: Final = ("pids", "memory", "systemd")
_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MAX_DEPTH: Final = 12
_MONITOR: Final = "conmon"  # CRI-O's monitor of a container has a cgroup of its own: crio-conmon-ID.scope


def find_running(known: Collection[str], clock: Clock, root: Path = Path("/")) -> tuple[frozenset[str], bool]:
    """Return the ids of containers and sandboxes with processes, and whether any known id has a cgroup.

    If no known id has a cgroup, such as with containers in virtual machines or in another cgroup namespace, the result
    is empty. An incomplete reading may omit ids.

    Args:
        known: ids listed by the runtime.
        clock: clock that measures the deadline.
        root: parent of ``sys``.

    Source: kernel cgroup-v2.rst, ``cgroup.events``; cgroup-v1, ``cgroup.procs``.
    """
    base = _hierarchy(root / "sys/fs/cgroup")
    if base is None:
        return frozenset(), False
    found = list(_walk(base, clock))
    trusted = {pattern for container_id, pattern, _ in found if container_id in known}
    running = {
        container_id
        for container_id, pattern, path in found
        if pattern in trusted and (container_id in known or _is_populated(path))
    }
    return frozenset(running), bool(trusted)


def find_directories(
    container_ids: Collection[str], clock: Clock, root: Path = Path("/")
) -> tuple[dict[str, str], bool]:
    """Return the cgroup directories of containers by id, and whether all other containers have no cgroup.

    A container with several directories is omitted; the second value is then false.

    Args:
        container_ids: ids listed by the runtime.
        clock: clock that measures the deadline.
        root: parent of ``sys``.
    """
    base = _hierarchy(root / "sys/fs/cgroup")
    if base is None:
        return {}, False
    found: dict[str, list[str]] = {}
    unread: list[str] = []
    for container_id, _, path in _walk(base, clock, unread):
        if container_id in container_ids and _MONITOR not in Path(path).name:
            found.setdefault(container_id, []).append(path)
    unique = {container_id: paths[0] for container_id, paths in found.items() if len(paths) == 1}
    return unique, not unread and len(unique) == len(found)


def _hierarchy(cgroups: Path) -> Path | None:
    """Return the directory of the unified hierarchy if it is in use, else of a version 1 hierarchy."""
    if (cgroups / "cgroup.controllers").exists():
        return cgroups
    return next((cgroups / each for each in _V1_HIERARCHIES if (cgroups / each).is_dir()), None)


def _walk(base: Path, clock: Clock, unread: list[str] | None = None) -> Iterator[tuple[str, tuple[str, str], str]]:
    """Yield container id, name pattern and path of every cgroup named by an id; its descendants are not read.

    Directories that are unreadable or not read in time are added to ``unread``.
    """
    unread = [] if unread is None else unread
    deadline_s = clock.monotonic_s() + MAX_S
    left = MAX_DIRECTORIES
    stack = [(str(base), "", 0)]
    while stack and left > 0 and clock.monotonic_s() < deadline_s:
        directory, top, depth = stack.pop()
        try:
            with os.scandir(directory) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except FileNotFoundError:  # the cgroup was removed meanwhile
            continue
        except OSError:
            unread.append(directory)
            continue
        for name in names:
            left -= 1
            path = f"{directory}/{name}"
            first = top or name
            match = _ID.search(name)
            if match is not None:
                form = "*" if first == name else first
                yield match[0], (form, name.replace(match[0], "*")), path
            elif depth < _MAX_DEPTH:
                stack.append((path, first, depth + 1))
            else:
                unread.append(path)
    unread.extend(each for each, _, _ in stack)


def _is_populated(path: str) -> bool:
    """Return whether a cgroup or a descendant has a process; false for a removed cgroup."""
    try:
        return "populated 1" in Path(path, "cgroup.events").read_text(encoding="ascii")
    except OSError:
        pass
    for directory, _, _ in os.walk(path):
        try:
            if Path(directory, "cgroup.procs").read_bytes():
                return True
        except OSError:
            continue
    return False
