"""Lists and watches of pods over TLS with a fake API server."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.kube.api_client import ApiClient, ApiRequest, ApiStream
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model.kubernetes import ApiAccess
from nodeagent.pods import pod_api
from nodeagent.pods.plan.watch import EventKind
from nodeagent.pods.pod_api import PAGE_SIZE, PodApi, PodWatch
from tests.support.api_pods import pod
from tests.support.api_server import PODS, TOKEN, ApiServer, Fault, serving_api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.certificates import Authority


@contextmanager
def api(authority: Authority, directory: Path, *names: str) -> Iterator[tuple[ApiServer, ApiAccess]]:
    server = ApiServer()
    for each in names:
        server.pods.put(pod(each))
    token = directory / "token"
    token.write_text(TOKEN)
    with serving_api(server, partial(authority.server_context, "server")) as url:
        yield server, ApiAccess(url=url, ca_file=authority.ca_file, token_file=token, timeout_s=20)


async def listed(access: ApiAccess, node: str = "node-1") -> tuple[list[str], str]:
    client = ApiClient(access, ApiCredentials(access))
    try:
        pods, version, _ = await PodApi(client, node).list()
    finally:
        client.close()
    return [each.uid for each in pods], version


async def test_list_is_read_in_pages(api_authority: Authority, tmp_path: Path) -> None:
    names = [f"p{number:03}" for number in range(PAGE_SIZE * 2 + 1)]
    with api(api_authority, tmp_path, *names) as (server, access):
        found, version = await listed(access)
    assert found == [f"uid-{each}" for each in names]
    assert version == str(server.pods.version)
    queries = [each.query for each in server.seen("GET", PODS)]
    assert len(queries) == 3
    assert queries[0] == f"fieldSelector=spec.nodeName%3Dnode-1&limit={PAGE_SIZE}"


async def test_5001_failed_pods_of_this_node_hide_no_other_pod(api_authority: Authority, tmp_path: Path) -> None:
    with api(api_authority, tmp_path) as (server, access):
        for number in range(5001):
            server.pods.put(pod(f"failed-{number}", status={"phase": "Failed"}))
        server.pods.put(pod("z-running"))
        client = ApiClient(access, ApiCredentials(access))
        pods, _, truncated = await PodApi(client, "node-1").list()
        client.close()
    assert (len(pods), pods[-1].uid, truncated) == (5002, "uid-z-running", False)


async def test_list_beyond_the_limit_is_truncated(
    api_authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_api, "MAX_PODS", 2)
    with api(api_authority, tmp_path, "a", "b", "c") as (server, access):
        server.pods.put(pod("d", status={"phase": "Succeeded"}))
        client = ApiClient(access, ApiCredentials(access))
        pods, _, truncated = await PodApi(client, "node-1").list()
        client.close()
    assert ([each.uid for each in pods], truncated) == (["uid-a", "uid-b", "uid-d"], True)


async def test_expired_page_is_a_refusal_410_and_no_part_of_a_list(api_authority: Authority, tmp_path: Path) -> None:
    names = [f"p{number:03}" for number in range(PAGE_SIZE + 1)]
    with api(api_authority, tmp_path, *names) as (server, access):
        first = json.dumps(server.pods.page(f"fieldSelector=spec.nodeName%3Dnode-1&limit={PAGE_SIZE}")[1])
        server.faults = [Fault(200, first)]
        server.pods.compact()
        with pytest.raises(ApiServerRefusedError) as caught:
            await listed(access)
    assert caught.value.status == 410


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"kind": "Status", "metadata": {"resourceVersion": "1"}}', "not a list of pods"),
        ('{"kind": "PodList", "metadata": {}, "items": []}', "not a list of pods"),
        (
            '{"kind": "PodList", "metadata": {"resourceVersion": "1", "continue": "x"}, "items": []}',
            "continue token repeated",
        ),
        ('{"kind": "PodList", "items": 5}', "answer is not"),
    ],
)
async def test_answer_that_is_no_list_is_refused(
    api_authority: Authority, tmp_path: Path, body: str, words: str
) -> None:
    with api(api_authority, tmp_path, "a") as (server, access):
        server.faults = [Fault(200, body)] * 3
        with pytest.raises(ApiServerUnavailableError, match=words):
            await listed(access)


async def test_malformed_pods_cost_only_themselves(api_authority: Authority, tmp_path: Path) -> None:
    items: list[Any] = [pod("a"), 5, {}, pod("b", spec={"priority": "x"})]
    body = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}
    with api(api_authority, tmp_path) as (server, access):
        server.faults = [Fault(200, json.dumps(body))]
        found, _ = await listed(access)
    assert found == ["uid-a", "", "", "uid-b"]


async def test_watch_shows_changes_and_bookmarks(api_authority: Authority, tmp_path: Path) -> None:
    with api(api_authority, tmp_path, "a") as (server, access):
        watch = PodWatch(access, ApiCredentials(access), "node-1")
        await watch.open(str(server.pods.version), 60)
        try:
            found = [await watch.next_event()]
            server.pods.put(pod("b", metadata={"annotations": {"padding": "x" * 300_000}}))
            while len(found) < 100 and (found[-1] is None or found[-1].kind is not EventKind.ADDED):
                found.append(await watch.next_event())
        finally:
            watch.close()
    assert found[0] is not None
    assert (found[0].kind, found[0].resource_version) == (EventKind.BOOKMARK, "1001")
    assert found[-1] is not None
    assert found[-1].pod is not None
    assert (found[-1].pod.uid, found[-1].resource_version) == ("uid-b", "1002")
    query = server.seen("GET", PODS)[-1].query
    assert query == (
        "fieldSelector=spec.nodeName%3Dnode-1&watch=1&allowWatchBookmarks=true&resourceVersion=1001&timeoutSeconds=60"
    )


async def test_expired_watch_is_a_refusal_410(api_authority: Authority, tmp_path: Path) -> None:
    with api(api_authority, tmp_path, "a", "b") as (server, access):
        server.pods.compact()
        watch = PodWatch(access, ApiCredentials(access), "node-1")
        await watch.open("1", 60)
        with pytest.raises(ApiServerRefusedError) as caught:
            await watch.next_event()
        watch.close()
    assert caught.value.status == 410


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(403, '{"kind": "Status", "reason": "Forbidden", "message": "pods is forbidden"}'), 403),
        (Fault(410, '{"kind": "Status", "reason": "Expired"}'), 410),
        (Fault(429, "{}", {"Retry-After": "7"}), 429),
        (Fault(behaviour="close"), 0),
    ],
)
async def test_watch_that_is_not_accepted_is_an_error(
    api_authority: Authority, tmp_path: Path, fault: Fault, status: int
) -> None:
    with api(api_authority, tmp_path) as (server, access):
        server.faults = [fault]
        watch = PodWatch(access, ApiCredentials(access), "node-1")
        with pytest.raises(ApiServerRefusedError if status else ApiServerUnavailableError) as caught:
            await watch.open("1", 60)
        watch.close()
    assert getattr(caught.value, "status", 0) == status
    assert TOKEN not in str(caught.value)
    if status == 429:
        assert isinstance(caught.value, ApiServerRefusedError)
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(("body", "ends"), [('{"a": ', True), ("x" * 2000, False)], ids=["slow line", "long line"])
async def test_lines_are_bounded_in_time_and_size(
    api_authority: Authority, tmp_path: Path, body: str, ends: bool
) -> None:
    with api(api_authority, tmp_path) as (server, access):
        server.faults = [Fault(200, body, {"Content-Length": "9000"})]
        stream = ApiStream(access, ApiCredentials(access), idle_s=0.05, max_line_bytes=1000)
        await stream.open(ApiRequest("GET", PODS))
        if ends:
            assert await stream.next_line() is None
        else:
            with pytest.raises(ApiServerUnavailableError, match="line has more than 1000 bytes"):
                await stream.next_line()
        stream.close()


async def test_slow_answer_does_not_delay_the_list_longer_than_its_deadline(
    api_authority: Authority, tmp_path: Path
) -> None:
    with api(api_authority, tmp_path, "a") as (server, access):
        server.faults = [Fault(behaviour="slow")]
        slow = ApiAccess(url=access.url, ca_file=access.ca_file, token_file=access.token_file, timeout_s=0.1)
        with pytest.raises(ApiServerUnavailableError, match=r"no answer in 0\.1 s"):
            await listed(slow)
        async with asyncio.timeout(20):
            assert (await listed(access))[0] == ["uid-a"]
