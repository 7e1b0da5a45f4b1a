"""Section ``eviction``: pod eviction under node pressure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from nodeagent.config.validation import Count, Duration, Percent, Period, PsiWindow, Section, Switch, about, form
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.thresholds import DEFAULT_HARD, MEANINGS, Threshold, Unit, parse_thresholds
from nodeagent.model.node import Role
from nodeagent.model.pressure import MemorySource
from nodeagent.record import Record, field
from nodeagent.units import parse_duration_s

_DEFAULT_HARD: Final = ",".join(f"{signal}<{amount}" for signal, amount in DEFAULT_HARD.items())
THRESHOLDS_FORM: Final = (
    'list of SIGNAL<AMOUNT, such as "memory.available<100Mi,nodefs.available<10%"; for a stall SIGNAL>PERCENT, such as '
    '"memory.psi.some>40%"'
)


class StallSettings(Record):
    """PSI triggers of the eviction loop.

    Attributes:
        memory_us: memory stall time within the window that wakes the loop; 0 disables.
        io_us: I/O stall time within the window that wakes the loop; 0 disables.
        window_us: PSI window of both stall times.

    Source: kernel psi.rst, "Monitoring for pressure thresholds".
    """

    memory_us: int = 100_000
    io_us: int = 0
    window_us: int = 1_000_000


class EvictionSettings(Record):
    """Validated settings of pod eviction.

    Attributes:
        enabled: whether eviction is enabled; ``None`` to follow the role of the agent.
        interval_s: poll interval of the signals without pressure.
        memory_source: source of ``memory.available``.
        kernel_estimate: whether ``memory.available`` is decided from ``MemAvailable`` too, not by the formula alone.
        reclaim_cache: whether active page cache of pods is reclaimed before evictions for ``memory.available``.
        annotation_namespaces: namespaces whose pods may set priority, static and mirror marks by annotations.
        verify_s: timeout for the end of an evicted pod's processes after the runtime reports it as stopped.
        through_api: whether pods are evicted through the API server beside a kubelet.
    """

    enabled: bool | None = None
    thresholds: tuple[Threshold, ...] = field(default_factory=parse_thresholds)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    interval_s: float = 10.0
    memory_source: MemorySource = MemorySource.WORKING_SET
    kernel_estimate: bool = True
    reclaim_cache: bool = True
    stall: StallSettings = field(default_factory=StallSettings)
    verify_s: float = 10.0
    annotation_namespaces: frozenset[str] = frozenset()
    through_api: bool = False

    @property
    def measures_stalls(self) -> bool:
        """Whether a threshold compares memory stalls, so that the stalls of each pod are read."""
        return any(MEANINGS[each.signal].unit is Unit.STALL_PERCENT for each in self.thresholds)

    def off_because(self, role: Role, evidence: str = "") -> str:
        """Return the reason for disabled eviction on this node, for display; empty if eviction is enabled.

        Beside a kubelet pods are evicted only through the API server, not through the runtime, since the kubelet
        restarts the containers of an evicted pod.

        Args:
            role: role of the agent on this node.
            evidence: evidence for the role, quoted in the reason.
        """
        if self.enabled is False:
            return 'eviction.enabled = "off"'
        if not self.thresholds:
            return "no thresholds configured"
        if role is Role.BESIDE_KUBELET and not self.through_api:
            refused = 'eviction.enabled = "on" is refused: ' if self.enabled else ""
            shown = f" ({evidence})" if evidence else ""
            return f"{refused}a kubelet manages this node{shown}; it evicts pods itself and restarts evicted pods"
        return ""

    def refused(self, role: Role) -> bool:
        """Return whether eviction is configured "on" and refused beside a kubelet."""
        refused = role is Role.BESIDE_KUBELET and not self.through_api
        return self.enabled is True and bool(self.thresholds) and refused


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
    stall_window: Annotated[PsiWindow, about("PSI window of memory_stall and io_stall, 500ms to 10s.")] = "1s"
    verify_timeout: Annotated[
        Period, about("Timeout for the end of an evicted pod's processes after the runtime reports the pod as stopped.")
    ] = "10s"

    def __post_init__(self) -> None:
        self.thresholds()
        for key in ("memory_stall", "io_stall"):
            if parse_duration_s(getattr(self, key)) > parse_duration_s(self.stall_window):
                raise ValueError(f"{key} = {getattr(self, key)!r}: must not be longer than stall_window")

    def settings(self, *, through_api: bool) -> EvictionSettings:
        """Return the settings of a valid section; ``through_api`` is part of the section ``kubernetes``."""
        return EvictionSettings(
            enabled={"auto": None, "on": True, "off": False}[self.enabled],
            thresholds=self.thresholds(),
            policy=EvictionPolicy(
                pressure_transition_period_s=parse_duration_s(self.pressure_transition_period),
                max_pod_grace_s=parse_duration_s(self.max_pod_grace_period),
                hard_grace_s=parse_duration_s(self.hard_grace_period),
                protected_namespaces=frozenset(self.protected_namespaces),
                local_storage_isolation=self.local_storage_isolation,
                evict_unmeasured=self.evict_unmeasured,
                max_evictions_per_window=self.max_evictions_per_window,
                max_limit_evictions_per_window=self.max_limit_evictions_per_window,
                eviction_window_s=parse_duration_s(self.eviction_window),
                minimum_effect=self.minimum_effect_percent / 100,
                always_evict=self.always_evict,
            ),
            interval_s=parse_duration_s(self.interval),
            memory_source=MemorySource(self.memory_signal_source),
            kernel_estimate=self.kernel_memory_estimate,
            reclaim_cache=self.reclaim,
            stall=StallSettings(
                *(
                    round(parse_duration_s(text) * 1_000_000)
                    for text in (self.memory_stall, self.io_stall, self.stall_window)
                )
            ),
            verify_s=parse_duration_s(self.verify_timeout),
            annotation_namespaces=frozenset(self.annotation_namespaces),
            through_api=through_api,
        )

    def thresholds(self) -> tuple[Threshold, ...]:
        """Return all thresholds.

        Raises:
            ValueError: a threshold, a grace period or a minimum reclaim is invalid.
        """
        return parse_thresholds(
            hard=self.hard,
            soft=self.soft,
            soft_grace_period=self.soft_grace_period,
            minimum_reclaim=self.minimum_reclaim,
        )
