"""Shared objects for equal texts of many records, to save memory."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=2048)
def shared_text(text: str) -> str:
    """Return the same object for equal texts, among the 2,048 most recently used texts.

    Rejected: ``sys.intern``, since Python 3.12 never releases an interned text, and tenants choose most of the texts.
    """
    return text
