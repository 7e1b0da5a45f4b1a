"""Times that other programs compare, with clocks set back and forward, restarts, and answers that are lost."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.cluster.node_session import SessionEnd
from nodeagent.cluster.plan.events import EventQueue, add_event
from nodeagent.model.pressure import NodeCondition
from nodeagent.record import replace
from nodeagent.telemetry.counters import Counters
from tests.support.api_server import LEASES, NODES
from tests.support.manual_clock import ManualClock
from tests.support.virtual_time import START
from tests.unit.cluster.cluster import FACTS, Cluster

if TYPE_CHECKING:
    from tests.support.api_server import Received

STEPS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from([-3540.0, 3540.0, -0.4, -2.0, 600.0, -86_400.0])),
    st.tuples(st.just("run"), st.sampled_from([5.0, 30.0, 400.0])),
    st.tuples(st.just("lose"), st.integers(1, 3)),
    st.tuples(st.just("press"), st.booleans()),
    st.tuples(st.just("restart"), st.none()),
)


class Node:
    """A node whose agent runs, restarts, and loses answers while its clock is set."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.pressed = False

    def set(self, by_s: float) -> None:
        self.cluster.clock.off_s += by_s

    def lose(self, count: int) -> None:
        self.cluster.lease_api.lost = self.cluster.status_api.lost = count

    def press(self, pressed: bool) -> None:
        pressure = frozenset({NodeCondition.DISK_PRESSURE}) if pressed else frozenset()
        self.cluster.facts = replace(FACTS, pressure=pressure)

    def restart(self, _: None) -> None:
        """Continue with a new clock object, outbox and session, and the objects of the API server."""
        off_s = self.cluster.clock.off_s
        self.cluster = Cluster(self.cluster.server, self.cluster.facts)
        self.cluster.clock.off_s = off_s

    def run(self, seconds: float) -> None:
        self.cluster.run(seconds)
        self.cluster.clock.off_s += seconds  # the virtual loop starts at 0 again

    @property
    def renewals(self) -> list[str]:
        return [each.body["spec"]["renewTime"] for each in self.sent("POST", LEASES) + self.sent("PUT", LEASES)]

    def sent(self, method: str, path: str) -> list[Received]:
        return [each for each in self.cluster.server.requests if each.method == method and path in each.path]

    def condition_times(self) -> dict[str, list[str]]:
        """Return the times of each condition, in the order of the writes."""
        found: dict[str, list[str]] = {}
        for request in self.sent("POST", NODES) + self.sent("PATCH", f"{NODES}/node-1/status"):
            for each in request.body["status"]["conditions"]:
                for name in ("lastHeartbeatTime", "lastTransitionTime"):
                    found.setdefault(f"{each['type']} {name}", []).append(each[name])
        return found


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=8))
def test_no_time_at_the_api_server_goes_back(steps: list[tuple[str, Any]]) -> None:
    node = Node()
    node.run(5.0)
    for name, value in [*steps, ("run", 30.0)]:
        getattr(node, name)(value)
    renewals = [datetime.fromisoformat(each) for each in node.renewals]
    assert all(later > earlier for earlier, later in pairwise(renewals))
    for name, written in node.condition_times().items():
        times = [datetime.fromisoformat(each) for each in written]
        assert times == sorted(times), name


@pytest.mark.parametrize("back_s", [3540.0, 86_400.0])
def test_every_renewal_after_a_clock_set_back_is_a_heartbeat_for_the_node_controller(back_s: float) -> None:
    node = Node()
    node.run(60.0)
    before = len(node.renewals)
    node.set(-back_s)
    node.run(60.0)
    times = [datetime.fromisoformat(each) for each in node.renewals[before - 1 :]]
    assert len(times) > 5
    assert all(later > earlier for earlier, later in pairwise(times))


def test_lease_of_another_clock_is_renewed_with_a_later_time() -> None:
    cluster = Cluster()
    ahead = "2031-01-01T00:00:00.000000Z"
    cluster.server.put(LEASES, "node-1", {"spec": {"renewTime": ahead}})
    assert cluster.run(60) is SessionEnd.STOPPED
    assert cluster.server.lease["spec"]["renewTime"] > ahead


def test_transition_by_the_node_controller_is_followed_by_a_later_transition() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        conditions = [{**each} for each in cluster.server.node["status"]["conditions"]]
        (ready,) = (each for each in conditions if each["type"] == "Ready")
        ready.update(status="Unknown", lastTransitionTime="2026-11-21T12:00:10Z")
        cluster.server.put(NODES, "node-1", {**cluster.server.node, "status": {"conditions": conditions}})

    cluster.run(320, script)
    assert cluster.ready()["status"] == "True"
    assert cluster.ready()["lastTransitionTime"] > "2026-11-21T12:00:10Z"


@given(st.lists(st.sampled_from([-7200.0, -0.5, 0.0, 1e-6, 1.0, 3600.0]), min_size=1, max_size=20))
def test_times_of_events_and_metrics_never_go_back(jumps: list[float]) -> None:
    clock, queue = ManualClock(START), EventQueue()
    counters = Counters(clock)
    times, stamps = [START - timedelta(days=1)], []
    for number, jump_s in enumerate(jumps):
        clock.wall += timedelta(seconds=jump_s)
        queue = add_event(queue, "pass_failed", str(number), clock.wall, 0.0)
        times.append(next(each for each in queue.pending.values() if each.note == str(number)).first)
        stamps.append(counters.now_s)
    assert times == sorted(times)
    assert stamps == sorted(stamps)
