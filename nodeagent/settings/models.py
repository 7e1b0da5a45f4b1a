"""The whole configuration and its sections that have no module of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from nodeagent.cluster.settings import KubernetesSection
from nodeagent.config.validation import (
    Count,
    Directory,
    Duration,
    Endpoint,
    OptionalPath,
    Period,
    Section,
    Size,
    Switch,
    about,
)
from nodeagent.eviction.settings import EvictionSection
from nodeagent.gc.settings import ContainerGCSection, ImageGCSection, ProtectSection, gc_policy
from nodeagent.model import Role
from nodeagent.pods.settings import KubeletSection
from nodeagent.settings.endpoints import ControlSection, MetricsSection
from nodeagent.settings.settings import Settings
from nodeagent.shutdown.settings import ShutdownSection
from nodeagent.units import parse_bytes, parse_duration_s


class RuntimeSection(Section):
    """Access to the container runtime."""

    endpoint: Annotated[
        Endpoint,
        about(
            "Socket of the container runtime. Empty: the first socket with a listener, of k3s, rke2, k0s, microk8s, "
            "containerd and CRI-O in this order."
        ),
    ] = ""
    containerd_api: Annotated[
        Literal["auto", "off"],
        about(
            "Whether containerd's own API is used, so that shared layers are counted once. off, or with another "
            "runtime: image sizes are upper bounds."
        ),
    ] = "auto"
    timeout: Annotated[Period, about("Timeout of CRI calls that read.")] = "10s"
    removal_timeout: Annotated[Period, about("Timeout of CRI calls that stop or remove.")] = "2m"
    imagefs_path: Annotated[
        OptionalPath,
        about("Path on the image filesystem. Empty: the mount point reported by the runtime."),
    ] = ""


class StateSection(Section):
    """State of the agent."""

    directory: Annotated[Directory, about("Directory of the state: image usage database, history, pass lock.")] = (
        "/var/lib/nodeagent"
    )


class HistorySection(Section):
    """Retention of the history."""

    maximum_age: Annotated[
        Period,
        about("Maximum age of recorded passes; one day for passes of the daemon without removals."),
    ] = "30d"
    maximum_size: Annotated[
        Size, about("Maximum size of the history database; the oldest passes are deleted first.")
    ] = "16Mi"
    maximum_records: Annotated[
        Count,
        about(
            "Maximum number of recorded passes, and of recorded node shutdowns; the oldest are deleted first. 0: no "
            "limit."
        ),
    ] = 10_000


class LogSection(Section):
    """Log of the agent, on standard error."""

    format: Annotated[
        Literal["auto", "journal", "console", "json"],
        about(
            "Log format. journal: entries with fields, see systemd.journal-fields; auto: console on a terminal, "
            "journal where standard error is connected to it, JSON elsewhere."
        ),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Minimum severity of logged events. debug also logs each kept item."),
    ] = "info"


class Config(Section):
    """The whole configuration."""

    role: Annotated[
        Literal["auto", "beside-kubelet", "standalone"],
        about(
            "Whether a kubelet manages this node. beside-kubelet: no pod is stopped at shutdown; pods count as "
            "deleted only with kubernetes.watch_pods, and are evicted only with kubernetes.evict_pods. standalone: "
            "the node has no kubelet, even if files of a removed kubelet exist; with a kubelet process, the role is "
            "still beside-kubelet. auto: detected in every pass from kubelet processes, and kubelet state and "
            "configuration files; beside-kubelet if one of them is found or unreadable, standalone 5m after the "
            "last detection."
        ),
    ] = "auto"
    dry_run: Annotated[Switch, about("Plan and log only; nothing is removed, evicted or stopped.")] = False
    reload_grace: Annotated[
        Duration,
        about(
            "Time between a switch of dry_run from true to false, by a reload or a restart, and the first pass that "
            "removes or evicts, hard eviction thresholds included. nodeagent pause stops the countdown, which "
            "restarts at the end of the pause. 0 disables."
        ),
    ] = "60s"
    runtime: Annotated[RuntimeSection, about("Access to the container runtime.")] = RuntimeSection()
    image_gc: Annotated[ImageGCSection, about("Removal of unused images.")] = ImageGCSection()
    container_gc: Annotated[
        ContainerGCSection, about("Removal of dead containers, empty sandboxes and old pod logs.")
    ] = ContainerGCSection()
    eviction: Annotated[EvictionSection, about("Pod eviction under node pressure.")] = EvictionSection()
    kubelet: Annotated[KubeletSection, about("Sources of pod facts that CRI lacks.")] = KubeletSection()
    kubernetes: Annotated[KubernetesSection, about("Node object and access to the Kubernetes API server.")] = (
        KubernetesSection()
    )
    shutdown: Annotated[ShutdownSection, about("Graceful shutdown of the node.")] = ShutdownSection()
    protect: Annotated[ProtectSection, about("Images protected from removal.")] = ProtectSection()
    state: Annotated[StateSection, about("State of the agent.")] = StateSection()
    history: Annotated[HistorySection, about("Retention of the history.")] = HistorySection()
    control: Annotated[ControlSection, about("Control API of the daemon.")] = ControlSection()
    log: Annotated[LogSection, about("Log of the agent, on standard error.")] = LogSection()
    metrics: Annotated[MetricsSection, about("Endpoint of metrics and health checks.")] = MetricsSection()

    def settings(self) -> Settings:
        """Return the settings of a valid configuration."""
        kubernetes = self.kubernetes.settings()
        runtime, images, containers = self.runtime, self.image_gc, self.container_gc
        return Settings(
            role=None if self.role == "auto" else Role(self.role),
            dry_run=self.dry_run,
            endpoint=runtime.endpoint,
            containerd_api=runtime.containerd_api == "auto",
            timeout_s=parse_duration_s(runtime.timeout),
            removal_timeout_s=parse_duration_s(runtime.removal_timeout),
            bulk_removal=images.removal == "auto",
            settle_s=parse_duration_s(images.settle),
            undo_window_s=parse_duration_s(images.undo_window),
            imagefs_path=runtime.imagefs_path,
            pod_log_root=Path(containers.pod_log_root),
            container_log_root=Path(containers.container_log_root),
            state_directory=Path(self.state.directory),
            container_interval_s=parse_duration_s(containers.interval) if containers.enabled else None,
            image_interval_s=parse_duration_s(images.interval) if images.enabled else None,
            log_format=self.log.format,
            log_level=self.log.level,
            policy=gc_policy(images, containers, self.protect),
            history_age_s=parse_duration_s(self.history.maximum_age),
            history_bytes=parse_bytes(self.history.maximum_size),
            history_records=self.history.maximum_records,
            eviction=self.eviction.settings(through_api=kubernetes.evict_pods),
            kubelet=self.kubelet.settings(),
            shutdown=self.shutdown.settings(),
            control=self.control.settings(),
            metrics=self.metrics.settings(),
            kubernetes=kubernetes,
            reload_grace_s=parse_duration_s(self.reload_grace),
        )
