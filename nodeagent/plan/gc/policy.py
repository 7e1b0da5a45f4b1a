"""Garbage collection policies, in a separate module so that reading the configuration does not import the planners."""

from __future__ import annotations

from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.record import Record, field


class ImageGCPolicy(Record):
    """Thresholds, ages, limits and protection of image garbage collection.

    Attributes:
        high_threshold_percent: usage of the image filesystem in percent that starts a collection; 100 disables the
            threshold.
        low_threshold_percent: usage in percent at which a collection stops.
        minimum_age_s: minimum age for removal, counted from first detection or an earlier pull; an image of exactly
            this age may be removed.
        maximum_unused_age_s: an image unused for longer is removed at any filesystem usage, once image use has been
            observed for longer than this age; 0 disables removal by age.
        minimum_gain_bytes: minimum bytes that the removal of an image by threshold must free; 0 disables the minimum.
        max_images_per_pass: maximum number of images removed per pass; 0 for no limit.
        max_bytes_per_pass: maximum bytes freed per pass; 0 for no limit. A larger image is removed if it is the first
            of a pass, and then no other image: a limit below the size of one image would otherwise block collection.
        protection: rules for images that are kept at any age.

    Source: kubelet ``imageGCHighThresholdPercent``, ``imageGCLowThresholdPercent``, ``imageMinimumGCAge``,
    ``imageMaximumGCAge``.
    """

    high_threshold_percent: int = 85
    low_threshold_percent: int = 80
    minimum_age_s: float = 120.0
    maximum_unused_age_s: float = 0.0
    minimum_gain_bytes: int = 0
    max_images_per_pass: int = 0
    max_bytes_per_pass: int = 0
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
