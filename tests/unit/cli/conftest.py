"""Setup of the tests of the command line: its parser is built once."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import typer.main

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Build the parser of the command line once: typer builds it for each call, for 70 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield
