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
    """A kind of node-level reclaim.

    ``DEAD_CONTAINERS``: dead containers and sandboxes, of finished pods as well. ``LOGS``: logs of deleted pods
    and removed containers. ``UNUSED_IMAGES``: all unused images above the minimum age that can be pulled again.
    ``IRREPLACEABLE_IMAGES``: the unused images that cannot be pulled again, unless they are kept by the configuration.
    """

    DEAD_CONTAINERS = "dead-containers"
    LOGS = "logs"
    UNUSED_IMAGES = "unused-images"
    IRREPLACEABLE_IMAGES = "irreplaceable-images"


class ReclaimStep(NamedTuple):
    """One action for one filesystem.

    A filesystem with several roles is named by the first of nodefs and imagefs, so that no step runs twice for it.

    Attributes:
        other: an image filesystem besides the first; ``None`` for the first.
    """

    action: ReclaimAction
    filesystem: FilesystemRole
    other: OtherImageFilesystem | None = None

    @property
    def text(self) -> str:
        """The step as text, such as ``unused-images on imagefs``; with the path of another image filesystem."""
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
    """Return the steps for a signal, in order; none for memory, PIDs and stalls.

    These are the kubelet's, with logs in a step of their own: the kubelet removes logs in its container garbage
    collection. Images that cannot be pulled again are removed in the last step. With a dedicated imagefs the kubelet
    has no step for nodefs; here orphaned logs, which are on nodefs, are removed. The steps of another image filesystem
    remove the dead containers and images of its snapshotters only.

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
    """Return the role that names the device of a filesystem."""
    return _DEVICES[layout][filesystem]
