"""Holds of operators, in a JSON file that is replaced atomically.

Holds are not in the database, since a corrupt database is quarantined and replaced by an empty database. If the file of
holds cannot be read, no image is removed until an operator repairs the file.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError, UsageError
from nodeagent.files import read_file, replace_file
from nodeagent.gc.plan.image_protection import length_from_wildcard
from nodeagent.gc.plan.keep_rules import has_ended
from nodeagent.model import Hold
from nodeagent.parsing import parse_json
from nodeagent.record import Record, replace
from nodeagent.schemas import SchemaId
from nodeagent.text import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nodeagent.model import ClockTrust

FILE_NAME: Final = "holds.json"
MAX_HOLDS_OF_USER: Final = 100
"""Maximum holds of one user other than root: every pass reads all holds."""
MAX_PATTERN_CHARACTERS: Final = 1024
"""Maximum length of all patterns from their first wildcard on, for a hold of a user other than root.

In the worst case, with a name chosen for the patterns, each image takes 3 ms per name. ``*/team/*`` has 8 characters.
"""
_SCHEMA: Final = SchemaId.HOLDS_FILE.value
_TEXTS: Final = ("id", "image", "why", "by")
_TIMES: Final = ("placed_at", "until")


class _Contents(Record):
    """Holds and the highest id ever assigned; ids are never reused, since scripts may contain ids of former holds."""

    holds: tuple[Hold, ...]
    last_id: int


class HoldFile:
    """File of the holds of this node. Its methods block and may be called from any thread or process."""

    def __init__(self, directory: Path) -> None:
        """Store the holds in ``directory``, which is created with the first hold."""
        self._path = directory / FILE_NAME

    def read(self) -> tuple[Hold, ...]:
        """Return all holds, expired ones included.

        Raises:
            StoreError: the file cannot be read or is not a document of holds.
        """
        return self._read().holds

    def _read(self) -> _Contents:
        try:
            text = read_file(self._path)
        except FileNotFoundError:
            return _Contents((), 0)
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"cannot read holds {self._path}: {error}") from error
        try:
            return _decode(text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"cannot read holds {self._path}: {error}; repair the file, or remove it to remove all holds"
            ) from error

    def add(self, hold: Hold, clock: ClockTrust, *, limited: bool = False) -> Hold:
        """Add a hold and return it with its id, a number never used before; expired holds are dropped.

        Args:
            hold: the hold, placed at the current time.
            clock: trust in the wall clock at that time.
            limited: whether the number of holds of a user and the length of all patterns are limited.

        Raises:
            StoreError: the file cannot be read or written; the holds are unchanged.
            UsageError: a limit is reached; the file is unchanged.
        """

        def change(file: _Contents) -> _Contents:
            number = file.last_id + 1
            kept = tuple(each for each in file.holds if not has_ended(each, clock, hold.placed_at))
            if limited and sum(each.by == hold.by for each in kept) >= MAX_HOLDS_OF_USER:
                raise UsageError(
                    f"{hold.by} has {MAX_HOLDS_OF_USER} holds, the maximum of a user other than root; remove one "
                    "first: nodeagent hold remove ID"
                )
            length = length_from_wildcard(hold.image)
            if limited and length + sum(length_from_wildcard(each.image) for each in kept) > MAX_PATTERN_CHARACTERS:
                raise UsageError(
                    f"the patterns of all holds would exceed {MAX_PATTERN_CHARACTERS} characters, counted from their "
                    "first *, ? or [: hold an image by its name, or remove a hold first"
                )
            return _Contents((*kept, replace(hold, id=str(number))), number)

        return self._change(change)[-1]

    def remove(self, hold_id: str, *, placed_by: str | None = None) -> Hold | None:
        """Remove a hold and return it; ``None`` if no hold has that id or if it is not of the user ``placed_by``.

        Raises:
            StoreError: the file cannot be read or written; the holds are unchanged.
        """

        def matches(hold: Hold) -> bool:
            return hold.id == hold_id and placed_by in (None, hold.by)

        if not any(map(matches, self.read())):
            return None
        removed: list[Hold] = []

        def change(file: _Contents) -> _Contents:
            removed.extend(filter(matches, file.holds))
            return _Contents(tuple(each for each in file.holds if not matches(each)), file.last_id)

        self._change(change)
        return removed[0] if removed else None

    def _change(self, change: Callable[[_Contents], _Contents]) -> tuple[Hold, ...]:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with _locked(self._path.with_suffix(".lock")):
                changed = change(self._read())
                replace_file(self._path, _encode(changed))
        except OSError as error:
            raise StoreError(f"cannot write holds {self._path}: {error.strerror or error}") from error
        return changed.holds


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _encode(file: _Contents) -> str:
    rows = [
        {name: getattr(each, name) for name in _TEXTS}
        | {name: getattr(each, name).isoformat() for name in _TIMES}
        | {"boot_id": each.boot_id, "placed_s": each.placed_s}
        for each in file.holds
    ]
    return to_json({"schema": _SCHEMA, "last_id": file.last_id, "holds": rows}, indent=2) + "\n"


def _decode(text: str) -> _Contents:
    document = parse_json(text)
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise ValueError(f"not a document of schema {_SCHEMA}")
    holds = tuple(_hold(row) for row in document["holds"])
    last_id = document.get("last_id", 0)  # absent in files of version 0.1
    if type(last_id) is not int or last_id < 0:
        raise ValueError(f"last_id is not a number: {str(last_id)[:80]}")
    return _Contents(holds, max(last_id, *(int(each.id) for each in holds if each.id.isdecimal()), 0))


def _hold(row: object) -> Hold:
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in (*_TEXTS, *_TIMES)):
        raise ValueError(f"not a hold: {str(row)[:80]}")
    times = [datetime.fromisoformat(row[name]) for name in _TIMES]
    if any(moment.tzinfo is None for moment in times):
        raise ValueError(f"hold {row['id']}: a time has no time zone")
    boot_id, placed_s = row.get("boot_id", ""), row.get("placed_s")  # absent in files of version 0.1
    if not isinstance(boot_id, str) or not (placed_s is None or type(placed_s) in (int, float)):
        raise ValueError(f"hold {row['id']}: boot_id or placed_s is of the wrong type")
    placed_at, until = times
    return Hold(row["id"], row["image"], row["why"], row["by"], placed_at, until, boot_id, placed_s)
