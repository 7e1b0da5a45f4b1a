"""Shortages: the resource to relieve when a threshold is met; bytes and inodes of one device are one shortage."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model.pressure import FilesystemRole, Resource, Signal
from nodeagent.plan.eviction.reclaim import device_role
from nodeagent.plan.eviction.signals import MEANINGS, Operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pressure import FilesystemLayout, OtherImageFilesystem


class Shortage(StrEnum):
    """Resource in shortage that one action can relieve. Bytes and inodes of one device are one shortage.

    A device is named by the first of nodefs and imagefs, as in :class:`ReclaimStep`; an image filesystem other than the
    first is ``OTHER_IMAGEFS`` with its path, unless it is nodefs.
    """

    MEMORY = "memory"
    MEMORY_STALL = "memory-stall"
    PIDS = "pids"
    NODEFS = "nodefs"
    IMAGEFS = "imagefs"
    OTHER_IMAGEFS = "other-imagefs"


DEVICES: Final = {FilesystemRole.NODEFS: Shortage.NODEFS, FilesystemRole.IMAGEFS: Shortage.IMAGEFS}
DISKS: Final[Mapping[Shortage, Signal]] = MappingProxyType(
    {
        Shortage.NODEFS: Signal.NODEFS_AVAILABLE,
        Shortage.IMAGEFS: Signal.IMAGEFS_AVAILABLE,
        Shortage.OTHER_IMAGEFS: Signal.IMAGEFS_AVAILABLE,
    }
)
"""Shortages of filesystems, with the signal that measures the available bytes of each."""


def shortage_of(signal: Signal, layout: FilesystemLayout, other: OtherImageFilesystem | None = None) -> Shortage | None:
    """Return the resource in shortage when a threshold on this signal is met; ``None`` for a signal without a resource.

    ``other`` is the filesystem of a threshold on an image filesystem other than the first.
    """
    meaning = MEANINGS[signal]
    if other is not None:
        return Shortage.NODEFS if other.on_nodefs else Shortage.OTHER_IMAGEFS
    if meaning.filesystem is not None:
        return DEVICES[device_role(meaning.filesystem, layout)]
    if meaning.resource is Resource.MEMORY:
        return Shortage.MEMORY_STALL if meaning.operator is Operator.GREATER_THAN else Shortage.MEMORY
    return Shortage.PIDS if meaning.resource is Resource.PIDS else None
