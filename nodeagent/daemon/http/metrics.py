"""Everything that is measured, as Prometheus reads it, in a registry of its own.

Nothing is made before somebody asks: the numbers are counted in ``counters``, the rest is read from the node and from
what the duties tell. Of the client library only the parts that hold and write metrics are loaded; its package would
load web servers, 2.4 MiB, that are not used here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nodeagent import __version__
from nodeagent.daemon.health import not_ready
from nodeagent.daemon.loop_status import Activity
from nodeagent.model.pressure import NodeCondition
from nodeagent.observe.eviction_signals import EvictionSignalReader
from nodeagent.plan.eviction.signals import MEANINGS, Operator, Unit
from nodeagent.telemetry.counters import METRICS, Counters, Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from nodeagent.act.agent import Agent
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings
    from nodeagent.telemetry.counters import Histogram

    StatusReader = Callable[[], Awaitable[tuple[SignalLayout, SignalReadings] | None]]

_PACKAGE: Final = "prometheus_client"


@contextmanager
def _without_servers() -> Iterator[None]:
    """Let the client library's modules be imported without what its package imports."""
    spec = importlib.util.find_spec(_PACKAGE) if _PACKAGE not in sys.modules else None
    if spec is None:
        yield
        return
    bare = types.ModuleType(_PACKAGE)
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_PACKAGE] = bare
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]  # whoever wants all of it imports it anew


with _without_servers():
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import Collector, CollectorRegistry

OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_SURVEY_AGAIN_S: Final = 60.0


class SignalReader:
    """Reads the node's signals for whoever asks, evictions or not."""

    def __init__(self, context: DaemonContext) -> None:
        self._context = context
        self._of: Agent | None = None
        self._reader: EvictionSignalReader | None = None
        self._ground: SignalLayout | None = None
        self._surveyed = False
        self._again_s = 0.0

    async def look(self) -> tuple[SignalLayout, SignalReadings] | None:
        """Return the thresholds and the signals now; ``None`` while no agent is composed."""
        agent, now_s = self._context.agent, self._context.clock.monotonic_s()
        if agent is None:
            return None
        if agent is not self._of or self._reader is None:
            self._of, self._surveyed, self._again_s = agent, False, now_s
            self._reader = EvictionSignalReader(agent.settings.eviction, agent.clock)
            self._ground = await self._reader.nodefs_layout()
        if self._context.counters.runtime_down:
            self._again_s = now_s  # it is asked as soon as it is back
        elif not self._surveyed and now_s >= self._again_s:
            self._again_s = now_s + _SURVEY_AGAIN_S
            layout, problem = await self._reader.read_layout_or_nodefs(agent.cri, agent.settings.imagefs_path)
            if not problem:
                self._ground, self._surveyed = layout, True
        ground = self._ground
        if ground is None:
            return None
        return ground, await self._reader.read(ground)


class Exposition(Collector):
    """What is told, and the registry it is told by."""

    def __init__(self, context: DaemonContext, look: StatusReader | None = None) -> None:
        """Prepare it; nothing is read yet.

        Args:
            context: what is told of.
            look: how the node's signals are read; from the node itself unless given.
        """
        self._context = context
        self._look = look or SignalReader(context).look
        self._now = Counters(context.clock)
        self._registry = CollectorRegistry(support_collectors_without_names=True)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._one_at_a_time = asyncio.Lock()

    async def render(self, accepts: str) -> tuple[str, bytes]:
        """Return the type and the text of all metrics; OpenMetrics for who accepts that, else the older plain form."""
        async with self._one_at_a_time:
            self._now = Counters(self._context.clock)
            self._tell_agent(self._now)
            self._tell_duties(self._now)
            self._tell_pressure(self._now, await self._look())
            try:
                if OPENMETRICS in accepts:
                    return CONTENT_TYPE_LATEST, generate_latest(self._registry)  # type: ignore[no-untyped-call]
                return _PLAIN, _plain(self._registry.collect())
            finally:
                self._now = Counters(self._context.clock)

    def collect(self) -> Iterable[Family]:
        """Return every metric that has a value; for the registry."""
        counted, now = self._context.counters, self._now
        for name, metric in METRICS.items():
            family = Family(name.removesuffix("_total"), metric.text, metric.kind.value)
            for labels, value in {**now.values.get(name, {}), **counted.values.get(name, {})}.items():
                family.add_sample(name, dict(zip(metric.labels, labels, strict=True)), value)
            for labels, spread in counted.histograms.get(name, {}).items():
                _add_spread(family, dict(zip(metric.labels, labels, strict=True)), spread)
            if not family.samples and not metric.labels and metric.kind is Kind.COUNTER:
                family.add_sample(name, {}, 0)
            if family.samples:
                yield family

    def _tell_agent(self, now: Counters) -> None:
        context = self._context
        now.set("nodeagent_build_info", 1, __version__)
        now.set("nodeagent_ready", not not_ready(context))
        now.set("nodeagent_dry_run", context.dry_run)
        now.set("nodeagent_paused", context.pass_lock.pause() is not None)
        now.set("nodeagent_config_ok", not context.config_problem)
        if context.lock_held is not None:
            now.set("nodeagent_inhibitor_lock_held", context.lock_held)
        agent = context.agent
        now.set("nodeagent_runtime_up", agent is not None and not context.counters.runtime_down)
        if agent is not None:
            now.set("nodeagent_memory_persistent", agent.store.health.persistent, "images")
            now.set("nodeagent_memory_persistent", not agent.history.problem, "history")

    def _tell_duties(self, now: Counters) -> None:
        loop_statuses = self._context.loop_statuses
        stuck = loop_statuses.stuck()
        for line in loop_statuses.lines:
            disabled = line.activity is Activity.DISABLED
            now.set("nodeagent_task_enabled", not disabled, line.name)
            if disabled:
                continue
            now.set("nodeagent_task_stuck", line.name in stuck, line.name)
            now.set("nodeagent_task_runs_total", line.runs, line.name)
            now.set("nodeagent_task_failures_total", line.failures, line.name)
            if line.ended_at is not None:
                now.set("nodeagent_task_end_timestamp_seconds", line.ended_at.timestamp(), line.name)

    def _tell_pressure(self, now: Counters, looked: tuple[SignalLayout, SignalReadings] | None) -> None:
        for condition in NodeCondition:
            now.set("nodeagent_node_condition", condition in self._context.eviction.reported, condition.value)
        if looked is None:
            return
        ground, seen = looked
        found = {each.signal: each for each in seen.observations}
        for signal, reading in found.items():
            if MEANINGS[signal].unit is Unit.STALL_PERCENT:
                resource, _, kind = signal.value.split(".")
                now.set("nodeagent_pressure_stall_percent", reading.available, resource, kind)
            else:
                now.set("nodeagent_signal_available", reading.available, signal.value)
                now.set("nodeagent_signal_capacity", reading.capacity, signal.value)
        for threshold in ground.thresholds:
            read = found.get(threshold.signal)
            if read is None:
                continue
            labels = (threshold.text, threshold.signal.value, "hard" if threshold.hard else "soft")
            limit = threshold.limit(read.capacity)
            left = read.available - limit
            now.set("nodeagent_threshold_limit", limit, *labels)
            now.set(
                "nodeagent_threshold_distance", left if threshold.operator is Operator.LESS_THAN else -left, *labels
            )
            now.set("nodeagent_threshold_met", threshold.met_by(read.available, read.capacity), *labels)


def _add_spread(family: Family, labels: dict[str, str], spread: Histogram) -> None:
    so_far = 0
    for bound, count in zip((*spread.bounds, float("inf")), spread.counts, strict=True):
        so_far += count
        told = "+Inf" if bound == float("inf") else repr(bound)
        family.add_sample(f"{family.name}_bucket", {**labels, "le": told}, so_far)
    family.add_sample(f"{family.name}_count", labels, so_far)
    family.add_sample(f"{family.name}_sum", labels, spread.total)


def _plain(families: Iterable[Family]) -> bytes:
    """Return metrics in the plain form. Source: Prometheus text format 0.0.4."""
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
    plain = text.replace("\\", r"\\").replace("\n", r"\n")
    return plain.replace('"', r"\"") if quoted else plain
