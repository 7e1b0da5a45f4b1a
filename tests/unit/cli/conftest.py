"""Fixtures of the command line tests: a cached parser and a configuration file."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import typer.main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Cache the command line parser, since typer rebuilds it in each call, with 70 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration file with all paths in the temporary directory."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{tmp_path}/s"\n[state]\ndirectory = "{tmp_path}/state"\n'
        f'[container_gc]\npod_log_root = "{tmp_path}/pods"\ncontainer_log_root = "{tmp_path}/containers"\n'
    )
    return path
