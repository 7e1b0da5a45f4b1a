"""Exposition of all metrics for Prometheus.

Counters are those of ``telemetry.counters``; gauges are read from the node and from the loop statuses at each scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from nodeagent import __version__
from nodeagent.daemon.health import not_ready
from nodeagent.daemon.node_filesystems import NodeFilesystemReader
from nodeagent.eviction.plan.thresholds import MEANINGS, Operator, Unit, unit_of
from nodeagent.eviction.signals import LAYOUT_KEPT_S, EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.loops.passes import Activity
from nodeagent.model.clock import not_before
from nodeagent.model.outlook import Outlook
from nodeagent.model.pods import Completeness, PodListReading
from nodeagent.model.pressure import NodeCondition, NodeFilesystem, Signal
from nodeagent.telemetry.counters import METRICS, Counters, Histogram, Kind

if TYPE_CHECKING:
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.gc.agent import Agent


_Read = tuple[SignalLayout, SignalReadings, tuple[NodeFilesystem, ...]]
ReadSignals = Callable[[], Awaitable[_Read | None]]


OPENMETRICS: Final = "application/openmetrics-text"
TEXTFILE_TIME: Final = "nodeagent_textfile_timestamp_seconds"
"""Metric that only the metrics file contains."""
_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"


class SignalMetrics:
    """Reads the eviction signals and the filesystems of the node for metrics, even if eviction is disabled."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._reader_of: Agent | None = None
        self._reader: EvictionSignalReader | None = None
        self._filesystems: NodeFilesystemReader | None = None
        self._layout: SignalLayout | None = None
        self._retry_at_s = 0.0

    async def read(self) -> _Read | None:
        """Return the signal layout, the readings and the filesystems; ``None`` while no agent is composed.

        All omit the image filesystem until the runtime has reported its path once.
        """
        agent, now_s = self._context.agent, self._context.clock.monotonic_s()
        if agent is None:
            return None
        if agent is not self._reader_of or self._reader is None or self._filesystems is None:
            self._reader_of, self._retry_at_s = agent, now_s
            self._reader = EvictionSignalReader(
                agent.settings.eviction, agent.clock, pod_log_root=agent.settings.pod_log_root
            )
            self._filesystems = NodeFilesystemReader(agent)
            self._layout = await self._reader.nodefs_layout()
        if self._context.counters.runtime_down:
            self._retry_at_s = now_s  # retried at the first scrape after the runtime is available again
        elif now_s >= self._retry_at_s:
            self._retry_at_s = now_s + LAYOUT_KEPT_S
            complete, problem = await self._reader.read_layout_or_nodefs(
                agent.cri, agent.settings.imagefs_path, agent.observer.images.find_filesystems
            )
            if not problem:
                self._layout = complete
        layout = self._layout
        if layout is None:
            return None
        readings, filesystems = await asyncio.gather(self._reader.read(layout), self._filesystems.read(layout.paths))
        return layout, readings, filesystems


class Exposition(Collector):
    """All metrics, and the registry that collects them."""

    def __init__(self, context: DaemonContext, read_signals: ReadSignals | None = None) -> None:
        """Create the registry without reading the node.

        Args:
            context: state of the daemon.
            read_signals: reads the eviction signals and the filesystems; by default from this node.
        """
        self._context = context
        self._read_signals = read_signals or SignalMetrics(context).read
        self._gauges = Counters(context.clock)
        self._times: dict[tuple[str, ...], datetime] = {}
        self._registry = CollectorRegistry(support_collectors_without_names=True)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._one_at_a_time = asyncio.Lock()
        self._readings = 0
        self._last: dict[bool, tuple[int, bytes]] = {}

    async def render(self, accepts: str) -> tuple[str, bytes]:
        """Return content type and text of all metrics: OpenMetrics if the client accepts it, else text format 0.0.4.

        Requests that arrive during a reading share the next one: the time of an answer does not depend on their number.

        Args:
            accepts: value of the ``Accept`` header; empty without one.
        """
        openmetrics, before = OPENMETRICS in accepts, self._readings
        async with self._one_at_a_time:
            reading, body = self._last.get(openmetrics, (0, b""))
            if reading <= before:
                async with self._read_gauges() as reading:
                    body = (
                        generate_latest(self._registry)  # type: ignore[no-untyped-call]
                        if openmetrics
                        else _text_format(self._registry.collect())
                    )
                self._last[openmetrics] = reading, body
        return CONTENT_TYPE_LATEST if openmetrics else _PLAIN, body

    async def render_textfile(self) -> str:
        """Return all metrics of the agent in text format 0.0.4, with the time of this reading.

        The metrics of the process are omitted: node_exporter exposes process metrics with the same names.
        """
        async with self._one_at_a_time, self._read_gauges():
            return _text_format((self._file_time(), *self.collect())).decode()

    @asynccontextmanager
    async def _read_gauges(self) -> AsyncIterator[int]:
        """Set the gauges for the duration of the block, under the lock, and return the number of this reading."""
        self._readings += 1
        self._gauges = Counters(self._context.clock)
        self._set_agent_gauges(self._gauges)
        self._set_task_gauges(self._gauges)
        self._set_forecast_gauges(self._gauges)
        self._set_pressure_gauges(self._gauges, await self._read_signals())
        try:
            yield self._readings
        finally:
            self._gauges = Counters(self._context.clock)

    def _file_time(self) -> Family:
        family = Family(TEXTFILE_TIME, "Time at which this file was written.", Kind.GAUGE.value)
        family.add_sample(TEXTFILE_TIME, {}, self._context.counters.now_s)
        return family

    def collect(self) -> Iterable[Family]:
        """Return every metric with a value, for the registry."""
        counted, gauges = self._context.counters, self._gauges
        for name, metric in METRICS.items():
            family = Family(name.removesuffix("_total"), metric.text, metric.kind.value)
            for labels, value in {**gauges.values.get(name, {}), **counted.values.get(name, {})}.items():
                family.add_sample(name, dict(zip(metric.labels, labels, strict=True)), value)
            for labels, histogram in counted.histograms.get(name, {}).items():
                _add_histogram(family, dict(zip(metric.labels, labels, strict=True)), histogram)
            if not family.samples and not metric.labels and metric.kind is Kind.COUNTER:
                family.add_sample(name, {}, 0)
            if family.samples:
                yield family

    def _set_agent_gauges(self, gauges: Counters) -> None:
        context = self._context
        gauges.set("nodeagent_build_info", 1, __version__)
        gauges.set("nodeagent_ready", not not_ready(context))
        gauges.set("nodeagent_dry_run", context.dry_run)
        gauges.set("nodeagent_paused", context.pass_lock.pause() is not None)
        gauges.set("nodeagent_config_ok", not context.config_problem)
        if context.lock_held is not None:
            gauges.set("nodeagent_inhibitor_lock_held", context.lock_held)
        agent = context.agent
        gauges.set("nodeagent_runtime_up", agent is not None and not context.counters.runtime_down)
        if agent is not None:
            gauges.set("nodeagent_memory_persistent", not agent.store.problem, "images")
            gauges.set("nodeagent_memory_persistent", not agent.history_writer.problem, "history")
            gauges.set("nodeagent_history_records_dropped_total", agent.history.dropped)
            for state in (agent.watched_pods.reading(), agent.bound_pods.state):
                self._set_pod_list_gauges(gauges, state)
            for each in agent.observer.images.filesystems or ():
                if each.observed is not None:
                    labels = (",".join(sorted(each.stores - {""})), each.path)
                    available_bytes = each.observed.available_bytes
                    gauges.set("nodeagent_image_filesystem_available_bytes", available_bytes, *labels)
                    gauges.set("nodeagent_image_filesystem_capacity_bytes", each.observed.capacity_bytes, *labels)

    def _set_task_gauges(self, gauges: Counters) -> None:
        loop_statuses = self._context.loop_statuses
        stuck = loop_statuses.stuck()
        for status in loop_statuses.all:
            if status.activity is Activity.DISABLED:
                continue
            gauges.set("nodeagent_task_stuck", status.name in stuck, status.name)
            gauges.set("nodeagent_task_runs_total", status.runs, status.name)
            gauges.set("nodeagent_task_failures_total", status.failures, status.name)
            if status.ended_at is not None:
                self._set_time(gauges, status.ended_at, "nodeagent_task_end_timestamp_seconds", status.name)

    def _set_pod_list_gauges(self, gauges: Counters, state: PodListReading | None) -> None:
        """Set the gauges of a pod list; set nothing without a list or before its first reading."""
        if state is None or (state.observed_at is None and not state.error):
            return
        source = state.source.value
        gauges.set("nodeagent_pod_list_up", not state.error, source)
        gauges.set("nodeagent_pod_list_partial", state.completeness is Completeness.PARTIAL, source)
        gauges.set("nodeagent_pod_list_synced", state.completeness is Completeness.SYNCED, source)
        if state.observed_at is not None:
            gauges.set("nodeagent_pod_list_pods", state.pods, source)
            self._set_time(gauges, state.observed_at, "nodeagent_pod_list_read_timestamp_seconds", source)

    def _set_time(self, gauges: Counters, at: datetime, name: str, *labels: str) -> None:
        """Set a time gauge, never to a time before that of an earlier reading."""
        at = self._times[name, *labels] = not_before(at, self._times.get((name, *labels)))
        gauges.set(name, at.timestamp(), *labels)

    def _set_forecast_gauges(self, gauges: Counters) -> None:
        """Set the expected time of each threshold that has one, and the growth by category.

        Of two thresholds of a kind, the earlier counts. Memory of pods grows as memory of the node only.
        """
        for outlook in self._context.trend.outlook_at(self._context.clock.now()):
            for each in sorted(outlook.forecasts, key=lambda one: -(one.expected_s or 0.0)):
                if each.outlook in (Outlook.RANGE, Outlook.REACHED):
                    labels = (outlook.resource, each.threshold.name)
                    gauges.set("nodeagent_threshold_forecast_seconds", each.expected_s or 0.0, *labels)
            if unit_of(outlook.resource) is Unit.BYTES and outlook.resource != Signal.ALLOCATABLE_MEMORY_AVAILABLE:
                rates: dict[str, float] = {}
                for growing in outlook.growth:
                    rates[growing.category] = rates.get(growing.category, 0.0) + growing.rate_per_s
                for category, rate in rates.items():
                    gauges.set("nodeagent_growth_bytes_per_second", rate, outlook.resource, category)

    def _set_pressure_gauges(self, gauges: Counters, signals: _Read | None) -> None:
        for condition in NodeCondition:
            gauges.set("nodeagent_node_condition", condition in self._context.eviction.reported, condition.value)
        if signals is None:
            return
        layout, readings, filesystems = signals
        for each in filesystems:
            if (observed := each.observed) is not None:
                labels = (each.path, ",".join(each.roles))
                gauges.set("nodeagent_filesystem_available_bytes", observed.available_bytes, *labels)
                gauges.set("nodeagent_filesystem_capacity_bytes", observed.capacity_bytes, *labels)
                if observed.inodes:
                    gauges.set("nodeagent_filesystem_available_inodes", observed.inodes_free, *labels)
                    gauges.set("nodeagent_filesystem_capacity_inodes", observed.inodes, *labels)
        by_measurand = {each.measurand: each for each in readings.observations}
        for (signal, path), reading in by_measurand.items():
            unit = MEANINGS[signal].unit
            if unit is Unit.STALL_PERCENT:
                resource, _, kind = signal.value.split(".")
                gauges.set("nodeagent_pressure_stall_ratio", reading.available / 100, resource, kind)
            else:
                gauges.set(f"nodeagent_signal_available_{unit.value}", reading.available, signal.value, path)
                gauges.set(f"nodeagent_signal_capacity_{unit.value}", reading.capacity, signal.value, path)
        for threshold in layout.thresholds:
            observation = by_measurand.get(threshold.measurand)
            if observation is None or not observation.capacity:  # swap can be removed between two readings
                continue
            kind = "hard" if threshold.hard else "soft"
            of_threshold = (threshold.text, threshold.signal.value, kind, observation.path)
            margin = observation.available - threshold.limit(observation.capacity)
            distance = margin if threshold.operator is Operator.LESS_THAN else -margin
            gauges.set("nodeagent_threshold_distance_ratio", distance / observation.capacity, *of_threshold)
            unrelieved = threshold in self._context.eviction.unrelieved
            gauges.set("nodeagent_shortage_without_relief", unrelieved, threshold.text)


def _add_histogram(family: Family, labels: dict[str, str], histogram: Histogram) -> None:
    cumulative = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        cumulative += count
        upper_bound = "+Inf" if bound == float("inf") else repr(bound)
        family.add_sample(f"{family.name}_bucket", {**labels, "le": upper_bound}, cumulative)
    family.add_sample(f"{family.name}_count", labels, cumulative)
    family.add_sample(f"{family.name}_sum", labels, histogram.total)


def _text_format(families: Iterable[Family]) -> bytes:
    """Return metrics as text. Source: Prometheus text format 0.0.4."""
    lines = []
    for family in families:
        name = f"{family.name}_total" if family.type == Kind.COUNTER else family.name
        lines.append(f"# HELP {name} {_escaped(family.documentation)}")
        lines.append(f"# TYPE {name} {'untyped' if family.type == Kind.UNKNOWN else family.type}")
        for sample in family.samples:
            labels = ",".join(f'{key}="{_escaped(value, quoted=True)}"' for key, value in sample.labels.items())
            lines.append(
                f"{sample.name}{{{labels}}} {float(sample.value)!r}"
                if labels
                else f"{sample.name} {float(sample.value)!r}"
            )
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quoted else escaped
