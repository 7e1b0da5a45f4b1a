"""What the agent counts, from its events and its calls to the runtime: plain numbers until somebody asks for them.

Metrics that the kubelet has with the same meaning keep its names, so that what is drawn or alerted upon for one serves
the other; all else begins with ``nodeagent_``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.clock import Clock

MOST_SERIES: Final = 200
"""So many label values are told apart in one metric; what comes after is counted as ``other``."""

OTHER: Final = "other"


class Kind(StrEnum):
    """What a metric's number means. Source: the OpenMetrics types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    UNKNOWN = "unknown"


class Metric(NamedTuple):
    """A metric as it is declared.

    Attributes:
        bounds: of a histogram.
        known: label values that are told as 0 before they are first counted, so that their first time shows as a rise.
    """

    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()


_PASS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_CALL_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_EVICTION_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_THRESHOLD: Final = ("threshold", "signal", "kind")

METRICS: Final[Mapping[str, Metric]] = {
    # collection
    "nodeagent_passes_total": Metric(Kind.COUNTER, "Passes that ended, by how.", ("scope", "end")),
    "nodeagent_pass_duration_seconds": Metric(
        Kind.HISTOGRAM, "How long passes took, from the first look to the last removal.", ("scope",), _PASS_S
    ),
    "nodeagent_pass_end_timestamp_seconds": Metric(Kind.GAUGE, "When the last pass ended.", ("scope",)),
    "nodeagent_removals_total": Metric(
        Kind.COUNTER, "Attempts to remove an item, by what became of it.", ("kind", "outcome", "reason")
    ),
    "nodeagent_kept_items": Metric(Kind.GAUGE, "Items that the last pass kept, by reason.", ("scope", "reason")),
    "nodeagent_bytes_predicted_total": Metric(
        Kind.COUNTER, "Bytes that what was removed had been expected to free.", ("scope",)
    ),
    "nodeagent_bytes_freed_total": Metric(
        Kind.COUNTER, "Bytes that were measured to be free after a pass and had not been before.", ("scope",)
    ),
    "nodeagent_target_bytes": Metric(Kind.GAUGE, "Bytes that the last pass was to free.", ("scope",)),
    "nodeagent_shortfall_bytes": Metric(Kind.GAUGE, "Bytes that the last pass fell short of its target.", ("scope",)),
    "kubelet_image_garbage_collected_total": Metric(
        Kind.COUNTER,
        "Images removed, for space or for age; the kubelet's name.",
        ("reason",),
        known=(("space",), ("age",)),
    ),
    # eviction
    "nodeagent_evictions_total": Metric(
        Kind.COUNTER, "Evictions tried, by what became of them.", ("signal", "outcome")
    ),
    "kubelet_evictions": Metric(Kind.UNKNOWN, "Pods evicted; the kubelet's name.", ("eviction_signal",)),
    "nodeagent_eviction_duration_seconds": Metric(
        Kind.HISTOGRAM, "From the choice of a pod to the end of its processes.", (), _EVICTION_S
    ),
    "nodeagent_evictions_withheld_total": Metric(
        Kind.COUNTER,
        "Evictions withheld under pressure: no pod eligible, limit reached, or the last one ineffective.",
        ("reason",),
        known=(("no-pod",), ("limit",)),
    ),
    "nodeagent_reclaims_total": Metric(
        Kind.COUNTER, "Steps of reclaim on the node before a pod had to go, by the threshold.", ("threshold",)
    ),
    "nodeagent_threshold_crossings_total": Metric(Kind.COUNTER, "Times that a threshold was met.", ("threshold",)),
    "nodeagent_threshold_met": Metric(Kind.GAUGE, "1 while a reading is past its threshold.", _THRESHOLD),
    "nodeagent_threshold_limit": Metric(Kind.GAUGE, "The amount that a threshold stands for on this node.", _THRESHOLD),
    "nodeagent_threshold_distance": Metric(
        Kind.GAUGE, "How far a reading is from its threshold, in the signal's unit; negative past it.", _THRESHOLD
    ),
    "nodeagent_signal_available": Metric(Kind.GAUGE, "What is left, in bytes, inodes or process ids.", ("signal",)),
    "nodeagent_signal_capacity": Metric(Kind.GAUGE, "The whole that it is a part of.", ("signal",)),
    "nodeagent_pressure_stall_percent": Metric(
        Kind.GAUGE, "Percent of the last ten seconds in which some or all tasks stalled.", ("resource", "kind")
    ),
    "nodeagent_node_condition": Metric(Kind.GAUGE, "1 while a node condition holds.", ("condition",)),
    "nodeagent_oom_kills_total": Metric(
        Kind.COUNTER, "Processes of pods that the kernel killed for want of memory.", ("namespace",)
    ),
    # going down
    "nodeagent_inhibitor_lock_held": Metric(Kind.GAUGE, "1 while logind holds the agent's delay lock."),
    "nodeagent_pods_stopped_total": Metric(
        Kind.COUNTER, "Pods stopped as the node went down, by what became of them.", ("outcome",)
    ),
    "nodeagent_unclean_stops_total": Metric(Kind.COUNTER, "Times that the node went down without notice, as seen."),
    "kubelet_graceful_shutdown_start_time_seconds": Metric(
        Kind.GAUGE, "When the last graceful shutdown began; the kubelet's name."
    ),
    "kubelet_graceful_shutdown_end_time_seconds": Metric(
        Kind.GAUGE, "When the last graceful shutdown was done; the kubelet's name."
    ),
    # runtime
    "nodeagent_runtime_up": Metric(Kind.GAUGE, "1 while the container runtime answers."),
    "nodeagent_runtime_losses_total": Metric(Kind.COUNTER, "Times that the container runtime stopped answering."),
    "kubelet_runtime_operations_total": Metric(
        Kind.COUNTER, "Calls to the runtime; the kubelet's name.", ("operation_type",)
    ),
    "kubelet_runtime_operations_errors_total": Metric(
        Kind.COUNTER, "Calls to the runtime that failed; the kubelet's name.", ("operation_type",)
    ),
    "kubelet_runtime_operations_duration_seconds": Metric(
        Kind.HISTOGRAM, "How long calls to the runtime took; the kubelet's name.", ("operation_type",), _CALL_S
    ),
    "nodeagent_runtime_errors_total": Metric(
        Kind.COUNTER, "Calls to the runtime that failed, by gRPC status.", ("status",)
    ),
    # the agent
    "nodeagent_build_info": Metric(Kind.GAUGE, "Always 1.", ("version",)),
    "nodeagent_ready": Metric(Kind.GAUGE, "1 while /readyz says so."),
    "nodeagent_dry_run": Metric(Kind.GAUGE, "1 while the agent only tells what it would do."),
    "nodeagent_paused": Metric(Kind.GAUGE, "1 while nothing is collected or evicted."),
    "nodeagent_config_ok": Metric(Kind.GAUGE, "0 while the configuration on disk could not be put in force."),
    "nodeagent_config_reloads_total": Metric(
        Kind.COUNTER, "Reloads of the configuration.", ("result",), known=(("done",), ("refused",))
    ),
    "nodeagent_task_enabled": Metric(Kind.GAUGE, "1 if the task is enabled on this node.", ("task",)),
    "nodeagent_task_stuck": Metric(Kind.GAUGE, "1 while the task makes no progress.", ("task",)),
    "nodeagent_task_runs_total": Metric(Kind.COUNTER, "Finished runs of the task.", ("task",)),
    "nodeagent_task_failures_total": Metric(Kind.COUNTER, "Failed runs of the task.", ("task",)),
    "nodeagent_task_end_timestamp_seconds": Metric(Kind.GAUGE, "End time of the task's last run.", ("task",)),
    "nodeagent_memory_persistent": Metric(
        Kind.GAUGE, "1 while what the agent remembers is on disk, by part.", ("part",)
    ),
    "nodeagent_events_total": Metric(Kind.COUNTER, "Events of the log, by severity.", ("level",)),
}
"""Everything that is told, in that order."""


class Histogram:
    """The values of one histogram.

    Attributes:
        counts: how many values are at most as large as each bound and larger than the one before; one more for the
            rest.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counters:
    """The numbers. It is told of everything in one thread.

    Attributes:
        values: by metric and by the labels' values.
        spreads: likewise, of histograms.
        runtime_down: which loops found the runtime away and have not heard from it since.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.values: dict[str, dict[tuple[str, ...], float]] = {
            name: dict.fromkeys(metric.known, 0.0) for name, metric in METRICS.items() if metric.known
        }
        self.spreads: dict[str, dict[tuple[str, ...], Histogram]] = {}
        self.runtime_down: set[str] = set()

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a number, which is 0 at first."""
        series = self.values.setdefault(name, {})
        key = _bounded(series, labels)
        series[key] = series.get(key, 0) + by

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a number."""
        series = self.values.setdefault(name, {})
        series[_bounded(series, labels)] = value

    def note(self, name: str, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        series = self.spreads.setdefault(name, {})
        key = _bounded(series, labels)
        if key not in series:
            series[key] = Histogram(METRICS[name].bounds)
        series[key].note(value)

    def call(self, method: str, took_s: float, status: str) -> None:
        """Count a call to the runtime, as the connection's observer."""
        operation = _operation(method)
        self.add("kubelet_runtime_operations_total", operation)
        self.note("kubelet_runtime_operations_duration_seconds", took_s, operation)
        if status not in ("OK", "CANCELLED"):
            self.add("kubelet_runtime_operations_errors_total", operation)
            self.add("nodeagent_runtime_errors_total", status)

    def count_event(self, event: Mapping[str, object]) -> None:
        """Count an event of the log."""
        self.add("nodeagent_events_total", str(event.get("level", "")))
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event)

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        return self._clock.now().timestamp()


def _bounded(series: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    shown = tuple(map(encodable, labels))  # here, as two series that only look alike would fail the whole scrape
    return shown if shown in series or len(series) < MOST_SERIES else (OTHER,) * len(shown)


def _operation(method: str) -> str:
    """Return the kubelet's word for a call: ``ListPodSandbox`` is ``list_podsandbox``.

    Source: kubelet, instrumented runtime service.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.replace("PodSandbox", "Podsandbox"))
    return words.replace(".", "_").lower()


def _text(event: Mapping[str, object], key: str) -> str:
    return str(event.get(key) or "unknown")


def _number(event: Mapping[str, object], key: str) -> float:
    value = event.get(key)
    return value if isinstance(value, int | float) else 0.0


def _pass_done(counters: Counters, event: Mapping[str, object]) -> None:
    scope = _text(event, "scope")
    counters.add("nodeagent_passes_total", scope, _text(event, "end"))
    counters.note("nodeagent_pass_duration_seconds", _number(event, "duration_s"), scope)
    counters.set("nodeagent_pass_end_timestamp_seconds", counters.now_s, scope)
    counters.add("nodeagent_bytes_predicted_total", scope, by=_number(event, "predicted_bytes"))
    counters.add("nodeagent_bytes_freed_total", scope, by=max(0.0, _number(event, "freed_bytes")))
    counters.set("nodeagent_target_bytes", _number(event, "wanted_bytes"), scope)
    counters.set("nodeagent_shortfall_bytes", _number(event, "short_bytes"), scope)
    told = event.get("kept")
    kept = {str(reason): _number(told, reason) for reason in told} if isinstance(told, Mapping) else {}
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
        counters.note("nodeagent_eviction_duration_seconds", _number(event, "took_s"))


def _runtime_lost(counters: Counters, event: Mapping[str, object]) -> None:
    if not counters.runtime_down:
        counters.add("nodeagent_runtime_losses_total")
    counters.runtime_down.add(str(event.get("loop", "")))


def _counts(name: str, *labels: str, by: str = "") -> Callable[[Counters, Mapping[str, object]], None]:
    """Return what counts an event under the values of some of its keys."""

    def count(counters: Counters, event: Mapping[str, object]) -> None:
        counters.add(name, *(_text(event, key) for key in labels), by=_number(event, by) if by else 1)

    return count


def _counts_as(name: str, *labels: str) -> Callable[[Counters, Mapping[str, object]], None]:
    """Return what counts an event under fixed labels."""
    return lambda counters, _: counters.add(name, *labels)


def _stamps(name: str) -> Callable[[Counters, Mapping[str, object]], None]:
    """Return what notes when an event was."""
    return lambda counters, _: counters.set(name, counters.now_s)


def _failed_as(end: str) -> Callable[[Counters, Mapping[str, object]], None]:
    return lambda counters, event: counters.add("nodeagent_passes_total", _text(event, "loop"), end)


_HANDLERS: Final[Mapping[str, Callable[[Counters, Mapping[str, object]], None]]] = {
    "agent_started": lambda counters, _: counters.runtime_down.clear(),
    "runtime_available": lambda counters, event: counters.runtime_down.discard(str(event.get("loop", ""))),
    "runtime_unavailable": _runtime_lost,
    "pass_finished": _pass_done,
    "pass_failed": _failed_as("failed"),
    "pass_crashed": _failed_as("crashed"),
    "removal": _removal,
    "would_remove": _removal,
    "evicted": _eviction,
    "eviction_failed": _eviction,
    "would_evict": _eviction,
    "no_evictable_pod": _counts_as("nodeagent_evictions_withheld_total", "no-pod"),
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
