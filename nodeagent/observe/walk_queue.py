"""Advances directory walks in turn, in worker threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLICE_S: Final = 0.02
"""Time after which the next walk has its turn."""

HANGS_S: Final = 1.5
"""Time after which a walk in one step counts as hanging, since a directory does not answer."""

MOST_HANGING: Final = 4
"""Maximum number of hanging walks for which another worker thread is started."""

LONGEST_S: Final = 120.0
"""Time after which a walk is abandoned."""


class Walk(Protocol):
    """A measurement in steps."""

    def advance(self, until_s: float) -> bool:
        """Continue until a time on the clock of ``time.monotonic``, by at least one step; return whether it ended."""

    def close(self) -> None:
        """Release the resources of a walk before its end."""


@dataclass(slots=True, eq=False)
class QueuedWalk:
    """A walk and its state.

    Attributes:
        started_s: on the clock of ``time.monotonic``.
        turn_s: begin of the current turn; ``None`` between turns.
        ended_s: time of the end, of an error, or of the cancellation; ``None`` before.
        error: the exception that ended the walk.
    """

    walk: Walk
    started_s: float = field(default_factory=time.monotonic)
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
    """Advances walks in turn, so that a large one does not delay the others.

    One worker thread serves all walks while there are any. Another one replaces it while a walk hangs, at most
    ``MOST_HANGING`` at a time: a stat on a dead mount never returns. The threads do not delay the end of the process.
    """

    def __init__(self) -> None:
        """Create a queue without walks and threads."""
        self._lock = threading.Lock()
        self._waiting: deque[QueuedWalk] = deque()
        self._in_turn: list[QueuedWalk] = []
        self._on_end: Callable[[], None] = lambda: None

    def add(self, walks: Iterable[Walk], on_end: Callable[[], None]) -> list[QueuedWalk]:
        """Start walks; ``on_end`` is called in a worker thread at the end of each walk, until the next call of this."""
        added = [QueuedWalk(each) for each in walks]
        with self._lock:
            self._on_end = on_end
            self._waiting += added
            self._start_worker()
        return added

    def replace_hanging_workers(self) -> None:
        """Start another worker if all are occupied by hanging walks."""
        with self._lock:
            self._start_worker()

    def _start_worker(self) -> None:
        working = [each for each in self._in_turn if not each.hangs]
        if self._waiting and not working and len(self._in_turn) <= MOST_HANGING:
            first = self._take()
            if first is not None:
                threading.Thread(target=self._run, args=(first,), name="disk-walk", daemon=True).start()

    def _take(self) -> QueuedWalk | None:
        """Return the walk whose turn it is, without cancelled ones."""
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
            except Exception as error:  # noqa: BLE001 - a failed walk does not end the others
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
