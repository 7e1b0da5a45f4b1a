"""The whole configuration, its sections that have no module of their own, and the validated form used by the agent.

The validated form has seconds, bytes, paths and policies.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from nodeagent.cluster.settings import KubernetesSection, KubernetesSettings
from nodeagent.config.paths import CONTROL_SOCKET
from nodeagent.config.validation import (
    Check,
    Count,
    Directory,
    Duration,
    Endpoint,
    OptionalPath,
    Period,
    Section,
    Size,
    SocketPath,
    Switch,
    about,
    form,
)
from nodeagent.eviction.settings import EvictionSection, EvictionSettings
from nodeagent.gc.settings import ContainerGCSection, ImageGCSection, ProtectSection, gc_policy
from nodeagent.model.kubernetes import TlsFiles
from nodeagent.model.node import Role
from nodeagent.pods.settings import KubeletSection, KubeletSettings
from nodeagent.record import Record, field
from nodeagent.shutdown.settings import ShutdownSection, ShutdownSettings
from nodeagent.units import parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import GCPolicy

LISTEN_FORM: Final = '"ADDRESS:PORT" such as "127.0.0.1:20310" or "[::1]:20310", "unix:///PATH", or "off"'
OFF: Final = "off"
TEXTFILE_ENDING: Final = ".prom"
TEXTFILE_FORM: Final = "an absolute path of a .prom file, or empty"
_MAX_PATH_BYTES: Final = 107
"""Maximum length of a socket path, without the final zero byte. Source: unix(7), ``sun_path``."""
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<four>[^\[\]:]+)):(?P<port>\d{1,5})", re.ASCII)


class Listen(Record):
    """Listen address of the metrics endpoint: TCP or unix socket.

    Attributes:
        host: IP address, never a name; empty for a unix socket.
        port: 1 to 65535; 0 for a unix socket.
        path: absolute path of a unix socket; empty otherwise.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach the address over TCP."""
        return self.host == "::1" or self.host.startswith("127.")

    @property
    def is_remote(self) -> bool:
        """Whether other machines can reach the address."""
        return not self.path and not self.is_loopback

    @property
    def text(self) -> str:
        """The listen address in the form of the configuration file."""
        if self.path:
            return f"unix://{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN: Final = Listen("127.0.0.1", 20310)


class MetricsSettings(Record):
    """Validated settings of the metrics and health endpoint.

    Attributes:
        listen: listen address; ``None`` disables the endpoint.
        textfile: file of all metrics for the textfile collector of node_exporter; empty disables the file.
        textfile_interval_s: time between two writes of ``textfile``.
        tls: files of the TLS listener; ``None`` disables encryption and client authentication.
    """

    listen: Listen | None = DEFAULT_LISTEN
    textfile: str = ""
    textfile_interval_s: float = 30.0
    tls: TlsFiles | None = None

    @property
    def endpoint(self) -> tuple[Listen | None, TlsFiles | None]:
        """Listen address and TLS files: a change of either requires a new listener."""
        return self.listen, self.tls

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the endpoint without encryption."""
        return self.listen is not None and self.listen.is_remote and self.tls is None


def parse_listen(text: str) -> Listen | None:
    """Return the parsed listen address; ``None`` for ``off``.

    Raises:
        ValueError: the address is invalid; the message has the allowed form.
    """
    if text == OFF:
        return None
    if text.startswith("unix:"):
        return Listen(path=_socket_path(text))
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"must be {LISTEN_FORM}")
    host, port = found["six"] or found["four"], int(found["port"])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address (names are not resolved): write {LISTEN_FORM}") from None
    if (address.version == 6) is (found["six"] is None):
        raise ValueError(f"brackets are required for IPv6 and not allowed for IPv4: write {LISTEN_FORM}")
    if not 1 <= port <= 65535:
        raise ValueError("the port must be from 1 to 65535")
    return Listen(str(address), port)


def parse_textfile(text: str) -> str:
    """Check and return the path of the metrics file; empty disables the file.

    The name must end in ``.prom``: node_exporter ignores other files, and a wrong path replaces no unrelated file.

    Raises:
        ValueError: the path is invalid; the message has the allowed form.
    """
    if not text:
        return ""
    name = text.rpartition("/")[2]
    if not text.startswith("/") or not text.isprintable() or text != os.path.normpath(text) or "//" in text:
        raise ValueError(f"must be {TEXTFILE_FORM}")
    if not name.endswith(TEXTFILE_ENDING) or name.startswith("."):
        raise ValueError(f"the name must end in {TEXTFILE_ENDING} and not start with a dot: write {TEXTFILE_FORM}")
    return text


def _socket_path(text: str) -> str:
    path = text.removeprefix("unix:").removeprefix("//")
    if not path.startswith("/") or "\0" in path or path != os.path.normpath(path) or path == "/":
        raise ValueError("must be an absolute path after unix:, such as unix:///run/nodeagent/metrics.sock")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ValueError(f"longer than the maximum of a socket path ({_MAX_PATH_BYTES} bytes)")
    return path


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
        self._tls_files()

    def settings(self) -> MetricsSettings:
        """Return the settings of a valid section."""
        listen = parse_listen(self.listen)
        interval_s = parse_duration_s(self.textfile_interval)
        return MetricsSettings(listen, self.textfile, interval_s, self._tls_files())

    def _tls_files(self) -> TlsFiles | None:
        """Return the files of the TLS listener; ``None`` if no file is configured.

        Raises:
            ValueError: certificate or key is missing, or the listen address is a unix socket.
        """
        certificate, key, client_ca = self.certificate_file, self.key_file, self.client_ca_file
        if not certificate and not key and not client_ca:
            return None
        if not certificate or not key:
            given = "certificate_file" if certificate else "key_file" if key else "client_ca_file"
            raise ValueError(f"{given} requires certificate_file and key_file")
        if self.listen.startswith("unix:"):
            raise ValueError("certificate_file requires a TCP address: access to a unix socket is by owner and group")
        return TlsFiles(certificate, key, client_ca)


DEFAULT_SOCKET: Final = Path(CONTROL_SOCKET)


class ControlSettings(Record):
    """Validated settings of the control API.

    Attributes:
        socket: path of the control socket; ``None`` disables the control API.
        group: group with read access.
        group_may_act: whether the group also has write access.
    """

    socket: Path | None = DEFAULT_SOCKET
    group: str = "nodeagent"
    group_may_act: bool = False


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

    def settings(self) -> ControlSettings:
        """Return the settings of a valid section."""
        return ControlSettings(Path(self.socket) if self.socket else None, self.group, self.group_may_act)


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
        kubernetes = self.kubernetes.settings(Path(self.state.directory))
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
