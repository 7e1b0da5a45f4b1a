"""Details of containers and sandboxes: read once per item, and merged with every changed list entry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import RuntimeRequestError
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.snapshot.details import ItemDetails
from nodeagent.model.node import RuntimeInfo
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient
from tests.unit.builders import container, sandbox

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container, Sandbox

MOUNTING = RuntimeInfo("containerd", "2.1.0", "v1", "unix:///s")


class Runtime(CriClient):
    """A CRI client that returns these items as status responses and records the calls."""

    def __init__(self, *items: Container | Sandbox) -> None:
        super().__init__(RuntimeConnection(f"unix://{Path('/absent')}"))
        self.items = {each.id: each for each in items}
        self.calls: list[str] = []

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        return self._status(sandbox_id)  # type: ignore[return-value]  # of the test's own items

    async def container_status(self, container_id: str) -> Container:
        return self._status(container_id)  # type: ignore[return-value]  # of the test's own items

    def _status(self, item_id: str) -> Container | Sandbox:
        self.calls.append(item_id)
        if item_id not in self.items:
            raise RuntimeRequestError("Status", item_id, "UNKNOWN", "unreadable")
        return self.items[item_id]


async def test_sandboxes_of_an_unchanged_listing_are_the_same_tuple() -> None:
    listed = (sandbox("web"), sandbox("db"))
    runtime = Runtime(*(replace(each, image=f"pause-{each.name}") for each in listed))
    details = ItemDetails(runtime)
    first, unread = await details.with_images(listed, (), Scope.ALL)
    assert ([each.image for each in first], unread) == (["pause-web", "pause-db"], frozenset())
    assert await details.with_images(listed, (), Scope.ALL) == (first, frozenset())
    assert sorted(runtime.calls) == ["sb-db", "sb-web"]
    changed = (replace(listed[0], ready=True), listed[1])
    after, _ = await details.with_images(changed, (), Scope.ALL)
    assert [(each.ready, each.image) for each in after] == [(True, "pause-web"), (False, "pause-db")]
    assert (await details.with_images(listed, (), Scope.CONTAINERS))[0] == listed


async def test_unreadable_sandbox_of_an_unchanged_listing_is_read_again() -> None:
    listed = (sandbox("web"), sandbox("db"))
    runtime = Runtime(replace(listed[0], image="pause"))
    details = ItemDetails(runtime)
    for _ in range(2):
        assert (await details.with_images(listed, (), Scope.ALL))[1] == {"sb-db"}
    runtime.items["sb-db"] = replace(listed[1], image="pause")
    assert [each.image for each in (await details.with_images(listed, (), Scope.ALL))[0]] == ["pause", "pause"]


@pytest.mark.parametrize("scope", [Scope.ALL, Scope.IMAGES], ids=str)
async def test_containers_of_an_unchanged_listing_are_the_same_tuple_until_a_detail_changes(scope: Scope) -> None:
    listed = (container("a", state=ContainerState.RUNNING), container("b", state=ContainerState.RUNNING))
    runtime = Runtime(*(replace(each, volume_images=(f"volume-{each.id}",)) for each in listed))
    details = ItemDetails(runtime)
    first = await details.with_details(listed, (), MOUNTING, scope)
    assert [each.volume_images for each in first] == [("volume-a",), ("volume-b",)]
    assert await details.with_details(listed, (), MOUNTING, scope) is first
    runtime.items["b"] = replace(listed[1], state=ContainerState.EXITED, volume_images=("volume-b",))
    changed = (listed[0], replace(listed[1], state=ContainerState.EXITED, finished_at=None))
    after = await details.with_details(changed, (), MOUNTING, scope)
    assert [each.state for each in after] == [ContainerState.RUNNING, ContainerState.EXITED]
    assert after[1].finished_at == (runtime.items["b"].finished_at if scope is Scope.ALL else None)  # type: ignore[union-attr]  # a container
    assert [each.volume_images for each in after] == [("volume-a",), ("volume-b",)]


async def test_finish_time_read_for_an_unchanged_listing_is_used() -> None:
    listed = (container("a", finished_s=None),)
    runtime = Runtime()
    details, old = ItemDetails(runtime), RuntimeInfo("containerd", "1.7.0", "v1", "unix:///s")
    assert (await details.with_details(listed, (), old, Scope.ALL))[0].finished_at is None
    ended = container("a")
    runtime.items["a"] = ended
    assert (await details.with_details(listed, (), old, Scope.ALL))[0].finished_at == ended.finished_at


async def test_exits_are_read_once_for_display_and_not_used_by_decisions() -> None:
    listed = (container("a", finished_s=None), container("b", state=ContainerState.RUNNING))
    runtime = Runtime(container("a", exit_code=137, exit_reason="OOMKilled"))
    details, old = ItemDetails(runtime), RuntimeInfo("containerd", "1.7.0", "v1", "unix:///s")
    for _ in range(2):
        shown = await details.with_exits(listed)
        assert (shown[0].exit_code, shown[0].exit_reason) == (137, "OOMKilled")
        assert (shown[0].finished_at, shown[1]) == (container("a").finished_at, listed[1])
    assert runtime.calls == ["a"]
    ready = (sandbox(ready=True),)
    assert await details.with_details(listed, ready, old, Scope.ALL) == listed


async def test_exit_that_cannot_be_read_is_unknown_and_read_again() -> None:
    listed = (container("a", finished_s=None), container("c", finished_s=None))
    runtime = Runtime(container("c", exit_code=0))
    details = ItemDetails(runtime)
    assert [each.exit_code for each in await details.with_exits(listed)] == [None, 0]
    runtime.items["a"] = container("a", exit_code=3)
    assert [each.exit_code for each in await details.with_exits(listed)] == [3, 0]
    assert sorted(runtime.calls) == ["a", "a", "c"]


async def test_status_that_contradicts_the_list_is_no_exit() -> None:
    listed = (container("a", finished_s=None),)
    details = ItemDetails(Runtime(container("a", state=ContainerState.RUNNING)))
    assert await details.with_exits(listed) == listed
