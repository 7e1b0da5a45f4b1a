"""Removal of the resources of killed test runs."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.support import reclaim

if TYPE_CHECKING:
    from pathlib import Path


def test_leftovers_are_removed_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / f"{reclaim.BASE_PREFIX}{os.getpid()}-0-killed"  # no process has this start time
    base.mkdir()
    excluded = []

    def removed_alone(found: Path) -> None:
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        excluded.append(found)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(reclaim, "reclaim", removed_alone)
    assert reclaim.sweep() == excluded == [base]
