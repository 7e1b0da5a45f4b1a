"""Settings models of image GC and container GC."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from nodeagent.config import value_forms as forms
from nodeagent.config.fields import Count, Directory, Duration, Limit, Percent, Period, Section, Size, Switch
from nodeagent.plan.gc.image_protection import RULE_FORM
from nodeagent.units import parse_duration_s

Rule = Annotated[str, AfterValidator(forms.rule)]


Registry = Annotated[str, AfterValidator(forms.registry)]


class ImageGCSection(Section):
    """Removal of unused images."""

    enabled: Switch = Field(True, description="Whether the daemon runs image GC.")
    interval: Period = Field("5m", description="Interval of image GC passes, with 10% jitter.")
    high_threshold_percent: Percent = Field(
        85, description="Image filesystem usage at which removal starts. 100 disables removal for space."
    )
    low_threshold_percent: Percent = Field(
        80, description="Image filesystem usage at which removal stops. Must be below the high threshold."
    )
    minimum_age: Duration = Field("2m", description="Minimum age, since first detection or pull, of removed images.")
    maximum_unused_age: Duration = Field(
        "0s",
        description="Maximum time without use of an image. An image unused for longer is removed regardless of disk "
        "usage. No image is removed by age before image use was observed without a gap for this time. 0 disables.",
    )
    minimum_gain: Size = Field("0", description="Images that would free less than this are skipped. 0 disables.")
    removal: Literal["auto", "cri"] = Field(
        "auto",
        description="Removal method. auto: where containerd's image service is available, in transactions, which "
        "restore images from which containers are being created; cri: one RemoveImage call per image, without restore.",
    )
    settle: Duration = Field(
        "1s",
        description="Maximum wait of a removal for container creations in progress, once per transaction of up to 75 "
        "images; 0.3s while an eviction threshold is met. After a shorter wait, more images are restored, or a slow "
        "creation is not detected.",
    )
    irreplaceable: Literal["last", "never", "ignore"] = Field(
        "last",
        description="Treatment of images that cannot be pulled again: imported or built on the node, with a name "
        "under which they were never pulled, or from an unreachable registry. last: removed for space only, after all "
        "other images; never: kept; ignore: removed like others. With last and never, an image with an unreadable "
        "origin is kept. CRI alone reports no origin: with 'last' all images are then removed like others, with "
        "'never' all images are kept.",
    )
    unreachable_registries: Annotated[
        tuple[Registry, ...], Field(json_schema_extra={"form": "list; each HOST or HOST:PORT, * matches any text"})
    ] = Field((), description="Registries from which no image can be pulled on this node.")
    undo_window: Duration = Field(
        "10m",
        description="Time for which image removals by age, and all image removals by commands, can be undone "
        "(nodeagent gc undo). The space is freed by the first pass after this time, or by a pass that needs more "
        "space. All removals of a daemon pass that needs space are final. 0 disables undo.",
    )
    max_images_per_pass: Count = Field(0, description="Maximum number of images removed per pass. 0: no limit.")
    max_bytes_per_pass: Size = Field("0", description="Approximate maximum of bytes freed per pass. 0: no limit.")

    @property
    def interval_s(self) -> float:
        """Interval of image GC passes, in seconds."""
        return parse_duration_s(self.interval)

    @field_validator("low_threshold_percent")
    @classmethod
    def _below_high(cls, low: int, info: ValidationInfo) -> int:
        high = info.data.get("high_threshold_percent")
        if high is not None:
            forms.check_thresholds(low, high)
        return low

    @field_validator("maximum_unused_age")
    @classmethod
    def _beyond_minimum(cls, unused: str, info: ValidationInfo) -> str:
        minimum = info.data.get("minimum_age")
        if minimum is not None:
            forms.check_unused_age(unused, minimum)
        return unused


class ContainerGCSection(Section):
    """Removal of dead containers, empty sandboxes and old pod logs."""

    enabled: Switch = Field(True, description="Whether the daemon runs container GC.")
    interval: Period = Field("1m", description="Interval of container GC passes, with 10% jitter.")
    minimum_age: Duration = Field("0s", description="Minimum age, since creation, of removed containers.")
    max_per_pod_container: Limit = Field(
        1, description="Maximum number of dead instances kept per container of a pod, newest first."
    )
    max_containers: Limit = Field(
        -1,
        description="Maximum number of dead containers kept on the node, divided evenly among the containers of all "
        "pods: at least one each, newest first. Beside a kubelet the newest dead instance of each container of an "
        "existing pod is kept regardless of this limit and max_per_pod_container.",
    )
    deleted_pod_grace: Duration = Field(
        "5m",
        description="Time without any activity of a pod after which it counts as deleted. A boot counts as activity, "
        "so that no pod counts as deleted because of a reboot.",
    )
    include_unlabelled: Switch = Field(
        False, description="Include containers and sandboxes without kubelet labels, such as manually created ones."
    )
    sandbox_minimum_age: Duration = Field("1m", description="Minimum age, since creation, of removed sandboxes.")
    log_minimum_age: Duration = Field("5m", description="Minimum age, since the last change, of removed pod logs.")
    pod_log_root: Directory = Field("/var/log/pods", description="Root directory of pod logs.")
    container_log_root: Directory = Field(
        "/var/log/containers", description="Directory of the symbolic links to container logs."
    )

    @property
    def interval_s(self) -> float:
        """Interval of container GC passes, in seconds."""
        return parse_duration_s(self.interval)

    @property
    def deleted_pod_grace_s(self) -> float:
        """Time without activity after which a pod counts as deleted, in seconds."""
        return parse_duration_s(self.deleted_pod_grace)


class ProtectSection(Section):
    """Images protected from removal."""

    images: Annotated[tuple[Rule, ...], Field(json_schema_extra={"form": f"list; each {RULE_FORM}"})] = Field(
        (), description="Images that are never removed. The matching rule is part of the reported reason."
    )
    keep_last_n_tags_per_repository: Count = Field(
        0, description="Number of newest images kept per repository. 0 disables."
    )
