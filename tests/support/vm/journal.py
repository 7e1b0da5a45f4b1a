"""Journal entries of a node, from the output of ``journalctl --output json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Entry:
    """Journal entry; ``fields`` contains all journald fields."""

    boot_id: str
    unit: str
    identifier: str
    priority: int
    message: str
    fields: Mapping[str, str] = field(repr=False)


def parse_entries(lines: str) -> list[Entry]:
    """Return the entries from the JSON lines of journalctl."""
    return [_entry(json.loads(line)) for line in lines.splitlines()]


def _entry(parsed: dict[str, Any]) -> Entry:
    fields = {name: _field(value) for name, value in parsed.items()}
    return Entry(
        fields.get("_BOOT_ID", ""),
        fields.get("_SYSTEMD_UNIT", ""),
        fields.get("SYSLOG_IDENTIFIER", ""),
        int(fields.get("PRIORITY", "6")),
        fields.get("MESSAGE", ""),
        fields,
    )


def _field(value: object) -> str:
    """Return the text of a field: journald exports non-text bytes as numbers, and a repeated field as a list."""
    if isinstance(value, list):
        if all(isinstance(part, int) for part in value):
            return bytes(value).decode(errors="replace")
        return "\n".join(_field(part) for part in value)
    return "" if value is None else str(value)
