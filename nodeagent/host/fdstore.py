"""systemd's descriptor store, which keeps the inhibitor lock across a crash of the agent.

logind grants no locks during a shutdown, so a lock that is lost with its process cannot be acquired again. systemd
keeps a copy across restarts of the service and passes it to the next process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nodeagent.host.notify import send

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK_NAME: Final = "shutdown-lock"
_FIRST: Final = 3


def stored_descriptor(name: str = LOCK_NAME, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the descriptor that systemd passed to this process under a name; ``None`` without a descriptor.

    The caller closes the descriptor. If several descriptors have the name, the last is returned and the rest are
    closed.

    Source: sd_listen_fds(3), ``LISTEN_PID``, ``LISTEN_FDS`` and ``LISTEN_FDNAMES``.
    """
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return None
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    numbers = [_FIRST + index for index in range(int(count)) if index < len(names) and names[index] == name]
    for number in numbers[:-1]:
        with suppress(OSError):
            os.close(number)
    return numbers[-1] if numbers else None


class DescriptorStore:
    """The descriptor store of this service; without systemd, or with a disabled store, calls have no effect."""

    def __init__(self, name: str = LOCK_NAME, environment: Mapping[str, str] = os.environ) -> None:
        self._name = name
        self._address = environment.get("NOTIFY_SOCKET", "")

    def keep(self, number: int) -> bool:
        """Store a copy of a descriptor in place of the earlier copy; return whether the message was sent.

        Source: sd_notify(3), ``FDSTORE=1``. systemd itself closes a copy whose other end is closed.
        """
        return self.forget() and send(f"FDSTORE=1\nFDNAME={self._name}", self._address, number)

    def forget(self) -> bool:
        """Remove the stored copy; return whether the message was sent. Source: sd_notify(3), ``FDSTOREREMOVE=1``."""
        return send(f"FDSTOREREMOVE=1\nFDNAME={self._name}", self._address)
