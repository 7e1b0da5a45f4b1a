"""Signing key of saved plans, in a file that only root can read.

A plan file can be copied and edited by any user before it is applied; the signature proves that this node's agent wrote
it. The key is created with the first plan. To replace it, remove the file; plans signed with it are then refused.
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
_OTHERS_MODE: Final = 0o077
_MAX_BYTES: Final = 4096


class PlanKeyFile:
    """File of the plan key of this node. Its methods block and may be called from any thread or process."""

    def __init__(self, directory: Path) -> None:
        """Store the key in ``directory``, which is created with the first signature."""
        self._path = directory / FILE_NAME

    def read(self) -> bytes | None:
        """Return the key; ``None`` if the file does not exist.

        Raises:
            StoreError: the file cannot be read, contains no valid key, is owned by another user, or is accessible to
                other users.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read plan key {self._path}: {error.strerror or error}") from error
        try:
            _refuse_unsafe(self._path, os.fstat(descriptor))
            return _decode(self._path, os.read(descriptor, _MAX_BYTES))
        except OSError as error:
            raise StoreError(f"cannot read plan key {self._path}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    def read_or_create(self) -> bytes:
        """Return the key, and create it if necessary; concurrent callers receive the same key.

        Raises:
            StoreError: the file cannot be created, or a condition of :meth:`read` applies.
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
            raise StoreError(f"cannot read plan key {self._path}: removed during its creation; try again")
        return key


def _refuse_unsafe(path: Path, status: os.stat_result) -> None:
    """Raise StoreError for a key file that another user owns or can access: its signatures are not trustworthy."""
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"cannot use plan key {path}: not a regular file; remove it, the next plan creates a new key")
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS_MODE:
        raise StoreError(
            f"cannot use plan key {path}: mode {mode:04o} gives access to others; remove it, the next plan creates a "
            "new key"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise StoreError(
            f"cannot use plan key {path}: owned by uid {status.st_uid}; remove it, the next plan creates a new key"
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
