"""Holds of operators, in a JSON file that is replaced atomically.

Holds are not in the database, since a corrupt database is quarantined and replaced by an empty database. If the file of
holds cannot be read, no image is removed until an operator repairs the file.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from nodeagent.errors import StoreError, UsageError
from nodeagent.gc.plan.image_protection import has_ended, length_from_wildcard
from nodeagent.model.node import Hold  # noqa: TC001 - the fields of a stored record are evaluated
from nodeagent.record import Record, replace
from nodeagent.schemas import SchemaId
from nodeagent.store.json_file import JsonFile

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust

FILE_NAME: Final = "holds.json"
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
MAX_HOLDS_OF_USER: Final = 100
"""Maximum holds of one user other than root: every pass reads all holds."""
MAX_PATTERN_CHARACTERS: Final = 1024
"""Maximum length of all patterns from their first wildcard on, for a hold of a user other than root.

In the worst case, with a name chosen for the patterns, each image takes 3 ms per name. ``*/team/*`` has 8 characters.
"""


class _Contents(Record):
    """Holds and the highest id ever assigned; ids are never reused, since scripts may contain ids of former holds."""

    holds: tuple[Hold, ...]
    last_id: Annotated[int, Meta(ge=0)] = 0


class HoldFile:
    """File of the holds of this node. Its methods block and may be called from any thread or process."""

    def __init__(self, directory: Path) -> None:
        """Store the holds in ``directory``, which is created with the first hold."""
        hint = "repair the file, or remove it to remove all holds"
        self._file = JsonFile(directory / FILE_NAME, SchemaId.HOLDS_FILE, _Contents, name="holds", hint=hint, indent=2)

    def read(self) -> tuple[Hold, ...]:
        """Return all holds, expired ones included.

        Raises:
            StoreError: the file cannot be read or is not a document of holds.
        """
        return self._read().holds

    def _read(self) -> _Contents:
        found = self._file.read() or _Contents(())
        numbers = (int(each.id) for each in found.holds if _NUMBER.fullmatch(each.id))
        return replace(found, last_id=max(found.last_id, *numbers, 0))  # version 0.1 stored no last id

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
            self._file.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            with _locked(self._file.path.with_suffix(".lock")):
                changed = change(self._read())
                self._file.write(changed)
        except OSError as error:
            raise StoreError(f"cannot write holds {self._file.path}: {error.strerror or error}") from error
        return changed.holds


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
