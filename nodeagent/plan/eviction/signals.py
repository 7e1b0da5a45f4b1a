"""Properties of the signals: resource, node condition, comparison and unit."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import FilesystemRole, NodeCondition, Resource, Signal

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operator(StrEnum):
    """Operator that compares a reading with its threshold, strictly."""

    LESS_THAN = "<"
    GREATER_THAN = ">"


class Unit(StrEnum):
    """Unit of the readings of a signal."""

    BYTES = "bytes"
    INODES = "inodes"
    PIDS = "pids"
    STALL_PERCENT = "percent of time"


class SignalMeaning(NamedTuple):
    """Properties of one signal.

    Attributes:
        resource: the resource to reclaim; ``None`` if evicting a pod is not known to relieve the signal.
        condition: node condition to report while a threshold on the signal is met; ``None`` without a condition.
        filesystem: the measured filesystem; ``None`` for other signals.
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
"""Properties of every signal.

I/O stall signals have no resource and no node condition: the stalled pods need not cause the stall, and DiskPressure
reports a lack of space. A threshold on an I/O stall signal is evaluated and displayed, but no pod is evicted for it.

Source: kubelet ``signalToNodeCondition``, ``signalToResource``, ``OpForSignal``; stall signals and ``swap.free`` are
specific to nodeagent.
"""

_POSITIONS: Final[Mapping[Signal, int]] = MappingProxyType({signal: index for index, signal in enumerate(Signal)})


def position(signal: Signal) -> tuple[int, int]:
    """Return the sort key of a signal: memory signals first, signals without a resource last."""
    resource = MEANINGS[signal].resource
    group = 2 if resource is None else 0 if resource is Resource.MEMORY else 1
    return group, _POSITIONS[signal]
