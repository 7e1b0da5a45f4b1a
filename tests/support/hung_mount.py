"""FUSE mount with a server that never responds, as a tenant can create it in a volume."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DEVICE: Final = "/dev/fuse"
_MNT_DETACH: Final = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def hung_mount(directory: Path) -> Iterator[None]:
    """Mount a FUSE filesystem until the end of the block; any access to its files hangs.

    Raises:
        OSError: the kernel has no FUSE, or the caller is not root.
    """
    server = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"hung", os.fsencode(directory), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount", str(directory))
        try:
            yield
        finally:
            _libc.umount2(os.fsencode(directory), _MNT_DETACH)
    finally:
        os.close(server)  # waiting requests end with an error
