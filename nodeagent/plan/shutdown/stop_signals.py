"""Parser for stop signals of container images."""

from __future__ import annotations

import re
import signal
from typing import Final

_REAL_TIME_FIRST: Final = 34  # as in container runtimes, independent of the agent's C library
_LAST: Final = 64
_REAL_TIME: Final = re.compile(r"RT(MIN|MAX)(?:([+-])(\d{1,2}))?")
_NAMES: Final = {each.name: int(each) for each in signal.Signals if each < _REAL_TIME_FIRST}


def signal_number(name: str) -> int | None:
    """Return the number of a signal; ``None`` for an empty or unknown name, for which TERM is used.

    Numbers and names are accepted, with or without ``SIG``: ``3``, ``SIGQUIT``, ``quit``, ``SIGRTMIN+3``. Source:
    Dockerfile reference, ``STOPSIGNAL``; signal(7).
    """
    text = name.strip().upper()
    if text.isascii() and text.isdecimal() and len(text) <= 2:
        number: int | None = int(text)
    elif (found := _REAL_TIME.fullmatch(text.removeprefix("SIG"))) is not None:
        first = _REAL_TIME_FIRST if found[1] == "MIN" else _LAST
        number = first + int(f"{found[2] or '+'}{found[3] or 0}")
        number = number if number >= _REAL_TIME_FIRST else None
    else:
        number = _NAMES.get(f"SIG{text.removeprefix('SIG')}")
    return number if number is not None and 1 <= number <= _LAST else None
