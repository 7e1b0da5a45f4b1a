"""The operator's pause: nothing is collected or evicted until it ends. Graceful shutdown goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from nodeagent.daemon.turns import Pause
from nodeagent.errors import StoreError
from nodeagent.store.pause import KeptPause, PauseFile

if TYPE_CHECKING:
    from nodeagent.daemon.station import Station

OPERATOR: Final = "operator"
LONGEST_S: Final = 7 * 86_400.0


def restore_pause(station: Station) -> None:
    """Take up a pause that was there before a restart. One that cannot be read counts as one without an end."""
    try:
        kept = PauseFile(station.settings.state_directory).read()
    except StoreError as error:
        station.turns.hold(Pause(OPERATOR, str(error)))
        station.logger.error("pause_unreadable", error=str(error))  # noqa: TRY400 - no bug
        return
    if kept is None:
        return
    left_s = min(LONGEST_S, (kept.until - station.clock.now()).total_seconds())
    if left_s > 0:
        station.turns.hold(Pause(OPERATOR, _words(kept), station.clock.monotonic_s() + left_s))
        station.logger.warning("paused", by=kept.by, why=kept.why, seconds=round(left_s), until=kept.until.isoformat())


async def pause(station: Station, *, by: str, why: str, seconds: float) -> None:
    """Pause for a while, whatever pause there was before.

    Raises:
        StoreError: it cannot be kept over a restart; there is no pause.
    """
    async with station.pausing:
        kept = KeptPause(by, why, station.clock.now() + timedelta(seconds=seconds))
        await asyncio.to_thread(PauseFile(station.settings.state_directory).write, kept)
        station.turns.hold(Pause(OPERATOR, _words(kept), station.clock.monotonic_s() + seconds))
    station.logger.warning("paused", by=by, why=why, seconds=round(seconds), until=kept.until.isoformat())


async def resume(station: Station, *, by: str) -> bool:
    """End the pause; return whether there was one.

    Raises:
        StoreError: the pause is lifted, and would be back after a restart.
    """
    async with station.pausing:
        there = station.turns.lift(OPERATOR)
        if there:
            station.logger.info("resumed", by=by)
            for wake in station.wake.values():
                wake.set()
        await asyncio.to_thread(PauseFile(station.settings.state_directory).clear)
        return there


def _words(kept: KeptPause) -> str:
    return f"{kept.why or 'no reason given'} (by {kept.by}, until {kept.until:%Y-%m-%dT%H:%M:%SZ})"
