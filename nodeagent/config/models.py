"""Models of all settings with form, default, unit and effect; larger sections are in separate modules."""

from __future__ import annotations

from typing import Annotated, Literal

from nodeagent.config import value_forms as forms
from nodeagent.config.eviction_models import EvictionSection, KubeletSection
from nodeagent.config.fields import (
    Check,
    Count,
    Directory,
    Duration,
    OptionalPath,
    Period,
    Section,
    Size,
    SocketPath,
    Switch,
    about,
    form,
)
from nodeagent.config.gc_models import ContainerGCSection, ImageGCSection, ProtectSection
from nodeagent.config.kubernetes_models import KubernetesSection
from nodeagent.config.metrics import (
    DEFAULT_LISTEN,
    LISTEN_FORM,
    TEXTFILE_FORM,
    parse_listen,
    parse_textfile,
    tls_files,
)
from nodeagent.config.paths import CONTROL_SOCKET
from nodeagent.config.shutdown_models import ShutdownSection
from nodeagent.record import field


class RuntimeSection(Section):
    """Access to the container runtime."""

    endpoint: Annotated[
        str,
        Check(forms.endpoint),
        form("unix:///PATH"),
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
        OptionalPath, about("Path on the image filesystem. Empty: the mount point reported by the runtime.")
    ] = ""


class StateSection(Section):
    """State of the agent."""

    directory: Annotated[Directory, about("Directory of the state: image usage database, history, pass lock.")] = (
        "/var/lib/nodeagent"
    )


class HistorySection(Section):
    """Retention of the history."""

    maximum_age: Annotated[
        Period, about("Maximum age of recorded passes; one day for passes of the daemon without removals.")
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


class ControlSection(Section):
    """Control API of the daemon."""

    socket: Annotated[
        SocketPath, about("Path of the control socket, at most 107 bytes; its directory must exist. Empty disables.")
    ] = CONTROL_SOCKET
    group: Annotated[
        str,
        about(
            "Group with read access: status, plans, history, events. Root has full access. The socket's directory "
            "must be owned by this group and have the set-group-ID bit."
        ),
    ] = "nodeagent"
    group_may_act: Annotated[
        Switch,
        about(
            "Whether the group also has write access: gc, gc undo, trigger, hold, pause and reload, limited to the "
            "removals that this configuration permits. Only root can remove holds of other users, end their pauses, "
            "or run a disabled GC."
        ),
    ] = False


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


class MetricsSection(Section):
    """Endpoint of metrics and health checks."""

    listen: Annotated[
        str,
        Check(parse_listen),
        form(LISTEN_FORM),
        about(
            "Listen address of /metrics, /healthz and /readyz. Without certificate_file, requests are neither "
            "encrypted nor authenticated. An address reachable from other machines exposes the names of thresholds "
            "and namespaces, and must be allowed in the unit (IPAddressAllow). A unix socket is accessible to owner "
            "and group; below /run/nodeagent, to the group nodeagent."
        ),
    ] = DEFAULT_LISTEN.text
    textfile: Annotated[
        str,
        Check(parse_textfile),
        form(TEXTFILE_FORM),
        about(
            "File of all metrics, for the textfile collector of node_exporter, such as "
            "/var/lib/node_exporter/textfile/nodeagent.prom. Its directory must exist, be owned by root, be "
            "writable by root only, and be allowed in the unit (ReadWritePaths). Removed when the daemon stops."
        ),
    ] = ""
    textfile_interval: Annotated[Period, about("Time between two writes of the metrics file.")] = "30s"
    certificate_file: Annotated[
        OptionalPath,
        about(
            "File with the server certificate and its intermediate CAs, PEM, for TLS 1.2 and later. Requires "
            "key_file and a TCP address. The three files are read again when one of them changes."
        ),
    ] = ""
    key_file: Annotated[
        OptionalPath,
        about("File with the key of the server certificate, PEM, without a passphrase, not readable by all users."),
    ] = ""
    client_ca_file: Annotated[
        OptionalPath,
        about(
            "File with CA certificates, PEM. Every client requires a certificate of one of these CAs. Empty: "
            "clients are not authenticated."
        ),
    ] = ""

    def __post_init__(self) -> None:
        tls_files(self.certificate_file, self.key_file, self.client_ca_file, parse_listen(self.listen))


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
    runtime: Annotated[RuntimeSection, about("Access to the container runtime.")] = field(
        default_factory=RuntimeSection
    )
    image_gc: Annotated[ImageGCSection, about("Removal of unused images.")] = field(default_factory=ImageGCSection)
    container_gc: Annotated[
        ContainerGCSection, about("Removal of dead containers, empty sandboxes and old pod logs.")
    ] = field(default_factory=ContainerGCSection)
    eviction: Annotated[EvictionSection, about("Pod eviction under node pressure.")] = field(
        default_factory=EvictionSection
    )
    kubelet: Annotated[KubeletSection, about("Sources of pod facts that CRI lacks.")] = field(
        default_factory=KubeletSection
    )
    kubernetes: Annotated[KubernetesSection, about("Node object and access to the Kubernetes API server.")] = field(
        default_factory=KubernetesSection
    )
    shutdown: Annotated[ShutdownSection, about("Graceful shutdown of the node.")] = field(
        default_factory=ShutdownSection
    )
    protect: Annotated[ProtectSection, about("Images protected from removal.")] = field(default_factory=ProtectSection)
    state: Annotated[StateSection, about("State of the agent.")] = field(default_factory=StateSection)
    history: Annotated[HistorySection, about("Retention of the history.")] = field(default_factory=HistorySection)
    control: Annotated[ControlSection, about("Control API of the daemon.")] = field(default_factory=ControlSection)
    log: Annotated[LogSection, about("Log of the agent, on standard error.")] = field(default_factory=LogSection)
    metrics: Annotated[MetricsSection, about("Endpoint of metrics and health checks.")] = field(
        default_factory=MetricsSection
    )
