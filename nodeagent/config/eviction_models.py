"""Settings models of pod eviction, and of the sources of pod facts."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from nodeagent.config.fields import Count, Duration, OptionalPath, Percent, Period, Section, Switch
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

    enabled: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether the daemon evicts pods. auto: on a node without a kubelet. Beside a kubelet eviction is "
        "disabled even if on, since the kubelet evicts pods itself and restarts pods evicted through the runtime; "
        "kubernetes.evict_pods evicts through the API server.",
    )
    hard: str = Field(
        _DEFAULT_HARD,
        json_schema_extra={"form": THRESHOLDS_FORM},
        description="Hard eviction thresholds (no grace period). Signals: those of the kubelet, memory.psi.some, "
        "memory.psi.full, io.psi.some, io.psi.full (percent of time stalled over ten seconds) and swap.free. io.psi.* "
        "are displayed and evict no pod.",
    )
    soft: str = Field(
        "",
        json_schema_extra={"form": THRESHOLDS_FORM},
        description="Soft eviction thresholds. Each must be met for its grace period before a pod is evicted.",
    )
    soft_grace_period: str = Field(
        "",
        json_schema_extra={"form": 'list of SIGNAL=DURATION, such as "memory.available=1m30s"'},
        description="Grace period of each soft threshold.",
    )
    minimum_reclaim: str = Field(
        "",
        json_schema_extra={"form": 'list of SIGNAL=AMOUNT, such as "imagefs.available=2Gi"'},
        description="Minimum amount to reclaim beyond a threshold once it is met.",
    )
    pressure_transition_period: Duration = Field(
        "5m",
        description="Time from the last observed pressure to the end of the node condition, such as MemoryPressure.",
    )
    max_pod_grace_period: Duration = Field(
        "0s", description="Maximum termination grace period of pods evicted by a soft threshold. 0: no limit."
    )
    hard_grace_period: Duration = Field(
        "0s",
        description="Termination grace period of pods evicted by a hard threshold. 0: immediate kill; the kubelet "
        "uses 1s since 1.30.",
    )
    protected_namespaces: tuple[str, ...] = Field(
        ("kube-system",),
        json_schema_extra={"form": "list of namespaces"},
        description="Namespaces whose pods are never evicted.",
    )
    annotation_namespaces: tuple[str, ...] = Field(
        (),
        json_schema_extra={"form": "list of namespaces"},
        description="Namespaces in which, without a kubelet, annotations of a pod set its priority "
        "(nodeagent.dev/priority) or mark it as static or mirror pod. The author of a pod controls its annotations.",
    )
    local_storage_isolation: Switch = Field(
        True,
        description="Whether pods above their own ephemeral storage limits are evicted without node pressure. Limits "
        "are known only from the API server, the kubelet or static pod manifests.",
    )
    evict_unmeasured: Switch = Field(
        False,
        description="Whether pods with unreadable usage can be evicted. The kubelet evicts such pods first.",
    )
    minimum_effect_percent: Percent = Field(
        10,
        description="Share of the shortage that the eviction of a pod must free. A pod that frees less is evicted only "
        "if the growth of its usage causes the shortage.",
    )
    always_evict: Switch = Field(
        False,
        description="Whether pods are evicted in the kubelet's order even if their eviction cannot end the shortage.",
    )
    max_evictions_per_window: Count = Field(
        10,
        description="Maximum number of evictions for node pressure per window. 0: no limit. Above the limit, evictions "
        "for a hard threshold on memory continue, one per 10 seconds.",
    )
    max_limit_evictions_per_window: Count = Field(
        10,
        description="Maximum number of evictions of pods above their own storage limits per window. 0: no limit.",
    )
    eviction_window: Period = Field("10m", description="Length of the window of both limits.")
    interval: Period = Field(
        "10s",
        description="Poll interval of the signals without pressure. Near a threshold the interval is shorter: down to "
        "200ms, or 50ms while a signal falls to its threshold.",
    )
    memory_signal_source: Literal["working-set", "mem-available"] = Field(
        "working-set",
        description="Source of memory.available. working-set: the kubelet's formula, which counts active page cache "
        "as used; mem-available: the kernel's estimate (MemAvailable), with the shrinkable ZFS cache.",
    )
    kernel_memory_estimate: Switch = Field(
        True,
        description="Whether memory.available is decided from the kubelet's formula, MemAvailable and the parts of the "
        "memory that explain their difference. false: the formula alone, which counts kernel memory and huge pages as "
        "available, and active page cache as used.",
    )
    reclaim: Switch = Field(
        True,
        description="Whether active page cache of pods is reclaimed before an eviction for memory.available, if the "
        "kernel reports no shortage (MemAvailable). Requires the drop-in page-cache.conf of the unit.",
    )
    memory_stall: Duration = Field(
        "100ms", description="Memory stall time (PSI) within stall_window that wakes the eviction loop. 0 disables."
    )
    io_stall: Duration = Field(
        "0s", description="I/O stall time (PSI) within stall_window that wakes the eviction loop. 0 disables."
    )
    stall_window: Duration = Field("1s", description="PSI window of memory_stall and io_stall, 500ms to 10s.")
    verify_timeout: Period = Field(
        "10s",
        description="Timeout for the end of an evicted pod's processes after the runtime reports the pod as stopped.",
    )

    @field_validator("stall_window")
    @classmethod
    def _psi_window(cls, text: str) -> str:
        if not 0.5 <= parse_duration_s(text) <= 10:
            raise ValueError("must be from 500ms to 10s (kernel limit)")
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        parse_thresholds(
            hard=self.hard,
            soft=self.soft,
            soft_grace_period=self.soft_grace_period,
            minimum_reclaim=self.minimum_reclaim,
        )
        for key in ("memory_stall", "io_stall"):
            if parse_duration_s(getattr(self, key)) > parse_duration_s(self.stall_window):
                raise ValueError(f"{key} = {getattr(self, key)!r}: must not be longer than stall_window")
        return self


class KubeletSection(Section):
    """Sources of pod facts that CRI lacks: priorities, requests, limits and grace periods."""

    url: str = Field(
        "",
        json_schema_extra={"form": "https://HOST:10250 or http://HOST:10255"},
        description="URL of the kubelet API, source of /pods. Empty disables. Priorities are read only over https "
        "with TLS verification. A server on this node must run as root.",
    )
    token_file: OptionalPath = Field(
        "",
        description="File with a bearer token for the kubelet API; rejected with insecure = true, since any server "
        "would receive the token.",
    )
    certificate_file: OptionalPath = Field(
        "", description="File with a client certificate for the kubelet API, PEM, optionally with its key."
    )
    key_file: OptionalPath = Field(
        "", description="File with the key of the client certificate. Empty: in certificate_file."
    )
    ca_file: OptionalPath = Field(
        "", description="File with the CA certificates for the kubelet API. Empty: the CA certificates of the system."
    )
    server_name: str = Field(
        "",
        json_schema_extra={"form": "host name"},
        description="Server name in the kubelet's certificate. Empty: the host of the URL.",
    )
    insecure: Switch = Field(False, description="Skip TLS verification of the kubelet API.")
    manifests: OptionalPath = Field(
        "/etc/kubernetes/manifests", description="Directory of static pod manifests. Empty disables."
    )
    node_name: str = Field(
        "",
        json_schema_extra={"form": "name"},
        description="Node name, the suffix of static pod names. Empty: the host name.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            kubelet_access(self)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


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
