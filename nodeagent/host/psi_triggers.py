"""Kernel notifications of memory and I/O pressure: PSI triggers and cgroup memory events.

All files are in one epoll, whose descriptor is registered with the event loop, since asyncio cannot wait for EPOLLPRI.

Source: kernel psi.rst, "Monitoring for pressure thresholds"; cgroup-v2.rst, ``memory.events``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeagent.host.cgroup_limits import find_pods

_ROOT: Final = Path("/")
_READ_BYTES: Final = 4096
MEMORY_EVENTS: Final = "memory events"
_HINTS: Final = {
    errno.ENOENT: "PSI unavailable in this kernel; psi=1 on the kernel command line may enable it",
    errno.EOPNOTSUPP: "PSI disabled; psi=1 on the kernel command line enables it",
    errno.EINVAL: "stall or window rejected by the kernel",
    errno.EACCES: "not writable",
    errno.EPERM: "not writable",
    errno.EROFS: "not writable",
}


class PressureTriggers:
    """Open kernel files that report pressure, until :meth:`close`."""

    def __init__(self, on_trigger: Callable[[str], None], *, root: Path = _ROOT) -> None:
        """Create an empty set of triggers.

        Args:
            on_trigger: called in the event loop with the name of the trigger that fired.
            root: parent of ``proc`` and ``sys``.
        """
        self._on_trigger = on_trigger
        self._root = root
        self._epoll = select.epoll()
        self._names: dict[int, str] = {}
        self._attached: asyncio.AbstractEventLoop | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the registered triggers."""
        return tuple(self._names.values())

    def add_stall_trigger(self, resource: str, stall_us: int, window_us: int) -> str:
        """Register a trigger for a stall of some tasks within a window; return the fault, empty on success.

        The trigger is of the machine, also on a node in a container: stalls of its tasks are stalls of the machine, and
        a trigger of other tasks only causes a reading. A trigger of a cgroup requires write access to it.

        Args:
            resource: ``memory`` or ``io``.
            stall_us: stall time in microseconds, at most the window.
            window_us: window in microseconds, from half a second to ten seconds.
        """
        trigger = f"some {stall_us} {window_us}\0".encode()
        path = self._root / "proc/pressure" / resource
        return self._add(f"{resource} stall", path, os.O_RDWR, lambda each: os.write(each, trigger))

    def add_memory_events(self) -> str:
        """Register for memory events of pods, such as OOM kills; return the fault, empty on success.

        No effect while registered. The cgroup of all pods is created with the first pod and removed by systemd after
        the last pod, so that callers repeat the registration.
        """
        if MEMORY_EVENTS in self._names.values():
            return ""
        base = self._root / "sys/fs/cgroup"
        pods = find_pods(base, self._root)
        path = None if pods is None else pods / "memory.events"
        if path is None or not path.exists():
            return f"{base}: no pod cgroup with memory.events"
        # EPOLLPRI fires on changes since this read
        return self._add(MEMORY_EVENTS, path, os.O_RDONLY, lambda each: os.read(each, _READ_BYTES))

    def _add(self, name: str, path: Path, mode: int, prepare: Callable[[int], object]) -> str:
        try:
            descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _fault(path, error)
        try:
            prepare(descriptor)
            self._epoll.register(descriptor, select.EPOLLPRI)
        except OSError as error:
            os.close(descriptor)
            return _fault(path, error)
        self._names[descriptor] = name
        return ""

    def attach(self) -> None:
        """Register the triggers with the running event loop."""
        self._attached = asyncio.get_running_loop()
        self._attached.add_reader(self._epoll.fileno(), self._dispatch)

    def close(self) -> None:
        """Close all files; a second call has no effect."""
        if self._attached is not None:
            self._attached.remove_reader(self._epoll.fileno())
            self._attached = None
        for descriptor in self._names:
            os.close(descriptor)
        self._names.clear()
        self._epoll.close()

    def _dispatch(self) -> None:
        for descriptor, events in self._epoll.poll(0):
            name = self._names[descriptor]
            if name == MEMORY_EVENTS:  # kernfs always sets EPOLLERR with EPOLLPRI
                lost = not self._acknowledge(descriptor)
            else:
                lost = bool(events & (select.EPOLLERR | select.EPOLLHUP))
            if lost:
                self._drop(descriptor)  # an unread file would fire continuously
            self._on_trigger(name)

    def _acknowledge(self, descriptor: int) -> bool:
        """Read the file, which would otherwise fire again immediately; return false if the cgroup was removed."""
        try:
            os.pread(descriptor, _READ_BYTES, 0)
        except OSError:
            return False
        return True

    def _drop(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        del self._names[descriptor]


def _fault(path: Path, error: OSError) -> str:
    hint = _HINTS.get(error.errno or 0)
    return f"{path}: {error.strerror}" + (f": {hint}" if hint else "")
