"""Conversion of a validated configuration to the settings of the agent and the policies of the planners."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.config.control import ControlSettings
from nodeagent.config.eviction import EvictionSettings, KubeletSettings, StallSettings
from nodeagent.config.eviction_models import kubelet_access
from nodeagent.config.kubernetes_models import kubernetes_settings
from nodeagent.config.metrics import MetricsSettings, parse_listen, tls_files
from nodeagent.config.settings import Settings
from nodeagent.config.shutdown import ShutdownSettings
from nodeagent.config.shutdown_models import shutdown_phases
from nodeagent.model import Role
from nodeagent.model.pressure import MemorySource
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.record import replace
from nodeagent.units import parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from nodeagent.config.models import Config, MetricsSection


def settings(config: Config) -> Settings:
    """Return the settings for a validated configuration."""
    kubernetes = kubernetes_settings(config.kubernetes)
    runtime, images, containers = config.runtime, config.image_gc, config.container_gc
    return Settings(
        role=None if config.role == "auto" else Role(config.role),
        dry_run=config.dry_run,
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
        state_directory=Path(config.state.directory),
        container_interval_s=parse_duration_s(containers.interval) if containers.enabled else None,
        image_interval_s=parse_duration_s(images.interval) if images.enabled else None,
        log_format=config.log.format,
        log_level=config.log.level,
        policy=policies(config),
        history_age_s=parse_duration_s(config.history.maximum_age),
        history_bytes=parse_bytes(config.history.maximum_size),
        history_records=config.history.maximum_records,
        eviction=replace(eviction(config), through_api=kubernetes.evict_pods),
        kubelet=kubelet(config),
        shutdown=shutdown(config),
        control=control(config),
        metrics=metrics_settings(config.metrics),
        kubernetes=kubernetes,
        reload_grace_s=parse_duration_s(config.reload_grace),
    )


def control(config: Config) -> ControlSettings:
    """Return the settings of the control API."""
    section = config.control
    return ControlSettings(Path(section.socket) if section.socket else None, section.group, section.group_may_act)


def metrics_settings(section: MetricsSection) -> MetricsSettings:
    """Return the settings of the metrics and health endpoint."""
    listen = parse_listen(section.listen)
    interval_s = parse_duration_s(section.textfile_interval)
    files = tls_files(section.certificate_file, section.key_file, section.client_ca_file, listen)
    return MetricsSettings(listen, section.textfile, interval_s, files)


def shutdown(config: Config) -> ShutdownSettings:
    """Return the settings of graceful shutdown."""
    enabled = {"auto": None, "on": True, "off": False}[config.shutdown.enabled]
    return ShutdownSettings(enabled, shutdown_phases(config.shutdown), config.shutdown.restart_logind)


def eviction(config: Config) -> EvictionSettings:
    """Return the settings of pod eviction."""
    section = config.eviction
    return EvictionSettings(
        enabled={"auto": None, "on": True, "off": False}[section.enabled],
        thresholds=parse_thresholds(
            hard=section.hard,
            soft=section.soft,
            soft_grace_period=section.soft_grace_period,
            minimum_reclaim=section.minimum_reclaim,
        ),
        policy=EvictionPolicy(
            pressure_transition_period_s=parse_duration_s(section.pressure_transition_period),
            max_pod_grace_s=parse_duration_s(section.max_pod_grace_period),
            hard_grace_s=parse_duration_s(section.hard_grace_period),
            protected_namespaces=frozenset(section.protected_namespaces),
            local_storage_isolation=section.local_storage_isolation,
            evict_unmeasured=section.evict_unmeasured,
            max_evictions_per_window=section.max_evictions_per_window,
            max_limit_evictions_per_window=section.max_limit_evictions_per_window,
            eviction_window_s=parse_duration_s(section.eviction_window),
            minimum_effect=section.minimum_effect_percent / 100,
            always_evict=section.always_evict,
        ),
        interval_s=parse_duration_s(section.interval),
        memory_source=MemorySource(section.memory_signal_source),
        kernel_estimate=section.kernel_memory_estimate,
        reclaim_cache=section.reclaim,
        stall=StallSettings(
            *(
                round(parse_duration_s(text) * 1_000_000)
                for text in (section.memory_stall, section.io_stall, section.stall_window)
            )
        ),
        verify_s=parse_duration_s(section.verify_timeout),
        annotation_namespaces=frozenset(section.annotation_namespaces),
    )


def kubelet(config: Config) -> KubeletSettings:
    """Return the settings of the sources of pod facts beyond CRI."""
    section = config.kubelet
    manifests = Path(section.manifests) if section.manifests else None
    return KubeletSettings(kubelet_access(section), manifests, section.node_name)


def policies(config: Config) -> GCPolicy:
    """Return the GC policies of a configuration."""
    images, containers = config.image_gc, config.container_gc
    return GCPolicy(
        images=ImageGCPolicy(
            high_threshold_percent=images.high_threshold_percent,
            low_threshold_percent=images.low_threshold_percent,
            minimum_age_s=parse_duration_s(images.minimum_age),
            maximum_unused_age_s=parse_duration_s(images.maximum_unused_age),
            minimum_gain_bytes=parse_bytes(images.minimum_gain),
            max_images_per_pass=images.max_images_per_pass,
            max_bytes_per_pass=parse_bytes(images.max_bytes_per_pass),
            protection=ProtectionPolicy(
                rules=tuple(parse_rule(rule) for rule in config.protect.images),
                keep_last_n_tags_per_repository=config.protect.keep_last_n_tags_per_repository,
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
