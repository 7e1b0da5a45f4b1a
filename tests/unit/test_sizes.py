"""Report of code sizes."""

from __future__ import annotations

from tests.sizes import measure

TEXT = '''"""Docstring
of two lines."""

import os
from a import (
    b,
)

# comment


class Made:
    """Docstring."""

    field: int

    def __init__(self) -> None:
        self.other = """text
of two lines"""
'''


def test_code_has_no_blank_lines_comments_and_docstrings() -> None:
    found = measure(TEXT)
    assert (found.code, found.imports) == (9, 4)
    assert found.functions == {"__init__": 3}
    assert found.attributes == {"Made": 2}
