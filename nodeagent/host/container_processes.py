"""Processes of containers by their cgroups, without the runtime: running containers, and signals to their processes.

Runtimes name the cgroup of a container by its id: ``cri-containerd-ID.scope``, ``crio-ID.scope``, or the id alone below
a parent such as ``kubepods`` or ``k8s.io``. Other runtimes on the node use other prefixes and parents, so only cgroups
with the name pattern of a known id's cgroup are returned.

A cgroup is trusted only after it was observed with processes: containers in virtual machines have an empty cgroup. A
process is signalled only through a pidfd, and its cgroup is read after the pidfd was opened, so that a reused id
is never signalled.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import select
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.host.cgroups import read_cpu_us
from nodeagent.host.processes import ProcessStat, read_cgroup_names, read_stat, signal_member

if TYPE_CHECKING:
    from nodeagent.units import Clock

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


_READ_BYTES: Final = 65536
_MAX_PROCESSES: Final = 4096
_STOPPED_STATES: Final = frozenset({"T", "t"})
_DELAYED_STATES: Final = frozenset({"R", "D"})


class ContainerProcesses:
    """The processes of located containers, until :meth:`close`.

    Attributes:
        on_change: called in the event loop when a located container may have ended.
        stop_signals: stop signal number by container id, for containers with a stop signal other than TERM.
    """

    def __init__(self, clock: Clock, root: Path = Path("/"), *, max_watched: int | None = None) -> None:
        """Create the object without reading cgroups.

        Args:
            clock: clock that measures deadlines.
            root: parent of ``proc`` and ``sys``.
            max_watched: maximum number of watched containers; by default half of the descriptors that the process may
                open. The caller polls all other containers.
        """
        self._clock = clock
        self._max_watched = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 if max_watched is None else max_watched
        self._root = root
        self._directories: dict[str, str] = {}
        self._watched: dict[int, str] = {}  # container ids by descriptor, of cgroup.events or of a process
        self._pidfds: set[int] = set()
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.stop_signals: dict[str, int] = {}

    async def locate(self, container_ids: Collection[str]) -> bool:
        """Locate the cgroups of containers in a thread; return whether containers without a cgroup have no process."""
        missing = frozenset(each for each in container_ids if each not in self._directories)
        if not missing:
            return True
        found, complete = await asyncio.to_thread(self._find, missing)
        self._directories.update(found)
        return complete

    def forget_others(self, container_ids: Collection[str]) -> None:
        """Forget the cgroups of all containers except ``container_ids``."""
        for container_id in self._directories.keys() - set(container_ids):
            del self._directories[container_id]

    def watch(self, container_ids: Collection[str]) -> None:
        """Start calling ``on_change`` when one of these located containers may have ended."""
        for container_id in container_ids:
            directory = self._directories.get(container_id)
            if len(self._watched) >= self._max_watched:
                return
            if directory is not None and container_id not in self._watched.values():
                self._watch(container_id, directory)

    def is_located(self, container_id: str) -> bool:
        """Return whether the cgroup of a container was found with processes, which may have ended since."""
        return container_id in self._directories

    def is_populated(self, container_id: str) -> bool | None:
        """Return whether a container has processes; ``None`` if its cgroup was not located.

        Source: kernel cgroup-v2.rst, ``populated`` of ``cgroup.events``; a removed cgroup has no processes.
        """
        directory = self._directories.get(container_id)
        return None if directory is None else _is_populated(directory)

    def terminate(self, container_id: str) -> bool:
        """Send the stop signal to the main process of a container; return whether the signal was sent."""
        main = self._main_process(container_id)
        number = self.stop_signals.get(container_id, signal.SIGTERM)
        return main is not None and self._signal(container_id, main.pid, number)

    def kill(self, container_id: str) -> bool:
        """Send KILL to all processes of a container; return whether any process was signalled."""
        signalled = [self._signal(container_id, pid, signal.SIGKILL) for pid in self._processes(container_id)]
        return any(signalled)

    def has_stopped_shim(self, container_id: str) -> bool:
        """Return whether the parent of a container's main process, the runtime's shim, is stopped.

        Source: proc(5), states ``T`` and ``t``. A stopped shim answers no request until it continues.
        """
        main = self._main_process(container_id)
        shim = None if main is None else self._stat(main.parent)
        return shim is not None and shim.state in _STOPPED_STATES

    def has_pending_term(self, container_id: str) -> bool:
        """Return whether the stop signal of a container is still pending for its main process.

        Source: proc(5), ``SigPnd`` and ``ShdPnd`` of ``/proc/PID/status``.
        """
        main, number = self._main_process(container_id), self.stop_signals.get(container_id, signal.SIGTERM)
        if main is None:
            return False
        try:
            lines = (self._root / f"proc/{main.pid}/status").read_bytes().splitlines()
        except OSError:
            return False
        pending = [line.split()[1] for line in lines if line.startswith((b"SigPnd:\t", b"ShdPnd:\t"))]
        return any(int(each, 16) >> (number - 1) & 1 for each in pending)

    def is_delayed(self, container_id: str) -> bool:
        """Return whether the main process of a container waits for a CPU, for memory or for a disk.

        Source: proc(5), states ``R`` and ``D``. The kernel wakes a sleeping process for a signal that it handles.
        """
        main = self._main_process(container_id)
        return main is not None and main.state in _DELAYED_STATES

    def cpu_us(self, container_id: str) -> int | None:
        """Return the CPU time of a container in microseconds; ``None`` if not located or not reported.

        Source: kernel cgroup-v2.rst, ``usage_usec`` of ``cpu.stat``, present without the cpu controller too.
        """
        directory = self._directories.get(container_id)
        return None if directory is None else read_cpu_us(directory)

    def close(self) -> None:
        """Stop watching all containers; a second call has no effect."""
        if self._loop is not None and self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched.clear()
        self._pidfds.clear()
        if self._epoll is not None:
            self._epoll.close()
        self._epoll = self._loop = None

    def _find(self, container_ids: Collection[str]) -> tuple[dict[str, str], bool]:
        found, complete = find_directories(container_ids, self._clock, self._root)
        return {container_id: path for container_id, path in found.items() if _is_populated(path)}, complete

    def _watch(self, container_id: str, directory: str) -> None:
        """Watch ``cgroup.events`` for changes; without that file (cgroup v1) watch for the end of a process."""
        try:
            descriptor = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._watch_process(container_id)
            return
        except OSError:
            return
        try:
            os.read(descriptor, _READ_BYTES)  # EPOLLPRI reports changes since this read
        except OSError:  # the cgroup was removed meanwhile
            os.close(descriptor)
            return
        self._register(descriptor, container_id, select.EPOLLPRI)

    def _watch_process(self, container_id: str) -> None:
        """Watch for the end of one process, preferably the main process; after its end watch another process.

        Source: pidfd_open(2), a descriptor is readable once its process has ended.
        """
        main = self._main_process(container_id)
        for pid in self._processes(container_id) if main is None else (main.pid,):
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue
            if not self._belongs_to(container_id, pid):
                os.close(descriptor)
            elif self._register(descriptor, container_id, select.EPOLLIN):
                self._pidfds.add(descriptor)
                return

    def _register(self, descriptor: int, container_id: str, events: int) -> bool:
        """Watch a descriptor for events, or close it if the kernel refuses; return whether it is watched."""
        if self._epoll is None:
            self._epoll, self._loop = select.epoll(), asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._dispatch)
        try:
            self._epoll.register(descriptor, events)
        except OSError:  # epoll does not support regular files
            os.close(descriptor)
            return False
        self._watched[descriptor] = container_id
        return True

    def _dispatch(self) -> None:
        if self._epoll is None:
            return
        for descriptor, _ in self._epoll.poll(0):
            of_process = descriptor in self._pidfds
            try:
                ended = of_process or b"populated 1" not in os.pread(descriptor, _READ_BYTES, 0)
            except OSError:  # the cgroup was removed
                ended = True
            if ended:
                container_id = self._watched.pop(descriptor)
                self._pidfds.discard(descriptor)
                os.close(descriptor)  # also removes it from the epoll
                if of_process and self.is_populated(container_id):
                    self._watch_process(container_id)
        self.on_change()

    def _processes(self, container_id: str) -> Iterator[int]:
        directory = self._directories.get(container_id)
        if directory is None or container_id not in Path(directory).name:
            return
        count = 0
        for each, _, _ in os.walk(directory):
            try:
                lines = Path(each, "cgroup.procs").read_bytes().split()
            except OSError:
                continue
            for line in lines:
                count += 1
                if count > _MAX_PROCESSES:
                    return
                if line.isdigit():
                    yield int(line)

    def _main_process(self, container_id: str) -> ProcessStat | None:
        """Return the oldest process whose parent is outside of the container; processes of ``exec`` are younger."""
        found = [each for pid in self._processes(container_id) if (each := self._stat(pid)) is not None]
        inside = {each.pid for each in found}
        outside = (each for each in found if each.parent not in inside)
        return min(outside, key=lambda each: (each.started_ticks, each.pid), default=None)

    def _stat(self, pid: int) -> ProcessStat | None:
        try:
            return read_stat(pid, self._root)
        except OSError:
            return None

    def _signal(self, container_id: str, pid: int, number: int) -> bool:
        """Signal a process if its cgroup is still in the container; return whether the signal was sent."""
        return signal_member(pid, number, lambda each: self._belongs_to(container_id, each)) == ""

    def _belongs_to(self, container_id: str, pid: int) -> bool:
        return any(container_id in name for name in read_cgroup_names(pid, self._root / "proc"))


def _is_populated(directory: str) -> bool:
    """Return whether a cgroup or a descendant has a process; true if unreadable."""
    try:
        with open(f"{directory}/cgroup.events", "rb") as events:  # noqa: PTH123 - one call, no object
            return b"populated 1" in events.read(_READ_BYTES)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.errno != errno.ENODEV  # ENODEV: the cgroup was removed
    if not os.path.isdir(directory):  # noqa: PTH112 - one call, no object
        return False
    for each, _, _ in os.walk(directory):  # cgroup v1
        try:
            if Path(each, "cgroup.procs").read_bytes():
                return True
        except OSError:
            continue
    return False
