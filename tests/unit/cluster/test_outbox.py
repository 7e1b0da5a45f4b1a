"""Queue and delivery of Events to a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.api_server import EVENTS
from tests.unit.cluster.cluster import Cluster


def events_of(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.server.objects[EVENTS].values())


def test_selected_log_events_are_sent_as_events_about_the_node() -> None:
    cluster = Cluster()

    async def script() -> None:
        cluster.outbox.add({"event": "pass_finished", "scope": "images"})
        cluster.outbox.add({"event": "shutdown_started", "pods": 3, "granted_s": 5, "level": "info"})
        await asyncio.sleep(5)

    cluster.run(10, script)
    (event,) = events_of(cluster)
    assert (event["reason"], event["type"]) == ("Shutdown", "Normal")
    assert event["note"] == "node shutdown started: 3 pods, 5 s"
    assert event["regarding"]["uid"] == cluster.server.node["metadata"]["uid"]
    assert "series" not in event


def test_events_of_an_outage_are_counted_bounded_and_sent_after_it_at_a_limited_rate() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.event_api.down = True
        for number in range(500):
            cluster.outbox.add({"event": "pass_failed", "loop": "images", "error": f"e{number % 150}"})
            await asyncio.sleep(0.1)
        cluster.event_api.down = False
        before = len(events_of(cluster))
        await asyncio.sleep(30)
        assert len(events_of(cluster)) - before <= 16
        await asyncio.sleep(700)

    cluster.run(800, script)
    assert len(events_of(cluster)) <= 130
    assert all(each["series"]["count"] >= 2 for each in events_of(cluster) if "series" in each)
    assert len(cluster.lease_api.times("PUT")) >= 71


def test_lost_answer_creates_no_second_event() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.event_api.lost = 1
        cluster.outbox.add({"event": "shutdown_cancelled"})

    cluster.run(30, script)
    assert len(events_of(cluster)) == 1
    assert len(cluster.event_api.sent) == 2


def test_missing_rule_on_events_keeps_heartbeats_and_is_soon_retried_every_minute_only() -> None:
    cluster = Cluster()
    cluster.server.denied = {("POST", "events")}

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.outbox.add({"event": "shutdown_cancelled"})

    cluster.run(300, script)
    assert len(cluster.event_api.sent) <= 13
    assert len(cluster.logged("api_request_failed")) == 1
    assert len(cluster.lease_api.times("PUT")) >= 26
