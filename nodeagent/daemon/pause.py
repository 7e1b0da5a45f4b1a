"""Pause by the operator: no collection and no eviction until it ends. Graceful shutdown is not affected."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.pass_lock import Pause, PausedBy
from nodeagent.errors import StoreError, UsageError
from nodeagent.store.pause import PauseFile, StoredPause
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext

LONGEST_S: Final = 7 * 86_400.0


def restore_pause(context: DaemonContext) -> None:
    """Restore the pause of an earlier process. An unreadable pause counts as one without an end."""
    try:
        stored = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, str(error)))
        context.logger.error("pause_unreadable", error=str(error))  # noqa: TRY400 - no bug
        return
    if stored is None:
        return
    remaining_s = min(LONGEST_S, (stored.until - context.clock.now()).total_seconds())
    if remaining_s > 0:
        _add(context, stored, remaining_s)


async def pause(context: DaemonContext, *, by: str, is_root: bool, why: str, seconds: float) -> None:
    """Pause all passes for a while; this replaces the pause in force, if the caller placed that one or is root.

    Raises:
        UsageError: another user's pause is in force, and the caller is not root.
        StoreError: the pause cannot be written for the next process; none was started.
    """
    async with context.pausing:
        if not is_root:
            await asyncio.to_thread(_refuse_for_others, context, by)
        stored = StoredPause(by, why, context.clock.now() + timedelta(seconds=seconds))
        await asyncio.to_thread(PauseFile(context.settings.state_directory).write, stored)
        _add(context, stored, seconds)


async def resume(context: DaemonContext, *, by: str, is_root: bool) -> bool:
    """End the pause, if the caller placed it or is root; return whether one was in force.

    Raises:
        UsageError: another user's pause is in force, and the caller is not root.
        StoreError: the stored pause cannot be removed: passes run again, and the next process would pause them.
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
    context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, _reason(stored), until_s))
    context.logger.warning(
        "paused", by=stored.by, why=stored.why, seconds=round(seconds), until=stored.until.isoformat()
    )


def _refuse_for_others(context: DaemonContext, by: str) -> None:
    """Reject a change, requested by ``by``, of a pause that another user placed."""
    try:
        stored = PauseFile(context.settings.state_directory).read()
    except StoreError as error:
        raise UsageError(f"cannot change the pause: its author is unknown: {error}; requires root") from error
    if stored is not None and stored.until > context.clock.now():
        if stored.by != by:
            until = format_time(stored.until)
            raise UsageError(f"cannot change the pause: placed by {stored.by} until {until}; requires root")
    elif context.pass_lock.pause_of(PausedBy.OPERATOR) is not None:
        raise UsageError("cannot change the pause: its author is unknown; requires root")


def _reason(stored: StoredPause) -> str:
    return f"{stored.why or 'no reason given'} (by {stored.by}, until {stored.until:%Y-%m-%dT%H:%M:%SZ})"
