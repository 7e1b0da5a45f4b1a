"""Control API requests with disconnecting, waiting or concurrent clients, or a stop of the daemon."""

from __future__ import annotations

import asyncio
import importlib
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api import requests as api
from nodeagent.daemon.control import server as control, service
from nodeagent.daemon.control.requests import RequestedPass
from nodeagent.errors import NodeAgentError
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.disk_usage import Tree
from tests.unit.control_node import MEMBER, ROOT, Node, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from nodeagent.host.sockets import Peer

WITHIN_S = 20.0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as served:
        yield served


async def send(node: Node, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(node.path)
    writer.write(f"{text} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader, writer


async def calls(node: Node, method: str, count: int) -> None:
    """Wait until the runtime has received ``count`` calls of a method."""
    async with asyncio.timeout(WITHIN_S):
        while node.faults.count(method) < count:  # noqa: ASYNC110 - the call log sets no asyncio.Event
            await asyncio.sleep(0)


async def test_event_stream_starts_before_the_first_event(node: Node) -> None:
    async with node.follow("Events") as reader:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN_S)
        assert head.startswith(b"HTTP/1.1 200 ")
        node.context.logger.info("pause_started")
        assert b"pause_started" in await asyncio.wait_for(reader.readuntil(b"}\n"), WITHIN_S)


async def test_head_request_of_the_event_stream_is_answered(node: Node) -> None:
    reader, writer = await send(node, "HEAD /v1/events")
    assert (await asyncio.wait_for(reader.read(), WITHIN_S)).startswith(b"HTTP/1.1 200 ")
    writer.transport.abort()


async def test_lookups_of_closed_requests_occupy_one_thread_and_root_is_answered(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, go_on = [0], [0], threading.Event()

    def count_lookups(_: str) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        go_on.wait(WITHIN_S)
        running[0] -= 1

    monkeypatch.setattr(control, "group_number", count_lookups)
    node.peer[0] = MEMBER
    opened = [await send(node, "GET /v1/holds") for _ in range(40)]
    async with asyncio.timeout(WITHIN_S):
        while not most[0]:  # noqa: ASYNC110 - set in another thread
            await asyncio.sleep(0.001)
    for _, writer in opened:
        writer.transport.abort()
    node.peer[0] = ROOT
    try:
        assert (await asyncio.wait_for(node.ask("Holds"), WITHIN_S))["holds"] == []
    finally:
        go_on.set()
    assert most[0] == 1


_PREVIEW, _LISTS, _GC = (
    "nodeagent.gc.pass_state.",
    "nodeagent.gc.documents.readings.",
    "nodeagent.gc.documents.readings.",
)
_READINGS = "nodeagent.daemon.control.service."


@pytest.mark.parametrize(
    ("operation", "request_", "blocking"),
    [
        ("Images", None, f"{_PREVIEW}plans_for"),
        ("Images", None, f"{_LISTS}describe_origins"),
        ("Images", None, f"{_READINGS}encode_line"),
        ("Images", None, "nodeagent.runtime.storage_graph.resolve_images"),
        ("Images", None, "nodeagent.runtime.namespace_lists.Stored"),
        ("ImageLayers", None, "nodeagent.gc.plan.breakdown.sharing_tree"),
        ("Containers", None, f"{_LISTS}_containers"),
        ("PodList", None, f"{_LISTS}check_pods"),
        ("Plan", api.PlanRequest(scope="all"), f"{_PREVIEW}plans_for"),
        ("Plan", api.PlanRequest(scope="all"), f"{_READINGS}encode_line"),
        ("Plan", api.PlanRequest(scope="all", lasts_seconds=60), f"{_READINGS}encode_saved_plan"),
        ("Explain", api.ExplainRequest(name="app"), f"{_GC}plans_by_loop"),
        ("Explain", api.ExplainRequest(name="app"), f"{_GC}explain"),
        ("Leaks", api.LeaksRequest(), "nodeagent.gc.agent.plan_leaks"),
        ("Apply", api.ApplyRequest(scope="all", rounds=1), f"{_PREVIEW}plans_for"),
    ],
)
async def test_other_requests_are_answered_during_the_computation_of_a_large_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch, operation: str, request_: Any, blocking: str
) -> None:
    module, _, name = blocking.rpartition(".")
    compute = getattr(importlib.import_module(module), name)
    begun, go_on = threading.Event(), threading.Event()

    def block(*words: Any, **more: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(WITHIN_S)
        return compute(*words, **more)

    monkeypatch.setattr(blocking, block)
    answer = asyncio.ensure_future(node.ask(operation, request_))
    assert await asyncio.to_thread(begun.wait, WITHIN_S)
    try:
        other = await asyncio.wait_for(node.ask("Version"), WITHIN_S)
    finally:
        go_on.set()
    assert other["schema"] == "nodeagent/version/v1"
    assert await answer


async def test_walk_of_a_disk_usage_request_delays_no_other_request_and_ends_with_its_client(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "io.containerd.snapshotter.v1.overlayfs").mkdir()
    begun, ended = threading.Event(), threading.Event()

    class EndlessReader:
        def __init__(self, _: int, deadline_s: float, __: object = (), *, is_cancelled: Callable[[], bool]) -> None:
            self._ends_s = deadline_s
            self._is_cancelled = is_cancelled

        def measure(self, path: str) -> Tree:
            return Tree(path)

        def largest(self, *_: object) -> tuple[tuple[Tree, ...], Tree]:
            begun.set()
            while not self._is_cancelled():
                ended.wait(0.001)
            ended.set()
            return (), Tree("/")

    monkeypatch.setattr("nodeagent.gc.snapshot.usage.TreeReader", EndlessReader)
    node.peer[0] = MEMBER
    _, writer = await send(node, "GET /v1/disk-usage?within_seconds=600")
    assert await asyncio.to_thread(begun.wait, WITHIN_S)
    assert (await asyncio.wait_for(node.ask("Images"), WITHIN_S))["images"]
    assert not ended.is_set()
    writer.transport.abort()
    assert await asyncio.to_thread(ended.wait, WITHIN_S)


def closed_below(place: Path) -> Path:
    """Return a directory that other users cannot list, in a place that they can."""
    place.chmod(0o755)
    for name in ("alice/deep", "bob"):
        (place / "closed" / name).mkdir(parents=True)
    (place / "closed").chmod(0o711)
    return place / "closed"


async def test_names_from_directories_of_root_are_added_up_in_the_disk_usage_of_a_member(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "io.containerd.snapshotter.v1.overlayfs").mkdir(exist_ok=True)
    with TemporaryDirectory() as place:  # pytest's directories are closed to other users
        closed = closed_below(Path(place))

        class Reader:
            def __init__(self, *_: object, **__: object) -> None: ...

            def measure(self, path: str, _skip: object = ()) -> Tree:
                return Tree(path)

            def largest(self, *_: object) -> tuple[tuple[Tree, ...], Tree]:
                trees = Tree(f"{closed}/alice/deep/a", 5), Tree(f"{closed}/bob", 4), Tree(f"{place}/gone/c", 3)
                return trees, Tree("/", 12)

        monkeypatch.setattr("nodeagent.gc.snapshot.usage.TreeReader", Reader)

        async def sizes(peer: Peer) -> dict[str, int]:
            node.peer[0] = peer
            shares = {each["part"]: each for each in (await node.ask("DiskUsage"))["shares"]}
            return {each["name"]: each["bytes"] for each in shares["host-files"]["largest"]}

        assert await sizes(ROOT) == {f"{closed}/alice/deep/a": 5, f"{closed}/bob": 4, f"{place}/gone/c": 3}
        assert await sizes(MEMBER) == {str(closed): 9, place: 3}


async def test_root_does_not_wait_for_the_plan_of_a_member(node: Node) -> None:
    go_on = asyncio.Event()
    node.faults.delay("ListContainers", go_on)
    node.peer[0] = MEMBER
    _, writer = await send(node, "GET /v1/plans/all")
    await calls(node, "ListContainers", 1)
    node.peer[0] = ROOT
    assert (await asyncio.wait_for(node.ask("History"), WITHIN_S))["passes"] == []
    go_on.set()
    writer.transport.abort()


async def test_waiting_plan_of_a_disconnected_client_is_not_made_and_a_begun_one_is_completed(
    node: Node,
) -> None:
    go_on = asyncio.Event()
    node.faults.delay("ListContainers", go_on)
    first = asyncio.ensure_future(node.exchange("Plan", api.PlanRequest(scope="all")))
    await calls(node, "ListContainers", 1)
    for _ in range(5):
        _, writer = await send(node, "GET /v1/plans/all")
        writer.transport.abort()
    history = asyncio.ensure_future(node.ask("History"))
    first.cancel()
    go_on.set()
    assert (await asyncio.wait_for(history, WITHIN_S))["passes"] == []
    assert node.faults.count("ListContainers") == 1


async def test_pass_cancelled_before_the_pass_lock_removes_nothing(node: Node) -> None:
    requested = RequestedPass(node.context, asyncio.Lock(), lambda _: None)
    requested.cancel()
    with pytest.raises(NodeAgentError, match="nothing was removed: the client disconnected"):
        await requested.apply_scope(Scope.CONTAINERS, 1)
    assert len(node.sim.containers) == 2


async def test_daemon_stops_although_the_removal_of_a_requested_pass_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_STOP_WITHIN_S", 0.01)
    node.faults.delay("RemoveContainer", asyncio.Event())
    asking = asyncio.ensure_future(node.exchange("Apply", api.ApplyRequest(scope="containers")))
    await calls(node, "RemoveContainer", 1)
    node.context.stop.set()
    asking.cancel()
    # The fixture stops the server and waits until it ends.


@pytest.mark.parametrize(
    ("operation", "request_", "detail"),
    [
        ("History", api.HistoryRequest(limit=-1), "limit: -1 is negative"),
        ("History", api.HistoryRequest(limit=-(10**20)), "limit"),
        ("Apply", api.ApplyRequest(scope="all", rounds=-5), "rounds: -5 is not between 0 and 20"),
    ],
)
async def test_negative_number_is_a_usage_error(
    node: Node, operation: str, request_: api.HistoryRequest | api.ApplyRequest, detail: str
) -> None:
    status, text = await node.refused(operation, request_)
    assert (status, detail in text) == (400, True)


async def test_deeply_nested_body_is_a_usage_error(node: Node) -> None:
    status, documents = await node.exchange("AddHold", body=b"[" * 5000)
    assert (status, "not JSON" in documents[0]["detail"]) == (400, True)
    assert not node.logged("control_failed")


async def test_field_in_path_and_query_is_a_usage_error(node: Node) -> None:
    reader, writer = await send(node, "GET /v1/plans/images?scope=all")
    assert (await asyncio.wait_for(reader.read(), WITHIN_S)).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()
