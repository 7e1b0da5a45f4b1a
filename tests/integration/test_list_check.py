"""Tests of list cross-checks on a real containerd: hidden containers are contradictions, node changes are not."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc.agent import open_agent
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from tests.support.worn_node import USED_DEAD, USED_RUNNING, WornNode

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container

pytestmark = pytest.mark.real

CRI_ALONE = {"runtime.containerd_api": "off"}
READINGS = 15
LARGE = {f"tenant.example/{number}": "a" * 1_000_000 for number in range(3)}
LARGE_SANDBOXES = 6
"""Number of sandboxes with large annotations that, in one list, exceed containerd's largest message of 16 MiB."""


def test_churn_of_pods_and_a_forced_image_removal_are_no_contradiction(worn: WornNode) -> None:
    stop = threading.Event()
    made: list[object] = []

    def churn() -> None:
        while not stop.is_set():
            sandbox = worn.pods.run_sandbox(f"churn-{len(made)}", namespace="shop")
            worn.pods.run_container(sandbox, "main", USED_DEAD)
            worn.pods.remove_sandbox(sandbox)
            made.append(sandbox)

    async def observe() -> None:
        for sources in (CRI_ALONE, {}):
            settings = load_settings(worn.config, {"image_gc.minimum_age": worn.minimum_age, **sources})
            async with open_agent(settings, record=False, dry_run=True) as agent:
                for number in range(READINGS):
                    snapshot = await agent.observer.observe((Scope.CONTAINERS, Scope.ALL)[number % 2])
                    assert snapshot.contradictions == ()

    worn.pods.remove_image(USED_RUNNING)  # containerd removes an image even if a running container uses it
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        asyncio.run(observe())
    finally:
        stop.set()
        thread.join()
    assert len(made) > 2


@pytest.mark.parametrize("sources", [CRI_ALONE, {}], ids=["CRI alone", "containerd"])
def test_running_container_missing_in_the_first_list_is_found_by_its_cgroup_and_nothing_is_removed(
    worn: WornNode, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str]
) -> None:
    assert worn.running is not None
    hidden = worn.running.id
    before = sorted(each.id for each in worn.pods.list_images())
    listed = CriClient.list_containers

    async def incomplete(client: CriClient) -> tuple[Container, ...]:
        return tuple(each for each in await listed(client) if each.id != hidden)

    monkeypatch.setattr(CriClient, "list_containers", incomplete)

    async def run() -> None:
        settings = load_settings(worn.config, {"image_gc.minimum_age": worn.minimum_age, **sources})
        async with open_agent(settings, record=False, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.ALL)
            (contradiction,) = preview.snapshot.contradictions
            assert contradiction.detail.startswith(f"container {hidden[:12]} is not listed")
            report = await agent.run(preview, trigger="test", stop=asyncio.Event())
            assert (report.end, report.results) == (PassEnd.REFUSED, ())
            monkeypatch.undo()
            preview = await agent.collector.preview(Scope.ALL)
            assert preview.snapshot.contradictions == ()
            assert preview.removals

    asyncio.run(run())
    assert sorted(each.id for each in worn.pods.list_images()) == before


def test_sandbox_without_a_record_of_containerd_is_in_a_list_beyond_the_message_limit(worn: WornNode) -> None:
    forgotten = worn.pods.run_sandbox("forgotten")
    worn.pods.stop_sandbox(forgotten)
    worn.containerd.ctr("containers", "delete", forgotten.id)
    listed = {each.id for each in worn.pods.list_sandboxes()}
    large = [worn.pods.run_sandbox(f"large-{number}", annotations=LARGE) for number in range(LARGE_SANDBOXES)]
    with pytest.raises(grpc.RpcError, match="message larger than max"):
        worn.pods.call("ListPodSandbox")

    async def read() -> set[str]:
        async with RuntimeConnection(f"unix://{worn.containerd.socket}") as connection:
            return {each.id for each in await CriClient(connection).list_sandboxes()}

    found = asyncio.run(read())
    assert forgotten.id in found
    assert found == listed | {each.id for each in large}
