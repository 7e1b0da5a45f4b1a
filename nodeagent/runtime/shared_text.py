"""One object for equal texts of many records."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=2048)
def shared_text(text: str) -> str:
    """Return the same object for equal texts among the last ones.

    Not ``sys.intern``: Python 3.12 never releases an interned text, and tenants choose most of these.
    """
    return text
