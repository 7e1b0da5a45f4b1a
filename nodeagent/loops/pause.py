"""Pause by the operator: no garbage collection and no eviction. Graceful shutdown is not affected."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError, UsageError
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.loops.passes import Pause, PausedBy
from nodeagent.loops.pause_file import PauseFile, StoredPause
from nodeagent.record import replace
from nodeagent.store.clock_record import ClockRecord, advance, trust
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext

POLL_S: Final = 10.0
"""Interval in seconds at which the end of a pause is checked."""


def restore_pause(context: DaemonContext) -> StoredPause | None:
    """Restore the pause of an earlier process. An unreadable pause never expires.

    Within the boot of its start, the remaining time is exact. After a reboot the pause lasts for its whole duration
    from the boot, unless ``PauseTask`` ends it earlier: a wrong wall clock must not end the pause early or keep it
    forever.

    Returns:
        The pause of an earlier boot, for ``PauseTask``; otherwise ``None``.
    """
    try:
        stored = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, str(error)))
        context.logger.error("pause_unreadable", error=str(error))  # noqa: TRY400 - no bug
        return None
    if stored is None:
        return None
    at = read_clocks(context.clock)
    if (left_s := stored.left_s(at)) <= 0:
        return None
    _add(context, stored, left_s)
    return stored if stored.left_in_boot_s(at) is None else None


class PauseTask:
    """Ends a pause of an earlier boot by the wall clock, and removes the stored pause once it has ended."""

    def __init__(self, context: DaemonContext, earlier: StoredPause | None = None) -> None:
        """Create the task; ``earlier`` is the pause of an earlier boot, as returned by ``restore_pause``."""
        self._context = context
        self._earlier = earlier
        self._clocks: ClockRecord | None = None
        self._was_paused = False

    async def run(self, stop: asyncio.Event) -> None:
        """Check the pause until ``stop`` is set."""
        while not stop.is_set():
            await self.check()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await stop.wait()

    async def check(self) -> None:
        """End a pause of an earlier boot that has expired by a trusted wall clock; remove an ended pause from disk."""
        if self._earlier is not None:
            at = read_clocks(self._context.clock)
            self._clocks = advance(self._clocks, at)
            if (now := trust(self._clocks, at).expiry_now) is not None:
                await self._limit((self._earlier.until - now).total_seconds())
        is_paused = self._context.pass_lock.pause_of(PausedBy.OPERATOR) is not None
        if self._was_paused and not is_paused:
            await self._clear()
        self._was_paused = is_paused

    async def _limit(self, left_s: float) -> None:
        """Shorten the pause of an earlier boot to ``left_s`` seconds, unless another pause replaced it."""
        context = self._context
        async with context.pausing:
            earlier, self._earlier = self._earlier, None
            in_force = context.pass_lock.pause_of(PausedBy.OPERATOR)
            if earlier is None or in_force is None or in_force.reason != earlier.text:
                return
            until_s = context.clock.monotonic_s() + max(0.0, left_s)
            if in_force.until_s is not None and until_s < in_force.until_s:
                context.pass_lock.add_pause(replace(in_force, until_s=until_s))

    async def _clear(self) -> None:
        """Remove the stored pause after its end; after a failed removal a reboot may restore the pause."""
        context = self._context
        async with context.pausing:
            if context.pass_lock.pause_of(PausedBy.OPERATOR) is None:
                with suppress(StoreError):
                    await asyncio.to_thread(PauseFile(context.settings.state_directory).clear)


async def pause(context: DaemonContext, *, by: str, is_root: bool, why: str, seconds: float) -> None:
    """Pause all passes for ``seconds``; replace the pause in force if the caller placed that pause or is root.

    Raises:
        UsageError: another user's pause is in force, and the caller is not root.
        StoreError: the pause cannot be written to the state directory; no pause was started.
    """
    async with context.pausing:
        if not is_root:
            await asyncio.to_thread(_refuse_for_others, context, by)
        at = read_clocks(context.clock)
        stored = StoredPause(by, why, at.wall + timedelta(seconds=seconds), seconds, at.boot_id, at.boottime_s)
        await asyncio.to_thread(PauseFile(context.settings.state_directory).write, stored)
        _add(context, stored, seconds)


async def resume(context: DaemonContext, *, by: str, is_root: bool) -> bool:
    """End the pause, if the caller placed it or is root; return whether a pause was in force.

    Raises:
        UsageError: another user's pause is in force, and the caller is not root.
        StoreError: the stored pause cannot be removed; passes run again, but a restart of the agent would pause them.
    """
    async with context.pausing:
        if not is_root:
            await asyncio.to_thread(_refuse_for_others, context, by)
        in_force = context.pass_lock.end_pause(PausedBy.OPERATOR)
        if in_force:
            context.logger.info("resumed", by=by)
            for wake in context.wake.values():
                wake.set()
        await asyncio.to_thread(PauseFile(context.settings.state_directory).clear)
        return in_force


def _add(context: DaemonContext, stored: StoredPause, seconds: float) -> None:
    until_s = context.clock.monotonic_s() + seconds
    context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, stored.text, until_s))
    context.logger.warning(
        "paused", by=stored.by, why=stored.why, seconds=round(seconds), until=stored.until.isoformat()
    )


def _refuse_for_others(context: DaemonContext, by: str) -> None:
    """Raise a ``UsageError`` if a user other than ``by``, or an unknown user, placed the pause in force."""
    try:
        stored = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        raise UsageError(f"cannot change the pause: its author is unknown: {error}; requires root") from error
    if context.pass_lock.pause_of(PausedBy.OPERATOR) is None:
        return
    if stored is None:
        raise UsageError("cannot change the pause: its author is unknown; requires root")
    if stored.by != by:
        until = format_time(stored.until)
        raise UsageError(f"cannot change the pause: placed by {stored.by} until {until}; requires root")
