"""The key that signs saved plans, in a file that only root can read.

A plan file passes through hands that may not change it: its signature proves that this node's agent wrote it. The
key is created with the first plan; removing the file is how it is replaced, and plans signed with it are then refused.
"""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import create_file

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "plan.key"
KEY_BYTES: Final = 32
_MODE_OF_OTHERS: Final = 0o077
_LARGEST_BYTES: Final = 4096


class PlanKeyFile:
    """The plan key of this node. Its methods block and may be called from any thread or process."""

    def __init__(self, directory: Path) -> None:
        """Keep the key under ``directory``; nothing is created there before the first plan is signed."""
        self._path = directory / FILE_NAME

    def read(self) -> bytes | None:
        """Return the key; ``None`` if there is none.

        Raises:
            StoreError: the file cannot be read, is not a key, or others than its owner have access to it.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read plan key {self._path}: {error.strerror or error}") from error
        try:
            _refuse_unsafe(self._path, os.fstat(descriptor))
            return _decode(self._path, os.read(descriptor, _LARGEST_BYTES))
        except OSError as error:
            raise StoreError(f"cannot read plan key {self._path}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    def read_or_create(self) -> bytes:
        """Return the key, creating it if there is none; processes that do so at the same time get the same one.

        Raises:
            StoreError: as ``read``; or the file cannot be created.
        """
        key = self.read()
        if key is not None:
            return key
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            create_file(self._path, f"{secrets.token_bytes(KEY_BYTES).hex()}\n")
        except OSError as error:
            raise StoreError(f"cannot create plan key {self._path}: {error.strerror or error}") from error
        key = self.read()
        if key is None:
            raise StoreError(f"cannot read plan key {self._path}: it was removed while it was created; try again")
        return key


def _refuse_unsafe(path: Path, found: os.stat_result) -> None:
    """Refuse a key that somebody else could have read or written: plans signed with it prove nothing."""
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"cannot use plan key {path}: not a regular file; remove it, the next plan creates a new key")
    mode = stat.S_IMODE(found.st_mode)
    if mode & _MODE_OF_OTHERS:
        raise StoreError(
            f"cannot use plan key {path}: mode {mode:04o} gives access to others; remove it, the next plan creates a "
            "new key"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise StoreError(
            f"cannot use plan key {path}: owned by uid {found.st_uid}; remove it, the next plan creates a new key"
        )


def _decode(path: Path, content: bytes) -> bytes:
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreError(
            f"cannot use plan key {path}: not {2 * KEY_BYTES} hexadecimal digits; remove it, the next plan creates a "
            "new key"
        )
    return key
