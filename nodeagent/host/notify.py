"""Notifications to the service manager; without a service manager they have no effect.

Source: sd_notify(3), systemd.service(5), ``WatchdogSec=``.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Final

from nodeagent.text import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_STATUS: Final = 800
"""Maximum length of a status line in characters, of at most 4 bytes each.

The service manager ignores a message of more than 4096 bytes, and with it READY=1. Source: systemd,
``NOTIFY_BUFFER_MAX``.
"""


class Notifier:
    """The service manager's notification socket, from the environment.

    Attributes:
        watchdog_s: watchdog timeout in seconds; ``None`` without a watchdog for this process.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        for_this_process = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.watchdog_s = int(microseconds) / 1e6 if microseconds.isdecimal() and for_this_process else None

    @property
    def present(self) -> bool:
        """Whether a service manager started this process."""
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        """Report that start-up, or a reload, has finished."""
        self._send("READY=1", status)

    def reloading(self) -> None:
        """Report the start of a reload."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report the start of the shutdown of this process."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Report the status line that ``systemctl status`` shows."""
        self._send("", text)

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, state: str, status: str = "") -> None:
        shown = escape(" ".join(status.split()))
        lines = [line for line in (state, f"STATUS={shown[:_MAX_STATUS]}" if shown else "") if line]
        send("\n".join(lines), self._address)


def send(text: str, address: str, *descriptors: int) -> bool:
    """Send a message, with copies of descriptors, to the service manager; return whether it was sent.

    The call never blocks: without a listener, or with a full queue, the message is dropped.
    """
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            socket.send_fds(sender, [text.encode()], list(descriptors))
    except OSError:
        return False
    return True
