"""Passes on a runtime with incomplete lists: no item of an incomplete list is removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from nodeagent._proto.runtime.v1 import api_pb2 as api
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.image_users import images_in_use
from nodeagent.gc.plan.policy import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from nodeagent.gc.executor import PassReport
    from tests.unit.gc.conftest import Opener, Rig

CHANGING = ("RemoveImage", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox", "Images.Delete")


def some_containers(keep: Callable[[int, int], bool]) -> Callable[[Message], Message]:
    """Return a function that drops containers from a response unless ``keep(index, count)`` is true."""

    def change(response: Message) -> Message:
        listed = list(cast("api.ListContainersResponse", response).containers)
        return api.ListContainersResponse(containers=[e for i, e in enumerate(listed) if keep(i, len(listed))])

    return change


def half_of_sandboxes(response: Message) -> Message:
    return api.ListPodSandboxResponse(items=cast("api.ListPodSandboxResponse", response).items[::2])


def half_of_images(response: Message) -> Message:
    return api.ListImagesResponse(images=cast("api.ListImagesResponse", response).images[::2])


def containers_twice(response: Message) -> Message:
    listed = list(cast("api.ListContainersResponse", response).containers)
    return api.ListContainersResponse(containers=[*listed, listed[0]])


FIRST_HALF = some_containers(lambda index, count: index < count // 2)
EVERY_SECOND = some_containers(lambda index, _: index % 2 == 0)
NONE = some_containers(lambda *_: False)
ALL_BUT_ONE = some_containers(lambda index, _: index != 3)


async def run(rig: Rig, scope: Scope = Scope.ALL) -> PassReport:
    preview = await rig.collector.preview(scope)
    return await rig.collector.run(preview, trigger="test", stop=asyncio.Event())


def assert_nothing_changed(rig: Rig, report: PassReport) -> None:
    assert report.end is PassEnd.REFUSED
    assert "the lists of the runtime contradict each other: " in report.end_detail
    assert report.results == ()
    assert not [call for call in rig.server.calls if call.method in CHANGING]
    codes = {each.reason.code for plan in report.plans for each in plan.decisions}
    assert "runtime-inconsistent" in codes


@pytest.mark.parametrize(
    "change", [FIRST_HALF, EVERY_SECOND, NONE, ALL_BUT_ONE], ids=["first", "second", "none", "one"]
)
@pytest.mark.parametrize("containerd_api", [False, True], ids=["CRI alone", "containerd"])
async def test_incomplete_container_list_after_a_complete_one_removes_nothing(
    rig: Opener, change: Callable[[Message], Message], *, containerd_api: bool
) -> None:
    async with rig(containerd_api=containerd_api) as made:
        await made.collector.preview(Scope.CONTAINERS)
        made.server.faults.alter("ListContainers", change)
        for _ in range(3):
            assert_nothing_changed(made, await run(made))
        assert "is reported" in made.observer.list_problem
        made.server.faults.clear()
        report = await run(made)
        assert made.observer.list_problem == ""
        assert report.removed


@pytest.mark.parametrize("change", [FIRST_HALF, EVERY_SECOND, NONE], ids=["first", "second", "none"])
@pytest.mark.parametrize("containerd_api", [False, True], ids=["CRI alone", "containerd"])
async def test_half_a_container_list_in_the_first_reading_removes_nothing(
    rig: Opener, change: Callable[[Message], Message], *, containerd_api: bool
) -> None:
    async with rig(containerd_api=containerd_api) as made:
        made.server.faults.alter("ListContainers", change)
        assert_nothing_changed(made, await run(made))


@pytest.mark.parametrize("containerd_api", [False, True], ids=["CRI alone", "containerd"])
async def test_half_a_sandbox_list_removes_nothing(rig: Opener, *, containerd_api: bool) -> None:
    async with rig(containerd_api=containerd_api) as made:
        made.server.faults.alter("ListPodSandbox", half_of_sandboxes)
        assert_nothing_changed(made, await run(made))


async def test_alternating_half_lists_remove_nothing(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        turns = iter(range(1000))

        def next_half(response: Message) -> Message:
            turn = next(turns)
            return some_containers(lambda index, _: index % 2 == turn % 2)(response)

        made.server.faults.alter("ListContainers", next_half)
        for _ in range(2):
            assert_nothing_changed(made, await run(made))


async def test_half_an_image_list_removes_containers_and_keeps_images(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        made.server.faults.alter("ListImages", half_of_images)
        report = await run(made)
        assert report.end is PassEnd.REFUSED
        assert {each.decision.kind.value for each in report.removed} >= {"container", "sandbox"}
        assert not made.server.faults.count("RemoveImage")


async def test_duplicate_ids_remove_nothing(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        made.server.faults.alter("ListContainers", containers_twice)
        report = await run(made)
        assert_nothing_changed(made, report)
        assert "listed 2 times" in report.end_detail


@pytest.mark.parametrize("containerd_api", [False, True], ids=["CRI alone", "containerd"])
async def test_drained_node_is_collected_in_the_next_pass(rig: Opener, *, containerd_api: bool) -> None:
    async with rig(containerd_api=containerd_api) as made:
        await made.collector.preview(Scope.ALL)
        for sandbox in list(made.node.sandboxes):
            made.node.remove_sandbox(sandbox)
        preview = await made.collector.preview(Scope.ALL)
        assert preview.snapshot.contradictions == ()
        assert preview.removals


async def test_forced_removal_of_an_image_in_use_causes_one_second_listing_and_no_contradiction(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        used = next(each.image_id for each in made.node.containers.values() if each.running)
        made.node.remove_image(used)
        listings = []
        for _ in range(3):
            before = made.server.faults.count("ListContainers")
            assert (await made.collector.preview(Scope.ALL)).snapshot.contradictions == ()
            listings.append(made.server.faults.count("ListContainers") - before)
        assert listings == [2, 1, 1]


async def test_unreadable_status_keeps_all_items(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        await made.collector.preview(Scope.ALL)
        made.server.faults.alter("ListContainers", ALL_BUT_ONE)
        made.server.faults.fail("ContainerStatus", status="INTERNAL", detail="simulated", times=None)
        report = await run(made)
        assert_nothing_changed(made, report)
        assert "its status cannot be read" in report.end_detail


async def test_contradictory_lists_are_no_observation_of_image_use(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        before = (await made.collector.preview(Scope.ALL)).snapshot.image_usage
        used = {image_id: usage for image_id, usage in before.items() if usage.last_used is not None}
        assert used
        made.server.faults.alter("ListContainers", NONE)
        made.server.faults.alter("ListImages", half_of_images)
        made.node.advance(60)
        contradictory = (await made.collector.preview(Scope.ALL)).snapshot
        assert (contradictory.image_usage, contradictory.image_use_observed_since) == ({}, None)
        made.server.faults.clear()
        after = (await made.collector.preview(Scope.ALL)).snapshot.image_usage
        assert {image_id: usage.first_detected for image_id, usage in after.items()} == {
            image_id: usage.first_detected for image_id, usage in before.items()
        }


@pytest.mark.parametrize("containerd_api", [False, True], ids=["CRI alone", "containerd"])
async def test_list_that_lacks_other_unused_images_in_every_pass_removes_no_image(
    rig: Opener, *, containerd_api: bool
) -> None:
    async with rig(containerd_api=containerd_api) as made:
        preview = await made.collector.preview(Scope.ALL)
        used = images_in_use(preview.snapshot)
        unused = sorted(image.id for image in preview.snapshot.images if image.id not in used)
        assert len(unused) >= 2
        for part in (0, 1, 0):

            def change(response: Message, part: int = part) -> Message:
                listed = cast("api.ListImagesResponse", response).images
                return api.ListImagesResponse(images=[each for each in listed if each.id not in unused[part::2]])

            made.server.faults.alter("ListImages", change)
            report = await run(made, Scope.IMAGES)
            assert (report.end, report.results) == (PassEnd.REFUSED, ())
            assert "is no longer listed, but its status is reported" in report.end_detail
            assert "is no longer listed" in made.observer.list_problem
        made.server.faults.clear()
        report = await run(made, Scope.IMAGES)
        assert made.observer.list_problem == ""
        assert report.end is not PassEnd.REFUSED


async def test_images_removed_by_another_client_are_no_contradiction(rig: Opener) -> None:
    async with rig(containerd_api=False) as made:
        preview = await made.collector.preview(Scope.ALL)
        for removal in preview.removals:
            if removal.kind.value == "image":
                made.node.remove_image(removal.id)
        await made.collector.preview(Scope.CONTAINERS)
        assert (await made.collector.preview(Scope.ALL)).snapshot.contradictions == ()
