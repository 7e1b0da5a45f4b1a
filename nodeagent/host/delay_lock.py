"""The agent's delay lock: its identity in logind's list and its file descriptor."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus, Descriptor, InhibitorEntry, acquire_lock

if TYPE_CHECKING:
    from collections.abc import Iterable


class DelayLock:
    """A delay inhibitor lock for shutdowns, held while its descriptor is open; the lock may be missing."""

    def __init__(self, who: str, why: str, adopted: int | None) -> None:
        """Create the object without calling logind.

        Args:
            who: owner of the lock, as shown by ``systemd-inhibit --list``.
            why: reason of the lock, as shown by ``systemd-inhibit --list``.
            adopted: descriptor of a lock from an earlier run, owned by this object from now on; ignored if not open.
        """
        self._who = who
        self._why = why
        self._descriptor = _adopt(adopted)
        self._acquired_here = False

    @property
    def number(self) -> int | None:
        """File descriptor of the lock; ``None`` without a lock."""
        return None if self._descriptor is None else self._descriptor.number

    async def acquire(self, bus: Bus) -> None:
        """Acquire a lock, then close the former lock. Raises as :func:`nodeagent.host.dbus.acquire_lock`."""
        new = await acquire_lock(bus, self._who, self._why)
        self.release()
        self._descriptor, self._acquired_here = new, True

    def release(self) -> None:
        """Release the lock by closing its descriptor; no effect without a lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()

    def check(self, entries: Iterable[InhibitorEntry], own_pid: int) -> None:
        """Check that logind lists the lock and reads its other end.

        Args:
            entries: logind's list of inhibitors.
            own_pid: id of this process, as reported by the bus.

        Raises:
            InhibitorError: logind does not list the lock, or does not read its other end.
        """
        # An adopted lock is listed with the process that acquired the lock, or without a process.
        own_entries = [
            entry
            for entry in entries
            if "shutdown" in entry.what.split(":")
            and (entry.who, entry.why, entry.mode) == (self._who, self._why, "delay")
            and (entry.pid == own_pid or not self._acquired_here)
        ]
        if not own_entries:
            raise InhibitorError("logind does not list the agent's lock")
        if self.number is None or _has_no_reader(self.number):
            raise InhibitorError("logind no longer reads the agent's lock")


def _adopt(number: int | None) -> Descriptor | None:
    """Return an owned descriptor; ``None`` without a number, or if the descriptor is not open."""
    if number is None:
        return None
    try:
        return Descriptor(number)
    except OSError:
        return None


def _has_no_reader(number: int) -> bool:
    """Return whether the other end of the lock has no reader. Source: poll(2), ``POLLERR`` of a pipe."""
    poll = select.poll()
    poll.register(number, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))
