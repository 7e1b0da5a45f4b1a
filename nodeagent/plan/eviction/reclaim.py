"""Node-level reclaim: the steps that run before a pod is evicted."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.pressure import FilesystemLayout, FilesystemRole
from nodeagent.plan.eviction.signals import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pressure import OtherImageFilesystem, Signal


class ReclaimAction(StrEnum):
    """Kind of node-level reclaim.

    ``DEAD_CONTAINERS``: dead containers and sandboxes, including those of finished pods. ``LOGS``: logs of deleted pods
    and removed containers. ``UNUSED_IMAGES``: unused images that are above the minimum age and can be pulled again.
    ``IRREPLACEABLE_IMAGES``: unused images that cannot be pulled again, unless the configuration keeps them.
    """

    DEAD_CONTAINERS = "dead-containers"
    LOGS = "logs"
    UNUSED_IMAGES = "unused-images"
    IRREPLACEABLE_IMAGES = "irreplaceable-images"


class ReclaimStep(NamedTuple):
    """Node-level reclaim of one kind on one filesystem.

    A filesystem with several roles is named by the first of nodefs and imagefs, so that no step runs twice on one
    device.

    Attributes:
        other: the image filesystem, if it is not the first; otherwise ``None``.
    """

    action: ReclaimAction
    filesystem: FilesystemRole
    other: OtherImageFilesystem | None = None

    @property
    def text(self) -> str:
        """The step as text, such as ``unused-images on imagefs``; with the path of ``other`` if set."""
        return f"{self.action} on {self.filesystem if self.other is None else self.other.path}"


_NODEFS, _IMAGEFS, _CONTAINERFS = FilesystemRole.NODEFS, FilesystemRole.IMAGEFS, FilesystemRole.CONTAINERFS

_DEVICES: Final[Mapping[FilesystemLayout, Mapping[FilesystemRole, FilesystemRole]]] = MappingProxyType(
    {
        FilesystemLayout.SINGLE: {_NODEFS: _NODEFS, _IMAGEFS: _NODEFS, _CONTAINERFS: _NODEFS},
        FilesystemLayout.DEDICATED_IMAGEFS: {_NODEFS: _NODEFS, _IMAGEFS: _IMAGEFS, _CONTAINERFS: _IMAGEFS},
        FilesystemLayout.SPLIT: {_NODEFS: _NODEFS, _IMAGEFS: _IMAGEFS, _CONTAINERFS: _NODEFS},
    }
)
_CONTAINERS, _LOGS = ReclaimAction.DEAD_CONTAINERS, ReclaimAction.LOGS
_IMAGES = (ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES)
_ACTIONS: Final[Mapping[tuple[FilesystemLayout, FilesystemRole], tuple[ReclaimAction, ...]]] = MappingProxyType(
    {
        (FilesystemLayout.SINGLE, _NODEFS): (_CONTAINERS, _LOGS, *_IMAGES),
        (FilesystemLayout.DEDICATED_IMAGEFS, _NODEFS): (_LOGS,),
        (FilesystemLayout.DEDICATED_IMAGEFS, _IMAGEFS): (_CONTAINERS, *_IMAGES),
        (FilesystemLayout.SPLIT, _NODEFS): (_CONTAINERS, _LOGS),
        (FilesystemLayout.SPLIT, _IMAGEFS): _IMAGES,
    }
)


def reclaim_steps(
    signal: Signal, layout: FilesystemLayout, other: OtherImageFilesystem | None = None
) -> tuple[ReclaimStep, ...]:
    """Return the reclaim steps for a signal, in order; empty for memory, PIDs and stall signals.

    The steps are the kubelet's, except that logs have a separate step: the kubelet removes logs in its container
    garbage collection. Images that cannot be pulled again are removed in the last step. With a dedicated imagefs the
    kubelet has no step for nodefs; nodeagent removes orphaned logs, which are on nodefs. The steps for an image
    filesystem other than the first remove only dead containers and images of its snapshotters.

    Source: kubelet ``buildSignalToNodeReclaimFuncs``.
    """
    filesystem = MEANINGS[signal].filesystem
    if filesystem is None:
        return ()
    if other is not None:
        return tuple(ReclaimStep(action, FilesystemRole.IMAGEFS, other) for action in (_CONTAINERS, *_IMAGES))
    device = device_role(filesystem, layout)
    return tuple(ReclaimStep(action, device) for action in _ACTIONS[layout, device])


def device_role(filesystem: FilesystemRole, layout: FilesystemLayout) -> FilesystemRole:
    """Return the role that identifies the device of a filesystem: the first of nodefs and imagefs on this device."""
    return _DEVICES[layout][filesystem]
