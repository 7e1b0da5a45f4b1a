"""State in a small JSON file with a schema id, replaced atomically.

The fields of the stored record are the fields of the file; a field with a default may be absent, as in files of earlier
versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from nodeagent.errors import StoreError
from nodeagent.files import read_file, replace_file
from nodeagent.parsing import parse_json
from nodeagent.text import to_json

if TYPE_CHECKING:
    from nodeagent.schemas import SchemaId

T = TypeVar("T")


class JsonFile(Generic[T]):
    """A file with one record. Its methods block.

    Attributes:
        path: the file.
    """

    def __init__(  # noqa: PLR0913 - the properties of a file
        self,
        path: Path,
        schema: SchemaId,
        kind: type[T],
        *,
        name: str = "",
        hint: str = "",
        indent: int | None = None,
    ) -> None:
        """Use a file, whose directory is created by the first write.

        Args:
            path: the file.
            schema: schema id of the file.
            kind: class of the record.
            name: name of the content for error messages.
            hint: what an unreadable file means, or what to do, for error messages.
            indent: indentation of a file that operators may repair; ``None`` for one line.
        """
        self.path = path
        self._schema = schema.value
        self._kind = kind
        self._shown = f"{name} {path}".lstrip()
        self._hint = f"; {hint}" if hint else ""
        self._indent = indent

    def read(self) -> T | None:
        """Return the stored record; ``None`` if the file does not exist.

        Raises:
            StoreError: the file cannot be read, is of another schema, or has a value of the wrong type.
        """
        try:
            return self._record(parse_json(read_file(self.path)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot read {self._shown}: {error}{self._hint}") from error

    def write(self, record: T) -> None:
        """Store a record, replacing the stored record.

        Raises:
            StoreError: the file cannot be written; its content is unchanged.
        """
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self.path, self.text_of(record))
        except OSError as error:
            raise StoreError(f"cannot write {self._shown}: {error.strerror or error}") from error

    def _record(self, document: object) -> T:
        if not isinstance(document, dict) or document.get("schema") != self._schema:
            raise ValueError(f"not a document of schema {self._schema}")
        json.dumps(document, allow_nan=False)  # rejects NaN and infinite numbers
        return msgspec.convert(document, self._kind)

    def text_of(self, record: T) -> str:
        """Return the content of the file for a record."""
        return to_json({"schema": self._schema} | msgspec.to_builtins(record), indent=self._indent) + "\n"
