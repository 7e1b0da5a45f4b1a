"""Readings and evaluations of the eviction signals, in each pass and while a pass waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.errors import NodeAgentError
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.preview import (
    FALLING_S,
    SOONEST_S,
    WHILE_MET_S,
    is_soon_exhausted,
    measured_rate,
    next_poll_s,
)
from nodeagent.eviction.plan.thresholds import MEANINGS
from nodeagent.eviction.signals import LAYOUT_KEPT_S
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from collections.abc import Set as AbstractSet

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.eviction.plan.readings import ThresholdStatus
    from nodeagent.eviction.plan.state import Evaluation, EvictionState
    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.eviction.reporting import EvictionReporter
    from nodeagent.eviction.signals import EvaluatedSignals, SignalLayout, SignalReadings
    from nodeagent.model.pressure import Moment

RATE_S: Final = 1.0
"""Minimum time in seconds over which the growth of a shortage is measured."""
WATCH_S: Final = 0.5
"""Interval of the readings while directories are walked or images removed."""
_KEPT_NEAR_S: Final = 300.0
_REFRESH_WITHIN_S: Final = 2.0


class SignalReader(Protocol):
    """Reads and evaluates the signals; see :class:`EvictionSignalReader`."""

    async def read(self, layout: SignalLayout, *, urgently: bool = False) -> SignalReadings:
        """Return readings of all signals; with ``urgently`` without waiting for filesystems in a memory shortage."""

    def evaluate_readings(
        self, layout: SignalLayout, readings: SignalReadings, state: EvictionState
    ) -> EvaluatedSignals:
        """Return the evaluation of readings against the thresholds."""

    def now(self) -> Moment:
        """Return the current wall time and monotonic time."""


class SignalMonitor:
    """Signals of the node, with the last two evaluations.

    The eviction state is in the daemon context, where it outlives a reload.
    """

    def __init__(
        self,
        context: DaemonContext,
        reader: SignalReader,
        read_layout: Callable[[], Awaitable[SignalLayout]],
        reporter: EvictionReporter,
        *,
        watch_s: float = WATCH_S,
    ) -> None:
        """Create a monitor without initial readings.

        Args:
            context: daemon context with the eviction state.
            reader: reads the signals.
            read_layout: returns filesystems and thresholds; later calls update only the additional image filesystems.
            reporter: logs changed thresholds and conditions.
            watch_s: longest interval of the readings of :meth:`shortage_before`, in seconds.
        """
        self._context = context
        self._reader = reader
        self._read_layout = read_layout
        self._reporter = reporter
        self._watch_s = watch_s
        self._layout: SignalLayout | None = None
        self._layout_read_s = 0.0
        self._evaluated: list[tuple[float, Evaluation]] = []  # in the last second, and the last ones before it

    async def layout(self) -> SignalLayout:
        """Return the filesystems of the node.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        return await self._signal_layout()

    async def refresh_others_if_due(self) -> None:
        """Detect the additional image filesystems again, every minute, or every five minutes near a threshold.

        Snapshotters and mounts add and remove these filesystems. If the runtime does not answer in time, the last known
        filesystems are kept.
        """
        now_s = self.now().monotonic_s
        kept_s = _KEPT_NEAR_S if self.is_near_threshold(WHILE_MET_S) else LAYOUT_KEPT_S
        if self._layout is None or now_s - self._layout_read_s < kept_s:
            return
        self._layout_read_s = now_s
        with suppress(NodeAgentError, TimeoutError):
            async with asyncio.timeout(_REFRESH_WITHIN_S):
                found = await self._read_layout()
            if found.layout is self._layout.layout and found.others_known:
                self._layout = replace(found, paths=self._layout.paths)

    async def read(self, *, filesystems: bool = True) -> SignalReadings:
        """Return the current readings; without ``filesystems`` only memory, PIDs and stalls, which are faster to read.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        layout = await self._signal_layout()
        layout = layout if filesystems else replace(layout, paths=SignalPaths(None), others=())
        return await self._reader.read(layout, urgently=True)

    async def evaluate(self, readings: SignalReadings | None = None) -> Evaluation:
        """Evaluate readings, log the changes, and keep the state for the next evaluation.

        Args:
            readings: the readings; ``None`` to read the signals now.

        Raises:
            NodeAgentError: the runtime does not report the image filesystem.
        """
        layout = await self._signal_layout()
        readings = readings or await self._reader.read(layout, urgently=True)
        evaluated = self._reader.evaluate_readings(layout, readings, self._context.eviction)
        evaluation = evaluated.evaluation
        self._context.eviction = evaluation.state
        now_s = readings.at.monotonic_s
        while len(self._evaluated) > 1 and now_s - self._evaluated[1][0] >= RATE_S:
            del self._evaluated[0]
        self._evaluated.append((now_s, evaluation))
        self._reporter.log_changes(evaluation)
        self._reporter.log_warnings(evaluated.warnings)
        return evaluation

    async def shortage_before(
        self,
        work: asyncio.Future[Any],
        ignored: AbstractSet[Threshold] = frozenset(),
        on_evaluation: Callable[[Evaluation], object] | None = None,
    ) -> bool:
        """Evaluate signals while ``work`` runs; return whether a hard memory or PID threshold was met before its end.

        Thresholds in ``ignored`` do not count: no pod can be evicted for them. ``on_evaluation`` is called with each
        evaluation, at least every ``SOONEST_S``.
        """
        watch_s = self._watch_s if on_evaluation is None else min(self._watch_s, SOONEST_S)
        while True:
            done, _ = await asyncio.wait({work}, timeout=self.next_poll_s(watch_s))
            if done:
                return False
            evaluation = await self.evaluate()
            if on_evaluation is not None:
                on_evaluation(evaluation)
            if any(_is_urgent(each.threshold) and each.threshold not in ignored for each in evaluation.acting):
                return True

    async def urgent_shortage(self, work: asyncio.Future[Any], covered: AbstractSet[Threshold]) -> Evaluation | None:
        """Read memory and PIDs while a pass runs, until a hard threshold is met that is not in ``covered``.

        The set may change meanwhile. The readings change neither the state nor the measured rates before a threshold is
        met: the pass evaluates the signals too, and acts on new readings only.

        Returns:
            The evaluation with only the met thresholds; ``None`` if ``work`` ended first.
        """
        while True:
            done, _ = await asyncio.wait({work}, timeout=self.next_poll_s(min(self._watch_s, SOONEST_S)))
            if done:
                return None
            layout = await self._signal_layout()
            watched = tuple(each for each in layout.thresholds if _is_urgent(each) and each not in covered)
            readings = await self.read(filesystems=False)
            state = self._context.eviction
            if self._reader.evaluate_readings(replace(layout, thresholds=watched), readings, state).evaluation.acting:
                evaluation = await self.evaluate()
                met = tuple(each for each in evaluation.acting if each.threshold in watched)
                if met:
                    return replace(evaluation, statuses=met)

    def next_poll_s(self, interval_s: float) -> float:
        """Return the seconds until the next reading, at most ``interval_s``."""
        if not self._evaluated:
            return interval_s
        return next_poll_s(self._evaluated[-1][1], self._previous, interval_s=interval_s)

    def until_next_poll_s(self, interval_s: float) -> float:
        """Return the seconds from now until the next reading, counted from the latest evaluated readings."""
        elapsed_s = self.now().monotonic_s - (self._evaluated[-1][0] if self._evaluated else 0.0)
        return max(min(FALLING_S, interval_s), self.next_poll_s(interval_s) - elapsed_s)

    def is_near_threshold(self, interval_s: float) -> bool:
        """Return whether a threshold may be met soon, so that the next poll is due within a second."""
        return self.next_poll_s(interval_s) < WHILE_MET_S

    def is_soon_exhausted(self, status: ThresholdStatus) -> bool:
        """Return whether a filesystem will be exhausted within seconds; ``status`` is of the latest evaluation."""
        return is_soon_exhausted(status, self._previous)

    def rate(self, status: ThresholdStatus) -> float | None:
        """Return the decrease of a signal per second, over a second or longer; ``None`` without a reading of that age.

        Over a shorter time, a program that writes in bursts seems to write nothing. ``status`` has a later reading.
        """
        if not self._evaluated or status.observation is None:
            return None
        read_s, before = self._evaluated[0]
        return measured_rate(status, before) if status.observation.observed_at.monotonic_s - read_s >= RATE_S else None

    def is_falling(self, interval_s: float) -> bool:
        """Return whether a signal falls so fast that its threshold will be met before the usual shortest interval."""
        return self.next_poll_s(interval_s) < min(interval_s, SOONEST_S)

    @property
    def _previous(self) -> Evaluation | None:
        """The evaluation before the latest one."""
        return self._evaluated[-2][1] if len(self._evaluated) > 1 else None

    def now(self) -> Moment:
        """Return the current wall time and monotonic time."""
        return self._reader.now()

    async def _signal_layout(self) -> SignalLayout:
        """Return the layout; it is read again until no filesystem hangs."""
        if self._layout is not None:
            return self._layout
        found = await self._read_layout()
        if found.paths.nodefs is not None:
            self._layout = found
            self._layout_read_s = self.now().monotonic_s
        return found


def _is_urgent(threshold: Threshold) -> bool:
    """Return whether a threshold is hard and on memory or PIDs, which an eviction frees at once."""
    meaning = MEANINGS[threshold.signal]
    return threshold.hard and meaning.filesystem is None and meaning.resource is not None
