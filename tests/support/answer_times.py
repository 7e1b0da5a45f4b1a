"""Longest response time of a daemon's health probe, which the daemon's event loop serves."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_EVERY_S = 0.05
_WITHIN_S = 60.0


@dataclass
class AnswerTimes:
    """Counters of successful health probes of a daemon; ``longest_s`` is the longest response time in seconds."""

    answers: int = 0
    longest_s: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def measured_answers(path: Path) -> Iterator[AnswerTimes]:
    """Probe the daemon that is listening on a socket, until the end of the block."""
    times = AnswerTimes()
    thread = threading.Thread(target=_probe, args=(path, times), daemon=True)
    thread.start()
    try:
        yield times
    finally:
        times.ended.set()
        thread.join(_WITHIN_S)


def _probe(path: Path, times: AnswerTimes) -> None:
    while not times.ended.wait(_EVERY_S):
        began_s = time.monotonic()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_WITHIN_S)
                connection.connect(str(path))
                connection.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answered = bool(connection.recv(1))
        except OSError:
            answered = False
        if answered:
            times.answers += 1
            times.longest_s = max(times.longest_s, time.monotonic() - began_s)
