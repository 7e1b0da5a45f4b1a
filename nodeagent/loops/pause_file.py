"""Pause of the agent by an operator, stored so that the pause survives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from nodeagent.errors import StoreError
from nodeagent.record import Record, Time
from nodeagent.schemas import SchemaId
from nodeagent.store.json_file import JsonFile

if TYPE_CHECKING:
    from nodeagent.store.clock_record import ClockReading

FILE_NAME: Final = "pause.json"
LONGEST_PAUSE_S: Final = 7 * 86_400.0
Seconds = Annotated[float, Meta(ge=0)]


class StoredPause(Record):
    """Stored pause of garbage collection and eviction.

    Attributes:
        by: user who paused the agent.
        why: reason given by the user.
        until: end of the pause, aware UTC.
        seconds: duration of the pause in seconds; ``None`` if unknown, as in files of version 0.1.
        boot_id: id of the boot in which the pause started; empty if unknown.
        placed_s: CLOCK_BOOTTIME in seconds at the start of the pause; ``None`` if unknown.
    """

    by: str
    why: str
    until: Time
    seconds: Seconds | None = None
    boot_id: str = ""
    placed_s: Seconds | None = None

    @property
    def text(self) -> str:
        """Reason, user and end of the pause in one line."""
        return f"{self.why or 'no reason given'} (by {self.by}, until {self.until:%Y-%m-%dT%H:%M:%SZ})"

    def left_in_boot_s(self, at: ClockReading) -> float | None:
        """Return the remaining seconds of a pause that started in the current boot, 0 or less after its end.

        ``None`` if the pause started in another boot or its start is unknown: the wall clock then determines the end.
        """
        same_boot = bool(self.boot_id) and self.boot_id == at.boot_id
        if not same_boot or self.placed_s is None or self.seconds is None or self.placed_s > at.boottime_s:
            return None
        return self.placed_s + self.seconds - at.boottime_s

    def left_s(self, at: ClockReading) -> float:
        """Return the remaining seconds of the pause, 0 or less after its end.

        A pause that started in another boot lasts for its whole duration from the boot, since a wrong wall clock must
        not end it early or keep it forever.
        """
        left_s = self.left_in_boot_s(at)
        return min(LONGEST_PAUSE_S, self.seconds or LONGEST_PAUSE_S) - at.boottime_s if left_s is None else left_s


class PauseFile(JsonFile[StoredPause]):
    """File with the pause of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Store the pause in ``directory``, which is created with the first pause."""
        hint = "'nodeagent resume' ends the pause"
        super().__init__(directory / FILE_NAME, SchemaId.PAUSE_FILE, StoredPause, name="pause", hint=hint)

    def in_force(self, at: ClockReading) -> str:
        """Return the pause in force as text for display, empty without a pause; an unreadable pause is in force."""
        try:
            stored = self.read()
        except StoreError as error:
            return f"paused: {error}"
        return f"paused: {stored.text}" if stored is not None and stored.left_s(at) > 0 else ""

    def clear(self) -> None:
        """Remove the stored pause.

        Raises:
            StoreError: the file cannot be removed.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove pause {self.path}: {error.strerror or error}") from error
