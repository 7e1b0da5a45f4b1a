"""Last mode of the daemon, active or dry run, stored so that a restart cannot change it unnoticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import read_file, replace_file
from nodeagent.parsing import parse_json
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "mode.json"
_SCHEMA: Final = SchemaId.MODE_FILE.value


class ModeFile:
    """File with the last mode of the daemon. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Store the mode in ``directory``, which is created with the first write."""
        self._path = directory / FILE_NAME

    def read(self) -> bool | None:
        """Return whether the last run of the daemon was a dry run; ``None`` if no mode is stored.

        Raises:
            StoreError: the file cannot be read or is not a valid mode file.
        """
        try:
            document = parse_json(read_file(self._path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read mode {self._path}: {error}") from error
        dry_run = document.get("dry_run") if isinstance(document, dict) else None
        if not isinstance(dry_run, bool) or document.get("schema") != _SCHEMA:
            raise StoreError(f"cannot read mode {self._path}: not a document of schema {_SCHEMA}")
        return dry_run

    def write(self, *, dry_run: bool) -> None:
        """Store the mode of the daemon, replacing the stored mode.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps({"schema": _SCHEMA, "dry_run": dry_run}) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write mode {self._path}: {error.strerror or error}") from error
