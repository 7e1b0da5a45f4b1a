"""File of outstanding evictions, so that a restart of the agent does not evict a second pod.

The file is small, since it is written under resource pressure, and it is replaced atomically. The file is valid for one
boot: its times are of the monotonic clock, and a reboot ends all pods.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import asdict

from nodeagent.errors import StoreError
from nodeagent.eviction.plan.effects import OutstandingEffect, Victim
from nodeagent.eviction.plan.reclaim import Shortage
from nodeagent.files import read_file, replace_file
from nodeagent.model.pressure import Signal
from nodeagent.parsing import parse_json
from nodeagent.schemas import SchemaId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    T = TypeVar("T", OutstandingEffect, Victim)

FILE_NAME: Final = "evictions.json"
_SCHEMA: Final = SchemaId.EVICTIONS_FILE.value
_NUMBERS: Final = {"at_s", "since_s", "until_s"}
_OPTIONAL: Final = {"before", "predicted", "confirmed_s", "confirmed_available"}
_LATER: Final = {"confirmed_s", "confirmed_available", "path", "sandbox_files", "log_directory"}
"""Attributes that are absent in files of earlier versions."""
_SWITCHES: Final = {"confirmed", "ineffective", "verified", "cleared"}
_LISTS: Final = {"sandbox_ids", "layers", "sandbox_files"}
_ENUMS: Final[Mapping[str, Callable[[Any], object]]] = {"signal": Signal, "shortage": Shortage}


class EvictionFile:
    """File of the outstanding evictions of this node. Its methods block."""

    def __init__(self, directory: Path) -> None:
        """Use a file in ``directory``, which is created by the first write."""
        self._path = directory / FILE_NAME

    def read(self, boot_id: str) -> tuple[tuple[OutstandingEffect, ...], tuple[Victim, ...]]:
        """Return the expected effects and the victims of the evictions in a boot; empty if none are stored for it.

        Raises:
            StoreError: the file cannot be read or is not valid.
        """
        try:
            return _decode(parse_json(read_file(self._path)), boot_id)
        except FileNotFoundError:
            return (), ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read {self._path}: {error}; outstanding evictions unknown") from error

    def write(self, boot_id: str, effects: Iterable[OutstandingEffect], victims: Iterable[Victim]) -> None:
        """Store the effects and victims of a boot, replacing the file.

        Raises:
            StoreError: the file cannot be written; its content is unchanged.
        """
        document = {
            "schema": _SCHEMA,
            "boot_id": boot_id,
            "effects": [asdict(each) for each in effects],
            "victims": [asdict(each) for each in victims],
        }
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(document, ensure_ascii=False) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror or error}") from error


def _decode(document: object, boot_id: str) -> tuple[tuple[OutstandingEffect, ...], tuple[Victim, ...]]:
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise ValueError(f"not a document of schema {_SCHEMA}")
    if not boot_id or document["boot_id"] != boot_id:
        return (), ()
    effects = tuple(_record(OutstandingEffect, row) for row in document["effects"])
    return effects, tuple(_record(Victim, row) for row in document["victims"])


def _record(kind: type[T], row: Mapping[str, object]) -> T:
    names = [name for name in kind.__struct_fields__ if name in row or name not in _LATER]
    values: dict[str, Any] = {name: _value(name, row[name]) for name in names}
    return kind(**values)


def _value(name: str, value: object) -> object:
    """Return a decoded value in the type of the named attribute."""
    if name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise TypeError(f"{name} is {value!r}, not a list of strings")
        return tuple(value)
    if name in _OPTIONAL and value is None:
        return None
    if name in _NUMBERS | _OPTIONAL:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TypeError(f"{name} is {value!r}, not a number")
        return value
    if not isinstance(value, bool if name in _SWITCHES else str):
        raise TypeError(f"{name} is {value!r}, not a boolean or string as required")
    enum = _ENUMS.get(name)
    return value if enum is None else enum(value)
