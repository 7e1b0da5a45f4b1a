"""Models of all settings with form, default, unit and effect; larger sections are in separate modules."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nodeagent.config import value_forms as forms
from nodeagent.config.eviction_models import EvictionSection, KubeletSection
from nodeagent.config.fields import Count, Directory, Duration, OptionalPath, Period, Section, Size, SocketPath, Switch
from nodeagent.config.gc_models import ContainerGCSection, ImageGCSection, ProtectSection
from nodeagent.config.kubernetes_models import KubernetesSection
from nodeagent.config.metrics import (
    DEFAULT_LISTEN,
    LISTEN_FORM,
    TEXTFILE_FORM,
    parse_listen,
    tls_files,
)
from nodeagent.config.paths import CONTROL_SOCKET
from nodeagent.config.shutdown_models import ShutdownSection
from nodeagent.units import parse_duration_s


class RuntimeSection(Section):
    """Access to the container runtime."""

    endpoint: Annotated[str, AfterValidator(forms.endpoint), Field(json_schema_extra={"form": "unix:///PATH"})] = Field(
        "",
        description="Socket of the container runtime. Empty: the first socket with a listener, of k3s, rke2, k0s, "
        "microk8s, containerd and CRI-O in this order.",
    )
    containerd_api: Literal["auto", "off"] = Field(
        "auto",
        description="Whether containerd's own API is used, so that shared layers are counted once. off, or with "
        "another runtime: image sizes are upper bounds.",
    )
    timeout: Period = Field("10s", description="Timeout of CRI calls that read.")
    removal_timeout: Period = Field("2m", description="Timeout of CRI calls that stop or remove.")
    imagefs_path: OptionalPath = Field(
        "", description="Path on the image filesystem. Empty: the mount point reported by the runtime."
    )

    @property
    def timeout_s(self) -> float:
        """Timeout of CRI calls that read, in seconds."""
        return parse_duration_s(self.timeout)

    @property
    def removal_timeout_s(self) -> float:
        """Timeout of CRI calls that stop or remove, in seconds."""
        return parse_duration_s(self.removal_timeout)


class StateSection(Section):
    """State of the agent."""

    directory: Directory = Field(
        "/var/lib/nodeagent", description="Directory of the state: image usage database, history, pass lock."
    )


class HistorySection(Section):
    """Retention of the history."""

    maximum_age: Period = Field(
        "30d", description="Maximum age of recorded passes; one day for passes of the daemon without removals."
    )
    maximum_size: Size = Field(
        "16Mi", description="Maximum size of the history database; the oldest passes are deleted first."
    )
    maximum_records: Count = Field(
        10_000,
        description="Maximum number of recorded passes, and of recorded node shutdowns; the oldest are deleted first. "
        "0: no limit.",
    )


class ControlSection(Section):
    """Control API of the daemon."""

    socket: SocketPath = Field(
        CONTROL_SOCKET,
        description="Path of the control socket, at most 107 bytes; its directory must exist. Empty disables.",
    )
    group: str = Field(
        "nodeagent",
        description="Group with read access: status, plans, history, events. Root has full access. The socket's "
        "directory must be owned by this group and have the set-group-ID bit.",
    )
    group_may_act: Switch = Field(
        False,
        description="Whether the group also has write access: gc, gc undo, trigger, hold, pause and reload, limited to "
        "the removals that this configuration permits. Only root can remove holds of other users, end their pauses, or "
        "run a disabled GC.",
    )


class LogSection(Section):
    """Log of the agent, on standard error."""

    format: Literal["auto", "journal", "console", "json"] = Field(
        "auto",
        description="Log format. journal: entries with fields, see systemd.journal-fields; auto: console on a "
        "terminal, journal where standard error is connected to it, JSON elsewhere.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity of logged events. debug also logs each kept item."
    )


class MetricsSection(Section):
    """Endpoint of metrics and health checks."""

    listen: Annotated[str, AfterValidator(forms.listen), Field(json_schema_extra={"form": LISTEN_FORM})] = Field(
        DEFAULT_LISTEN.text,
        description="Listen address of /metrics, /healthz and /readyz. Without certificate_file, requests are neither "
        "encrypted nor authenticated. An address reachable from other machines exposes the names of thresholds and "
        "namespaces, and must be allowed in the unit (IPAddressAllow). A unix socket is accessible to owner and group; "
        "below /run/nodeagent, to the group nodeagent.",
    )
    textfile: Annotated[str, AfterValidator(forms.textfile), Field(json_schema_extra={"form": TEXTFILE_FORM})] = Field(
        "",
        description="File of all metrics, for the textfile collector of node_exporter, such as "
        "/var/lib/node_exporter/textfile/nodeagent.prom. Its directory must exist, be owned by root, be writable by "
        "root only, and be allowed in the unit (ReadWritePaths). Removed when the daemon stops.",
    )
    textfile_interval: Period = Field("30s", description="Time between two writes of the metrics file.")
    certificate_file: OptionalPath = Field(
        "",
        description="File with the server certificate and its intermediate CAs, PEM, for TLS 1.2 and later. Requires "
        "key_file and a TCP address. The three files are read again when one of them changes.",
    )
    key_file: OptionalPath = Field(
        "",
        description="File with the key of the server certificate, PEM, without a passphrase, not readable by all "
        "users.",
    )
    client_ca_file: OptionalPath = Field(
        "",
        description="File with CA certificates, PEM. Every client requires a certificate of one of these CAs. Empty: "
        "clients are not authenticated.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tls_files(self.certificate_file, self.key_file, self.client_ca_file, parse_listen(self.listen))
        return self


class Config(Section):
    """The whole configuration."""

    role: Literal["auto", "beside-kubelet", "standalone"] = Field(
        "auto",
        description="Whether a kubelet manages this node. beside-kubelet: no pod is stopped at shutdown; pods count "
        "as deleted only with kubernetes.watch_pods, and are evicted only with kubernetes.evict_pods. standalone: the "
        "node has no kubelet, even if files of a removed kubelet exist; with a kubelet process, the role is still "
        "beside-kubelet. auto: detected in every pass from kubelet processes, and kubelet state and configuration "
        "files; beside-kubelet if one of them is found or unreadable, standalone 5m after the last detection.",
    )
    dry_run: Switch = Field(False, description="Plan and log only; nothing is removed, evicted or stopped.")
    reload_grace: Duration = Field(
        "60s",
        description="Time between a switch of dry_run from true to false, by a reload or a restart, and the first pass "
        "that removes or evicts, hard eviction thresholds included. nodeagent pause stops the countdown, which "
        "restarts at the end of the pause. 0 disables.",
    )
    runtime: RuntimeSection = Field(default_factory=RuntimeSection, description="Access to the container runtime.")
    image_gc: ImageGCSection = Field(default_factory=ImageGCSection, description="Removal of unused images.")
    container_gc: ContainerGCSection = Field(
        default_factory=ContainerGCSection,
        description="Removal of dead containers, empty sandboxes and old pod logs.",
    )
    eviction: EvictionSection = Field(default_factory=EvictionSection, description="Pod eviction under node pressure.")
    kubelet: KubeletSection = Field(default_factory=KubeletSection, description="Sources of pod facts that CRI lacks.")
    kubernetes: KubernetesSection = Field(
        default_factory=KubernetesSection, description="Node object and access to the Kubernetes API server."
    )
    shutdown: ShutdownSection = Field(default_factory=ShutdownSection, description="Graceful shutdown of the node.")
    protect: ProtectSection = Field(default_factory=ProtectSection, description="Images protected from removal.")
    state: StateSection = Field(default_factory=StateSection, description="State of the agent.")
    history: HistorySection = Field(default_factory=HistorySection, description="Retention of the history.")
    control: ControlSection = Field(default_factory=ControlSection, description="Control API of the daemon.")
    log: LogSection = Field(default_factory=LogSection, description="Log of the agent, on standard error.")
    metrics: MetricsSection = Field(
        default_factory=MetricsSection, description="Endpoint of metrics and health checks."
    )
