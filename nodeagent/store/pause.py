"""The operator's pause, stored so that it survives a restart of the agent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import replace_file
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "pause.json"
_SCHEMA: Final = SchemaId.PAUSE_FILE.value


@dataclass(frozen=True, slots=True)
class StoredPause:
    """A pause of garbage collection and eviction, as stored.

    Attributes:
        by: author of the pause.
        why: reason given by the user.
        until: end of the pause, aware UTC.
    """

    by: str
    why: str
    until: datetime


class PauseFile:
    """File with the pause of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Store the pause in ``directory``, which is created with the first pause."""
        self._path = directory / FILE_NAME

    def read(self) -> StoredPause | None:
        """Return the stored pause, expired or not; ``None`` without one.

        Raises:
            StoreError: the file cannot be read or is not a pause document.
        """
        try:
            return _decode(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read pause {self._path}: {error}; 'nodeagent resume' ends the pause") from error

    def write(self, pause: StoredPause) -> None:
        """Store a pause, replacing the previous one.

        Raises:
            StoreError: the pause cannot be written.
        """
        document = {"schema": _SCHEMA, "by": pause.by, "why": pause.why, "until": pause.until.isoformat()}
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write pause {self._path}: {error.strerror or error}") from error

    def clear(self) -> None:
        """Remove the stored pause.

        Raises:
            StoreError: the stored pause cannot be removed.
        """
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove pause {self._path}: {error.strerror or error}") from error


def _decode(text: str) -> StoredPause:
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise ValueError(f"not a document of schema {_SCHEMA}")
    until = datetime.fromisoformat(document["until"])
    if until.tzinfo is None:
        raise ValueError("until has no time zone")
    return StoredPause(str(document["by"]), str(document["why"]), until)
