"""State of the pod watch: all orders of changes, interruptions, expired versions and a lagging API server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import ApiServerRefusedError
from nodeagent.kube.podspec import parse_listed_pod
from nodeagent.model.pods import Completeness, PodListSource, PodSpec
from nodeagent.pods.plan.watch import (
    FRESH_S,
    LAST_RETRY_S,
    MAX_DELETED,
    MAX_ENDED,
    MAX_PODS,
    SYNC_GRACE_S,
    EventKind,
    PodEvent,
    WatchState,
    after_connection,
    after_events,
    after_expiry,
    after_interruption,
    after_list,
    compact,
    is_current,
    needs_list,
    pod_list,
    proof_problem,
    reading,
    restored,
    retry_s,
)
from nodeagent.pods.pod_api import parse_event
from nodeagent.record import replace
from tests.support.api_pods import SELECTOR, Pods, pod

if TYPE_CHECKING:
    from collections.abc import Sequence

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def spec(uid: str) -> PodSpec:
    return PodSpec(uid, "default", uid)


def listed(*uids: str, now_s: float = 0.0, **changes: Any) -> WatchState:
    state = after_list(
        WatchState(), map(spec, uids), "7", requested_s=now_s - 1, now_s=now_s, now=START + timedelta(seconds=now_s)
    )
    return replace(state, **changes)


def as_kept(document: dict[str, Any]) -> PodSpec:
    """Return a pod document in the compact form that the pod watch stores."""
    version = document["metadata"]["resourceVersion"]
    return replace(compact(parse_listed_pod(document, "pod")), resource_version=version)


class Client:
    """A pod watch state, updated with lists and events of a fake API server."""

    def __init__(self) -> None:
        self.server = Pods()
        self.server.page_size = 2
        self.state = WatchState()
        self.now_s = 0.0
        self.bound: dict[str, float] = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.now_s)

    def put(self, name: str) -> None:
        self.bound.setdefault(f"uid-{name}", self.now_s)
        self.server.put(pod(name))

    def delete(self, name: str) -> None:
        if f"uid-{name}" in self.server.pods:
            self.server.delete(f"uid-{name}")

    def list(self) -> None:
        requested_s, query, found = self.now_s, f"fieldSelector={SELECTOR.replace('=', '%3D')}&limit=50", list[Any]()
        status, page = self.server.page(query)
        while True:
            found += page["items"]
            if "continue" not in page["metadata"]:
                break
            status, page = self.server.page(f"{query}&continue={page['metadata']['continue']}")
        assert status == 200
        pods = [as_kept(each) for each in found]
        self.state = after_list(
            self.state,
            pods,
            page["metadata"]["resourceVersion"],
            requested_s=requested_s,
            now_s=self.now_s,
            now=self.now,
        )

    def watch(self, most: int = 1000) -> None:
        """Apply at most ``most`` watch events, after a list if the state requires a list."""
        if needs_list(self.state):
            self.list()
        self.state = after_connection(self.state, self.now_s, self.now)
        for _, event in list(self.server.changes(int(self.state.resource_version)))[:most]:
            try:
                parsed = parse_event(json.dumps(event).encode())
            except ApiServerRefusedError:
                self.state = after_expiry(self.state)
                return
            self.state = after_events(self.state, [parsed], self.now_s, self.now)

    def check_claims(self) -> None:
        """Check that the pod list of the state proves no deletion of a pod that exists in the API server."""
        claimed = pod_list(self.state, self.now_s, self.now)
        if claimed is None:
            return
        for uid in self.server.pods:
            assert not claimed.lacks(uid, START + timedelta(seconds=self.bound[uid]))


NAMES = st.sampled_from([f"p{number}" for number in range(9)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("watch"), st.integers(0, 4)),
        st.tuples(st.just("hold"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 61.0, 200.0])),
        st.tuples(st.sampled_from(["list", "interrupt", "compact"]), st.just(0)),
    ),
    max_size=40,
)


def play(client: Client, steps: Sequence[tuple[str, Any]]) -> None:  # noqa: C901 - one case per action
    for number, (action, value) in enumerate(steps):
        client.now_s += 0.01
        match action:
            case "put":
                existing = [each for each in client.server.pods if each.startswith(f"uid-{value}-")]
                client.put(existing[0].removeprefix("uid-") if existing else f"{value}-{number}")  # a new UID
            case "delete":
                for name in [each for each in client.bound if each.startswith(f"uid-{value}")]:
                    client.delete(name.removeprefix("uid-"))
            case "watch":
                client.watch(value)
            case "hold":
                client.server.held = value
            case "wait":
                client.now_s += value
            case "list":
                client.list()
            case "interrupt":
                client.state = after_interruption(client.state, "connection lost")
            case "compact":
                client.server.compact()
        client.check_claims()


@given(STEPS)
def test_pods_equal_those_of_the_server_once_synced(steps: list[tuple[str, Any]]) -> None:
    client = Client()
    play(client, steps)
    client.server.held = 0
    client.watch()
    client.watch()  # lists again if the version expired
    assert client.state.pods.keys() == client.server.pods.keys()
    for uid, each in client.server.pods.items():
        assert client.state.pods[uid] == as_kept(each)


@given(STEPS)
def test_no_existing_pod_is_claimed_to_be_deleted_also_by_a_lagging_server(steps: list[tuple[str, Any]]) -> None:
    play(Client(), steps)


@given(STEPS)
def test_every_deleted_pod_is_proven_after_a_minute_of_an_uninterrupted_watch(steps: list[tuple[str, Any]]) -> None:
    client = Client()
    play(client, steps)
    client.server.held = 0
    client.watch()
    client.list()
    client.now_s += SYNC_GRACE_S + 1
    client.watch()
    found = pod_list(client.state, client.now_s, client.now)
    assert found is not None
    for uid in client.bound.keys() - client.server.pods.keys():
        assert found.lacks(uid, START + timedelta(seconds=client.bound[uid]))


@pytest.mark.parametrize(
    ("state", "at_s", "problem"),
    [
        pytest.param(WatchState(), 0, "not listed yet", id="start"),
        pytest.param(restored([spec("a")], START), 0, "not listed since the start", id="stored pods"),
        pytest.param(listed("a"), SYNC_GRACE_S - 1, "connected for less than 1m", id="just listed"),
        pytest.param(listed("a"), SYNC_GRACE_S, "", id="synced"),
        pytest.param(listed("a"), FRESH_S + 1, "no answer for more than 3m", id="silent server"),
        pytest.param(listed("a"), -1, "no answer", id="clock set back"),
        pytest.param(listed("a", unnamed=1), 100, "1 unreadable pods or changes", id="unreadable change"),
        pytest.param(listed("a", foreign="other machine"), 100, "other machine", id="another node"),
        pytest.param(after_interruption(listed("a"), "reset"), 100, "reset", id="interrupted"),
        pytest.param(after_expiry(listed("a")), 100, "the version expired; listing again", id="expired"),
    ],
)
def test_missing_pod_is_proven_only_by_a_synced_fresh_and_complete_watch(
    state: WatchState, at_s: float, problem: str
) -> None:
    assert (proof_problem(state, at_s) == "") == (problem == "")
    assert problem in proof_problem(state, at_s)
    found = pod_list(state, at_s, START)
    assert found is None or found.proves_absence == (problem == "")
    shown = reading(state, "address", at_s)
    expected = Completeness.SYNCED if not problem else Completeness.OUTDATED
    assert shown.completeness is (expected if state.answered_at else Completeness.UNKNOWN)


def test_interruption_restarts_the_time_until_proof_and_keeps_the_pods() -> None:
    state = after_interruption(listed("a"), "reset")
    state = after_connection(state, 100.0, START)
    assert proof_problem(state, 101.0).startswith("connected for less")
    assert not proof_problem(state, 100.0 + SYNC_GRACE_S)
    assert state.pods.keys() == {"a"}


def test_time_of_the_list_follows_a_corrected_wall_clock() -> None:
    found = pod_list(listed("a", now_s=50.0), 110.0, START - timedelta(hours=1))
    assert found is not None
    assert found.listed_at == START - timedelta(hours=1, seconds=61)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": 5}',
        b'{"type": "STRANGE", "object": {"metadata": {"uid": "a", "resourceVersion": "9"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": "9"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"uid": 5, "resourceVersion": "9"}}}',
        b'{"type": "BOOKMARK", "object": {}}',
        b'{"type": "ADDED", "object": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff",
    ],
)
def test_unreadable_change_costs_the_proof_but_no_pod(line: bytes) -> None:
    state = after_events(listed("a"), [parse_event(line)], 70.0, START)
    assert state.pods.keys() == {"a"}
    assert "unreadable" in proof_problem(state, 70.0)
    assert needs_list(state)
    again = after_list(state, [spec("a")], "10", requested_s=80, now_s=81, now=START)
    assert not proof_problem(again, 81 + SYNC_GRACE_S)


def test_malformed_pod_with_a_uid_exists_and_costs_only_itself() -> None:
    line = json.dumps({"type": "ADDED", "object": pod("b", spec={"priority": "high"})}).encode()
    state = after_events(listed("a"), [parse_event(line)], 70.0, START)
    assert state.pods.keys() == {"a", "uid-b"}
    assert state.pods["uid-b"].malformed
    assert not proof_problem(state, 70.0)


@pytest.mark.parametrize(
    "status",
    [{"code": 410, "reason": "Expired"}, {"reason": "Gone"}, {"code": 410}],
)
def test_expired_version_within_a_watch_is_an_error_410(status: dict[str, Any]) -> None:
    with pytest.raises(ApiServerRefusedError) as caught:
        parse_event(json.dumps({"type": "ERROR", "object": {"kind": "Status", **status}}).encode())
    assert caught.value.status == 410


def test_list_of_another_node_is_no_list_and_reports_no_deletion() -> None:
    state = replace(listed("a"), foreign="the Node object is of another machine")
    assert pod_list(state, 100, START) is None
    again = after_list(state, [spec("b")], "10", requested_s=7, now_s=8, now=START)
    assert again.deleted == ()


def test_compact_pod_has_no_annotations_of_its_author() -> None:
    written = {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "h", "secret": "s" * 10_000}
    found = compact(parse_listed_pod(pod("a", metadata={"annotations": written}), "pod"))
    assert dict(found.annotations) == {"kubernetes.io/config.source": "api"}
    assert found.listed_by is PodListSource.API_SERVER


def test_uids_have_the_hash_of_a_mirror_pod_which_is_the_uid_of_the_static_one() -> None:
    marks = {
        "kubernetes.io/config.mirror": "h",
        "kubernetes.io/config.hash": "h",
        "kubernetes.io/config.source": "file",
    }
    mirror = compact(parse_listed_pod(pod("a", metadata={"annotations": marks}), "pod"))
    found = pod_list(after_list(WatchState(), [mirror], "1", requested_s=0, now_s=0, now=START), 0, START)
    assert found is not None
    assert found.uids == {"uid-a", "h"}


def test_memory_of_deleted_pods_is_bounded_and_keeps_the_newest() -> None:
    state = listed()
    for number in range(MAX_DELETED + 5):
        state = after_events(state, [PodEvent(EventKind.DELETED, spec(f"u{number}"), "8")], 1.0, START)
    assert len(state.deleted) == MAX_DELETED
    assert state.deleted[-1] == f"u{MAX_DELETED + 4}"


def test_pods_beyond_the_limits_are_unknown_and_the_others_remain_facts() -> None:
    state = listed(*(f"u{number}" for number in range(MAX_PODS + MAX_ENDED)), connected_s=-SYNC_GRACE_S, foreign="")
    known = after_events(state, [PodEvent(EventKind.MODIFIED, spec("u0"), "8")], 1.0, START)
    assert (proof_problem(known, 1.0), needs_list(known)) == ("", False)
    state = after_events(known, [PodEvent(EventKind.ADDED, spec("new"), "9")], 1.0, START)
    assert "new" not in state.pods
    assert is_current(state, 1.0)
    assert "the others are unknown" in proof_problem(state, 1.0)
    assert needs_list(state)


def test_ended_pod_is_kept_without_its_definition() -> None:
    ended = compact(parse_listed_pod(pod("a", status={"phase": "Failed"}), "pod"))
    assert (ended.uid, ended.phase, ended.containers, ended.images) == ("uid-a", "Failed", (), ())


@pytest.mark.parametrize(
    ("failures", "jitter", "after_s", "expected"),
    [(1, 0.0, None, 1.0), (1, 1.0, None, 0.5), (4, 0.0, None, 8.0), (4, 0.0, 30.0, 30.0)],
)
def test_retry_is_exponential_with_jitter_and_the_time_of_the_server(
    failures: int, jitter: float, after_s: float | None, expected: float
) -> None:
    assert retry_s(failures, jitter, after_s) == expected


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_retry_is_bounded(failures: int, jitter: float) -> None:
    assert 0.5 <= retry_s(failures, jitter) <= LAST_RETRY_S
