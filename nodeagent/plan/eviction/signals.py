"""What each signal means: its resource, its node condition, its comparison and its unit."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import FilesystemRole, NodeCondition, Resource, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operator(StrEnum):
    """How a reading is compared with its threshold, always strictly."""

    LESS_THAN = "<"
    GREATER_THAN = ">"


class Unit(StrEnum):
    """What a signal counts."""

    BYTES = "bytes"
    INODES = "inodes"
    PIDS = "pids"
    STALL_PERCENT = "percent of time"


class SignalMeaning(NamedTuple):
    """What follows from one signal.

    Attributes:
        resource: what to take back; ``None`` where evicting no pod is known to help.
        condition: what is said of the node while a threshold on it is met; ``None`` for nothing.
        filesystem: where it is measured, for disk signals.
    """

    unit: Unit
    resource: Resource | None
    condition: NodeCondition | None
    filesystem: FilesystemRole | None = None
    operator: Operator = Operator.LESS_THAN


def _bytes_on(filesystem: FilesystemRole) -> SignalMeaning:
    return SignalMeaning(Unit.BYTES, Resource.EPHEMERAL_STORAGE, NodeCondition.DISK_PRESSURE, filesystem)


def _inodes_on(filesystem: FilesystemRole) -> SignalMeaning:
    return SignalMeaning(Unit.INODES, Resource.INODES, NodeCondition.DISK_PRESSURE, filesystem)


_MEMORY = SignalMeaning(Unit.BYTES, Resource.MEMORY, NodeCondition.MEMORY_PRESSURE)
_MEMORY_STALL = _MEMORY._replace(unit=Unit.STALL_PERCENT, operator=Operator.GREATER_THAN)
_IO_STALL = SignalMeaning(Unit.STALL_PERCENT, None, None, operator=Operator.GREATER_THAN)

MEANINGS: Final[Mapping[Signal, SignalMeaning]] = MappingProxyType(
    {
        Signal.MEMORY_AVAILABLE: _MEMORY,
        Signal.ALLOCATABLE_MEMORY_AVAILABLE: _MEMORY,
        Signal.MEMORY_PSI_FULL: _MEMORY_STALL,
        Signal.MEMORY_PSI_SOME: _MEMORY_STALL,
        Signal.SWAP_FREE: _MEMORY,
        Signal.NODEFS_AVAILABLE: _bytes_on(FilesystemRole.NODEFS),
        Signal.NODEFS_INODES_FREE: _inodes_on(FilesystemRole.NODEFS),
        Signal.IMAGEFS_AVAILABLE: _bytes_on(FilesystemRole.IMAGEFS),
        Signal.IMAGEFS_INODES_FREE: _inodes_on(FilesystemRole.IMAGEFS),
        Signal.CONTAINERFS_AVAILABLE: _bytes_on(FilesystemRole.CONTAINERFS),
        Signal.CONTAINERFS_INODES_FREE: _inodes_on(FilesystemRole.CONTAINERFS),
        Signal.PID_AVAILABLE: SignalMeaning(Unit.PIDS, Resource.PIDS, NodeCondition.PID_PRESSURE),
        Signal.IO_PSI_FULL: _IO_STALL,
        Signal.IO_PSI_SOME: _IO_STALL,
    }
)
"""Every signal's meaning.

I/O stalls have neither resource nor condition: the pods that wait are not the ones that cause the waiting, and
DiskPressure speaks of space. A threshold on them is watched and shown, and evicts nothing.

Source: kubelet ``signalToNodeCondition``, ``signalToResource``, ``OpForSignal``; the rest is ours.
"""

_POSITIONS: Final[Mapping[Signal, int]] = MappingProxyType({signal: place for place, signal in enumerate(Signal)})


def position(signal: Signal) -> tuple[int, int]:
    """Return a sort key: signals of memory first, those without a resource last, then as ``Signal`` lists them."""
    resource = MEANINGS[signal].resource
    group = 2 if resource is None else 0 if resource is Resource.MEMORY else 1
    return group, _POSITIONS[signal]
