"""Files of the agent's own that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, text: str, *, like: os.stat_result | None = None, mode: int = 0o600) -> None:
    """Put a file in place of another such that either the old or the new one is there whatever happens.

    Args:
        path: the file; a symbolic link is itself replaced.
        text: its new content.
        like: status of a file whose owner, group and mode it gets.
        mode: its mode without ``like``.

    Raises:
        OSError: it could not be written; the old one stays.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), mode if like is None else stat.S_IMODE(like.st_mode))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
