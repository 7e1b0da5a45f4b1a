"""Prometheus exposition: all declared metrics in both text formats, parsed by the client library."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, strategies as st
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.http.metrics import OPENMETRICS, Exposition, SignalMetrics
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.plan.effects import Unrelieved
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import SignalLayout, SignalReadings
from nodeagent.gc.agent import open_agent
from nodeagent.loops.passes import LoopStatuses, PassLock, Pause, PausedBy
from nodeagent.model.outlook import GrowthCategory, Outlook, ThresholdKind
from nodeagent.model.pods import Completeness, PodListReading, PodListSource
from nodeagent.model.pressure import (
    FilesystemLayout,
    FilesystemRole,
    Moment,
    NodeCondition,
    NodeFilesystem,
    OtherFilesystem,
    Signal,
    SignalReading,
)
from nodeagent.model.runtime import FsObservation
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.counters import METRICS, Kind
from nodeagent.trend.plan.forecast import Forecast, Growth, Threshold
from nodeagent.trend.plan.outlook import ResourceOutlook
from tests.sim.node import SimNode
from tests.sim.server import SimServer
from tests.support.manual_clock import ManualClock
from tests.unit.builders import MIB, image_filesystem
from tests.unit.telemetry.test_counters import CALLS, CASES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from prometheus_client.metrics_core import Metric as Family

    from nodeagent.gc.agent import Agent

T0 = datetime(2026, 1, 10, tzinfo=UTC)
COLLECTION, SOFT, HARD, FULL = ThresholdKind
GIB = float(1 << 30)
Reading = tuple[SignalLayout, SignalReadings, tuple[NodeFilesystem, ...]]
LOGS = NodeFilesystem(
    "pod-logs",
    "/var/log/pods",
    (FilesystemRole.POD_LOGS, FilesystemRole.AGENT_STATE),
    FsObservation("/var/log/pods", 7, 1000, 40, 100, 99, T0),
)
UNREAD = NodeFilesystem("imagefs", "/gone", (FilesystemRole.IMAGEFS,), problem="not read")


def context(clock: ManualClock | None = None) -> DaemonContext:
    clock = clock or ManualClock(T0)
    return DaemonContext(
        checked(Origin()), log.configure("json", "info", io.StringIO()), clock, LoopStatuses(clock), PassLock(clock)
    )


def signals_of(
    *observed: tuple[Signal, float, float],
) -> Callable[[], Awaitable[Reading | None]]:
    """Return a signal reader that returns these amounts; each has signal, available amount and capacity."""
    thresholds = parse_thresholds(
        hard="memory.available<1Gi,nodefs.available<10%,memory.psi.full>20",
        soft="memory.available<3Gi",
        soft_grace_period="memory.available=1m",
        minimum_reclaim="",
    )
    layout = SignalLayout(SignalPaths("/"), FilesystemLayout.SINGLE, thresholds)
    at = Moment(T0, 0.0)

    async def read_signals() -> Reading:
        return layout, SignalReadings(tuple(SignalReading(*each, at) for each in observed), (), at), (UNREAD, LOGS)

    return read_signals


async def no_signals() -> None:
    return None


def read(kind: str, body: bytes) -> dict[str, Family]:
    """Return the metric families of an exposition by name, parsed by the client library."""
    if kind.startswith(OPENMETRICS):
        families = list(openmetrics_parser.text_string_to_metric_families(body.decode()))  # type: ignore[no-untyped-call]
    else:
        families = list(parser.text_string_to_metric_families(body.decode()))
    assert len({each.name for each in families}) == len(families)
    return {each.name: each for each in families}


async def values(
    made: DaemonContext, read_signals: Callable[[], Awaitable[Reading | None]] = no_signals
) -> dict[str, float]:
    """Return the value of every sample, by its name and label values."""
    kind, body = await Exposition(made, read_signals).render("")
    return {
        " ".join((sample.name, *filter(None, sample.labels.values()))): sample.value
        for family in read(kind, body).values()
        for sample in family.samples
    }


def expected(name: ThresholdKind, result: Outlook, seconds: float | None) -> Forecast:
    return Forecast(Threshold(name, 1.0, after_collection=True), result, seconds, seconds, seconds, None, 60.0)


def outlook(*forecasts: Forecast) -> ResourceOutlook:
    return ResourceOutlook("nodefs.available", 1.0, 2.0, T0, forecasts, (), ())


def full() -> DaemonContext:
    """Return a daemon context with counted events and runtime calls of every kind, and a fake agent."""
    made = context()
    for case in CASES:
        for each in case[0]:
            made.counters.count_event(each)
    for call in CALLS:
        for one in call[0]:
            made.observe_call(*one)
    made.loop_statuses.ended("images", "complete")
    made.lock_held = True
    growing = (Growth("shop/a logs", 3.0, 1.0, GrowthCategory.LOGS),)
    made.trend.outlook = (replace(outlook(expected(HARD, Outlook.RANGE, 3600.0)), growth=growing),)
    made.agent = cast("Agent", _Agent())
    return made


LISTED = PodListReading(PodListSource.KUBELET, "kubelet https://x/pods", T0, 7, Completeness.PARTIAL)


SIZE = {"pods": 7, "read_timestamp_seconds": T0.timestamp()}


class _Agent:
    """The parts of an agent that the exposition reads: databases, pod watch, image filesystems."""

    class store:  # noqa: N801 - replaces an attribute
        problem = ""

    class history:  # noqa: N801
        dropped = 2

    class history_writer:  # noqa: N801
        problem = "disk full"

    class watched_pods:  # noqa: N801
        """The pod watch, without a list."""

        @staticmethod
        def reading() -> PodListReading | None:
            return None

    class bound_pods:  # noqa: N801
        state: PodListReading | None = LISTED

    class observer:  # noqa: N801
        class images:  # noqa: N801
            filesystems = (image_filesystem("/a", 40, "overlayfs", ""), image_filesystem("/b", 95, "native"))


ALL_SIGNALS = signals_of(
    (Signal.MEMORY_AVAILABLE, 2 * GIB, 8 * GIB),
    (Signal.IMAGEFS_INODES_FREE, 30.0, 40.0),
    (Signal.PID_AVAILABLE, 900.0, 1000.0),
    (Signal.MEMORY_PSI_FULL, 30.0, 100.0),
)


@pytest.mark.parametrize("accepts", ["", "text/plain", f"{OPENMETRICS};version=1.0.0;q=0.8,text/plain;q=0.5"])
async def test_every_declared_metric_is_exposed(accepts: str) -> None:
    kind, body = await Exposition(full(), ALL_SIGNALS).render(accepts)
    assert kind.startswith(OPENMETRICS if OPENMETRICS in accepts else "text/plain; version=0.0.4")
    found = read(kind, body)
    ours = {name: each for name, each in found.items() if not name.startswith("process_")}
    assert set(ours) == {name.removesuffix("_total") for name in METRICS}
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= set(found)
    for name, metric in METRICS.items():
        family = ours[name.removesuffix("_total")]
        assert (family.documentation, family.type) == (metric.text, metric.kind), name
        assert all({*sample.labels} - {"le"} == {*metric.labels} for sample in family.samples), name
        if metric.kind is not Kind.HISTOGRAM:
            assert {sample.name for sample in family.samples} == {name}


async def test_each_of_several_image_filesystems_has_its_own_sample() -> None:
    found = await values(full())
    name = "nodeagent_image_filesystem_available_bytes"
    assert {key: value for key, value in found.items() if key.startswith(name)} == {
        f"{name} overlayfs /a": 600 * MIB,
        f"{name} native /b": 50 * MIB,
    }


async def test_each_read_filesystem_has_its_usage_with_path_and_roles() -> None:
    found = await values(full(), signals_of())
    labels = "/var/log/pods pod-logs,agent-state"
    assert {key: value for key, value in found.items() if key.startswith("nodeagent_filesystem_")} == {
        f"nodeagent_filesystem_available_bytes {labels}": 40,
        f"nodeagent_filesystem_capacity_bytes {labels}": 1000,
        f"nodeagent_filesystem_available_inodes {labels}": 99,
        f"nodeagent_filesystem_capacity_inodes {labels}": 100,
    }


async def test_both_formats_have_the_same_samples() -> None:
    made = Exposition(full(), ALL_SIGNALS)

    def samples(families: dict[str, Family]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {
            (each.name, tuple(sorted(each.labels.items())), each.value)
            for name, family in families.items()
            if not name.startswith("process_")
            for each in family.samples
        }

    assert samples(read(*await made.render(""))) == samples(read(*await made.render(OPENMETRICS)))


@pytest.mark.parametrize("accepts", ["", OPENMETRICS])
async def test_requests_during_a_reading_share_the_next_one(accepts: str) -> None:
    readings: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def slow_signals() -> None:
        end = asyncio.Event()
        readings.put_nowait(end)
        await end.wait()

    daemon = context()
    made = Exposition(daemon, slow_signals)
    first = asyncio.create_task(made.render(accepts))
    end = await readings.get()
    later = [asyncio.create_task(made.render(accepts)) for _ in range(100)]
    await asyncio.sleep(0)
    later.pop(0).cancel()  # a client that disconnects ends no reading of the others
    end.set()
    await first
    end = await readings.get()
    daemon.counters.count_event({"event": "reclaimed", "threshold": "new"})
    end.set()
    answers = {await each for each in later}
    assert readings.empty()
    assert [b'threshold="new"' in body for _, body in answers] == [True]


async def test_new_daemon_exposes_counters_as_0_and_no_unknown_value() -> None:
    found = await values(context())
    assert found["nodeagent_ready"] == 0
    assert found["nodeagent_runtime_up"] == 0
    assert found["nodeagent_unclean_stops_total"] == 0
    assert found["nodeagent_evictions_withheld_total no-pod"] == 0
    assert not any(each.startswith(("nodeagent_memory_persistent", "nodeagent_signal")) for each in found)
    assert "nodeagent_inhibitor_lock_held" not in found
    assert "kubelet_graceful_shutdown_start_time_seconds" not in found


async def test_state_of_the_agent_is_exposed() -> None:
    made = full()
    made.counters.runtime_down.clear()
    found = await values(made)
    assert found["nodeagent_runtime_up"] == found["nodeagent_config_ok"] == 1
    assert found["nodeagent_ready"] == 0, "the history cannot be written"
    assert found["nodeagent_history_records_dropped_total"] == 2
    assert found["nodeagent_memory_persistent images"] == 1
    assert found["nodeagent_memory_persistent history"] == 0
    assert found["nodeagent_inhibitor_lock_held"] == 1
    assert found["nodeagent_dry_run"] == found["nodeagent_paused"] == 0
    made.counters.runtime_down.add("images")
    made.config_problem, made.lock_held = "bad", False
    made.settings = replace(made.settings, dry_run=True)
    made.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "reason"))
    found = await values(made)
    assert found["nodeagent_ready"] == found["nodeagent_runtime_up"] == found["nodeagent_config_ok"] == 0
    assert found["nodeagent_inhibitor_lock_held"] == 0
    assert found["nodeagent_dry_run"] == found["nodeagent_paused"] == 1


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(None, {}, id="no kubelet"),
        pytest.param(PodListReading(PodListSource.KUBELET), {}, id="not read"),
        pytest.param(LISTED, {"up": 1, "partial": 1, "synced": 0} | SIZE, id="partial"),
        pytest.param(
            replace(LISTED, completeness=Completeness.SYNCED), {"up": 1, "partial": 0, "synced": 1} | SIZE, id="synced"
        ),
        pytest.param(
            PodListReading(PodListSource.KUBELET, error="HTTP 403"),
            {"up": 0, "partial": 0, "synced": 0},
            id="never answered",
        ),
        pytest.param(
            replace(LISTED, error="HTTP 403", completeness=Completeness.SOURCE_LISTED),
            {"up": 0, "partial": 0, "synced": 0} | SIZE,
            id="failed later",
        ),
    ],
)
async def test_pod_list_is_exposed_with_its_age(
    monkeypatch: pytest.MonkeyPatch, state: PodListReading | None, expected: dict[str, float]
) -> None:
    monkeypatch.setattr(_Agent.bound_pods, "state", state)
    found = await values(full())
    prefix = "nodeagent_pod_list_"
    assert {key.removeprefix(prefix): each for key, each in found.items() if key.startswith(prefix)} == {
        f"{key} kubelet": each for key, each in expected.items()
    }


async def test_tasks_are_exposed_one_by_one() -> None:
    clock = ManualClock(T0)
    made = context(clock)
    made.loop_statuses.disabled("eviction", "not enabled")
    made.loop_statuses.ended("images", "complete")
    made.loop_statuses.ended("images", "crashed", failed=True)
    made.loop_statuses.running("images", 10)
    clock.at_s = 11
    found = await values(made)
    assert not [each for each in found if each.startswith("nodeagent_task_") and each.endswith(" eviction")]
    assert (found["nodeagent_task_runs_total images"], found["nodeagent_task_failures_total images"]) == (2, 1)
    assert found["nodeagent_task_stuck images"] == 1
    assert found["nodeagent_task_end_timestamp_seconds images"] == T0.timestamp()


async def test_thresholds_are_exposed_with_limit_and_distance() -> None:
    made = context()
    made.eviction = EvictionState(reported=frozenset({NodeCondition.MEMORY_PRESSURE}))
    found = await values(made, ALL_SIGNALS)
    hard, soft, stall = (
        f"{text} {signal} {kind}"
        for text, signal, kind in (
            ("memory.available<1Gi", "memory.available", "hard"),
            ("memory.available<3Gi", "memory.available", "soft"),
            ("memory.psi.full>20%", "memory.psi.full", "hard"),
        )
    )
    distances = [found[f"nodeagent_threshold_distance_ratio {each}"] for each in (hard, soft, stall)]
    assert distances == [1 / 8, -1 / 8, -0.1]
    assert not any("nodefs" in each for each in found)  # nodefs was not read
    assert found["nodeagent_signal_available_bytes memory.available"] == 2 * GIB
    assert found["nodeagent_signal_capacity_bytes memory.available"] == 8 * GIB
    for name, amount in {"inodes imagefs.inodesFree": (30, 40), "pids pid.available": (900, 1000)}.items():
        assert (found[f"nodeagent_signal_available_{name}"], found[f"nodeagent_signal_capacity_{name}"]) == amount
    assert found["nodeagent_pressure_stall_ratio memory full"] == 0.3
    assert found["nodeagent_node_condition MemoryPressure"] == 1
    assert found["nodeagent_node_condition DiskPressure"] == 0
    assert found["nodeagent_shortage_without_relief memory.available<1Gi"] == 0
    statement = Unrelieved(
        "memory.available<1Gi", 1, 0, 0, 0, 0, "memory.available<1Gi is met, and no eviction ends it"
    )
    (threshold,) = parse_thresholds(hard="memory.available<1Gi", allocatable=False)
    made.eviction = replace(made.eviction, unrelieved={threshold: statement})
    found = await values(made, ALL_SIGNALS)
    assert found["nodeagent_shortage_without_relief memory.available<1Gi"] == 1


async def test_forecasts_are_exposed_by_threshold_and_the_earlier_of_two_hard_ones() -> None:
    made = context()

    forecasts = (
        expected(COLLECTION, Outlook.REACHED, None),
        expected(SOFT, Outlook.NO_TREND, None),
        expected(HARD, Outlook.RANGE, 3600.0),
        expected(HARD, Outlook.RANGE, 7200.0),
        expected(FULL, Outlook.UNKNOWN, None),
    )
    made.trend.outlook = (outlook(*forecasts),)
    found = await values(made)
    assert {key: value for key, value in found.items() if key.startswith("nodeagent_threshold_forecast")} == {
        "nodeagent_threshold_forecast_seconds nodefs.available collection": 0,
        "nodeagent_threshold_forecast_seconds nodefs.available hard": 3600,
    }


async def test_an_outlook_of_an_ended_record_is_not_exposed() -> None:
    clock = ManualClock(T0)
    made = context(clock)
    made.trend.outlook = (outlook(expected(HARD, Outlook.RANGE, 3600.0)),)
    clock.wall += timedelta(hours=1)
    assert not any(each.startswith("nodeagent_threshold_forecast") for each in await values(made))


async def test_growth_of_a_resource_in_bytes_is_exposed_by_category() -> None:
    made = context()
    growth = (
        Growth("shop/a logs", 3.0, 0.5, GrowthCategory.LOGS),
        Growth("logs of other pods", 1.0, 0.2, GrowthCategory.LOGS),
        Growth("", 2.0, 0.3, GrowthCategory.OTHER),
    )
    made.trend.outlook = (
        replace(outlook(), growth=growth),
        replace(outlook(), resource="nodefs.inodesFree", growth=growth),
        replace(outlook(), resource="nodefs.inodesFree on /a.available", growth=growth[:1]),
        replace(outlook(), resource="pid.available", growth=growth),
        replace(outlook(), resource="swap.free", growth=growth[2:]),
        replace(outlook(), resource="allocatableMemory.available", growth=growth),
    )
    found = await values(made)
    assert {key: value for key, value in found.items() if key.startswith("nodeagent_growth")} == {
        "nodeagent_growth_bytes_per_second nodefs.available pod-logs": 4.0,
        "nodeagent_growth_bytes_per_second nodefs.available other": 2.0,
        "nodeagent_growth_bytes_per_second swap.free other": 2.0,
    }


async def test_signals_of_another_image_filesystem_have_its_path() -> None:
    read = signals_of((Signal.MEMORY_AVAILABLE, 2 * GIB, 8 * GIB))
    (first,) = parse_thresholds(hard="imagefs.available<1Gi")

    async def read_both() -> Reading:
        found = await read()
        assert found is not None
        layout, readings, _ = found
        other = replace(first, filesystem=OtherFilesystem("/b", 7, frozenset({"native"})))
        observed = tuple(
            SignalReading(Signal.IMAGEFS_AVAILABLE, available, 8 * GIB, readings.at, path=path)
            for path, available in (("", 2 * GIB), ("/b", 3 * GIB))
        )
        return replace(layout, thresholds=(first, other)), replace(readings, observations=observed), ()

    found = await values(context(), read_both)
    assert found["nodeagent_signal_available_bytes imagefs.available"] == 2 * GIB
    assert found["nodeagent_signal_available_bytes imagefs.available /b"] == 3 * GIB
    assert found["nodeagent_signal_capacity_bytes imagefs.available /b"] == 8 * GIB
    distances = {key: value for key, value in found.items() if key.startswith("nodeagent_threshold_distance_ratio")}
    assert sorted(distances.values()) == [1 / 8, 2 / 8]
    assert [key for key in distances if key.endswith(" imagefs.available hard /b")]


async def test_histogram_buckets_are_cumulative() -> None:
    made = context()
    for took_s in (0.3, 0.6, 1e9):
        made.counters.count_event({"event": "evicted", "signal": "s", "outcome": "evicted", "took_s": took_s})
    found = await values(made)
    name = "nodeagent_eviction_duration_seconds"
    assert [found[f"{name}_bucket {bound}"] for bound in ("0.25", "0.5", "1.0", "300.0", "+Inf")] == [0, 1, 2, 2, 3]
    assert (found[f"{name}_count"], found[f"{name}_sum"]) == (3, 1e9 + 0.9)


@given(st.text(max_size=20))
async def test_any_label_value_is_exposed_unchanged(text: str) -> None:
    made = context()
    made.counters.count_event({"event": "reclaimed", "threshold": text or "x"})
    for accepts in ("", OPENMETRICS):
        kind, body = await Exposition(made, no_signals).render(accepts)
        (sample,) = (each for each in read(kind, body)["nodeagent_reclaims"].samples if each.name.endswith("_total"))
        assert sample.labels == {"threshold": text or "x"}


async def test_signals_are_read_where_eviction_is_disabled(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    made = context(clock)
    reader = SignalMetrics(made)
    assert await reader.read() is None
    async with SimServer(SimNode(), tmp_path / "s") as server:
        made.settings = replace(
            made.settings,
            endpoint=server.endpoint,
            state_directory=tmp_path / "state",
            imagefs_path=str(tmp_path),
            eviction=EvictionSettings(enabled=False),
        )
        async with open_agent(made.settings, record=False, dry_run=True, clock=clock) as agent:
            made.agent = agent
            first = await reader.read()
            assert first is not None
            assert first[0].paths.imagefs == str(tmp_path)
            assert FilesystemRole.IMAGEFS in first[2][0].roles
            assert Signal.MEMORY_AVAILABLE in {each.signal for each in first[1].observations}
    clock.at_s = 1e6  # after any cache time; a complete layout needs no call of the stopped runtime
    again = await reader.read()
    assert again is not None
    assert again[0] is first[0]


async def test_signals_except_those_of_imagefs_are_read_without_a_runtime(tmp_path: Path) -> None:
    made = context()
    made.settings = replace(made.settings, endpoint=f"unix://{tmp_path}/none", state_directory=tmp_path / "state")
    async with open_agent(made.settings, record=False, dry_run=True, clock=ManualClock(T0)) as agent:
        made.agent = agent
        found = await SignalMetrics(made).read()
    assert found is not None
    signals = {each.signal for each in found[1].observations}
    assert Signal.NODEFS_AVAILABLE in signals
    assert Signal.IMAGEFS_AVAILABLE not in signals
