"""Counters of log events and runtime calls: plain numbers, converted to Prometheus metrics at a scrape only.

Metrics with the same meaning as a kubelet metric have its name, so that dashboards and alerts apply to both; all others
start with ``nodeagent_``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.clock import not_before
from nodeagent.text import encodable

if TYPE_CHECKING:
    from nodeagent.units import Clock

MAX_SERIES: Final = 200
"""Maximum number of label combinations per metric; further combinations are counted as ``other``."""

OTHER: Final = "other"


class Kind(StrEnum):
    """Type of a metric. Source: the OpenMetrics types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    UNKNOWN = "unknown"


class Metric(NamedTuple):
    """Declaration of a metric.

    Attributes:
        text: help text.
        bounds: upper bounds of a histogram's buckets.
        known: label values exposed as 0 from the start, so that the first event is visible as an increase.
    """

    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()


_PASS_S: Final = (60.0, 600.0)
_READING_S: Final = (0.1, 1.0, 5.0, 30.0)
_READING: Final = re.compile(r"(^|_)(list|status|statuses|version|info|stats|usage|get|plugins)(_|$)")
"""Operation types of calls that only read from the runtime; only the duration of these calls is measured."""
_WITHOUT_TARGET: Final = "containers"
"""Scope of passes without a target in bytes; target metrics of this scope would be 0 on every node."""
_EVICTION_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_THRESHOLD: Final = ("threshold", "signal", "kind")
_FILESYSTEM: Final = ("path", "roles")
_PATH: Final = "path"  # label for additional image filesystems; Prometheus treats an empty label as absent

_CRI_ERRORS: Final = "kubelet_runtime_operations_errors_total"

METRICS: Final[Mapping[str, Metric]] = {
    # garbage collection
    "nodeagent_passes_total": Metric(Kind.COUNTER, "Finished passes, by result.", ("scope", "end")),
    "nodeagent_pass_duration_seconds": Metric(
        Kind.HISTOGRAM, "Duration of passes, from the first reading to the last removal.", ("scope",), _PASS_S
    ),
    "nodeagent_pass_end_timestamp_seconds": Metric(Kind.GAUGE, "Time at which the last pass finished.", ("scope",)),
    "nodeagent_removals_total": Metric(
        Kind.COUNTER, "Attempted removals, by outcome and reason.", ("kind", "outcome", "reason")
    ),
    "nodeagent_kept_items": Metric(Kind.GAUGE, "Items kept by the last pass, by reason.", ("scope", "reason")),
    "nodeagent_bytes_predicted_total": Metric(Kind.COUNTER, "Predicted bytes of removed items.", ("scope",)),
    "nodeagent_bytes_freed_total": Metric(
        Kind.COUNTER, "Bytes freed by passes, measured on the image filesystem.", ("scope",)
    ),
    "nodeagent_target_bytes": Metric(Kind.GAUGE, "Bytes to free, target of the last pass.", ("scope",)),
    "nodeagent_shortfall_bytes": Metric(
        Kind.GAUGE, "Shortfall of the last pass: target minus freed bytes.", ("scope",)
    ),
    "kubelet_image_garbage_collected_total": Metric(
        Kind.COUNTER,
        "Images removed for space or age; the kubelet's metric name.",
        ("reason",),
        known=(("space",), ("age",)),
    ),
    # eviction
    "nodeagent_evictions_total": Metric(Kind.COUNTER, "Attempted evictions, by outcome.", ("signal", "outcome")),
    "kubelet_evictions": Metric(Kind.UNKNOWN, "Evicted pods; the kubelet's metric name.", ("eviction_signal",)),
    "nodeagent_eviction_duration_seconds": Metric(
        Kind.HISTOGRAM, "Time from the selection of a pod to the end of its processes.", (), _EVICTION_S
    ),
    "nodeagent_evictions_withheld_total": Metric(
        Kind.COUNTER, "Evictions withheld under pressure, by reason.", ("reason",), known=(("no-pod",), ("limit",))
    ),
    "nodeagent_reclaims_total": Metric(
        Kind.COUNTER, "Node-level reclaim steps before an eviction, by threshold.", ("threshold",)
    ),
    "nodeagent_threshold_crossings_total": Metric(Kind.COUNTER, "Crossings of a threshold.", ("threshold",)),
    "nodeagent_threshold_distance_ratio": Metric(
        Kind.GAUGE,
        "Distance of a signal from its threshold as a share of the capacity; negative once it is met.",
        (*_THRESHOLD, _PATH),
    ),
    "nodeagent_threshold_forecast_seconds": Metric(
        Kind.GAUGE,
        "Expected time until a threshold is met, 0 once it is met; absent without a trend.",
        ("resource", "threshold"),
    ),
    "nodeagent_growth_bytes_per_second": Metric(
        Kind.GAUGE,
        "Growth of a resource in bytes by category of the use; absent without growth.",
        ("resource", "category"),
    ),
    "nodeagent_signal_available_bytes": Metric(Kind.GAUGE, "Available bytes of a signal.", ("signal", _PATH)),
    "nodeagent_signal_capacity_bytes": Metric(Kind.GAUGE, "Capacity of a signal in bytes.", ("signal", _PATH)),
    "nodeagent_signal_available_inodes": Metric(Kind.GAUGE, "Free inodes of a signal.", ("signal", _PATH)),
    "nodeagent_signal_capacity_inodes": Metric(Kind.GAUGE, "Inodes of a signal's filesystem.", ("signal", _PATH)),
    "nodeagent_signal_available_pids": Metric(Kind.GAUGE, "Available process IDs.", ("signal", _PATH)),
    "nodeagent_signal_capacity_pids": Metric(Kind.GAUGE, "Limit of process IDs.", ("signal", _PATH)),
    "nodeagent_filesystem_available_bytes": Metric(
        Kind.GAUGE, "Available bytes of a filesystem that the runtime, the pods or the agent need.", _FILESYSTEM
    ),
    "nodeagent_filesystem_capacity_bytes": Metric(Kind.GAUGE, "Capacity of such a filesystem in bytes.", _FILESYSTEM),
    "nodeagent_filesystem_available_inodes": Metric(Kind.GAUGE, "Free inodes of such a filesystem.", _FILESYSTEM),
    "nodeagent_filesystem_capacity_inodes": Metric(Kind.GAUGE, "Inodes of such a filesystem.", _FILESYSTEM),
    "nodeagent_image_filesystem_available_bytes": Metric(
        Kind.GAUGE,
        "Available bytes of each image filesystem at the last pass, on nodes with several.",
        ("snapshotters", "path"),
    ),
    "nodeagent_image_filesystem_capacity_bytes": Metric(
        Kind.GAUGE, "Capacity of each image filesystem, on nodes with several.", ("snapshotters", "path")
    ),
    "nodeagent_pressure_stall_ratio": Metric(
        Kind.GAUGE, "Share of the last ten seconds in which some or all tasks stalled, 0 to 1.", ("resource", "kind")
    ),
    "nodeagent_shortage_without_relief": Metric(
        Kind.GAUGE, "1 while a threshold is met and no eviction ends the shortage.", ("threshold",)
    ),
    "nodeagent_node_condition": Metric(Kind.GAUGE, "1 while a node condition is true.", ("condition",)),
    "nodeagent_oom_kills_total": Metric(Kind.COUNTER, "Pod processes killed by the OOM killer.", ("namespace",)),
    # shutdown
    "nodeagent_inhibitor_lock_held": Metric(Kind.GAUGE, "1 while the agent has logind's inhibitor lock."),
    "nodeagent_pods_stopped_total": Metric(
        Kind.COUNTER, "Pods stopped by a graceful shutdown, by outcome.", ("outcome",)
    ),
    "nodeagent_unclean_stops_total": Metric(Kind.COUNTER, "Detected node stops without a shutdown."),
    "kubelet_graceful_shutdown_start_time_seconds": Metric(
        Kind.GAUGE, "Start time of the last graceful shutdown; the kubelet's metric name."
    ),
    "kubelet_graceful_shutdown_end_time_seconds": Metric(
        Kind.GAUGE, "End time of the last graceful shutdown; the kubelet's metric name."
    ),
    # container runtime
    "nodeagent_runtime_up": Metric(Kind.GAUGE, "1 while the container runtime is available."),
    "nodeagent_runtime_losses_total": Metric(
        Kind.COUNTER, "Transitions of the container runtime from available to unavailable."
    ),
    "kubelet_runtime_operations_total": Metric(
        Kind.COUNTER, "Calls of the CRI; the kubelet's metric name.", ("operation_type",)
    ),
    _CRI_ERRORS: Metric(Kind.COUNTER, "Failed calls of the CRI; the kubelet's metric name.", ("operation_type",)),
    "nodeagent_containerd_calls_total": Metric(Kind.COUNTER, "Calls of the containerd API.", ("operation_type",)),
    "nodeagent_containerd_call_errors_total": Metric(
        Kind.COUNTER, "Failed calls of the containerd API.", ("operation_type",)
    ),
    "nodeagent_runtime_reading_duration_seconds": Metric(
        Kind.HISTOGRAM, "Duration of the calls that list or read, by API: cri or containerd.", ("api",), _READING_S
    ),
    "nodeagent_runtime_errors_total": Metric(
        Kind.COUNTER, "Failed calls of both APIs of the runtime, by gRPC status.", ("status",)
    ),
    # pod list
    "nodeagent_pod_list_up": Metric(
        Kind.GAUGE, "1 if the last reading of a list of the pods bound to this node succeeded.", ("source",)
    ),
    "nodeagent_pod_list_partial": Metric(Kind.GAUGE, "1 while pods are missing in a pod list.", ("source",)),
    "nodeagent_pod_list_synced": Metric(
        Kind.GAUGE, "1 while a pod list is complete, so that a missing pod is deleted.", ("source",)
    ),
    "nodeagent_pod_list_pods": Metric(Kind.GAUGE, "Pods in a pod list.", ("source",)),
    "nodeagent_pod_list_read_timestamp_seconds": Metric(
        Kind.GAUGE, "Time of the last successful reading of a pod list.", ("source",)
    ),
    # agent
    "nodeagent_build_info": Metric(Kind.GAUGE, "Always 1; the version is a label.", ("version",)),
    "nodeagent_ready": Metric(Kind.GAUGE, "1 while /readyz reports ready."),
    "nodeagent_dry_run": Metric(Kind.GAUGE, "1 in dry run."),
    "nodeagent_paused": Metric(Kind.GAUGE, "1 while garbage collection and eviction are paused."),
    "nodeagent_config_ok": Metric(Kind.GAUGE, "0 while the configuration on disk is rejected."),
    "nodeagent_config_reloads_total": Metric(
        Kind.COUNTER, "Configuration reloads, by result.", ("result",), known=(("done",), ("refused",))
    ),
    "nodeagent_task_stuck": Metric(Kind.GAUGE, "1 while a task makes no progress.", ("task",)),
    "nodeagent_task_runs_total": Metric(Kind.COUNTER, "Finished runs of an enabled task.", ("task",)),
    "nodeagent_task_failures_total": Metric(Kind.COUNTER, "Failed runs of a task.", ("task",)),
    "nodeagent_task_end_timestamp_seconds": Metric(Kind.GAUGE, "End time of the last run of a task.", ("task",)),
    "nodeagent_memory_persistent": Metric(Kind.GAUGE, "1 while the agent's state is on disk, by part.", ("part",)),
    "nodeagent_history_records_dropped_total": Metric(
        Kind.COUNTER, "Passes and node shutdowns that could not be recorded, since the last reload."
    ),
    "nodeagent_events_total": Metric(Kind.COUNTER, "Log events, by level.", ("level",)),
}
"""All exposed metrics, in the order of the exposition."""


class Histogram:
    """Observed values of one histogram.

    Attributes:
        counts: number of values per bucket, not cumulative; the last bucket has no upper bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counters:
    """Counters, gauges and histograms by metric and label values; not thread-safe.

    Attributes:
        values: counters and gauges, by metric and label values.
        histograms: histograms, by metric and label values.
        runtime_down: loops whose last runtime call found the runtime unavailable.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now = clock.now()
        self.values: dict[str, dict[tuple[str, ...], float]] = {
            name: dict.fromkeys(metric.known, 0.0) for name, metric in METRICS.items() if metric.known
        }
        self.histograms: dict[str, dict[tuple[str, ...], Histogram]] = {}
        self.runtime_down: set[str] = set()

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Add ``by`` to a counter; a new counter starts at 0."""
        series = self.values.setdefault(name, {})
        key = _bounded(series, labels)
        series[key] = series.get(key, 0) + by

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        series = self.values.setdefault(name, {})
        series[_bounded(series, labels)] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        series = self.histograms.setdefault(name, {})
        key = _bounded(series, labels)
        if key not in series:
            series[key] = Histogram(METRICS[name].bounds)
        series[key].observe(value)

    def call(self, method: str, took_s: float, status: str) -> None:
        """Count a runtime call.

        Args:
            method: name of the RPC, such as ``ListPodSandbox`` of the CRI or ``leases.List`` of the containerd API.
            took_s: duration in seconds.
            status: gRPC status name. ``CANCELLED`` is a cancellation by the agent and not counted as an error.
        """
        operation, of_containerd = _operation(method), "." in method
        calls = "nodeagent_containerd_calls_total" if of_containerd else "kubelet_runtime_operations_total"
        self.add(calls, operation)
        if _READING.search(operation):
            api = "containerd" if of_containerd else "cri"
            self.observe("nodeagent_runtime_reading_duration_seconds", took_s, api)
        if status not in ("OK", "CANCELLED"):
            errors = "nodeagent_containerd_call_errors_total" if of_containerd else _CRI_ERRORS
            self.add(errors, operation)
            self.add("nodeagent_runtime_errors_total", status)

    def count_event(self, event: Mapping[str, object]) -> None:
        """Count a log event; subscriber of the event bus."""
        self.add("nodeagent_events_total", str(event.get("level", "")))
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event)

    @property
    def now_s(self) -> float:
        """Current Unix time in seconds; never before an earlier result, also after the clock was set back."""
        self._now = not_before(self._clock.now(), self._now)
        return self._now.timestamp()


def _bounded(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    # Labels are encoded before counting: two series with equal encoded labels would fail the whole scrape.
    encoded = tuple(map(encodable, labels))
    return encoded if encoded in series or len(series) < MAX_SERIES else (OTHER,) * len(encoded)


def _operation(method: str) -> str:
    """Return the kubelet's operation type of an RPC: ``list_podsandbox`` for ``ListPodSandbox``.

    Source: kubelet, instrumented runtime service.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.replace("PodSandbox", "Podsandbox"))
    return words.replace(".", "_").lower()


def _text(event: Mapping[str, object], key: str) -> str:
    return str(event.get(key) or "unknown")


def _number(event: Mapping[str, object], key: str) -> float:
    value = event.get(key)
    return value if isinstance(value, int | float) else 0.0


def _pass_finished(counters: Counters, event: Mapping[str, object]) -> None:
    scope = _text(event, "scope")
    counters.add("nodeagent_passes_total", scope, _text(event, "end"))
    counters.observe("nodeagent_pass_duration_seconds", _number(event, "duration_s"), scope)
    counters.set("nodeagent_pass_end_timestamp_seconds", counters.now_s, scope)
    counters.add("nodeagent_bytes_predicted_total", scope, by=_number(event, "predicted_bytes"))
    counters.add("nodeagent_bytes_freed_total", scope, by=_number(event, "freed_bytes"))
    if scope != _WITHOUT_TARGET:
        counters.set("nodeagent_target_bytes", _number(event, "wanted_bytes"), scope)
        counters.set("nodeagent_shortfall_bytes", _number(event, "short_bytes"), scope)
    by_reason = event.get("kept")
    kept = {str(reason): _number(by_reason, reason) for reason in by_reason} if isinstance(by_reason, Mapping) else {}
    before = counters.values.setdefault("nodeagent_kept_items", {})
    for labels in [each for each in before if each[0] == scope and each[1] not in kept]:
        before[labels] = 0
    for reason, count in kept.items():
        counters.set("nodeagent_kept_items", count, scope, reason)


def _removal(counters: Counters, event: Mapping[str, object]) -> None:
    kind, outcome, reason = (_text(event, key) for key in ("kind", "outcome", "reason"))
    counters.add("nodeagent_removals_total", kind, outcome, reason)
    if kind == "image" and outcome == "done":
        counters.add("kubelet_image_garbage_collected_total", "age" if reason == "unused-too-long" else "space")


def _eviction(counters: Counters, event: Mapping[str, object]) -> None:
    signal, outcome = _text(event, "signal"), str(event.get("outcome") or "dry-run")
    counters.add("nodeagent_evictions_total", signal, outcome)
    if event.get("event") == "evicted":
        counters.add("kubelet_evictions", signal)
        counters.observe("nodeagent_eviction_duration_seconds", _number(event, "took_s"))


def _runtime_unavailable(counters: Counters, event: Mapping[str, object]) -> None:
    counters.add("nodeagent_runtime_losses_total", by=0 if counters.runtime_down else 1)
    counters.runtime_down.add(str(event.get("loop", "")))


def _counts(name: str, *labels: str, by: str = "") -> Callable[[Counters, Mapping[str, object]], None]:
    """Return a handler that counts an event, or adds its value ``by``; ``labels`` are keys of the event."""

    def count(counters: Counters, event: Mapping[str, object]) -> None:
        counters.add(name, *(_text(event, key) for key in labels), by=_number(event, by) if by else 1)

    return count


def _counts_as(name: str, *labels: str) -> Callable[[Counters, Mapping[str, object]], None]:
    """Return a handler that counts an event, with fixed labels."""
    return lambda counters, _: counters.add(name, *labels)


def _stamps(name: str) -> Callable[[Counters, Mapping[str, object]], None]:
    """Return a handler that sets a gauge to the time of an event."""
    return lambda counters, _: counters.set(name, counters.now_s)


def _failed_as(end: str, scope: str = "loop") -> Callable[[Counters, Mapping[str, object]], None]:
    """Return a handler that counts a pass that has no ``pass_finished`` event; ``scope`` is a key of the event."""
    return lambda counters, event: counters.add("nodeagent_passes_total", _text(event, scope), end)


_HANDLERS: Final[Mapping[str, Callable[[Counters, Mapping[str, object]], None]]] = {
    "agent_started": lambda counters, _: counters.runtime_down.clear(),
    "runtime_available": lambda counters, event: counters.runtime_down.discard(str(event.get("loop", ""))),
    "runtime_unavailable": _runtime_unavailable,
    "pass_finished": _pass_finished,
    "pass_failed": _failed_as("failed"),
    "pass_crashed": _failed_as("crashed"),
    "pass_interrupted": _failed_as("interrupted", "scope"),
    "removal": _removal,
    "would_remove": _removal,
    "evicted": _eviction,
    "eviction_failed": _eviction,
    "would_evict": _eviction,
    "no_evictable_pod": _counts_as("nodeagent_evictions_withheld_total", "no-pod"),
    "eviction_postponed": _counts_as("nodeagent_evictions_withheld_total", "postponed"),
    "eviction_limit_reached": _counts_as("nodeagent_evictions_withheld_total", "limit"),
    "eviction_ineffective": _counts_as("nodeagent_evictions_withheld_total", "ineffective"),
    "reclaimed": _counts("nodeagent_reclaims_total", "threshold"),
    "threshold_met": _counts("nodeagent_threshold_crossings_total", "threshold"),
    "oom_kill": _counts("nodeagent_oom_kills_total", "pod_namespace", by="processes"),
    "pod_stopped": _counts("nodeagent_pods_stopped_total", "outcome"),
    "unclean_stop": _counts_as("nodeagent_unclean_stops_total"),
    "shutdown_started": _stamps("kubelet_graceful_shutdown_start_time_seconds"),
    "shutdown_finished": _stamps("kubelet_graceful_shutdown_end_time_seconds"),
    "config_reloaded": _counts_as("nodeagent_config_reloads_total", "done"),
    "config_rejected": _counts_as("nodeagent_config_reloads_total", "refused"),
}
COUNTED_EVENTS: Final = frozenset(_HANDLERS)
"""Names of the events with a separate handler; a test checks that the event catalogue contains these names."""
