"""Policies of garbage collection, apart from the planners: a configuration is read without the import of these."""

from __future__ import annotations

from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.record import Record, field


class ImageGCPolicy(Record):
    """Thresholds, ages, limits and protection of image garbage collection.

    Attributes:
        high_threshold_percent: usage of the image filesystem that starts a collection; 100 disables the threshold.
        low_threshold_percent: usage at which a collection stops.
        minimum_age_s: counted from first detection or an earlier pull; an image of exactly this age is old enough.
        maximum_unused_age_s: an image unused for longer is removed at any usage, once use has been observed for
            longer than that; 0 disables this.
        minimum_gain_bytes: images known to free less are skipped by the threshold; 0 disables this.
        max_images_per_pass: 0 for no limit.
        max_bytes_per_pass: 0 for no limit. A single larger image is removed if it is the first of the pass, and is
            then the only one; otherwise it would always block collection.
        protection: images kept at any age.

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
        minimum_age_s: counted from creation, as in the kubelet; not from the exit.
        max_per_pod_container: dead containers kept of each container of a pod; negative for no limit.
        max_containers: dead containers kept on the node; negative for no limit, 0 keeps none.
        deleted_pod_grace_s: inactivity after which a pod is inferred as deleted.
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
        minimum_age_s: counted from creation; the kubelet has none.
        include_unlabelled: also remove sandboxes without kubelet labels.
    """

    minimum_age_s: float = 60.0
    include_unlabelled: bool = False


class PodLogPolicy(Record):
    """Limits of pod log garbage collection.

    Attributes:
        minimum_age_s: time since the last change of an entry without a pod or container in the runtime.
        period_s: time between two equal readings of a directory whose open files are unknown.
    """

    minimum_age_s: float = 300.0
    period_s: float = 60.0


class GCPolicy(Record):
    """The policies of all garbage collection planners."""

    images: ImageGCPolicy = field(default_factory=ImageGCPolicy)
    containers: ContainerGCPolicy = field(default_factory=ContainerGCPolicy)
    sandboxes: SandboxGCPolicy = field(default_factory=SandboxGCPolicy)
    logs: PodLogPolicy = field(default_factory=PodLogPolicy)
