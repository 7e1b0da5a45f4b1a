"""Session of the pod watch with a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
import io
import json
from collections import UserDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster.pod_watch import EVENT_S, STORE_S, PodWatchParts, PodWatchSession
from nodeagent.errors import ApiServerError, ApiServerRefusedError, ApiServerUnavailableError, StoreError
from nodeagent.kube.podspec import parse_listed_pod
from nodeagent.loops.passes import LoopStatuses
from nodeagent.model.pods import Completeness, PodSpec
from nodeagent.pods.plan.watch import EventKind, PodEvent, compact, proof_problem
from nodeagent.pods.pod_api import parse_event
from nodeagent.pods.watched import WatchedPods
from nodeagent.record import replace
from nodeagent.telemetry import logging as log
from tests.support.api_pods import Pods, pod
from tests.support.virtual_time import LoopClock, play

if TYPE_CHECKING:
    from collections.abc import Callable, KeysView

BOOKMARK_S = 60.0
START = datetime(2026, 1, 10, 12, tzinfo=UTC)


@dataclass
class Node:
    """A fake API server and one pod watch session, with recorded request times.

    Attributes:
        down: whether all requests fail and running watches are interrupted.
        errors: errors of the next requests, in order.
        silent: whether watches receive no event.
        stream: class of the watches; ``None`` for :class:`Stream`, which delivers every change.
    """

    server: Pods = field(default_factory=Pods)
    down: bool = False
    errors: list[ApiServerError] = field(default_factory=list)
    silent: bool = False
    foreign_because: str = ""
    broken_disk: bool = False
    stream: type[Stream] | None = None
    requests: list[tuple[float, str]] = field(default_factory=list)
    stored: list[tuple[float, int]] = field(default_factory=list)
    log: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.watched = WatchedPods(LoopClock())
        self.watched.address = "API server"

    def request(self, what: str) -> None:
        self.requests.append((asyncio.get_running_loop().time(), what))
        if self.errors:
            raise self.errors.pop(0)
        if self.down:
            raise ApiServerUnavailableError("connection refused")

    async def list_pods(self) -> tuple[tuple[PodSpec, ...], str, bool]:
        self.request("list")
        _, page = self.server.page("fieldSelector=spec.nodeName%3Dnode-1")
        pods = tuple(compact(parse_listed_pod(each, "pod")) for each in page["items"])
        return pods, page["metadata"]["resourceVersion"], False

    async def foreign(self) -> str:
        return self.foreign_because

    async def store(self, pods: tuple[PodSpec, ...], _: datetime) -> None:
        if self.broken_disk:
            raise StoreError("disk full")
        self.stored.append((asyncio.get_running_loop().time(), len(pods)))

    def session(self) -> PodWatchSession:
        parts = PodWatchParts(
            self.list_pods, self.foreign, lambda: (self.stream or Stream)(self), self.store, lambda: 0.0
        )
        clock = LoopClock()
        return PodWatchSession(parts, self.watched, clock, log.configure("json", "info", self.log), LoopStatuses(clock))

    def run(self, seconds: float, *script: tuple[float, Callable[[], object]]) -> None:
        """Run a session for ``seconds``, with pairs of a time in seconds and an action."""

        async def work() -> None:
            running = asyncio.create_task(self.session().run())
            for at_s, action in script:
                await asyncio.sleep(at_s - asyncio.get_running_loop().time())
                action()
            await asyncio.sleep(seconds - asyncio.get_running_loop().time())
            self.problem = proof_problem(self.watched.state, LoopClock().monotonic_s())
            shown = self.watched.reading()
            assert shown is not None
            self.completeness, self.reported = shown.completeness, shown.error
            self.outdated = self.watched.outdated
            assert not running.done()
            running.cancel()

        play(work())

    def set_down(self, down: bool) -> None:
        self.down = down

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def count(self, what: str) -> int:
        return sum(each == what for _, each in self.requests)


class Stream:
    """One watch of the fake API server, polled each 0.1 s of virtual time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.version = 0
        self.ends_s = 0.0
        self.pending: list[Any] = []

    async def open(self, resource_version: str, timeout_s: int) -> None:
        self.node.request("watch")
        self.version = int(resource_version)
        self.ends_s = asyncio.get_running_loop().time() + timeout_s

    async def next_event(self) -> PodEvent | None:
        quiet_s = 0.0
        while not self.pending:
            if self.node.down:
                raise ApiServerUnavailableError("incomplete answer: connection lost")
            found = [] if self.node.silent else list(self.node.server.changes(self.version))
            if not found and quiet_s >= BOOKMARK_S and not self.node.silent:
                found = [(self.version, self.node.server.bookmark(self.version))]
            if not found:
                if asyncio.get_running_loop().time() >= self.ends_s or quiet_s > 150:
                    return None
                await asyncio.sleep(0.5)
                quiet_s += 0.5
            self.pending = found
        self.version, event = self.pending.pop(0)
        return parse_event(json.dumps(event).encode())

    def close(self) -> None: ...


def filled(*names: str) -> Node:
    node = Node()
    for each in names:
        node.server.put(pod(each))
    return node


def uids(node: Node) -> set[str]:
    return set(node.watched.state.pods)


def test_pods_are_listed_once_and_changes_follow() -> None:
    node = filled("a", "b")
    node.run(100, (10, lambda: node.server.put(pod("c"))), (20, lambda: node.server.delete("uid-a")))
    assert uids(node) == {"uid-b", "uid-c"}
    assert (node.count("list"), node.count("watch")) == (1, 1)
    assert (node.problem, node.completeness) == ("", Completeness.SYNCED)


def test_idle_watch_needs_less_than_a_request_in_two_minutes() -> None:
    node = filled("a")
    node.run(3600)
    assert node.count("list") == 1
    assert node.count("watch") <= 16
    assert not node.problem


def test_watch_resumes_after_an_outage_without_another_list() -> None:
    node = filled("a")
    node.run(
        1000,
        (100, lambda: node.set_down(True)),
        (110, lambda: node.server.put(pod("b"))),
        (400, lambda: node.set_down(False)),
    )
    assert uids(node) == {"uid-a", "uid-b"}
    assert node.count("list") == 1
    assert not node.problem
    waits = [round(after - before, 3) for (before, _), (after, _) in pairwise(node.requests)]
    outage = [each for each in waits if each in (2, 4, 8, 16, 32, 60)]
    assert outage == [2, 4, 8, 16, 32, 60, 60, 60, 60][: len(outage)]
    assert len(outage) >= 6


def test_outage_is_logged_once_with_its_recovery_and_ends_the_proof() -> None:
    node = filled("a")
    node.run(200, (100, lambda: node.set_down(True)))
    assert node.problem == "connection refused"
    assert node.completeness is Completeness.OUTDATED
    assert uids(node) == {"uid-a"}
    texts = [each["event"] for each in node.logged()]
    assert texts.count("api_request_failed") == 2  # two errors: the interrupted watch, then the refused connection
    node = filled("a")
    node.run(200, (100, lambda: node.set_down(True)), (110, lambda: node.set_down(False)))
    assert [each["event"] for each in node.logged()][-1] == "api_request_recovered"


def test_version_that_expired_during_an_outage_causes_a_list_within_a_second() -> None:
    node = Node()

    def end_outage() -> None:
        node.set_down(False)
        node.errors = [ApiServerRefusedError("watch: too old resource version", 410)]

    node.run(500, (100, lambda: node.set_down(True)), (300, end_outage))
    expired_s, listed_s = [at for at, what in node.requests if at >= 300][:2]
    assert node.requests[-2:] == [(listed_s, "list"), (listed_s, "watch")]
    assert listed_s - expired_s <= 1


def test_expired_version_causes_a_list_without_a_warning() -> None:
    node = filled("a", "b")

    def expire() -> None:
        node.set_down(True)
        node.server.delete("uid-a")
        node.server.put(pod("c"))
        node.server.compact()

    node.run(300, (100, expire), (101, lambda: node.set_down(False)))
    assert uids(node) == {"uid-b", "uid-c"}
    assert node.count("list") == 2
    assert not node.problem
    assert "uid-a" in node.watched.state.deleted


@pytest.mark.parametrize("status", [403, 401])
def test_refusal_is_retried_with_a_back_off_to_one_minute_and_logged_once(status: int) -> None:
    node = filled("a")
    refused = ApiServerRefusedError(f"HTTP {status}; pods is forbidden", status, "Forbidden")
    node.errors = [refused] * 1000
    node.run(600)
    times = [at for at, _ in node.requests]
    assert [round(after - before) for before, after in pairwise(times)] == [1, 2, 4, 8, 16, 32, *[60] * 8]
    assert len(node.logged()) == 1
    assert "forbidden" in node.logged()[0]["error"]


@pytest.mark.parametrize("status", [403, 401])
def test_refusals_of_a_starting_api_server_delay_the_watch_by_seconds(status: int) -> None:
    node = filled("a")
    node.errors = [ApiServerRefusedError(f"HTTP {status}", status)] * 2
    node.run(10)
    assert [(round(at), what) for at, what in node.requests] == [(0, "list"), (1, "list"), (3, "list"), (3, "watch")]


def test_retry_after_of_the_server_is_respected() -> None:
    node = filled("a")
    node.errors = [ApiServerRefusedError("HTTP 429", 429, "TooManyRequests", 30.0)]
    node.run(100)
    assert [round(at) for at, what in node.requests] == [0, 30, 30]


def test_silent_connection_is_replaced() -> None:
    node = filled("a")
    node.run(
        400,
        (10, lambda: setattr(node, "silent", True)),
        (20, lambda: node.server.put(pod("b"))),
        (200, lambda: setattr(node, "silent", False)),
    )
    assert uids(node) == {"uid-a", "uid-b"}
    assert node.count("watch") >= 2


def test_pods_are_listed_within_a_minute_after_the_node_object_fits() -> None:
    node = filled("a")
    node.foreign_because = "there is no Node object with this name"
    node.run(800, (100, lambda: setattr(node, "foreign_because", "")))
    ((listed_s, what), (watched_s, _), *_) = node.requests
    assert (what, listed_s == watched_s, 100 <= listed_s <= 160) == ("list", True, True)
    assert not node.problem


def test_node_object_that_does_not_fit_is_the_cause_in_every_statement_until_it_fits() -> None:
    node = filled("a")
    node.foreign_because = "there is no Node object with this name"
    node.run(100)
    statements = (node.problem, node.reported, node.outdated.rpartition(": ")[2])
    assert set(statements) == {"there is no Node object with this name"}
    assert [each["error"] for each in node.logged()] == ["there is no Node object with this name"]


def test_node_object_that_is_deleted_during_a_watch_ends_the_proofs_before_the_next_watch() -> None:
    node = filled("a")
    node.run(300, (10, lambda: setattr(node, "foreign_because", "there is no Node object with this name")))
    statements = (node.problem, node.reported, node.outdated.rpartition(": ")[2])
    assert set(statements) == {"there is no Node object with this name"}
    assert (node.count("list"), node.count("watch"), node.watched.pods) == (1, 1, ())


def test_node_registered_a_moment_after_the_start_is_watched_within_seconds() -> None:
    node = filled("a")
    node.foreign_because = "there is no Node object with this name"
    node.run(100, (0.3, lambda: setattr(node, "foreign_because", "")))
    assert node.requests[0][0] <= 1.0
    assert (node.problem, node.outdated) == ("", "")


def test_watch_that_ends_with_an_error_before_each_change_is_replaced_by_a_list() -> None:
    node = filled("a")

    class Unreadable(Stream):
        async def next_event(self) -> PodEvent | None:
            if node.count("watch") <= 3:
                raise ApiServerUnavailableError("line has more than 4194304 bytes")
            return await super().next_event()

    node.stream = Unreadable
    node.run(300)
    assert node.count("list") == 2
    assert not node.problem


def test_version_that_is_too_new_after_a_restored_backup_is_replaced_by_a_list() -> None:
    node = filled("a")

    class Restored(Stream):
        async def open(self, resource_version: str, timeout_s: int) -> None:
            node.requests.append((0.0, "watch"))
            if node.server.version < int(resource_version):
                raise ApiServerRefusedError("HTTP 504; Timeout; Too large resource version", 504, "Timeout", 1.0)
            await super().open(resource_version, timeout_s)

    def restore() -> None:
        node.set_down(True)
        node.server = Pods()
        node.server.version = 500
        node.server.put(pod("b"))

    node.stream = Restored
    node.run(300, (100, restore), (101, lambda: node.set_down(False)))
    assert uids(node) == {"uid-b"}
    assert not node.problem


def test_pods_are_stored_after_the_list_and_then_at_most_every_half_minute() -> None:
    node = filled("a")
    script = [(10 + number, lambda number=number: node.server.put(pod(f"n{number}"))) for number in range(100)]
    node.run(200, *script)
    times = [at for at, _ in node.stored]
    assert times[0] == 0
    assert all(after - before >= STORE_S for before, after in pairwise(times))
    assert node.stored[-1][1] == 101


def test_unwritable_state_directory_does_not_end_the_watch() -> None:
    node = filled("a")
    node.broken_disk = True
    node.run(100)
    assert not node.problem
    assert [each["event"] for each in node.logged()] == ["store_notice"]


def test_pods_of_another_node_are_not_stored() -> None:
    node = filled("a")
    node.foreign_because = "the Node object is of another machine"
    node.run(100)
    assert node.stored == []


class CountedCopies(UserDict[str, PodSpec]):
    """Pods that count their copies."""

    copies = 0

    def keys(self) -> KeysView[str]:
        self.copies += 1
        return super().keys()


def test_events_copy_no_pods_until_the_state_is_read() -> None:
    node = filled()
    pods = CountedCopies()
    node.watched.state = replace(node.watched.state, pods=pods, foreign="")
    for number in range(500):
        node.watched.add(PodEvent(EventKind.ADDED, PodSpec(f"u{number}", "default", "p"), str(number)), 0.0, START)
    assert pods.copies == 0
    assert (len(node.watched.state.pods), node.watched.state.resource_version, pods.copies) == (500, "499", 1)


def test_rate_of_events_is_bounded() -> None:
    node = filled("a")
    node.run(10, *((1, lambda: node.server.put(pod("a"))) for _ in range(2000)))
    assert len(uids(node)) == 1
    assert int(node.watched.state.resource_version) < node.server.version
    assert int(node.watched.state.resource_version) - 1001 <= 9 / EVENT_S + 1
