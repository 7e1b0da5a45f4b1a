"""A fake reader of kubelet traces (processes, ports, files), with a manual clock."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeagent.model.node import KubeletProcess, KubeletTraces

KUBELET: Final = KubeletTraces(processes=(KubeletProcess(812, "kubelet"),))
NO_KUBELET: Final = KubeletTraces()


class HandClock:
    """Manual clock; it advances only when a test sets ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic_s(self) -> float:
        return self.seconds


class KubeletDouble:
    """Fake reader of kubelet traces."""

    def __init__(self, traces: KubeletTraces = NO_KUBELET) -> None:
        self.clock = HandClock()
        self.traces = traces
        self.error: Exception | None = None
        self.readings: list[bool] = []
        self.hanging: frozenset[bool] = frozenset()
        self.released = threading.Event()

    def set(self, traces: KubeletTraces, after_s: float = 60.0) -> None:
        """Replace the traces, and advance the clock so that cached readings expire."""
        self.clock.seconds += after_s
        self.traces = traces

    def read(self, *, arguments: bool = True) -> KubeletTraces:
        """Return the traces; a reading with ``arguments`` in ``hanging`` first waits for ``released``."""
        self.readings.append(arguments)
        if arguments in self.hanging:
            self.released.wait(30)
        if self.error is not None:
            raise self.error
        return self.traces
