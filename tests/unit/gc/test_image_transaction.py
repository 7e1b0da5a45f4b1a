"""Image transactions on a simulated containerd: images used, pulled or tagged during their removal."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent._proto.runtime.v1 import api_pb2
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.record import replace
from tests.sim.store import Lease
from tests.unit.gc.transactions import RECENT, begin_creation, outcomes, remove_all

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.unit.gc.conftest import Opener


@pytest.mark.difference("image-transaction")
async def test_image_of_a_container_being_created_gets_all_names_back(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        before = {name: made.node.store.names[name] for name in made.node.names_of(victim.id)}
        # A container creation that read the image record first prepares its snapshot after the names are deleted.
        made.server.faults.before("Snapshots.List", begin_creation(made, victim.id))
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[victim.id] is Outcome.CHANGED
        after = {name: made.node.store.names[name] for name in made.node.names_of(victim.id)}
        assert after.keys() == before.keys()
        assert all(
            (after[name].target, after[name].labels) == (before[name].target, before[name].labels) for name in before
        )
        assert made.server.faults.targets("Images.Create")[0] == victim.id
        assert set(made.node.store.leases) == {"1234-abcd"}


async def test_creation_without_snapshot_at_the_end_of_the_wait_keeps_the_batch(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        before = set(made.node.store.names)
        made.node.store.add_lease(Lease("1234-abcd", made.node.now, dict(RECENT)))
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.CHANGED}
        assert set(made.node.store.names) == before


@pytest.mark.parametrize(
    ("lease_id", "age"),
    [("5" * 64, timedelta()), ("1234-abcd", timedelta(minutes=5))],
    ids=["of-a-sandbox", "of-a-failed-creation"],
)
async def test_empty_lease_that_is_no_creation_keeps_no_image(rig: Opener, lease_id: str, age: timedelta) -> None:
    async with rig(bulk=True) as made:
        made.node.store.add_lease(Lease(lease_id, made.node.now - age, dict(RECENT)))
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}


async def test_pull_during_the_removal_keeps_the_image_and_its_new_name_record(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        names = set(made.node.names_of(victim.id))
        tag = next(name for name in names if "@" not in name and name != victim.id)
        old = made.node.store.names[tag]

        def pull() -> None:
            made.node.advance(1)
            made.node.set_name(replace(old, created_at=made.node.now, labels={"pulled": "again"}))

        made.server.faults.after("Images.Delete", pull, target=victim.id)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[victim.id] is Outcome.CHANGED
        assert set(made.node.names_of(victim.id)) == names
        assert made.node.store.names[tag].labels == {"pulled": "again"}


@pytest.mark.parametrize(
    ("change", "is_pull"),
    [({"labels": {"edited": "yes"}}, False), ({"created_at": None}, True)],
    ids=["label-edit", "new-creation"],
)
async def test_first_detection_follows_a_pull_and_no_label_edit(
    rig: Opener, change: dict[str, object], is_pull: bool
) -> None:
    async with rig() as made:
        first = (await made.collector.preview(Scope.IMAGES)).snapshot.image_usage
        image_id = next(iter(made.node.images))
        made.node.advance(3600)
        if is_pull:
            change = {"created_at": made.node.now}
        name = replace(made.node.store.names[image_id], updated_at=made.node.now, **change)  # type: ignore[arg-type]
        made.node.set_name(name)
        again = (await made.collector.preview(Scope.IMAGES)).snapshot.image_usage
        expected = made.node.now if is_pull else first[image_id].first_detected
        assert again[image_id].first_detected == expected


async def test_tag_moved_to_a_used_image_but_listed_with_the_old_one_leaves_the_used_image_whole(rig: Opener) -> None:
    images = ImageGCPolicy(protection=ProtectionPolicy(irreplaceable=Irreplaceable.IGNORE))
    async with rig(bulk=True, policy=GCPolicy(images=images)) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        old = preview.removals[0].id
        used = next(each.id for each in preview.snapshot.images if made.node.users_of(each.id))
        tag = next(name for name in made.node.names_of(old) if "@" not in name and name != old)
        before = set(made.node.names_of(used))
        made.node.set_name(replace(made.node.store.names[tag], target=made.node.store.names[used].target))

        def listed_late(response: Message) -> Message:
            assert isinstance(response, api_pb2.ListImagesResponse)
            late = api_pb2.ListImagesResponse()
            late.CopyFrom(response)
            for image in late.images:
                if image.id == used:
                    image.repo_tags.remove(tag)
                if image.id == old:
                    image.repo_tags.append(tag)
            return late

        made.server.faults.alter("ListImages", listed_late)
        made.node.advance(60)
        report = await remove_all(made)
        assert outcomes(report)[old] is Outcome.CHANGED
        assert set(made.node.names_of(used)) == before | {tag}


async def test_image_whose_content_vanished_during_the_removal_is_a_failure(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        made.server.faults.before("Snapshots.List", begin_creation(made, victim.id))
        made.server.faults.after(
            "Snapshots.List", lambda: made.server.faults.fail("Content.Info", status="NOT_FOUND", times=None), times=1
        )
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[victim.id] is Outcome.FAILED
