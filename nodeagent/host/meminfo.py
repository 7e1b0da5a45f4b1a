"""Memory statistics of the kernel in ``/proc/meminfo``."""

from __future__ import annotations

from typing import Final

_KIB: Final = 1024


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the values in bytes by name; values without a unit are unchanged. Source: proc(5), ``meminfo``."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (_KIB if words[1:] == ["kB"] else 1)
    return found
