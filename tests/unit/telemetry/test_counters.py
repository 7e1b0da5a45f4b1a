"""Counters of log events and runtime calls: values, labels, and the limit of series per metric."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.eviction.plan.thresholds import MEANINGS, Unit
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.counters import COUNTED_EVENTS, MAX_SERIES, METRICS, OTHER, Counters, Kind
from nodeagent.telemetry.event_catalogue import EVENTS
from nodeagent.telemetry.logging import subscribe, unsubscribe
from tests.support.manual_clock import ManualClock

T0 = datetime(2026, 1, 10, tzinfo=UTC)
AT_S = T0.timestamp()
FROM_STATE = {
    "nodeagent_threshold_distance_ratio",
    "nodeagent_threshold_forecast_seconds",
    "nodeagent_growth_bytes_per_second",
    *(f"nodeagent_signal_{what}_{unit}" for what in ("available", "capacity") for unit in ("bytes", "inodes", "pids")),
    *(f"nodeagent_filesystem_{what}_{unit}" for what in ("available", "capacity") for unit in ("bytes", "inodes")),
    "nodeagent_image_filesystem_available_bytes",
    "nodeagent_image_filesystem_capacity_bytes",
    "nodeagent_pressure_stall_ratio",
    "nodeagent_node_condition",
    "nodeagent_shortage_without_relief",
    "nodeagent_inhibitor_lock_held",
    "nodeagent_runtime_up",
    "nodeagent_build_info",
    "nodeagent_ready",
    "nodeagent_dry_run",
    "nodeagent_paused",
    "nodeagent_config_ok",
    "nodeagent_task_stuck",
    "nodeagent_task_runs_total",
    "nodeagent_task_failures_total",
    "nodeagent_task_end_timestamp_seconds",
    "nodeagent_memory_persistent",
    "nodeagent_history_records_dropped_total",
    "nodeagent_pod_list_up",
    "nodeagent_pod_list_partial",
    "nodeagent_pod_list_synced",
    "nodeagent_pod_list_pods",
    "nodeagent_pod_list_read_timestamp_seconds",
}
"""Gauges computed from the state of the daemon, tested in ``daemon/http/test_metrics.py``."""


def event(name: str, **values: object) -> dict[str, object]:
    return {"event": name, "level": "info", **values}


PASS: dict[str, object] = {
    "scope": "images",
    "end": "shortfall",
    "duration_s": 2.0,
    "wanted_bytes": 100,
    "short_bytes": 40,
    "predicted_bytes": 70,
    "freed_bytes": 60,
    "kept": {"in-use": 3, "too-young": 1},
}
EVICTION: dict[str, object] = {"signal": "memory.available", "outcome": "evicted", "took_s": 0.5}
REMOVAL: dict[str, object] = {"kind": "image", "outcome": "done", "reason": "least-recently-used"}
CASES: list[tuple[list[dict[str, object]], str, tuple[str, ...], float]] = [
    ([event("pass_finished", **PASS)] * 2, "nodeagent_passes_total", ("images", "shortfall"), 2),
    ([event("pass_failed", loop="images")], "nodeagent_passes_total", ("images", "failed"), 1),
    ([event("pass_interrupted", scope="images")], "nodeagent_passes_total", ("images", "interrupted"), 1),
    ([event("pass_crashed", loop="images")], "nodeagent_passes_total", ("images", "crashed"), 1),
    ([event("pass_finished", **PASS)], "nodeagent_pass_end_timestamp_seconds", ("images",), AT_S),
    ([event("pass_finished", **PASS)] * 2, "nodeagent_bytes_predicted_total", ("images",), 140),
    ([event("pass_finished", **PASS)] * 2, "nodeagent_bytes_freed_total", ("images",), 120),
    ([event("pass_finished", **PASS | {"freed_bytes": None})], "nodeagent_bytes_freed_total", ("images",), 0),
    ([event("pass_finished", **PASS | {"freed_bytes": None})], "nodeagent_bytes_freed_total", ("images",), 0),
    ([event("pass_finished", **PASS)] * 2, "nodeagent_target_bytes", ("images",), 100),
    ([event("pass_finished", **PASS)] * 2, "nodeagent_shortfall_bytes", ("images",), 40),
    ([event("pass_finished", **PASS)], "nodeagent_kept_items", ("images", "in-use"), 3),
    (
        [event("pass_finished", **PASS), event("pass_finished", **PASS | {"kept": {}})],
        "nodeagent_kept_items",
        ("images", "in-use"),
        0,
    ),
    (
        [event("pass_finished", **PASS), event("pass_finished", **PASS | {"scope": "containers", "kept": {}})],
        "nodeagent_kept_items",
        ("images", "in-use"),
        3,
    ),
    ([event("removal", **REMOVAL)], "nodeagent_removals_total", ("image", "done", "least-recently-used"), 1),
    (
        [event("would_remove", **REMOVAL | {"outcome": "dry-run"})],
        "nodeagent_removals_total",
        ("image", "dry-run", "least-recently-used"),
        1,
    ),
    ([event("removal", **REMOVAL)], "kubelet_image_garbage_collected_total", ("space",), 1),
    (
        [event("removal", **REMOVAL | {"reason": "unused-too-long"})],
        "kubelet_image_garbage_collected_total",
        ("age",),
        1,
    ),
    ([event("removal", **REMOVAL | {"outcome": "failed"})], "kubelet_image_garbage_collected_total", ("space",), 0),
    ([event("removal", **REMOVAL | {"kind": "container"})], "kubelet_image_garbage_collected_total", ("space",), 0),
    ([event("evicted", **EVICTION)], "nodeagent_evictions_total", ("memory.available", "evicted"), 1),
    ([event("evicted", **EVICTION)], "kubelet_evictions", ("memory.available",), 1),
    (
        [event("eviction_failed", **EVICTION | {"outcome": "failed"})],
        "nodeagent_evictions_total",
        ("memory.available", "failed"),
        1,
    ),
    (
        [event("would_evict", signal="memory.available")],
        "nodeagent_evictions_total",
        ("memory.available", "dry-run"),
        1,
    ),
    ([event("no_evictable_pod", threshold="t")], "nodeagent_evictions_withheld_total", ("no-pod",), 1),
    ([event("eviction_postponed", because="b")], "nodeagent_evictions_withheld_total", ("postponed",), 1),
    ([event("eviction_limit_reached", why="w")], "nodeagent_evictions_withheld_total", ("limit",), 1),
    ([event("eviction_ineffective", signal="s")], "nodeagent_evictions_withheld_total", ("ineffective",), 1),
    ([event("reclaimed", threshold="t")], "nodeagent_reclaims_total", ("t",), 1),
    ([event("threshold_met", threshold="t")], "nodeagent_threshold_crossings_total", ("t",), 1),
    ([event("oom_kill", pod_namespace="shop", processes=3)] * 2, "nodeagent_oom_kills_total", ("shop",), 6),
    ([event("oom_kill", pod_namespace="", processes=1)], "nodeagent_oom_kills_total", ("unknown",), 1),
    ([event("pod_stopped", outcome="killed")], "nodeagent_pods_stopped_total", ("killed",), 1),
    ([event("unclean_stop")], "nodeagent_unclean_stops_total", (), 1),
    ([event("shutdown_started")], "kubelet_graceful_shutdown_start_time_seconds", (), AT_S),
    ([event("shutdown_finished")], "kubelet_graceful_shutdown_end_time_seconds", (), AT_S),
    (
        [event("runtime_unavailable", loop="images"), event("runtime_unavailable", loop="containers")],
        "nodeagent_runtime_losses_total",
        (),
        1,
    ),
    (
        [event("runtime_unavailable"), event("runtime_available"), event("runtime_unavailable")],
        "nodeagent_runtime_losses_total",
        (),
        2,
    ),
    (
        [
            event("runtime_unavailable", loop="images"),
            event("agent_started"),
            event("runtime_unavailable", loop="images"),
        ],
        "nodeagent_runtime_losses_total",
        (),
        2,
    ),
    ([event("config_reloaded")], "nodeagent_config_reloads_total", ("done",), 1),
    ([event("config_rejected")], "nodeagent_config_reloads_total", ("refused",), 1),
    ([event("anything"), {"event": "odd"}], "nodeagent_events_total", ("info",), 1),
]
CALLS: list[tuple[list[tuple[str, float, str]], str, tuple[str, ...], float]] = [
    ([("ListPodSandbox", 0.1, "OK")] * 2, "kubelet_runtime_operations_total", ("list_podsandbox",), 2),
    ([("RemoveImage", 0.1, "UNKNOWN")], "kubelet_runtime_operations_errors_total", ("remove_image",), 1),
    ([("leases.Delete", 0.1, "OK")] * 2, "nodeagent_containerd_calls_total", ("leases_delete",), 2),
    ([("images.Get", 0.1, "UNKNOWN")], "nodeagent_containerd_call_errors_total", ("images_get",), 1),
    ([("RemoveImage", 0.1, "UNKNOWN")] * 3, "nodeagent_runtime_errors_total", ("UNKNOWN",), 3),
]
HISTOGRAMS = {
    "nodeagent_pass_duration_seconds",
    "nodeagent_eviction_duration_seconds",
    "nodeagent_runtime_reading_duration_seconds",
}


@pytest.mark.parametrize(("events", "name", "labels", "value"), CASES)
def test_event_is_counted(events: list[dict[str, object]], name: str, labels: tuple[str, ...], value: float) -> None:
    counters = Counters(ManualClock(T0))
    for each in events:
        counters.count_event(each)
    assert counters.values[name][labels] == value


@pytest.mark.parametrize(("calls", "name", "labels", "value"), CALLS)
def test_call_is_counted(calls: list[tuple[str, float, str]], name: str, labels: tuple[str, ...], value: float) -> None:
    counters = Counters(ManualClock(T0))
    for each in calls:
        counters.call(*each)
    assert counters.values[name][labels] == value


def test_every_declared_metric_has_a_case() -> None:
    covered = {case[1] for case in CASES} | {case[1] for case in CALLS}
    assert covered | HISTOGRAMS | FROM_STATE == set(METRICS)
    assert {name for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM} == HISTOGRAMS
    assert {str(each["event"]) for case in CASES for each in case[0]} >= COUNTED_EVENTS


def test_counted_events_are_in_the_catalogue() -> None:
    assert set(EVENTS) >= COUNTED_EVENTS


@pytest.mark.parametrize(
    ("name", "labels", "counts", "total"),
    [
        ("nodeagent_pass_duration_seconds", ("images",), {60.0: 2, float("inf"): 1}, 1010.0),
        ("nodeagent_eviction_duration_seconds", (), {0.25: 1, 0.5: 1}, 0.75),
        ("nodeagent_runtime_reading_duration_seconds", ("cri",), {0.1: 2, float("inf"): 1}, 120.011),
        ("nodeagent_runtime_reading_duration_seconds", ("containerd",), {1.0: 1}, 0.5),
    ],
)
def test_durations_are_counted_in_buckets(
    name: str, labels: tuple[str, ...], counts: dict[float, int], total: float
) -> None:
    counters = Counters(ManualClock(T0))
    for duration_s in (2.0, 8.0, 1000.0):
        counters.count_event(event("pass_finished", **PASS | {"duration_s": duration_s}))
    for took_s in (0.25, 0.5):  # equal to bucket bounds, which are inclusive
        counters.count_event(event("evicted", **EVICTION | {"took_s": took_s}))
    for took_s in (0.001, 0.01, 120.0):
        counters.call("Version", took_s, "OK")
        counters.call("StopContainer", took_s, "OK")  # not counted: its duration includes the stop of the container
    counters.call("snapshots.List", 0.5, "OK")
    histogram = counters.histograms[name][labels]
    assert histogram.total == pytest.approx(total)
    buckets = dict(zip((*histogram.bounds, float("inf")), histogram.counts, strict=True))
    assert {bound: count for bound, count in buckets.items() if count} == counts


@pytest.mark.parametrize("status", ["OK", "CANCELLED"])
def test_call_cancelled_by_the_agent_is_not_an_error(status: str) -> None:
    counters = Counters(ManualClock(T0))
    counters.call("Version", 0.1, status)
    assert "kubelet_runtime_operations_errors_total" not in counters.values
    assert "nodeagent_runtime_errors_total" not in counters.values


@pytest.mark.parametrize(
    ("method", "operation"),
    [
        ("Version", "version"),
        ("ListPodSandbox", "list_podsandbox"),
        ("PodSandboxStatus", "podsandbox_status"),
        ("StopPodSandbox", "stop_podsandbox"),
        ("ListPodSandboxStats", "list_podsandbox_stats"),
        ("ListContainerStats", "list_container_stats"),
        ("ImageFsInfo", "image_fs_info"),
        ("RuntimeConfig", "runtime_config"),
    ],
)
def test_calls_are_labelled_with_kubelet_operation_types(method: str, operation: str) -> None:
    counters = Counters(ManualClock(T0))
    counters.call(method, 0.1, "OK")
    assert set(counters.values["kubelet_runtime_operations_total"]) == {(operation,)}


def test_runtime_is_down_until_every_affected_loop_reports_it_available() -> None:
    counters = Counters(ManualClock(T0))
    for name in ("images", "containers"):
        counters.count_event(event("runtime_unavailable", loop=name))
    counters.count_event(event("runtime_available", loop="images"))
    assert counters.runtime_down == {"containers"}
    counters.count_event(event("runtime_available", loop="containers"))
    assert not counters.runtime_down


def test_known_label_values_start_at_0() -> None:
    counters = Counters(ManualClock(T0))
    assert counters.values["nodeagent_evictions_withheld_total"] == {("no-pod",): 0, ("limit",): 0}
    assert counters.values["nodeagent_config_reloads_total"] == {("done",): 0, ("refused",): 0}
    for name, metric in METRICS.items():
        assert all(len(each) == len(metric.labels) for each in metric.known), name


def test_metric_names_and_help_texts_are_well_formed() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"(nodeagent|kubelet)_[a-z0-9_]+", name)
        assert name.endswith("_total") is (metric.kind is Kind.COUNTER), name
        assert metric.text.endswith("."), name
        assert bool(metric.bounds) is (metric.kind is Kind.HISTOGRAM), name
        assert metric.bounds == tuple(sorted(set(metric.bounds))), name
        assert "le" not in metric.labels


def test_label_values_above_the_limit_are_counted_as_other() -> None:
    counters = Counters(ManualClock(T0))
    for number in range(MAX_SERIES * 3):
        counters.count_event(event("oom_kill", pod_namespace=f"n{number}", processes=1))
        counters.call(f"Method{number}", 0.1, "OK")
    kills = counters.values["nodeagent_oom_kills_total"]
    assert len(kills) == MAX_SERIES + 1
    assert kills[(OTHER,)] == MAX_SERIES * 2
    assert len(counters.values["kubelet_runtime_operations_total"]) == MAX_SERIES + 1
    counters.count_event(event("oom_kill", pod_namespace="n0", processes=1))
    assert kills[("n0",)] == 2


@given(
    st.sampled_from(sorted(COUNTED_EVENTS)),
    st.dictionaries(
        st.sampled_from(
            ["scope", "loop", "end", "duration_s", "kept", "signal", "outcome", "reason", "took_s", "threshold"]
        ),
        st.none()
        | st.text(max_size=5)
        | st.integers()
        | st.booleans()
        | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    ),
)
def test_any_event_values_are_counted_without_an_error(name: str, values: dict[str, Any]) -> None:
    Counters(ManualClock(T0)).count_event({"event": name, **values})


def test_subscribed_counters_count_logged_events() -> None:
    counters = Counters(ManualClock(T0))
    subscribe(counters.count_event)
    try:
        log.configure("json", "error", io.StringIO()).info("removal", **REMOVAL)
    finally:
        unsubscribe(counters.count_event)
    assert counters.values["nodeagent_events_total"] == {("info",): 1}
    assert counters.values["nodeagent_removals_total"] == {("image", "done", "least-recently-used"): 1}


def test_label_with_invalid_utf_8_is_counted_with_its_escaped_form() -> None:
    counters = Counters(ManualClock(T0))
    counters.count_event(event("oom_kill", pod_namespace="a\udcff", processes=1))
    counters.count_event(event("oom_kill", pod_namespace="a\\xff", processes=2))
    assert counters.values["nodeagent_oom_kills_total"] == {("a\\xff",): 3}


UNITS = ("bytes", "bytes_per_second", "inodes", "pids", "ratio", "seconds")
WITHOUT_UNIT = {
    "nodeagent_kept_items",
    "nodeagent_pod_list_pods",
    "nodeagent_node_condition",
    "nodeagent_shortage_without_relief",
    "nodeagent_inhibitor_lock_held",
    "nodeagent_runtime_up",
    "nodeagent_pod_list_up",
    "nodeagent_pod_list_partial",
    "nodeagent_pod_list_synced",
    "nodeagent_ready",
    "nodeagent_dry_run",
    "nodeagent_paused",
    "nodeagent_config_ok",
    "nodeagent_task_stuck",
    "nodeagent_memory_persistent",
}
"""Metrics without a unit suffix: numbers of items, and states with the value 0 or 1."""


def test_name_of_a_metric_ends_with_its_only_unit() -> None:
    own = {name: metric for name, metric in METRICS.items() if name.startswith("nodeagent_")}
    gauges = {name for name, metric in own.items() if metric.kind is Kind.GAUGE} - {"nodeagent_build_info"}
    assert {each for each in gauges if not each.endswith(tuple(f"_{unit}" for unit in UNITS))} == WITHOUT_UNIT
    assert all(name.endswith("_total") for name, metric in own.items() if metric.kind is Kind.COUNTER)
    assert all(name.endswith("_seconds") for name, metric in own.items() if metric.kind is Kind.HISTOGRAM)


def test_every_signal_has_metrics_of_its_unit() -> None:
    units = {each.unit for each in MEANINGS.values()} - {Unit.STALL_PERCENT}
    names = {f"nodeagent_signal_{amount}_{unit.value}" for amount in ("available", "capacity") for unit in units}
    assert {each for each in METRICS if each.startswith("nodeagent_signal_")} == names
