"""Role of the agent on this node, evaluated in every pass."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.guarded_call import GuardedCall
from nodeagent.host.kubelet_traces import KubeletTraceReader, read_kubelet_traces
from nodeagent.model.node import KubeletTraces, Role, RoleBasis, RoleDecision, RoleMemory
from nodeagent.pods.plan.role import apply_hysteresis, decide_role
from nodeagent.units import Clock, SystemClock

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


ROLE_POLL_S: Final = 10.0
"""Poll interval in seconds of a task that waits for a change of the role."""

FRESH_S: Final = 2.0
_READ_WITHIN_S: Final = 0.25
_STALE_S: Final = 60.0
_UNDECIDED: Final = RoleDecision(Role.BESIDE_KUBELET, RoleBasis.UNREADABLE, "unknown: traces of a kubelet not read yet")


class TraceReader(Protocol):
    """Reader of the traces of a kubelet. Blocks."""

    def read(self, *, arguments: bool = True) -> KubeletTraces:
        """Return the traces; with ``arguments`` false, only from files whose reading no process can block."""


class _LatestTraces:
    """Cache of the latest traces of a kubelet."""

    def __init__(self, clock: Clock, reader: TraceReader) -> None:
        self._clock = clock
        self._reader = reader
        self._traces = KubeletTraces()
        self._read_s: float | None = None
        self._complete_s: float | None = None
        self._readings: dict[bool, asyncio.Future[KubeletTraces]] = {}

    async def read(self, max_age_s: float, logger: FilteringBoundLogger | None) -> KubeletTraces:
        """Return the traces, reused for at most ``max_age_s``; ``logger`` receives an error of the reader."""
        now_s = self._clock.monotonic_s()
        if self._read_s is None or not 0 <= now_s - self._read_s < max_age_s:
            self._traces = await self._read(logger)
            self._read_s = self._clock.monotonic_s()
        return self._traces

    async def _read(self, logger: FilteringBoundLogger | None) -> KubeletTraces:
        """Read the traces in a thread; while a reading hangs, read only traces that no process can block."""
        for arguments in (True, False):
            earlier = self._readings.get(arguments)
            if earlier is not None and not earlier.done():
                continue
            reading = asyncio.ensure_future(
                GuardedCall[KubeletTraces]().run(partial(self._reader.read, arguments=arguments))
            )
            self._readings[arguments] = reading
            done, _ = await asyncio.wait({reading}, timeout=_READ_WITHIN_S)
            if done:
                return self._traces_of(reading, logger)
        # The last complete reading is reused for a limited time, since a stalled node requires evictions.
        if self._complete_s is not None and self._clock.monotonic_s() - self._complete_s < _STALE_S:
            return self._traces
        return KubeletTraces(unreadable=(f"traces of a kubelet not read within {_READ_WITHIN_S:g} s",))

    def _traces_of(self, reading: asyncio.Future[KubeletTraces], logger: FilteringBoundLogger | None) -> KubeletTraces:
        """Return the result of a reading. An error is a bug; the role is then unknown, so that no pod is stopped."""
        error = reading.exception()
        if error is None:
            self._complete_s = self._clock.monotonic_s()
            return reading.result()
        failed = KubeletTraces(unreadable=(f"traces of a kubelet not read: {error!r}",))
        if logger is not None and failed != self._traces:
            logger.error("role_unknown", error=repr(error), exc_info=error)
        return failed


class RoleWatch:
    """Role of the agent, for all tasks of one process.

    Every pass evaluates the role. The traces are read at most every ``FRESH_S`` seconds, so that a loop with five
    passes per second under pressure causes one reading in ten passes. The watch and its hysteresis survive reloads.

    Attributes:
        current: the last evaluated role; beside a kubelet before the first evaluation.
    """

    def __init__(
        self, clock: Clock, logger: FilteringBoundLogger | None = None, *, reader: TraceReader | None = None
    ) -> None:
        """Create a watch; :meth:`evaluate` reads the traces.

        Args:
            clock: clock of the hysteresis (monotonic time).
            logger: logger of role changes; ``None`` disables logging.
            reader: reader of the traces; ``None`` for the traces on this node.
        """
        self._clock = clock
        self._logger = logger
        self._latest = _LatestTraces(clock, KubeletTraceReader(clock) if reader is None else reader)
        self._lock = asyncio.Lock()
        self._memory = RoleMemory()
        self._evaluated = False
        self.current = _UNDECIDED

    async def evaluate(self, configured: Role | None, *, max_age_s: float = FRESH_S) -> RoleDecision:
        """Return the current role.

        Args:
            configured: the role in the configuration; ``None`` for automatic detection.
            max_age_s: maximum age of a reused reading of the traces.
        """
        async with self._lock:
            traces = await self._latest.read(max_age_s, self._logger)
            decision = decide_role(traces, configured)
            now_s = self._clock.monotonic_s()
            decision, self._memory = apply_hysteresis(decision, traces, self._memory, now_s)
            before, self.current = self.current, decision
            self._log(before, decision)
            return decision

    def detached(self) -> RoleWatch:
        """Return an independent copy of the watch, with the latest reading and hysteresis, and without logging.

        A preview of other settings uses the copy, since an evaluation on this watch would change the role of the
        running agent.
        """
        made = copy.copy(self)
        made._logger = None  # noqa: SLF001 - an object of the same class
        made._latest = copy.copy(self._latest)  # noqa: SLF001
        return made

    def _log(self, before: RoleDecision, now: RoleDecision) -> None:
        """Log a change of the role, and a new contradiction once."""
        changed, self._evaluated = self._evaluated and before.role is not now.role, True
        if self._logger is None:
            return
        if changed:
            self._logger.warning(
                "role_changed", role=now.role.value, before=before.role.value, because=now.reason, basis=now.basis.value
            )
        if now.warning and not before.warning:
            self._logger.warning("role_contradiction", warning=now.warning)


def read_role(configured: Role | None, root: Path | None = None) -> RoleDecision:
    """Return the role from one reading of the traces, without hysteresis. Blocks.

    Args:
        configured: the role in the configuration; ``None`` for automatic detection.
        root: root directory of the node's files; this node by default.
    """
    return decide_role(read_kubelet_traces(SystemClock(), root), configured)
