"""The operator's pause, in a file, so that a restart of the agent does not end it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "pause.json"
_SCHEMA: Final = "nodeagent/pause/v1"


@dataclass(frozen=True, slots=True)
class StoredPause:
    """A pause.

    Attributes:
        by: who asked for it.
        why: the reason given.
        until: when it ends by itself, aware UTC.
    """

    by: str
    why: str
    until: datetime


class PauseFile:
    """The pause of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Keep it under ``directory``; nothing is made there before the first pause."""
        self._path = directory / FILE_NAME

    def read(self) -> StoredPause | None:
        """Return the pause, run out or not; ``None`` if there is none.

        Raises:
            StoreError: there is a file, and it cannot be read or is not what this agent writes.
        """
        try:
            return _decode(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._path}: cannot be understood: {error}; 'nodeagent resume' ends the pause it stood for"
            ) from error

    def write(self, pause: StoredPause) -> None:
        """Keep a pause instead of any before.

        Raises:
            StoreError: it cannot be written.
        """
        document = {"schema": _SCHEMA, "by": pause.by, "why": pause.why, "until": pause.until.isoformat()}
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror or error}") from error

    def clear(self) -> None:
        """Keep none any more.

        Raises:
            StoreError: it cannot be removed.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be removed: {error.strerror or error}") from error


def _decode(text: str) -> StoredPause:
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise ValueError(f"not a document of schema {_SCHEMA}")
    until = datetime.fromisoformat(document["until"])
    if until.tzinfo is None:
        raise ValueError("its time lacks a zone")
    return StoredPause(str(document["by"]), str(document["why"]), until)
