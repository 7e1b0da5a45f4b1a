"""Validated configuration in the form used by the agent: seconds, bytes, paths and policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.cluster.settings import KubernetesSettings
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.pods.settings import KubeletSettings
from nodeagent.record import Record, field
from nodeagent.settings.endpoints import ControlSettings, MetricsSettings
from nodeagent.shutdown.settings import ShutdownSettings

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import GCPolicy
    from nodeagent.model import Role


DEFAULT_SOURCE: Final = "default"
"""Source shown for a setting that is not configured."""


class Origin(Record):
    """Sources of the settings, for a reload.

    Attributes:
        path: configuration file; ``None`` for the default file.
        overrides: dotted keys from the command line, with their values.
        dry_run: whether the command line requests a dry run.
    """

    path: Path | None = None
    overrides: tuple[tuple[str, str | int], ...] = ()
    dry_run: bool = False


class Settings(Record):
    """All settings of an agent.

    Attributes:
        role: configured role; ``None`` for automatic detection.
        dry_run: whether passes only plan and log.
        endpoint: socket of the container runtime; empty for automatic detection.
        containerd_api: whether containerd's own services can be used.
        timeout_s: deadline of CRI calls that read.
        removal_timeout_s: deadline of CRI calls that stop or remove.
        bulk_removal: whether images can be removed through containerd's image service.
        settle_s: maximum wait of a removal for container creations in progress.
        undo_window_s: time for which image removals by age and by commands can be undone; 0 disables undo.
        imagefs_path: path on the image filesystem; empty for the mount point reported by the runtime.
        pod_log_root: root directory of pod logs.
        container_log_root: directory of the symbolic links to container logs.
        state_directory: directory of the agent's state.
        container_interval_s: interval of container GC passes; ``None`` disables container GC.
        image_interval_s: interval of image GC passes; ``None`` disables image GC.
        log_format: ``auto``, ``journal``, ``console`` or ``json``.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        history_age_s: maximum age of recorded passes.
        history_bytes: maximum size of the history database.
        history_records: maximum number of recorded passes, and of recorded node stops.
        policy: GC policies.
        eviction: pod eviction.
        kubelet: sources of pod facts beyond CRI.
        origin: sources of the settings.
        values: all settings as pairs of dotted key and TOML value.
        sources: pairs of dotted key and source, of the settings that are not defaults.
        shutdown: graceful shutdown.
        control: control API.
        metrics: metrics and health endpoint.
        kubernetes: Node object and access to the Kubernetes API server.
        invalid_because: errors of an invalid configuration, if the settings are for graceful shutdown only; else empty.
        standby_source: file of the settings for graceful shutdown only, or ``defaults``; else empty.
        reload_grace_s: time between a switch from dry run to active and the first destructive pass; 0 disables.
    """

    role: Role | None
    dry_run: bool
    endpoint: str
    containerd_api: bool
    timeout_s: float
    removal_timeout_s: float
    bulk_removal: bool
    settle_s: float
    undo_window_s: float
    imagefs_path: str
    pod_log_root: Path
    container_log_root: Path
    state_directory: Path
    container_interval_s: float | None
    image_interval_s: float | None
    log_format: str
    log_level: str
    policy: GCPolicy
    history_age_s: float
    history_bytes: int
    history_records: int
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    origin: Origin = field(default_factory=Origin)
    values: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    reload_grace_s: float = 60.0
    invalid_because: str = ""
    standby_source: str = ""

    def shutdown_off_because(self, role: Role, evidence: str = "", paused: str = "") -> str:
        """Return the reason why the agent stops no pod at a shutdown of the node; empty if it stops the pods.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
            paused: pause of the operator in force, as text; empty without a pause.
        """
        return self.shutdown.off_because(role, evidence) or ("dry_run = true" if self.dry_run else paused)
