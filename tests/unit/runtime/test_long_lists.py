"""Lists of large nodes over a socket: above the limit of one message, streamed, and decoded once per unchanged item."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.errors import RuntimeRequestError, RuntimeUnavailableError
from nodeagent.record import replace
from nodeagent.runtime import lists
from nodeagent.runtime.connection import MAX_ANSWER_BYTES, RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from tests.sim import cri as simulated
from tests.sim.profiles import PROFILES
from tests.sim.scenario import scale_node
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.sim.node import SimNode

CONTAINERS = 60
TOO_LARGE = "trying to send message larger than max"
LISTS = ("ListContainers", "ListPodSandbox", "ListImages")
STREAMS = ("StreamContainers", "StreamPodSandboxes", "StreamImages")


@asynccontextmanager
async def served(
    directory: Path, *, streams: bool, node: SimNode | None = None
) -> AsyncIterator[tuple[SimServer, CriClient, RuntimeConnection]]:
    profile = replace(PROFILES["2.1"], streams_lists=streams)
    node = node or scale_node(12, 3, CONTAINERS)
    async with SimServer(node, directory / "s", profile=profile) as server, RuntimeConnection(server.endpoint) as made:
        yield server, CriClient(made), made


async def read_all(cri: CriClient) -> tuple[object, ...]:
    return await cri.list_containers(), await cri.list_sandboxes(), await cri.list_images()


def counts(server: SimServer, methods: tuple[str, ...]) -> list[int]:
    return [server.faults.count(method) for method in methods]


def refuse(server: SimServer, method: str) -> None:
    """Refuse the whole list of a method, as a runtime with a list beyond its message limit."""
    server.faults.fail(method, "", status="RESOURCE_EXHAUSTED", detail=TOO_LARGE, times=None)


def unique_prefix(each: str, ids: set[str]) -> str:
    return next(each[:end] for end in range(1, 65) if sum(one.startswith(each[:end]) for one in ids) == 1)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client treat every response as large, and the runtime stream in several parts."""
    monkeypatch.setattr(lists, "STREAM_FROM_BYTES", 1)
    monkeypatch.setattr(simulated, "PART_ITEMS", 7)


async def test_small_lists_are_read_in_one_message(tmp_path: Path) -> None:
    async with served(tmp_path, streams=True) as (server, cri, _):
        for _ in range(2):
            await read_all(cri)
        assert (counts(server, LISTS), counts(server, STREAMS)) == ([2, 2, 2], [0, 0, 0])


@pytest.mark.usefixtures("large")
async def test_large_lists_are_streamed_where_the_runtime_offers_it(tmp_path: Path) -> None:
    async with served(tmp_path, streams=True) as (server, cri, _):
        whole = await read_all(cri)
        assert [await read_all(cri) for _ in range(2)] == [whole, whole]
        assert (counts(server, LISTS), counts(server, STREAMS)) == ([1, 1, 1], [2, 2, 2])


@pytest.mark.usefixtures("large")
async def test_large_lists_are_read_in_one_message_where_the_runtime_does_not_stream(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = await read_all(cri)
        assert [await read_all(cri) for _ in range(2)] == [whole, whole]
        assert counts(server, LISTS) == [3, 3, 3]


async def test_list_above_the_limit_of_the_runtime_is_streamed_at_once_and_from_then_on(tmp_path: Path) -> None:
    async with served(tmp_path, streams=True) as (server, cri, _):
        whole = await cri.list_containers()
        server.faults.fail("ListContainers", status="RESOURCE_EXHAUSTED", detail="message larger than max", times=None)
        assert [await cri.list_containers() for _ in range(3)] == [whole] * 3
        assert (server.faults.count("ListContainers"), server.faults.count("StreamContainers")) == (2, 3)


@pytest.mark.parametrize("method", ["ListContainers", "ListPodSandbox", "ListContainerStats"])
async def test_list_above_the_limit_of_a_runtime_without_streams_is_read_object_by_object(
    tmp_path: Path, method: str
) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        reads = {
            "ListContainers": cri.list_containers,
            "ListPodSandbox": cri.list_sandboxes,
            "ListContainerStats": cri.list_container_stats,
        }
        whole = await reads[method]()
        refuse(server, method)
        for _ in range(2):
            assert sorted(map(str, await reads[method]())) == sorted(map(str, whole))


async def test_usage_of_some_containers_above_the_limit_is_read_container_by_container(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        ids = [each.id for each in await cri.list_containers()][:3]
        refuse(server, "ListContainerStats")
        assert {each.container_id for each in await cri.list_container_stats({*ids, "removed"})} == set(ids)
        assert server.faults.count("ListContainerStats") == 5


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        ("UNKNOWN", "failed to query controller status: shim exited"),
        ("NOT_FOUND", "failed to get sandbox from metadata store: not found"),
    ],
)
async def test_sandbox_without_a_readable_status_is_in_a_list_read_object_by_object(
    tmp_path: Path, status: str, detail: str
) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = {each.id for each in await cri.list_sandboxes()}
        refuse(server, "ListPodSandbox")
        for each in whole:
            server.faults.fail("PodSandboxStatus", unique_prefix(each, whole), status=status, detail=detail)
        assert {each.id for each in await cri.list_sandboxes()} == whole


async def test_objects_created_and_removed_during_the_reading_hide_no_other_object(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = {each.id for each in await cri.list_sandboxes()}
        refuse(server, "ListPodSandbox")
        created: list[str] = []

        def change() -> None:
            created.append(server.node.add_pod(f"churn-{len(created)}").id)
            if len(created) % 3 == 0:
                server.node.remove_sandbox(created[-2])

        for moment in (server.faults.before, server.faults.after):
            moment("PodSandboxStatus", change, times=None)
        listed = [each.id for each in await cri.list_sandboxes()]
        assert len(created) > len(whole)
        assert len(listed) == len(set(listed))
        assert whole <= set(listed) <= whole | set(created)


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        ("NOT_FOUND", "PodSandbox with ID starting with 0 not found: ID does not exist"),
        ("UNKNOWN", "internal error"),
    ],
)
async def test_list_above_the_limit_is_an_error_if_the_runtime_does_not_confirm_that_a_prefix_has_no_object(
    tmp_path: Path, status: str, detail: str
) -> None:
    async with served(tmp_path, streams=False, node=scale_node(2, 1, 2)) as (server, cri, _):
        refuse(server, "ListPodSandbox")
        server.faults.fail("PodSandboxStatus", status=status, detail=detail, times=None)
        with pytest.raises(RuntimeRequestError, match=f"ListPodSandbox failed: RESOURCE_EXHAUSTED: {TOO_LARGE}"):
            await cri.list_sandboxes()


@pytest.mark.parametrize("listed", ["of another sandbox", "whole list"])
async def test_list_above_the_limit_is_an_error_if_the_runtime_ignores_the_prefix(tmp_path: Path, listed: str) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = api.ListPodSandboxResponse(items=[api.PodSandbox(id=each.id) for each in await cri.list_sandboxes()])
        refuse(server, "ListPodSandbox")
        answer = whole if listed == "whole list" else api.ListPodSandboxResponse(items=whole.items[:1])
        server.faults.alter("ListPodSandbox", lambda _: answer)
        with pytest.raises(RuntimeRequestError, match=TOO_LARGE):
            await cri.list_sandboxes()


async def test_list_above_the_limit_is_an_error_if_not_all_objects_are_read_before_its_deadline(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, streams=False) as (server, _, _):
        refuse(server, "ListPodSandbox")
        server.faults.delay("PodSandboxStatus", times=None)
        async with RuntimeConnection(server.endpoint, deadlines={"ListPodSandbox": 1.0}) as connection:
            with pytest.raises(RuntimeRequestError, match=TOO_LARGE):
                await CriClient(connection).list_sandboxes()


async def test_list_of_an_overloaded_runtime_is_an_error(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        server.faults.fail("ListPodSandbox", status="RESOURCE_EXHAUSTED", detail="too many requests")
        with pytest.raises(RuntimeRequestError, match="RESOURCE_EXHAUSTED: too many requests"):
            await cri.list_sandboxes()
        assert server.faults.count("PodSandboxStatus") == 0


async def test_containerd_records_above_the_limit_are_streamed(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, _, connection):
        client = ContainerdClient(connection)
        whole = await client.list_containers()
        server.faults.fail("Containers.List", status="RESOURCE_EXHAUSTED", detail="too large", times=None)
        assert await client.list_containers() == whole
        assert server.faults.count("Containers.ListStream") == 1


@pytest.mark.usefixtures("large")
async def test_interrupted_stream_is_no_list(tmp_path: Path) -> None:
    async with served(tmp_path, streams=True) as (server, cri, _):
        await cri.list_containers()
        parts = iter(range(100))

        def end_in_the_third_part(part: Message) -> Message:
            if next(parts) == 2:
                raise ConnectionResetError
            return part

        server.faults.alter("StreamContainers", end_in_the_third_part)
        with pytest.raises((RuntimeRequestError, RuntimeUnavailableError)):
            await cri.list_containers()


async def test_answer_above_64_mib_is_read(tmp_path: Path) -> None:
    padding = "x" * 4096

    def pad(response: Message) -> Message:
        padded = api.ListContainersResponse()
        padded.CopyFrom(cast("api.ListContainersResponse", response))
        for each in padded.containers:
            each.annotations["example.com/padding"] = padding * 300
        return padded

    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = await cri.list_containers()
        server.faults.alter("ListContainers", pad)
        padded = await cri.list_containers()
        assert [each.id for each in padded] == [each.id for each in whole]
        size_bytes = sum(len(each.annotations["example.com/padding"]) for each in padded)
        assert 64 << 20 < size_bytes < MAX_ANSWER_BYTES


async def test_unchanged_items_are_decoded_once(tmp_path: Path) -> None:
    async with served(tmp_path, streams=False) as (server, cri, _):
        before = {each.id: each for each in await cri.list_containers()}
        changed = next(each for each in server.node.containers.values() if each.running)
        server.node.stop_container(changed.id)
        after = {each.id: each for each in await cri.list_containers()}
        assert {each for each in after if after[each] is not before[each]} == {changed.id}
        assert after[changed.id] != before[changed.id]


async def test_runtime_that_alternates_its_lists_is_believed_each_time(tmp_path: Path) -> None:
    turns = iter(range(100))

    def alternate(response: Message) -> Message:
        """Return in turn the list, every second entry in reverse order, or the list with a changed first container."""
        listed = api.ListContainersResponse.FromString(response.SerializeToString()).containers
        turn = next(turns) % 3
        if turn == 1:
            return api.ListContainersResponse(containers=list(listed)[::-2])
        if turn == 2:
            listed[0].image_ref = f"sha256:{'0' * 64}"
        return api.ListContainersResponse(containers=listed)

    async with served(tmp_path, streams=False) as (server, cri, _):
        whole = await cri.list_containers()
        changed = (replace(whole[0], image_ref=f"sha256:{'0' * 64}"), *whole[1:])
        server.faults.alter("ListContainers", alternate)
        for _ in range(2):
            assert [await cri.list_containers() for _ in range(3)] == [whole, whole[::-2], changed]
