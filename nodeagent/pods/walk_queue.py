"""Queue of directory walks, which worker threads advance in turn."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLICE_S: Final = 0.02
"""Time slice of one walk in seconds, before the next walk continues."""

HANGS_S: Final = 1.5
"""Seconds without the end of a time slice after which a walk counts as hanging: a directory does not answer."""

MOST_HANGING: Final = 4
"""Maximum number of hanging walks for which another worker thread is started."""

LONGEST_S: Final = 120.0
"""Seconds after which a walk is abandoned."""


class Walk(Protocol):
    """A directory walk that advances in steps."""

    def advance(self, until_s: float) -> bool:
        """Continue by at least one step, until ``until_s`` of ``time.monotonic``; return whether the walk ended."""

    def close(self) -> None:
        """Release the resources of a walk before its end."""


@dataclasses.dataclass(slots=True, eq=False)
class QueuedWalk:
    """A walk and its state.

    Attributes:
        started_s: creation time of the walk, on the clock of ``time.monotonic``.
        turn_s: start of the current time slice; ``None`` between time slices.
        ended_s: time of the end, the error or the cancellation of the walk; ``None`` before its end.
        cancelled: whether the walk is to end before its next time slice.
        error: the exception that ended the walk.
    """

    walk: Walk
    started_s: float = dataclasses.field(default_factory=time.monotonic)
    turn_s: float | None = None
    ended_s: float | None = None
    cancelled: bool = False
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether the walk ended, with or without an error."""
        return self.ended_s is not None

    @property
    def hangs(self) -> bool:
        """Whether a step of the walk does not return."""
        turn_s = self.turn_s
        return not self.ended and turn_s is not None and time.monotonic() - turn_s > HANGS_S


class WalkQueue:
    """Queue that advances walks in turn, so that a large walk does not delay other walks.

    One worker thread serves all walks until the queue is empty. While a walk hangs, another worker thread is started,
    for at most ``MOST_HANGING`` hanging walks: a stat on a dead mount never returns. The threads do not delay the exit
    of the process.
    """

    def __init__(self) -> None:
        """Create a queue without walks and threads."""
        self._lock = threading.Lock()
        self._waiting: deque[QueuedWalk] = deque()
        self._in_turn: list[QueuedWalk] = []
        self._on_end: Callable[[], None] = lambda: None

    def add(self, walks: Iterable[Walk], on_end: Callable[[], None]) -> list[QueuedWalk]:
        """Start walks and return their states; ``on_end`` is called in a worker thread at the end of each walk.

        The callback of the last call applies to all walks.
        """
        added = [QueuedWalk(each) for each in walks]
        with self._lock:
            self._on_end = on_end
            self._waiting += added
            self._start_worker()
        return added

    def replace_hanging_workers(self) -> None:
        """Start another worker thread if hanging walks occupy all worker threads."""
        with self._lock:
            self._start_worker()

    def _start_worker(self) -> None:
        working = [each for each in self._in_turn if not each.hangs]
        if self._waiting and not working and len(self._in_turn) <= MOST_HANGING:
            first = self._take()
            if first is not None:
                threading.Thread(target=self._run, args=(first,), name="disk-walk", daemon=True).start()

    def _take(self) -> QueuedWalk | None:
        """Return the next walk, after ending cancelled and overdue walks; ``None`` if no walk is waiting."""
        while self._waiting:
            taken = self._waiting.popleft()
            if not (taken.cancelled or time.monotonic() - taken.started_s > LONGEST_S):
                taken.turn_s = time.monotonic()
                self._in_turn.append(taken)
                return taken
            self._end(taken)
        return None

    def _run(self, current: QueuedWalk) -> None:
        taken: QueuedWalk | None = current
        while taken is not None:
            ended = True
            try:
                ended = taken.walk.advance(time.monotonic() + SLICE_S)
            except Exception as error:  # noqa: BLE001 - a failed walk must not end the other walks
                taken.error = error
            with self._lock:
                taken.turn_s = None
                self._in_turn.remove(taken)
                if ended:
                    self._end(taken)
                else:
                    self._waiting.append(taken)
                is_needed = not any(not each.hangs for each in self._in_turn)
                taken = self._take() if is_needed else None

    def _end(self, walk: QueuedWalk) -> None:
        walk.walk.close()
        walk.ended_s = time.monotonic()
        self._on_end()
