"""The service manager's store of descriptors, where the delay lock waits for our successor after a crash.

logind gives out no locks once a shutdown is under way, so a lock that ended with its process could not be had again.
systemd keeps a copy over restarts of the service and hands it to the next process.
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
    """Return the descriptor that was handed to this process under a name; ``None`` where there is none.

    It is the caller's to close. Of several the last counts, and the others are closed.

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
    """What systemd keeps for this service; without systemd, or where it keeps nothing, nothing happens."""

    def __init__(self, name: str = LOCK_NAME, environment: Mapping[str, str] = os.environ) -> None:
        self._name = name
        self._address = environment.get("NOTIFY_SOCKET", "")

    def keep(self, number: int) -> bool:
        """Have a copy of a descriptor kept instead of the one before; return whether that was sent.

        Source: sd_notify(3), ``FDSTORE=1``. systemd itself drops a copy whose other end is gone.
        """
        return self.forget() and send(f"FDSTORE=1\nFDNAME={self._name}", self._address, number)

    def forget(self) -> bool:
        """Have the copy closed; return whether that was sent. Source: sd_notify(3), ``FDSTOREREMOVE=1``."""
        return send(f"FDSTOREREMOVE=1\nFDNAME={self._name}", self._address)
