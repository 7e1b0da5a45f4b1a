"""File with the last mode of the daemon (dry run or active)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import StoreError
from nodeagent.loops.reload_grace import Mode, mode_file

if TYPE_CHECKING:
    from pathlib import Path


def test_stored_mode_is_read_unchanged(tmp_path: Path) -> None:
    file = mode_file(tmp_path / "state")
    assert file.read() is None
    for dry_run in (True, False):
        file.write(Mode(dry_run))
        assert file.read() == Mode(dry_run)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": "nodeagent/mode/v1"}', '{"dry_run": true}', "[" * 100_000]
)
def test_malformed_mode_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "mode.json").write_text(text)
    with pytest.raises(StoreError):
        mode_file(tmp_path).read()
