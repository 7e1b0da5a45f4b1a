"""Sections ``image_gc``, ``container_gc`` and ``protect``: removal of images, containers, sandboxes and pod logs."""

from __future__ import annotations

from typing import Annotated, Literal

from nodeagent.config.validation import (
    Check,
    Count,
    Directory,
    Duration,
    Limit,
    Percent,
    Period,
    Section,
    Size,
    Switch,
    about,
    below_high_inodes,
    below_high_threshold,
    beyond_minimum_age,
    form,
    registry,
    time_ahead,
)
from nodeagent.gc.plan.image_protection import RULE_FORM, Irreplaceable, ProtectionPolicy, parse_rule
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.units import parse_bytes, parse_duration_s

Rule = Annotated[str, Check(parse_rule)]
Registry = Annotated[str, Check(registry)]


class ImageGCSection(Section):
    """Removal of unused images."""

    enabled: Annotated[Switch, about("Whether the daemon runs image GC.")] = True
    interval: Annotated[Period, about("Interval of image GC passes, with 10% jitter.")] = "5m"
    high_threshold_percent: Annotated[
        Percent,
        about("Image filesystem usage at which removal starts. 100 disables removal for space, bytes and inodes."),
    ] = 85
    low_threshold_percent: Annotated[
        Percent,
        Check(below_high_threshold, ("high_threshold_percent",)),
        about("Image filesystem usage at which removal stops. Must be below the high threshold."),
    ] = 80
    high_threshold_inodes_percent: Annotated[
        Percent,
        about(
            "Used inodes of the image filesystem at which removal starts, if the inodes of images are known and the "
            "filesystem has a fixed number. 100 disables removal for inodes."
        ),
    ] = 90
    low_threshold_inodes_percent: Annotated[
        Percent,
        Check(below_high_inodes, ("high_threshold_inodes_percent",)),
        about("Used inodes at which such a removal stops. Must be below the high threshold for inodes."),
    ] = 85
    minimum_age: Annotated[Duration, about("Minimum age, since first detection or pull, of removed images.")] = "2m"
    maximum_unused_age: Annotated[
        Duration,
        Check(beyond_minimum_age, ("minimum_age",)),
        about(
            "Maximum time without use of an image. An image unused for longer is removed regardless of disk usage. "
            "No image is removed by age before image use was observed without a gap for this time. 0 disables."
        ),
    ] = "0s"
    collect_ahead: Annotated[
        Duration,
        Check(time_ahead),
        form("duration from 30m to 24h, or 0"),
        about(
            "Time before the high threshold in which the daemon removes images, at low priority: if by the forecast "
            "the threshold for bytes is met within this time, only the images that keep the usage below it for this "
            "time, and no image whose use is expected within it. 0 disables."
        ),
    ] = "0s"
    minimum_gain: Annotated[
        Size, about("Images that would free less are skipped, unless inodes are needed. 0 disables.")
    ] = "0"
    removal: Annotated[
        Literal["auto", "cri"],
        about(
            "Removal method. auto: where containerd's image service is available, in transactions, which restore "
            "images from which containers are being created; cri: one RemoveImage call per image, without restore."
        ),
    ] = "auto"
    settle: Annotated[
        Duration,
        about(
            "Maximum wait of a removal for container creations in progress, once per transaction of up to 75 "
            "images; 0.3s while an eviction threshold is met. After a shorter wait, more images are restored, or a "
            "slow creation is not detected."
        ),
    ] = "1s"
    irreplaceable: Annotated[
        Literal["last", "never", "ignore"],
        about(
            "Treatment of images that cannot be pulled again: imported or built on the node, with a name under "
            "which they were never pulled, or from an unreachable registry. last: removed for space only, after all "
            "other images; never: kept; ignore: removed like others. With last and never, an image with an "
            "unreadable origin is kept. CRI alone reports no origin: with 'last' all images are then removed like "
            "others, with 'never' all images are kept."
        ),
    ] = "last"
    unreachable_registries: Annotated[
        tuple[Registry, ...],
        form("list; each HOST or HOST:PORT, * matches any text"),
        about("Registries from which no image can be pulled on this node."),
    ] = ()
    untagged_first: Annotated[
        Switch,
        about(
            "Remove images without a tag, such as those whose tag was moved to another image, before all images with a "
            "tag, and least recently used first in both groups. An image pulled by digest has no tag either. Images "
            "that cannot be pulled again remain last. The switch changes the order only."
        ),
    ] = False
    undo_window: Annotated[
        Duration,
        about(
            "Time for which image removals by age, and all image removals by commands, can be undone (nodeagent gc "
            "undo). The space is freed by the first pass after this time, or by a pass that needs more space. All "
            "removals of a daemon pass that needs space are final. 0 disables undo."
        ),
    ] = "10m"
    max_images_per_pass: Annotated[Count, about("Maximum number of images removed per pass. 0: no limit.")] = 0
    max_bytes_per_pass: Annotated[Size, about("Approximate maximum of bytes freed per pass. 0: no limit.")] = "0"


class ContainerGCSection(Section):
    """Removal of dead containers, empty sandboxes and old pod logs."""

    enabled: Annotated[Switch, about("Whether the daemon runs container GC.")] = True
    interval: Annotated[Period, about("Interval of container GC passes, with 10% jitter.")] = "1m"
    minimum_age: Annotated[Duration, about("Minimum age, since creation, of removed containers.")] = "0s"
    max_per_pod_container: Annotated[
        Limit, about("Maximum number of dead instances kept per container of a pod, newest first.")
    ] = 1
    max_containers: Annotated[
        Limit,
        about(
            "Maximum number of dead containers kept on the node, divided evenly among the containers of all pods: "
            "at least one each, newest first. Beside a kubelet the newest dead instance of each container of an "
            "existing pod is kept regardless of this limit and max_per_pod_container."
        ),
    ] = -1
    deleted_pod_grace: Annotated[
        Duration,
        about(
            "Time without any activity of a pod after which it counts as deleted. A boot counts as activity, so "
            "that no pod counts as deleted because of a reboot."
        ),
    ] = "5m"
    include_unlabelled: Annotated[
        Switch, about("Include containers and sandboxes without kubelet labels, such as manually created ones.")
    ] = False
    sandbox_minimum_age: Annotated[Duration, about("Minimum age, since creation, of removed sandboxes.")] = "1m"
    log_minimum_age: Annotated[Duration, about("Minimum age, since the last change, of removed pod logs.")] = "5m"
    pod_log_root: Annotated[Directory, about("Root directory of pod logs.")] = "/var/log/pods"
    container_log_root: Annotated[Directory, about("Directory of the symbolic links to container logs.")] = (
        "/var/log/containers"
    )


class ProtectSection(Section):
    """Images protected from removal."""

    images: Annotated[
        tuple[Rule, ...],
        form(f"list; each {RULE_FORM}"),
        about("Images that are never removed. The matching rule is part of the reported reason."),
    ] = ()
    keep_last_n_tags_per_repository: Annotated[
        Count, about("Number of newest images kept per repository. 0 disables.")
    ] = 0


def gc_policy(images: ImageGCSection, containers: ContainerGCSection, protect: ProtectSection) -> GCPolicy:
    """Return the policies of valid sections."""
    return GCPolicy(
        images=ImageGCPolicy(
            high_threshold_percent=images.high_threshold_percent,
            low_threshold_percent=images.low_threshold_percent,
            high_threshold_inodes_percent=images.high_threshold_inodes_percent,
            low_threshold_inodes_percent=images.low_threshold_inodes_percent,
            minimum_age_s=parse_duration_s(images.minimum_age),
            maximum_unused_age_s=parse_duration_s(images.maximum_unused_age),
            collect_ahead_s=parse_duration_s(images.collect_ahead),
            minimum_gain_bytes=parse_bytes(images.minimum_gain),
            max_images_per_pass=images.max_images_per_pass,
            max_bytes_per_pass=parse_bytes(images.max_bytes_per_pass),
            untagged_first=images.untagged_first,
            protection=ProtectionPolicy(
                rules=tuple(parse_rule(rule) for rule in protect.images),
                keep_last_n_tags_per_repository=protect.keep_last_n_tags_per_repository,
                irreplaceable=Irreplaceable(images.irreplaceable),
                unreachable_registries=images.unreachable_registries,
            ),
        ),
        containers=ContainerGCPolicy(
            minimum_age_s=parse_duration_s(containers.minimum_age),
            max_per_pod_container=containers.max_per_pod_container,
            max_containers=containers.max_containers,
            deleted_pod_grace_s=parse_duration_s(containers.deleted_pod_grace),
            include_unlabelled=containers.include_unlabelled,
        ),
        sandboxes=SandboxGCPolicy(
            minimum_age_s=parse_duration_s(containers.sandbox_minimum_age),
            include_unlabelled=containers.include_unlabelled,
        ),
        logs=PodLogPolicy(
            minimum_age_s=parse_duration_s(containers.log_minimum_age), period_s=parse_duration_s(containers.interval)
        ),
    )
