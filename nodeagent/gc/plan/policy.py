"""Policies, scopes and limits of garbage collection, without the planners, which the configuration does not need."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.gc.plan.image_protection import ProtectionPolicy
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.record import Record, field

if TYPE_CHECKING:
    from nodeagent.model.runtime import FsObservation


class ImageGCPolicy(Record):
    """Thresholds, ages, limits and protection of image garbage collection.

    Attributes:
        high_threshold_percent: usage of the image filesystem in percent that starts a collection; 100 disables the
            threshold.
        low_threshold_percent: usage in percent at which a collection stops.
        high_threshold_inodes_percent: used inodes in percent that start a collection; 100 disables the threshold. The
            kubelet has no such threshold.
        low_threshold_inodes_percent: used inodes in percent at which such a collection stops.
        minimum_age_s: minimum age for removal, counted from first detection or an earlier pull; an image of exactly
            this age may be removed.
        maximum_unused_age_s: an image unused for longer is removed at any filesystem usage, once image use has been
            observed for longer than this age; 0 disables removal by age.
        collect_ahead_s: time before the high threshold, by the forecast, in which images are removed so that the
            threshold is not met within this time; 0 disables such removals.
        minimum_gain_bytes: minimum bytes that the removal of an image by threshold must free; 0 disables the minimum.
        max_images_per_pass: maximum number of images removed per pass; 0 for no limit.
        max_bytes_per_pass: maximum bytes freed per pass; 0 for no limit. A larger image is removed if it is the first
            of a pass, and then no other image: a limit below the size of one image would otherwise block collection.
        untagged_first: whether images without a tag are removed before all images with a tag; see ``untagged_images``.
        wanted_available_bytes: available bytes that the removals reach, instead of the thresholds and the maximum
            unused age, which are ignored; ``None`` for the thresholds. See :class:`SpaceGoal`.
        protection: rules for images that are kept at any age.

    Source: kubelet ``imageGCHighThresholdPercent``, ``imageGCLowThresholdPercent``, ``imageMinimumGCAge``,
    ``imageMaximumGCAge``.
    """

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    high_threshold_inodes_percent: int = 90
    low_threshold_inodes_percent: int = 85
    minimum_age_s: float = 120.0
    maximum_unused_age_s: float = 0.0
    collect_ahead_s: float = 0.0
    minimum_gain_bytes: int = 0
    max_images_per_pass: int = 0
    max_bytes_per_pass: int = 0
    untagged_first: bool = False
    wanted_available_bytes: int | None = None
    protection: ProtectionPolicy = field(default_factory=ProtectionPolicy)


class ContainerGCPolicy(Record):
    """Limits of container garbage collection.

    Attributes:
        minimum_age_s: minimum age of dead containers, counted from creation as in the kubelet, not from exit.
        max_per_pod_container: maximum number of dead containers to keep per container of a pod; negative for no limit.
        max_containers: maximum number of dead containers to keep on the node; negative for no limit.
        deleted_pod_grace_s: seconds of inactivity after which a pod is inferred to be deleted.
        include_unlabelled: also remove containers without kubelet labels.

    Source: kubelet ``minimum-container-ttl-duration``, ``maximum-dead-containers-per-container``,
    ``maximum-dead-containers``.
    """

    minimum_age_s: float = 0.0
    max_per_pod_container: int = 1
    max_containers: int = -1
    deleted_pod_grace_s: float = 300.0
    include_unlabelled: bool = False


class SandboxGCPolicy(Record):
    """Limits of sandbox garbage collection.

    Attributes:
        minimum_age_s: minimum age of sandboxes, counted from creation; the kubelet has no minimum age.
        include_unlabelled: also remove sandboxes without kubelet labels.
    """

    minimum_age_s: float = 60.0
    include_unlabelled: bool = False


class PodLogPolicy(Record):
    """Limits of pod log garbage collection.

    Attributes:
        minimum_age_s: seconds since the last change before an entry without a pod or container in the runtime is
            removed.
        period_s: seconds between the two equal readings required for a directory whose open files are unknown.
    """

    minimum_age_s: float = 300.0
    period_s: float = 60.0


class GCPolicy(Record):
    """Policies of all garbage collection planners."""

    images: ImageGCPolicy = field(default_factory=ImageGCPolicy)
    containers: ContainerGCPolicy = field(default_factory=ContainerGCPolicy)
    sandboxes: SandboxGCPolicy = field(default_factory=SandboxGCPolicy)
    logs: PodLogPolicy = field(default_factory=PodLogPolicy)


class SpaceGoal(Record):
    """Space on the image filesystem that a user requests for one pass, at any usage.

    Attributes:
        free_bytes: bytes to free, in addition to the available bytes.
        used_percent: usage in percent to reach; ``None`` for ``free_bytes``.
    """

    free_bytes: int = 0
    used_percent: int | None = None

    def available_bytes(self, observed: FsObservation) -> int:
        """Return the least available bytes of the filesystem at which the goal is reached."""
        if self.used_percent is None:
            return observed.available_bytes + self.free_bytes
        return -(-observed.capacity_bytes * (100 - self.used_percent) // 100)


class Scope(StrEnum):
    """Kinds of items in a pass; the scope determines which lists the observer reads."""

    IMAGES = "images"
    CONTAINERS = "containers"
    ALL = "all"
    LEAKS = "leaks"


LIMITS: Final = frozenset({ReasonCode.LIMIT_IMAGES_PER_PASS, ReasonCode.LIMIT_BYTES_PER_PASS})
"""Reason codes of images kept by a limit per pass."""


class Spent(Record):
    """Number and size of the images removed in earlier rounds of a pass, counted against the limits per pass."""

    images: int = 0
    size_bytes: int = 0


class PassLimits:
    """Limits per pass. After the first image that would exceed a limit, no further image of any size is removed."""

    def __init__(self, max_images: int, max_bytes: int, spent: Spent) -> None:
        """Count the removals of earlier rounds; a limit of 0 disables this limit."""
        self._max_images = max_images
        self._max_bytes = max_bytes
        self._images = spent.images
        self._bytes = spent.size_bytes
        self._exceeded: Reason | None = None

    def exceeded_by(self, size_bytes: int | None) -> Reason | None:
        """Return the reason if one more image of this size exceeds a limit; ``None`` within the limits."""
        if self._exceeded is None:
            if 0 < self._max_images <= self._images:
                self._exceeded = Reason(ReasonCode.LIMIT_IMAGES_PER_PASS, {"limit": self._max_images})
            elif 0 < self._max_bytes < self._bytes + (size_bytes or 0) and self._images:
                self._exceeded = Reason(ReasonCode.LIMIT_BYTES_PER_PASS, {"limit_bytes": self._max_bytes})
        return self._exceeded

    def count(self, size_bytes: int | None) -> None:
        """Count the removal of one more image of this size."""
        self._images += 1
        self._bytes += size_bytes or 0
