"""A kubelet that joins and leaves: traces as a test sets them, read with a clock moved by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeagent.model import KubeletProcess, KubeletTraces

KUBELET: Final = KubeletTraces(processes=(KubeletProcess(812, "kubelet"),))
NO_KUBELET: Final = KubeletTraces()


class HandClock:
    """Time that passes only when it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic_s(self) -> float:
        return self.seconds


class KubeletDouble:
    """Reads traces as they are set; each setting makes the reading before too old to be used."""

    def __init__(self, traces: KubeletTraces = NO_KUBELET) -> None:
        self.clock = HandClock()
        self.traces = traces
        self.error: Exception | None = None
        self.readings: list[bool] = []
        self.hanging: frozenset[bool] = frozenset()
        self.released = threading.Event()

    def set(self, traces: KubeletTraces, after_s: float = 60.0) -> None:
        """Let the traces be others, some time after the last setting."""
        self.clock.seconds += after_s
        self.traces = traces

    def read(self, *, arguments: bool = True) -> KubeletTraces:
        """Return the traces; a kind of reading that is ``hanging`` waits to be ``released``."""
        self.readings.append(arguments)
        if arguments in self.hanging:
            self.released.wait(30)
        if self.error is not None:
            raise self.error
        return self.traces
