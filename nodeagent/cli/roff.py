"""roff text of manual pages, escaped so that no text is parsed as a roff request.

Source: man(7), groff_char(7).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nodeagent import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

PROGRAM: Final = "nodeagent"
_LONG_WORD: Final = 40
_BREAK: Final = "\0"  # a possible line break, before escaping
_ESCAPES: Final = {
    ord(character): text
    for character, text in {
        "\\": "\\e",
        "-": "\\-",
        "'": "\\(aq",
        "`": "\\(ga",
        "~": "\\(ti",
        "^": "\\(ha",
        _BREAK: "\\:",
    }.items()
}


def head(name: str, section: int, manual: str, summary: str) -> list[str]:
    """Return the first lines of a manual page: the title and the section NAME."""
    title = f'.TH {word(name.upper())} {section} "" "{PROGRAM} {__version__}" "{manual}"'
    return [title, ".nh", ".ad l", ".SH NAME", f"{escape(name)} \\- {escape(summary.rstrip('.'))}"]


def references(names: Iterable[tuple[str, int]]) -> str:
    """Return the lines of the section SEE ALSO for pages with their sections."""
    *others, last = [f".BR {word(name)} ({section})" for name, section in names]
    return "\n".join([*(f"{each}," for each in others), last])


def text_line(text: str) -> str:
    """Return plain text as one escaped line."""
    return line(escape(" ".join(text.split())))


def line(escaped: str) -> str:
    """Return escaped text as a line that is not parsed as a roff request."""
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def word(text: str) -> str:
    """Return text as one escaped argument of a roff request, quoted if necessary."""
    whole = escape(text, breakable=False).replace('"', "\\(dq")
    return f'"{whole}"' if " " in whole or not whole else whole


def italic(text: str) -> str:
    """Return escaped text in italics."""
    return f"\\fI{text}\\fR"


def escape(text: str, *, breakable: bool = True) -> str:
    """Return text with escaped characters; with ``breakable``, long words can be broken at commas, ``_`` and ``/``."""
    if breakable:
        text = " ".join(map(_breakable, text.split(" ")))
    whole = text.translate(_ESCAPES)
    return whole if whole.isascii() else "".join(map(_ascii, whole))


def _ascii(character: str) -> str:
    return character if character.isascii() else f"\\[u{ord(character):04X}]"


def _breakable(part: str) -> str:
    return part if len(part) <= _LONG_WORD else re.sub("[,_/]", rf"\g<0>{_BREAK}", part)
