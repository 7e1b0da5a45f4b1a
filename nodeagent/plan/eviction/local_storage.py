"""Detection of pods over their own local storage limits, which are evicted even without node pressure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.model.pressure import FilesystemLayout
from nodeagent.plan.decision import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.model.pressure import PodFacts


class StorageLimit(StrEnum):
    """Kind of storage limit, named as in the label of the kubelet's eviction metric."""

    EMPTY_DIR = "emptydirfs.limit"
    POD = "ephemeralpodfs.limit"
    CONTAINER = "ephemeralcontainerfs.limit"


class Violation(NamedTuple):
    """Storage limit exceeded by a pod, with usage and limit.

    Attributes:
        name: name of the emptyDir volume or container; empty for the limit of the pod.
        limit_text: the limit as written in the definition of the pod, for display.
    """

    limit: StorageLimit
    name: str
    usage_bytes: int
    limit_bytes: int
    limit_text: str = ""

    @property
    def excess_bytes(self) -> int:
        """Usage above the limit, in bytes."""
        return self.usage_bytes - self.limit_bytes

    @property
    def reason(self) -> Reason:
        """The reason to evict the pod."""
        numbers = {"usage_bytes": self.usage_bytes, "limit_bytes": self.limit_bytes}
        if self.limit is StorageLimit.EMPTY_DIR:
            return Reason(ReasonCode.EMPTY_DIR_OVER_LIMIT, {"volume": self.name, **numbers})
        if self.limit is StorageLimit.POD:
            return Reason(ReasonCode.POD_OVER_STORAGE_LIMIT, numbers)
        return Reason(ReasonCode.CONTAINER_OVER_STORAGE_LIMIT, {"container": self.name, **numbers})


def find_violation(pod: PodFacts, layout: FilesystemLayout) -> Violation | None:
    """Return the first storage limit below a pod's usage; ``None`` if no limit is exceeded or the usage is unknown.

    Limits are checked in this order: emptyDir volumes, the pod, containers. The writable layer of a container counts
    only if it is on the filesystem of the container's logs.

    Source: kubelet ``localStorageEviction``: ``emptyDirLimitEviction``, ``podEphemeralStorageLimitEviction``,
    ``containerEphemeralStorageLimitEviction``.
    """
    return next((each for each in _candidates(pod, layout) if each.usage_bytes > each.limit_bytes > 0), None)


def has_limit(pod: PodFacts) -> bool:
    """Return whether a pod has a storage limit: of the pod, of a container or of an emptyDir volume."""
    return bool(
        pod.ephemeral_limit_bytes
        or any(each.limit_bytes for each in pod.empty_dirs)
        or any(each.ephemeral_limit_bytes for each in pod.containers)
    )


def _candidates(pod: PodFacts, layout: FilesystemLayout) -> Iterator[Violation]:
    for volume in pod.empty_dirs:
        if volume.used_bytes is not None and volume.limit_bytes:
            limit_bytes, limit_text = volume.limit_bytes, volume.limit_text
            yield Violation(StorageLimit.EMPTY_DIR, volume.name, volume.used_bytes, limit_bytes, limit_text)
    if pod.usage is not None and pod.usage.ephemeral_bytes is not None and pod.ephemeral_limit_bytes:
        limit_bytes, limit_text = pod.ephemeral_limit_bytes, pod.ephemeral_limit_text
        yield Violation(StorageLimit.POD, "", pod.usage.ephemeral_bytes, limit_bytes, limit_text)
    for container in pod.containers:
        if container.ephemeral_limit_bytes:
            usage_bytes = container.logs_bytes or 0
            if layout is FilesystemLayout.SINGLE:
                usage_bytes += container.writable_bytes or 0
            limit_bytes, limit_text = container.ephemeral_limit_bytes, container.ephemeral_limit_text
            yield Violation(StorageLimit.CONTAINER, container.name, usage_bytes, limit_bytes, limit_text)
