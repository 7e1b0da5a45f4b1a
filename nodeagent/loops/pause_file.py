"""Pause of the agent by an operator, stored so that the pause survives a restart."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import read_file, replace_file
from nodeagent.parsing import parse_json
from nodeagent.record import Record
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.store.clock_record import ClockReading

FILE_NAME: Final = "pause.json"
LONGEST_PAUSE_S: Final = 7 * 86_400.0
_SCHEMA: Final = SchemaId.PAUSE_FILE.value


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
    until: datetime
    seconds: float | None = None
    boot_id: str = ""
    placed_s: float | None = None

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


class PauseFile:
    """File with the pause of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Store the pause in ``directory``, which is created with the first pause."""
        self._path = directory / FILE_NAME

    def read(self) -> StoredPause | None:
        """Return the stored pause, even if it has expired; ``None`` if no pause is stored.

        Raises:
            StoreError: the file cannot be read or is not a valid pause file.
        """
        try:
            return _decode(read_file(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"cannot read pause {self._path}: {error}; 'nodeagent resume' ends the pause") from error

    def in_force(self, at: ClockReading) -> str:
        """Return the pause in force as text for display, empty without a pause; an unreadable pause is in force."""
        try:
            stored = self.read()
        except StoreError as error:
            return f"paused: {error}"
        return f"paused: {stored.text}" if stored is not None and stored.left_s(at) > 0 else ""

    def write(self, pause: StoredPause) -> None:
        """Store a pause, replacing the stored pause.

        Raises:
            StoreError: the file cannot be written.
        """
        document: dict[str, object] = {
            "schema": _SCHEMA,
            "by": pause.by,
            "why": pause.why,
            "until": pause.until.isoformat(),
        }
        document |= {"seconds": pause.seconds, "boot_id": pause.boot_id, "placed_s": pause.placed_s}
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write pause {self._path}: {error.strerror or error}") from error

    def clear(self) -> None:
        """Remove the stored pause.

        Raises:
            StoreError: the file cannot be removed.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove pause {self._path}: {error.strerror or error}") from error


def _decode(text: str) -> StoredPause:
    document = parse_json(text)
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise ValueError(f"not a document of schema {_SCHEMA}")
    until = datetime.fromisoformat(document["until"])
    if until.tzinfo is None:
        raise ValueError("until has no time zone")
    boot_id = document.get("boot_id", "")  # seconds, boot_id and placed_s are absent in files of version 0.1
    seconds, placed_s = (_seconds(document.get(name)) for name in ("seconds", "placed_s"))
    if not isinstance(boot_id, str):
        raise TypeError("boot_id is not a text")
    return StoredPause(str(document["by"]), str(document["why"]), until, seconds, boot_id, placed_s)


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= float(str(value)) < math.inf:
        raise ValueError(f"not a number of seconds: {str(value)[:80]}")
    return float(str(value))
