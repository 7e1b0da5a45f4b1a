"""Reload grace period: the wait between a switch from dry run to active and the first destructive pass.

During the wait every agent is composed as a dry run, so that no loop can remove an item or evict a pod by mistake.
The mode is stored in the state directory, since a restart can be a switch as well.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.record import Record
from nodeagent.schemas import SchemaId
from nodeagent.store.json_file import JsonFile

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.loops.passes import PassLock
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock

FILE_NAME: Final = "mode.json"


class Mode(Record):
    """Mode of the last run of the daemon."""

    dry_run: bool


def mode_file(directory: Path) -> JsonFile[Mode]:
    """Return the file with the last mode of the daemon in ``directory``, which is created with the first write."""
    return JsonFile(directory / FILE_NAME, SchemaId.MODE_FILE, Mode, name="mode")


BY_RELOAD = "dry_run was true before the reload"
BY_RESTART = "dry_run was true before the restart"


def grace_needed_s(before: Settings, after: Settings, *, pending: bool) -> float:
    """Return the required wait in seconds before destructive passes under new settings; 0 without a wait.

    Only a switch from dry run to active requires a wait. A reload during the wait restarts the wait, since the effect
    may change.

    Args:
        before: settings that are replaced.
        after: new settings.
        pending: whether passes already wait.
    """
    return 0.0 if after.dry_run or not (before.dry_run or pending) else after.reload_grace_s


class ReloadGrace:
    """Reload grace period of one daemon.

    A pause stops the period, which restarts at the end of the pause, so that an operator who pauses to prevent removals
    has the whole period after ``resume``. The period also restarts when the effect has been logged.

    Attributes:
        period_s: length of the period in seconds; 0 while passes do not wait.
        announced: whether the effect, known or unknown, was logged since the wait began; the wait ends only afterwards.
        reason: cause of the wait; empty while passes do not wait.
    """

    def __init__(self, clock: Clock, pass_lock: PassLock) -> None:
        self._clock = clock
        self._pass_lock = pass_lock
        self._began_s: float | None = None
        self.period_s = 0.0
        self.announced = False
        self.reason = ""

    @property
    def pending(self) -> bool:
        """Whether destructive passes wait; true until the supervisor calls ``end``."""
        return self._began_s is not None

    def begin(self, period_s: float, reason: str) -> None:
        """Start or restart the wait; a period of 0 ends the wait."""
        if not period_s:
            self.end()
            return
        self._began_s, self.period_s = self._clock.monotonic_s(), period_s
        self.announced, self.reason = False, reason

    def announce(self) -> None:
        """Restart the period after its effect was logged."""
        if self._began_s is not None:
            self._began_s, self.announced = self._clock.monotonic_s(), True

    def end(self) -> bool:
        """End the wait; return whether passes waited."""
        waited = self.pending
        self._began_s, self.period_s, self.announced, self.reason = None, 0.0, False, ""
        return waited

    def deadline_s(self) -> float | None:
        """Return the monotonic seconds at which the period ends; ``None`` unless the period runs."""
        if self._began_s is None or not self.announced or self._pass_lock.pause() is not None:
            return None
        return max(self._began_s, self._pass_lock.resumed_s) + self.period_s

    def left_s(self) -> float:
        """Return the seconds until the first destructive pass: the whole period before its start, 0 after its end."""
        deadline_s = self.deadline_s()
        return self.period_s if deadline_s is None else max(0.0, deadline_s - self._clock.monotonic_s())

    def until(self) -> datetime | None:
        """Return the wall time at which the period ends; ``None`` unless the period runs."""
        return None if self.deadline_s() is None else self._clock.now() + timedelta(seconds=self.left_s())

    def over(self) -> bool:
        """Return whether the whole period has passed."""
        return self.deadline_s() is not None and not self.left_s()


def restore_grace(grace: ReloadGrace, settings: Settings) -> None:
    """Start the wait if the mode was dry run before the restart and is active now.

    A mode that cannot be read counts as dry run. A missing stored mode, such as at the first start, is no switch.
    """
    try:
        before, reason = mode_file(settings.state_directory).read(), BY_RESTART
    except StoreError as error:
        before, reason = Mode(dry_run=True), str(error)
    if before is not None and before.dry_run and not settings.dry_run:
        grace.begin(settings.reload_grace_s, reason)


class StoredMode:
    """The mode, dry run or active, in the state directory, where the next process reads it."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._written: tuple[Path, bool] | None = None

    async def write(self, state_directory: Path, *, dry_run: bool) -> None:
        """Write the mode if the mode or the directory changed; a failure is logged and retried by the next call."""
        if self._written == (state_directory, dry_run):
            return
        try:
            await asyncio.to_thread(mode_file(state_directory).write, Mode(dry_run))
        except StoreError as error:
            self._logger.warning("mode_write_failed", error=str(error))
            return
        self._written = state_directory, dry_run
