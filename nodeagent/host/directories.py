"""Directory listings of an installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.errors import InstallError

if TYPE_CHECKING:
    from pathlib import Path


def list_entries(directory: Path) -> list[Path]:
    """Return the entries of a directory in order of name; empty if it does not exist or is not a directory.

    Raises:
        InstallError: the directory cannot be read.
    """
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InstallError(f"cannot read {directory}: {error.strerror or error}") from error
