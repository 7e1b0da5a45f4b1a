"""Directories below a log root, opened by descriptor: symlinks are not followed and mounts are not crossed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError
from nodeagent.host.filesystems import mount_id
from nodeagent.record import Record

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_DEPTH: Final = 256
"""Maximum depth of readable and removable log trees."""


class RemovalRefusedError(NodeAgentError):
    """An entry has an unexpected type or mount and was not removed; the text contains the reason."""


class Place(Record):
    """Filesystem and mount of a descriptor; bind mounts of one filesystem have the same device."""

    device: int
    mount_id: str


def place_of(descriptor: int) -> Place:
    """Return filesystem and mount of a descriptor.

    Raises:
        RemovalRefusedError: the kernel does not report the mount.
    """
    mount = mount_id(descriptor)
    if not mount:
        raise RemovalRefusedError("mount of a directory unknown: no mnt_id in /proc/self/fdinfo")
    return Place(os.fstat(descriptor).st_dev, mount)


def open_below(parent: int, name: str, place: Place, where: Path) -> int:
    """Return a descriptor of a subdirectory on the same mount.

    Raises:
        RemovalRefusedError: the entry is a symlink, not a directory, or a mount point.
        FileNotFoundError: the entry does not exist.
    """
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise RemovalRefusedError(f"{where}: {name} is not a directory") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RemovalRefusedError(f"{where}: {name}: {error.strerror or error}") from error
    try:
        same = place_of(descriptor) == place
    except BaseException:
        os.close(descriptor)
        raise
    if not same:
        os.close(descriptor)
        raise RemovalRefusedError(f"{where}: {name} is a mount point; not removed")
    return descriptor
