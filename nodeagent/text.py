"""Escaping of untrusted text: names of files, containers and images, labels, messages of other programs.

Tenants control most of these texts, which are therefore treated as data everywhere. Inside the agent they are
unchanged; bytes of a file name that are not UTF-8 are the surrogates of Python's ``surrogateescape``, and the name
still opens the file. One of these functions applies at the boundaries:

- ``escape`` for display: terminal, console log, journal message, status of the unit.
- ``encodable`` for programs: history, journal fields, metric labels. Only text that cannot be encoded changes.
- ``to_json`` for both, since JSON has its own escapes.

Backslashes are not doubled: text passes several boundaries (agent, socket, command), and a second escape must not
change it. The original of an escape is therefore ambiguous; ids identify the item.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final

# Regular expressions are compiled on first use: most commands print only ASCII text.
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_SURROGATES: Final = "[\ud800-\udfff]"
_RAW_BYTES: Final = range(0xDC80, 0xDD00)  # Source: PEP 383
_BEYOND_ASCII: Final = "[^\x20-\x7e\n]"
_MAX_INDENTED_LENGTH: Final = 1 << 18
"""Maximum characters of JSON indented by the standard library, whose indenting encoder is five times slower."""
_INVISIBLE: Final = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
"""Invisible characters, printable according to ``str.isprintable``. Source: Unicode, Default_Ignorable_Code_Point."""
_TRAILING_JAMO: Final = frozenset(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD800))))
ELLIPSIS: Final = "\u2026"


def escape(text: str) -> str:
    r"""Return text as one line in which every character is printable and visible.

    Control characters (C0, DEL, C1), line separators, bidirectional and zero-width characters, unusual spaces and
    unassigned characters become ``\n``, ``\x1b`` or ``\u202e``; a byte that is not UTF-8 becomes ``\xff``.
    """
    if _is_plain(text):
        return text
    return "".join(each if _is_plain(each) else _escaped(each) for each in text)


def masked(text: str) -> str:
    """Return text with a question mark for each unprintable character, for foreign values in TOML and short texts."""
    return "".join(each if each.isprintable() else "?" for each in text)


def shortened(text: str, length: int) -> str:
    """Return text cut to ``length`` characters, with three dots for the rest; for foreign texts in messages."""
    return text if len(text) <= length else f"{text[:length]}..."


def escape_lines(text: str) -> str:
    """Return text escaped line by line; only for text with trusted line breaks, such as a traceback."""
    return "\n".join(map(escape, text.split("\n")))


def encodable(text: str) -> str:
    r"""Return text that can be encoded as UTF-8; a byte that is not UTF-8 becomes ``\xff``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub(_SURROGATES, lambda found: _escaped(found[0]), text)
    return text


def raw_bytes(text: str) -> bytes | None:
    """Return the bytes of a file name that is not UTF-8; ``None`` for any other text."""
    if encodable(text) == text:
        return None
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return None


def to_json(value: object, *, indent: int | None = None, default: Callable[[object], object] | None = None) -> str:
    """Return JSON that can be encoded as UTF-8 and is safe on a terminal.

    A parser reads the same values: characters that ``escape`` would change have JSON escapes. Bytes that are not UTF-8
    have no JSON escape; ``encodable`` defines their form.
    """
    import json  # noqa: PLC0415 - keeps the help of a command fast

    text = json.dumps(value, ensure_ascii=False, default=default)
    if indent is not None and len(text) <= _MAX_INDENTED_LENGTH:
        text, indent = json.dumps(value, ensure_ascii=False, indent=indent, default=default), None
    if not text.isascii() or "\x7f" in text:
        text = re.sub(_BEYOND_ASCII, lambda found: _json_escaped(found[0]), text)
    if indent is None:
        return text
    import msgspec  # noqa: PLC0415 - only for large documents

    try:
        return msgspec.json.format(text, indent=indent)
    except msgspec.DecodeError:  # NaN and infinity are not JSON
        return text


def _is_plain(text: str) -> bool:
    return text.isprintable() and (text.isascii() or re.search(_INVISIBLE, text) is None)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code in _RAW_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escaped(character: str) -> str:
    if _is_plain(character):
        return character
    if re.match(_SURROGATES, character):
        return "\\" + _escaped(character)  # JSON requires an escaped backslash
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def display_width(text: str) -> int:
    """Return the width of escaped text on a terminal, in cells.

    Wide and fullwidth characters occupy two cells, combining marks and the trailing letters of a Hangul syllable none.
    Source: Unicode, East_Asian_Width (UAX 11).
    """
    if text.isascii() or text.replace(ELLIPSIS, ".").isascii():  # fast path, also for text shortened by ``fit``
        return len(text)
    return sum(map(_character_width, text))


class Cut(Enum):
    """Part of a text that is replaced by an ellipsis if the text is too long.

    Attributes:
        END: the end of the text.
        MIDDLE: the middle of the text.
        PATH: the leading components of a path, whole or in part; the middle of the last component if the last component
            alone is too long.
    """

    PATH = "path"
    MIDDLE = "middle"
    END = "end"


def fit(text: str, cells: int, cut: Cut = Cut.END) -> str:
    """Return escaped text of at most ``cells`` cells (at least 1); an ellipsis replaces the rest."""
    if display_width(text) <= cells:
        return text
    kept = cells - 1
    if cut is Cut.END:
        return _head(text, kept) + ELLIPSIS
    if cut is Cut.PATH:
        return _fit_path(text, cells)
    head = kept // 2
    return _head(text, head) + ELLIPSIS + _tail(text, kept - head)


def _fit_path(text: str, cells: int) -> str:
    *leading, last = text.split("/")
    for start in range(1, len(leading) + 1):
        shown = ELLIPSIS + "".join(f"/{each}" for each in (*leading[start:], last))
        if (width := display_width(shown)) <= cells:
            return shown if width > cells * 2 // 3 else ELLIPSIS + _tail(text, cells - 1)
    return fit(last, cells, Cut.MIDDLE)


def _head(text: str, cells: int) -> str:
    if text.isascii():
        return text[:cells]
    used = 0
    for position, character in enumerate(text):
        used += _character_width(character)
        if used > cells:
            return text[:position]
    return text


def _tail(text: str, cells: int) -> str:
    if text.isascii():
        return text[max(0, len(text) - cells) :]
    start, used = len(text), 0
    for position in range(len(text) - 1, -1, -1):
        width = _character_width(text[position])
        used += width
        if used > cells:
            break
        if width:  # a mark without its base would combine with the ellipsis
            start = position
    return text[start:]


def _character_width(character: str) -> int:
    if character.isascii():
        return 1
    import unicodedata  # noqa: PLC0415 - not needed for ASCII text

    if unicodedata.category(character) in ("Mn", "Me") or character in _TRAILING_JAMO:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
