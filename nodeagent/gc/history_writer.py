"""Background writer of the history; a pass waits only a bounded time for each write."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodeagent.clock import Clock
    from nodeagent.store.history import History, PastAction, PastPass
    from nodeagent.store.pass_tables import Retention

WRITTEN_WITHIN_S: Final = 5.0
"""Maximum wait of a pass for a history write; a slow disk does not delay removals for longer."""
_MAX_QUEUED: Final = 500


class HistoryWriter:
    """Writer of the passes of one agent to the history. The methods never raise an error of the history."""

    def __init__(
        self, history: History, retention: Retention, clock: Clock, clock_trusted: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare the writer.

        Args:
            history: the history of the node.
            retention: limits on the age and number of passes.
            clock: measures the duration of a write.
            clock_trusted: whether ages by the wall clock are valid; otherwise no pass is deleted by age.
        """
        self._history = history
        self._retention = retention
        self._clock = clock
        self._clock_trusted = clock_trusted
        self._queue: deque[tuple[Callable[[], Callable[[], None]], asyncio.Future[None]]] = deque()
        self._outcomes: dict[str, tuple[dict[int, PastAction], float]] = {}
        self._worker: asyncio.Future[None] | None = None
        self._writing_since_s: float | None = None
        self._bug = ""

    @property
    def problem(self) -> str:
        """Reason that passes cannot be written to the history; empty if they can."""
        if self._is_stuck():
            return f"cannot write history: a write has not ended after {WRITTEN_WITHIN_S:g} s; passes continue"
        return self._bug or self._history.problem

    async def begin(self, past: PastPass, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Write and sync a pass with its planned removals; wait for the write, at most ``within_s`` seconds.

        A write that takes longer is completed in the background.
        """
        await self._wait(self._submit(past.id, lambda: lambda: self._history.begin(past)), within_s)

    async def extend(self, pass_id: str, actions: Sequence[PastAction]) -> None:
        """Write the planned removals of a further round as :meth:`begin` does."""
        await self._wait(self._submit(pass_id, lambda: lambda: self._history.extend(pass_id, actions)))

    def update(self, pass_id: str, position: int, action: PastAction, duration_s: float) -> None:
        """Queue the outcome of a removal without a wait; outcomes queued during a write share the next write."""
        queued = pass_id in self._outcomes
        outcomes, _ = self._outcomes.get(pass_id, ({}, 0.0))
        outcomes[position] = action
        self._outcomes[pass_id] = outcomes, duration_s
        if queued:
            return

        def prepare() -> Callable[[], None]:
            outcomes, duration_s = self._outcomes.pop(pass_id)
            return lambda: self._history.update(pass_id, outcomes, duration_s)

        self._submit(pass_id, prepare)

    async def finish(self, past: PastPass, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Write a finished pass and prune the history; wait as in :meth:`begin`."""
        trusted = self._clock_trusted()
        work = self._submit(past.id, lambda: lambda: self._history.add(past, self._retention, clock_trusted=trusted))
        await self._wait(work, within_s)

    def interrupt(self, pass_id: str, cause: str) -> None:
        """Record an unfinished pass as interrupted, without a wait; see :meth:`History.interrupt`."""
        trusted = self._clock_trusted()
        self._submit(
            pass_id,
            lambda: lambda: self._history.interrupt(pass_id, cause, self._retention, clock_trusted=trusted),
        )

    def _is_stuck(self) -> bool:
        since_s = self._writing_since_s
        return since_s is not None and self._clock.monotonic_s() - since_s > WRITTEN_WITHIN_S

    async def _wait(self, work: asyncio.Future[None], within_s: float = WRITTEN_WITHIN_S) -> None:
        if not self._is_stuck():
            await asyncio.wait({work}, timeout=within_s)

    def _submit(self, pass_id: str, prepare: Callable[[], Callable[[], None]]) -> asyncio.Future[None]:
        """Queue a write; ``prepare`` is called at the start of the write and returns the function that writes."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._queue) >= _MAX_QUEUED:
            self._history.drop(f"pass {pass_id}", "too many writes wait for the disk")
            self._outcomes.pop(pass_id, None)
            done.set_result(None)
            return done
        self._queue.append((prepare, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return done

    async def _work(self) -> None:
        while self._queue:
            prepare, done = self._queue.popleft()
            self._writing_since_s = self._clock.monotonic_s()
            try:
                await asyncio.to_thread(prepare())
                self._bug = ""
            except Exception as error:  # noqa: BLE001 - an unexpected error in the history must not fail a pass
                self._bug = f"cannot write history: {error!r}; this is a bug"
            finally:
                self._writing_since_s = None
                if not done.done():
                    done.set_result(None)
