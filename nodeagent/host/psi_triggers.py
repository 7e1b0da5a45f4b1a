"""Being woken by the kernel when memory runs short: stall triggers and cgroup memory events.

One epoll holds every file and is itself what the event loop watches, since the loop knows no priority events.

Source: kernel psi.rst, "Monitoring for pressure thresholds"; cgroup-v2.rst, ``memory.events``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = Path("/")
_READ_BYTES: Final = 4096
_KUBEPODS: Final = ("kubepods.slice", "kubepods")
MEMORY_EVENTS: Final = "memory events"
_HINTS: Final = {
    errno.ENOENT: "this kernel has no pressure stall information; psi=1 on its command line turns it on",
    errno.EOPNOTSUPP: "pressure stall information is turned off; psi=1 on the kernel's command line turns it on",
    errno.EINVAL: "the kernel refuses this stall or window",
    errno.EACCES: "it may not be written",
    errno.EPERM: "it may not be written",
    errno.EROFS: "it may not be written",
}


class Wakes:
    """Files of the kernel that wake the loop, open for as long as this lives."""

    def __init__(self, on_wake: Callable[[str], None], *, root: Path = _ROOT) -> None:
        """Watch nothing yet.

        Args:
            on_wake: called in the loop with the name of what woke it.
            root: where ``proc`` and ``sys`` are.
        """
        self._on_wake = on_wake
        self._root = root
        self._epoll = select.epoll()
        self._names: dict[int, str] = {}
        self._attached: asyncio.AbstractEventLoop | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is watched."""
        return tuple(self._names.values())

    def watch_stalls(self, resource: str, stall_us: int, window_us: int) -> str:
        """Be woken when some tasks stall for a resource that long within a window; return why not, if not.

        Args:
            resource: ``memory`` or ``io``.
            stall_us: in microseconds, at most the window.
            window_us: from half a second to ten seconds.
        """
        path = self._root / "proc/pressure" / resource
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _why(path, error)
        try:
            os.write(descriptor, f"some {stall_us} {window_us}\0".encode())
            self._epoll.register(descriptor, select.EPOLLPRI)
        except OSError as error:
            os.close(descriptor)
            return _why(path, error)
        self._names[descriptor] = f"{resource} stall"
        return ""

    def watch_memory_events(self) -> str:
        """Be woken when memory of pods hits a limit or a process is killed for it; return why not, if not."""
        base = self._root / "sys/fs/cgroup"
        path = next((each for name in _KUBEPODS if (each := base / name / "memory.events").exists()), None)
        if path is None:
            return f"{base}: the pods have no cgroup with memory.events"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return _why(path, error)
        try:
            os.read(descriptor, _READ_BYTES)  # it counts from here
            self._epoll.register(descriptor, select.EPOLLPRI)
        except OSError as error:
            os.close(descriptor)
            return _why(path, error)
        self._names[descriptor] = MEMORY_EVENTS
        return ""

    def attach(self) -> None:
        """Have the running loop watch."""
        self._attached = asyncio.get_running_loop()
        self._attached.add_reader(self._epoll.fileno(), self._woken)

    def close(self) -> None:
        """Let go of everything; may be called again."""
        if self._attached is not None:
            self._attached.remove_reader(self._epoll.fileno())
            self._attached = None
        for descriptor in self._names:
            os.close(descriptor)
        self._names.clear()
        self._epoll.close()

    def _woken(self) -> None:
        for descriptor, events in self._epoll.poll(0):
            name = self._names[descriptor]
            if name == MEMORY_EVENTS:  # these come with an error flag as a matter of course
                lost = not self._read_again(descriptor)
            else:
                lost = bool(events & (select.EPOLLERR | select.EPOLLHUP))
            if lost:
                self._drop(descriptor)  # it would wake for ever
            self._on_wake(name)

    def _read_again(self, descriptor: int) -> bool:
        """Take note of what changed, without which it wakes again at once; false if the file is gone."""
        try:
            os.pread(descriptor, _READ_BYTES, 0)
        except OSError:
            return False
        return True

    def _drop(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        del self._names[descriptor]


def _why(path: Path, error: OSError) -> str:
    hint = _HINTS.get(error.errno or 0)
    return f"{path}: {error.strerror}" + (f": {hint}" if hint else "")
