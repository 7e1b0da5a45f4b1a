"""A checked configuration in the terms of the agent: seconds, bytes, paths and policies; no models of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.config.control import ControlSettings
from nodeagent.config.eviction import EvictionSettings, KubeletSettings
from nodeagent.config.metrics import MetricsSettings
from nodeagent.config.shutdown import ShutdownSettings

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model import Role
    from nodeagent.plan.gc.planner import GCPolicy


@dataclass(frozen=True, slots=True)
class Origin:
    """Where settings come from, so that they can be loaded again.

    Attributes:
        path: the file; ``None`` for the default one.
        overrides: dotted keys from the command line, with their values.
        dry_run: whether the command line says that removals are only told.
    """

    path: Path | None = None
    overrides: tuple[tuple[str, str | int], ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What an agent is composed from.

    Attributes:
        role: how it stands to a kubelet; ``None`` to find out.
        dry_run: whether removals are only told.
        endpoint: the runtime's socket; empty to find one.
        containerd_api: whether containerd's own services may be asked.
        timeout_s: deadline of reading calls to the runtime.
        removal_timeout_s: deadline of calls that stop or remove something.
        bulk_removal: whether images may be removed through containerd's own image service.
        imagefs_path: overrides the mount point the runtime names; empty for none.
        pod_log_root: where the kubelet keeps pod logs.
        container_log_root: where the links to them are.
        state_directory: where the agent's own state is.
        container_interval_s: time between two container passes of the daemon; ``None`` for none.
        image_interval_s: time between two image passes of the daemon; ``None`` for none.
        log_format: ``auto``, ``console`` or ``json``.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        history_age_s: how long passes are remembered.
        history_bytes: how large the history may grow.
        policy: the settings of the planners.
        eviction: when and how pods are evicted.
        kubelet: where more is known of pods.
        origin: where all this comes from.
        values: every setting by its dotted key, as it would be written in a file.
        shutdown: how pods are stopped when the node goes down.
        control: where the agent is asked and told things.
        metrics: where metrics and health are served.
        reload_grace_s: time between a switch from dry run to active and the first destructive pass; 0 disables.
    """

    role: Role | None
    dry_run: bool
    endpoint: str
    containerd_api: bool
    timeout_s: float
    removal_timeout_s: float
    bulk_removal: bool
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
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    origin: Origin = field(default_factory=Origin)
    values: tuple[tuple[str, str], ...] = ()
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    reload_grace_s: float = 60.0
