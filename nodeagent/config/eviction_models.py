"""Settings models of pod eviction, and of the sources of pod facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from nodeagent.config import value_forms as forms
from nodeagent.config.fields import Check, Count, Duration, OptionalPath, Percent, Period, Section, Switch, about, form
from nodeagent.errors import ConfigError
from nodeagent.model.kubelet_access import KubeletAccess
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.thresholds import DEFAULT_HARD
from nodeagent.units import parse_duration_s

_DEFAULT_HARD: Final = ",".join(f"{signal}<{amount}" for signal, amount in DEFAULT_HARD.items())
THRESHOLDS_FORM: Final = (
    'list of SIGNAL<AMOUNT, such as "memory.available<100Mi,nodefs.available<10%"; for a stall SIGNAL>PERCENT, such as '
    '"memory.psi.some>40%"'
)


class EvictionSection(Section):
    """Pod eviction under node pressure."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        about(
            "Whether the daemon evicts pods. auto: on a node without a kubelet. Beside a kubelet eviction is "
            "disabled even if on, since the kubelet evicts pods itself and restarts pods evicted through the "
            "runtime; kubernetes.evict_pods evicts through the API server."
        ),
    ] = "auto"
    hard: Annotated[
        str,
        form(THRESHOLDS_FORM),
        about(
            "Hard eviction thresholds (no grace period). Signals: those of the kubelet, memory.psi.some, "
            "memory.psi.full, io.psi.some, io.psi.full (percent of time stalled over ten seconds) and swap.free. "
            "io.psi.* are displayed and evict no pod."
        ),
    ] = _DEFAULT_HARD
    soft: Annotated[
        str,
        form(THRESHOLDS_FORM),
        about("Soft eviction thresholds. Each must be met for its grace period before a pod is evicted."),
    ] = ""
    soft_grace_period: Annotated[
        str,
        form('list of SIGNAL=DURATION, such as "memory.available=1m30s"'),
        about("Grace period of each soft threshold."),
    ] = ""
    minimum_reclaim: Annotated[
        str,
        form('list of SIGNAL=AMOUNT, such as "imagefs.available=2Gi"'),
        about("Minimum amount to reclaim beyond a threshold once it is met."),
    ] = ""
    pressure_transition_period: Annotated[
        Duration,
        about("Time from the last observed pressure to the end of the node condition, such as MemoryPressure."),
    ] = "5m"
    max_pod_grace_period: Annotated[
        Duration, about("Maximum termination grace period of pods evicted by a soft threshold. 0: no limit.")
    ] = "0s"
    hard_grace_period: Annotated[
        Duration,
        about(
            "Termination grace period of pods evicted by a hard threshold. 0: immediate kill; the kubelet uses 1s "
            "since 1.30."
        ),
    ] = "0s"
    protected_namespaces: Annotated[
        tuple[str, ...], form("list of namespaces"), about("Namespaces whose pods are never evicted.")
    ] = ("kube-system",)
    annotation_namespaces: Annotated[
        tuple[str, ...],
        form("list of namespaces"),
        about(
            "Namespaces in which, without a kubelet, annotations of a pod set its priority (nodeagent.dev/priority) "
            "or mark it as static or mirror pod. The author of a pod controls its annotations."
        ),
    ] = ()
    local_storage_isolation: Annotated[
        Switch,
        about(
            "Whether pods above their own ephemeral storage limits are evicted without node pressure. Limits are "
            "known only from the API server, the kubelet or static pod manifests."
        ),
    ] = True
    evict_unmeasured: Annotated[
        Switch, about("Whether pods with unreadable usage can be evicted. The kubelet evicts such pods first.")
    ] = False
    minimum_effect_percent: Annotated[
        Percent,
        about(
            "Share of the shortage that the eviction of a pod must free. A pod that frees less is evicted only if "
            "the growth of its usage causes the shortage."
        ),
    ] = 10
    always_evict: Annotated[
        Switch, about("Whether pods are evicted in the kubelet's order even if their eviction cannot end the shortage.")
    ] = False
    max_evictions_per_window: Annotated[
        Count,
        about(
            "Maximum number of evictions for node pressure per window. 0: no limit. Above the limit, evictions for "
            "a hard threshold on memory continue, one per 10 seconds."
        ),
    ] = 10
    max_limit_evictions_per_window: Annotated[
        Count, about("Maximum number of evictions of pods above their own storage limits per window. 0: no limit.")
    ] = 10
    eviction_window: Annotated[Period, about("Length of the window of both limits.")] = "10m"
    interval: Annotated[
        Period,
        about(
            "Poll interval of the signals without pressure. Near a threshold the interval is shorter: down to "
            "200ms, or 50ms while a signal falls to its threshold."
        ),
    ] = "10s"
    memory_signal_source: Annotated[
        Literal["working-set", "mem-available"],
        about(
            "Source of memory.available. working-set: the kubelet's formula, which counts active page cache as "
            "used; mem-available: the kernel's estimate (MemAvailable), with the shrinkable ZFS cache."
        ),
    ] = "working-set"
    kernel_memory_estimate: Annotated[
        Switch,
        about(
            "Whether memory.available is decided from the kubelet's formula, MemAvailable and the parts of the "
            "memory that explain their difference. false: the formula alone, which counts kernel memory and huge "
            "pages as available, and active page cache as used."
        ),
    ] = True
    reclaim: Annotated[
        Switch,
        about(
            "Whether active page cache of pods is reclaimed before an eviction for memory.available, if the kernel "
            "reports no shortage (MemAvailable). Requires the drop-in page-cache.conf of the unit."
        ),
    ] = True
    memory_stall: Annotated[
        Duration, about("Memory stall time (PSI) within stall_window that wakes the eviction loop. 0 disables.")
    ] = "100ms"
    io_stall: Annotated[
        Duration, about("I/O stall time (PSI) within stall_window that wakes the eviction loop. 0 disables.")
    ] = "0s"
    stall_window: Annotated[
        Duration, Check(forms.stall_window), about("PSI window of memory_stall and io_stall, 500ms to 10s.")
    ] = "1s"
    verify_timeout: Annotated[
        Period, about("Timeout for the end of an evicted pod's processes after the runtime reports the pod as stopped.")
    ] = "10s"

    def __post_init__(self) -> None:
        parse_thresholds(
            hard=self.hard,
            soft=self.soft,
            soft_grace_period=self.soft_grace_period,
            minimum_reclaim=self.minimum_reclaim,
        )
        for key in ("memory_stall", "io_stall"):
            if parse_duration_s(getattr(self, key)) > parse_duration_s(self.stall_window):
                raise ValueError(f"{key} = {getattr(self, key)!r}: must not be longer than stall_window")


class KubeletSection(Section):
    """Sources of pod facts that CRI lacks: priorities, requests, limits and grace periods."""

    url: Annotated[
        str,
        form("https://HOST:10250 or http://HOST:10255"),
        about(
            "URL of the kubelet API, source of /pods. Empty disables. Priorities are read only over https with TLS "
            "verification. A server on this node must run as root."
        ),
    ] = ""
    token_file: Annotated[
        OptionalPath,
        about(
            "File with a bearer token for the kubelet API; rejected with insecure = true, since any server would "
            "receive the token."
        ),
    ] = ""
    certificate_file: Annotated[
        OptionalPath, about("File with a client certificate for the kubelet API, PEM, optionally with its key.")
    ] = ""
    key_file: Annotated[
        OptionalPath, about("File with the key of the client certificate. Empty: in certificate_file.")
    ] = ""
    ca_file: Annotated[
        OptionalPath,
        about("File with the CA certificates for the kubelet API. Empty: the CA certificates of the system."),
    ] = ""
    server_name: Annotated[
        str, form("host name"), about("Server name in the kubelet's certificate. Empty: the host of the URL.")
    ] = ""
    insecure: Annotated[Switch, about("Skip TLS verification of the kubelet API.")] = False
    manifests: Annotated[OptionalPath, about("Directory of static pod manifests. Empty disables.")] = (
        "/etc/kubernetes/manifests"
    )
    node_name: Annotated[
        str, form("name"), about("Node name, the suffix of static pod names. Empty: the host name.")
    ] = ""

    def __post_init__(self) -> None:
        try:
            kubelet_access(self)
        except ConfigError as error:
            raise ValueError(str(error)) from error


def kubelet_access(section: KubeletSection) -> KubeletAccess | None:
    """Return the access to the kubelet API; ``None`` if the access is disabled.

    Raises:
        ConfigError: the URL is invalid, or the settings contradict each other.
    """
    if not section.url:
        return None

    files = (section.token_file, section.certificate_file, section.key_file, section.ca_file)
    token, certificate, key, authority = (Path(each) if each else None for each in files)
    return KubeletAccess(
        section.url, token, certificate, key, authority, server_name=section.server_name, insecure=section.insecure
    )
