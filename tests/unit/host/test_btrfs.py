from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.host.filesystems import start_commits

if TYPE_CHECKING:
    from pathlib import Path


def test_other_filesystems_and_removed_paths_are_skipped(tmp_path: Path) -> None:
    start_commits([str(tmp_path), str(tmp_path / "removed" / "fs"), "relative", ""])
