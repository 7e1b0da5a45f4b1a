"""Events: selection, aggregation, limits, and the fields that the API requires."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given, strategies as st

from nodeagent.cluster.plan.events import (
    BURST,
    MAX_PENDING,
    POD_SELECTED,
    REFILL_S,
    REPEAT_S,
    SELECTED,
    EventQueue,
    PodReference,
    add_event,
    event_body,
    put_back,
    take_event,
)
from nodeagent.telemetry.event_catalogue import EVENTS

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def add(queue: EventQueue, note: str, at_s: float = 0.0, name: str = "evicted") -> EventQueue:
    return add_event(queue, name, note, NOW + timedelta(seconds=at_s), at_s)


def test_selected_events_are_logged_events_and_rows_of_the_document() -> None:
    assert SELECTED.keys() <= EVENTS.keys()
    text = (Path(__file__).parents[4] / "nodeagent/docs/kubernetes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (Normal|Warning) \| `(\w+)` \|$", text, re.MULTILINE)
    assert rows == [(reason, kind, name) for name, (reason, kind) in SELECTED.items()]


def test_other_log_events_are_not_sent() -> None:
    assert add(EventQueue(), "x", name="pass_finished") == EventQueue()


def test_equal_events_within_the_period_are_sent_as_one_series() -> None:
    queue, first = take_event(add(EventQueue(), "a"), 0.0)
    assert first is not None
    for at_s in (1.0, 2.0, 3.0):
        queue = add(queue, "a", at_s)
    assert take_event(queue, REPEAT_S - 1)[1] is None
    series = take_event(queue, REPEAT_S)[1]
    assert series is not None
    assert (series.count, series.first, series.last) == (3, NOW + timedelta(seconds=1), NOW + timedelta(seconds=3))
    body = event_body(series, "node-1", "u")
    assert body["series"] == {"count": 3, "lastObservedTime": "2026-11-21T12:00:03.000000Z"}


def test_full_queue_drops_the_oldest_and_counts_them() -> None:
    queue = EventQueue()
    for number in range(MAX_PENDING + 5):
        queue = add(queue, f"n{number}")
    assert (len(queue.pending), queue.dropped) == (MAX_PENDING, 5)
    assert next(iter(queue.pending.values())).note == "n5"


def test_event_of_a_failed_request_is_sent_again_under_the_same_name() -> None:
    queue, taken = take_event(add(EventQueue(), "a"), 0.0)
    assert taken is not None
    queue, again = take_event(put_back(queue, taken), REPEAT_S)
    assert again is not None
    assert event_body(again, "n", "u")["metadata"] == event_body(taken, "n", "u")["metadata"]


def test_event_has_every_field_that_the_api_requires_within_its_limits() -> None:
    queue = add(EventQueue(), "\u00e4" * 2000)
    taken = take_event(queue, 0.0)[1]
    assert taken is not None
    body = event_body(taken, "node-1", "uid-1")
    assert len(body["note"].encode()) < 1024
    assert body["eventTime"] == "2026-11-21T12:00:00.000000Z"
    assert body["metadata"]["namespace"] == "default"
    assert re.fullmatch(r"node-1\.[0-9a-f]+", body["metadata"]["name"])
    assert all(body[name] for name in ("action", "reason", "type", "reportingController", "reportingInstance"))


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 30)), max_size=200))
def test_rate_is_limited_for_any_sequence(steps: list[tuple[int, float]]) -> None:
    queue, now_s, sent = EventQueue(), 0.0, 0
    for note, wait_s in steps:
        now_s += wait_s
        queue = add(queue, str(note), now_s)
        queue, taken = take_event(queue, now_s)
        sent += taken is not None
    assert sent <= BURST + now_s / REFILL_S + 1e-6
    assert len(queue.pending) <= MAX_PENDING


# ---- Events about pods

POD = PodReference("shop", "web-" + "x" * 240, "uid-web")


def test_events_about_pods_are_rows_of_the_document() -> None:
    assert POD_SELECTED.keys() <= EVENTS.keys()
    text = (Path(__file__).parents[4] / "nodeagent/docs/kubernetes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \(pod\) \| (Normal|Warning) \| `(\w+)` \|$", text, re.MULTILINE)
    assert rows == [(reason, kind, name) for name, (reason, kind) in POD_SELECTED.items()]


def test_event_about_a_pod_has_its_namespace_and_uid_within_the_limits_of_the_api() -> None:
    queue = add_event(EventQueue(), "evicted", "m", NOW, 0.0, pod=POD)
    taken = take_event(queue, 0.0)[1]
    assert taken is not None
    body = event_body(taken, "node-1", "uid-node")
    of_node = add_event(EventQueue(), "evicted", "m", NOW, 0.0)
    about_node = take_event(of_node, 0.0)[1]
    assert about_node is not None
    assert len(event_body(about_node, "n" * 253, "uid-node")["metadata"]["name"]) <= 253
    assert body["metadata"]["namespace"] == "shop"
    assert len(body["metadata"]["name"]) <= 253
    assert body["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "shop",
        "name": POD.name,
        "uid": "uid-web",
    }


def test_equal_events_about_two_pods_and_the_node_are_three() -> None:
    queue = EventQueue()
    for reference in (None, POD, PodReference("shop", "web", "uid-2"), POD):
        queue = add_event(queue, "evicted", "m", NOW, 0.0, pod=reference)
    assert [each.count for each in queue.pending.values()] == [1, 2, 1]


def test_log_event_about_the_node_alone_is_not_sent_about_a_pod() -> None:
    assert add_event(EventQueue(), "pass_failed", "m", NOW, 0.0, pod=POD) == EventQueue()
