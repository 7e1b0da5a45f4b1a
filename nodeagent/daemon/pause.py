"""The operator's pause: nothing is collected or evicted until it ends. Graceful shutdown goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.pass_lock import Pause
from nodeagent.errors import StoreError, UsageError
from nodeagent.store.pause import PauseFile, StoredPause
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext

OPERATOR: Final = "operator"
LONGEST_S: Final = 7 * 86_400.0


def restore_pause(context: DaemonContext) -> None:
    """Take up a pause that was there before a restart. One that cannot be read counts as one without an end."""
    try:
        kept = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        context.pass_lock.hold(Pause(OPERATOR, str(error)))
        context.logger.error("pause_unreadable", error=str(error))  # noqa: TRY400 - no bug
        return
    if kept is None:
        return
    left_s = min(LONGEST_S, (kept.until - context.clock.now()).total_seconds())
    if left_s > 0:
        context.pass_lock.hold(Pause(OPERATOR, _words(kept), context.clock.monotonic_s() + left_s))
        context.logger.warning("paused", by=kept.by, why=kept.why, seconds=round(left_s), until=kept.until.isoformat())


async def pause(context: DaemonContext, *, by: str, is_root: bool, why: str, seconds: float) -> None:
    """Pause for a while; this replaces the pause in force, which only root may do to that of another user.

    Raises:
        UsageError: another user's pause is in force, and this one is not by root.
        StoreError: it cannot be kept over a restart; there is no pause.
    """
    async with context.pausing:
        if not is_root:
            await asyncio.to_thread(_refuse_for_others, context, by)
        kept = StoredPause(by, why, context.clock.now() + timedelta(seconds=seconds))
        await asyncio.to_thread(PauseFile(context.settings.state_directory).write, kept)
        context.pass_lock.hold(Pause(OPERATOR, _words(kept), context.clock.monotonic_s() + seconds))
    context.logger.warning("paused", by=by, why=why, seconds=round(seconds), until=kept.until.isoformat())


async def resume(context: DaemonContext, *, by: str, is_root: bool) -> bool:
    """End the pause, which only root may do to that of another user; return whether there was one.

    Raises:
        UsageError: another user's pause is in force, and this caller is not root.
        StoreError: the pause is lifted, and would be back after a restart.
    """
    async with context.pausing:
        if not is_root:
            await asyncio.to_thread(_refuse_for_others, context, by)
        there = context.pass_lock.lift(OPERATOR)
        if there:
            context.logger.info("resumed", by=by)
            for wake in context.wake.values():
                wake.set()
        await asyncio.to_thread(PauseFile(context.settings.state_directory).clear)
        return there


def _refuse_for_others(context: DaemonContext, by: str) -> None:
    """Refuse to touch a pause that ``by`` did not place: ending or shortening it removes what its author keeps."""
    try:
        kept = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        raise UsageError(f"cannot change the pause: its author is unknown: {error}; only root may do that") from error
    if kept is not None and kept.until > context.clock.now():
        if kept.by != by:
            until = format_time(kept.until)
            raise UsageError(f"cannot change the pause: placed by {kept.by} until {until}; only root may do that")
    elif context.pass_lock.pause_of(OPERATOR) is not None:
        raise UsageError("cannot change the pause: its author is unknown; only root may do that")


def _words(kept: StoredPause) -> str:
    return f"{kept.why or 'no reason given'} (by {kept.by}, until {kept.until:%Y-%m-%dT%H:%M:%SZ})"
