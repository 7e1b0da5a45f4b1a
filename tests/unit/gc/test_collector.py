"""Whole passes on a simulated node: removals equal the preview, and images in use since the plan are kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import StoreError
from nodeagent.gc import pass_state as measurement
from nodeagent.gc.executor import Outcome, PassEnd
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import Accounting, ItemKind
from nodeagent.model.node import Hold
from nodeagent.record import replace
from tests.unit.gc.conftest import POLICY
from tests.unit.gc.transactions import outcomes

if TYPE_CHECKING:
    from nodeagent.gc.executor import PassReport
    from tests.unit.gc.conftest import Opener, Rig

CHANGING = (
    "RemoveImage",
    "RemoveContainer",
    "StopContainer",
    "RemovePodSandbox",
    "StopPodSandbox",
    "Images.Delete",
)


async def run(rig: Rig, scope: Scope = Scope.IMAGES, *, max_rounds: int = 5) -> PassReport:
    preview = await rig.collector.preview(scope)
    return await rig.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=max_rounds)


@pytest.mark.parametrize("profile", ["1.6", "1.7", "2.1"])
async def test_run_removes_the_previewed_items_and_a_second_run_none(rig: Opener, profile: str) -> None:
    async with rig(profile=profile) as made:
        preview = await made.collector.preview(Scope.ALL)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert {each.decision.id for each in report.removed} == {each.id for each in preview.removals}
        assert {each.kind for each in preview.removals} >= {ItemKind.IMAGE, ItemKind.CONTAINER, ItemKind.SANDBOX}
        assert report.end is PassEnd.COMPLETE
        assert report.after is not None
        assert report.after.used_percent <= 80
        assert (await made.collector.preview(Scope.ALL)).removals == ()


async def test_duration_of_a_pass_includes_its_reading_and_not_the_wait_for_a_confirmation(rig: Opener) -> None:
    async with rig() as made:
        made.server.faults.before("ListContainers", lambda: made.node.advance(40.0))
        preview = await made.collector.preview(Scope.IMAGES)
        made.server.faults.clear()
        made.node.advance(3600.0)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert 40.0 <= report.duration_s < 3600.0


async def test_dry_run_changes_nothing(rig: Opener) -> None:
    async with rig(dry_run=True) as made:
        report = await run(made, Scope.ALL)
        assert {each.outcome for each in report.results} == {Outcome.DRY_RUN}
        assert report.results
        assert sum(made.server.faults.count(method) for method in CHANGING) == 0
        assert report.freed_bytes is None


async def test_image_in_use_since_the_plan_is_kept(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        made.node.start_container(victim.name)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert outcomes(report)[victim.id] is Outcome.CHANGED
        assert made.node.resolve_image(victim.name) == victim.id
        assert report.end is PassEnd.COMPLETE


async def test_image_used_during_the_guards_reading_is_kept(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        made.server.faults.before("ImageStatus", lambda: made.node.start_container(victim.name), times=1)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert outcomes(report)[victim.id] is Outcome.CHANGED


async def test_image_already_removed_is_not_a_failure(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.node.remove_image(preview.removals[0].name)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert outcomes(report)[preview.removals[0].id] is Outcome.GONE
        assert report.failed == ()


async def test_failed_image_does_not_starve_the_others(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stuck = max(preview.removals, key=lambda each: each.frees_bytes or 0)
        made.server.faults.fail("RemoveImage", stuck.id, times=99, status="INTERNAL", detail="busy")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert outcomes(report)[stuck.id] is Outcome.FAILED
        assert report.end is PassEnd.COMPLETE
        assert {each.decision.id for each in report.removed} > {each.id for each in preview.removals} - {stuck.id}
        assert made.server.faults.count("RemoveImage", stuck.id) == 1


async def test_single_round_removes_only_the_items_of_the_preview(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stuck = max(preview.removals, key=lambda each: each.frees_bytes or 0)
        made.server.faults.fail("RemoveImage", stuck.id, times=99, status="INTERNAL", detail="busy")
        stop = asyncio.Event()
        report = await made.collector.run(preview, trigger="test", stop=stop, max_rounds=1)
        assert {each.decision.id for each in report.removed} == {each.id for each in preview.removals} - {stuck.id}
        assert report.end is PassEnd.SHORTFALL


async def test_hung_removal_times_out_and_its_image_is_read_again(rig: Opener) -> None:
    async with rig(deadlines={"RemoveImage": 0.2}) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.server.faults.delay("RemoveImage", None, times=1)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        (failed,) = report.failed
        assert "DEADLINE_EXCEEDED" in failed.detail
        assert len(report.removed) >= len(preview.removals) - 1


async def test_lost_runtime_ends_the_pass(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        second = preview.removals[1]
        made.server.faults.fail("RemoveImage", second.id, times=1, status="UNAVAILABLE", detail="closing")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert report.end is PassEnd.RUNTIME_LOST
        assert [each.outcome for each in report.results[:3]] == [Outcome.DONE, Outcome.FAILED, Outcome.NOT_ATTEMPTED]


async def test_stop_request_ends_the_pass_between_two_items(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stop = asyncio.Event()
        report = await made.collector.run(preview, trigger="test", stop=stop, on_result=lambda _: stop.set())
        assert report.end is PassEnd.CANCELLED
        assert len(report.removed) == 1
        assert {each.outcome for each in report.results[1:]} == {Outcome.NOT_ATTEMPTED}


async def test_limits_per_pass_apply_to_all_rounds(rig: Opener) -> None:
    policy = replace(POLICY, images=replace(POLICY.images, max_images_per_pass=2))
    async with rig(policy=policy) as made:
        report = await run(made)
        assert len(report.removed) == 2
        assert report.end is PassEnd.SHORTFALL
        assert "limit-images-per-pass" in report.end_detail


@pytest.mark.difference("freed-bytes")
async def test_measurement_ends_the_pass_without_layer_accounting(rig: Opener) -> None:
    async with rig(profile="cri-o") as made:
        first = await made.collector.preview(Scope.IMAGES)
        assert first.removals == ()  # CRI-O reports no pull time, so that all images count as first detected now
        made.node.advance(600)
        preview = await made.collector.preview(Scope.IMAGES)
        assert preview.plans[0].accounting is Accounting.UPPER_BOUND
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert report.after is not None
        assert report.after.used_percent <= 80
        needless = [each for each in report.results if each.outcome is Outcome.NOT_NEEDED]
        assert all(each.decision.kind is ItemKind.IMAGE for each in needless)


async def test_logs_of_a_removed_container_are_removed_and_the_newest_kept(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        dead = {each.id for each in preview.removals if each.kind is ItemKind.CONTAINER}
        await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert dead
        links = [link for link in (made.logs / "containers").iterdir() if not link.exists()]
        assert not [link for link in links if link.name.removesuffix(".log").rpartition("-")[2] in dead]


@pytest.mark.parametrize("profile", ["1.6", "1.7", "2.1"])
async def test_bulk_removal_has_the_same_result_with_one_collection(rig: Opener, profile: str) -> None:
    async with rig(profile=profile, bulk=True) as made:
        preview = await made.collector.preview(Scope.ALL)
        images = {each.id for each in preview.removals if each.kind is ItemKind.IMAGE}
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert {each.decision.id for each in report.removed} == {each.id for each in preview.removals}
        assert report.end is PassEnd.COMPLETE
        assert made.server.faults.count("RemoveImage") == 0
        assert made.server.faults.count("Leases.Delete") == 1
        assert made.server.faults.count("Images.Delete") > len(images)
        assert report.freed_bytes is not None
        assert report.freed_bytes >= report.predicted_bytes > 0
        assert (await made.collector.preview(Scope.ALL)).removals == ()


async def test_bulk_removal_keeps_an_image_in_use_since_the_plan(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[-1]
        made.node.start_container(victim.name)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert outcomes(report)[victim.id] is Outcome.CHANGED
        assert made.node.resolve_image(victim.name) == victim.id


async def test_failed_name_deletion_restores_the_image_and_removes_the_others(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        names = set(made.node.names_of(victim.id))
        made.server.faults.fail("Images.Delete", victim.id, times=1, status="INTERNAL", detail="busy")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report) == {
            each.id: Outcome.FAILED if each is victim else Outcome.DONE for each in preview.removals
        }
        assert set(made.node.names_of(victim.id)) == names
        assert made.node.store.leases == {}


async def test_images_are_removed_through_cri_if_no_lease_can_be_created(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.server.faults.fail("Leases.Create", None, times=9, status="INTERNAL", detail="no space left on device")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert {each.outcome for each in report.results} == {Outcome.DONE}
        assert made.server.faults.count("RemoveImage") == len(preview.removals)


async def test_stop_during_a_transaction_completes_it_for_the_images_begun(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stop = asyncio.Event()
        made.server.faults.after("Images.Delete", stop.set, target=preview.removals[0].id)
        report = await made.collector.run(preview, trigger="test", stop=stop)
        found = [each.outcome for each in report.results]
        assert report.end is PassEnd.CANCELLED
        assert set(found) == {Outcome.DONE, Outcome.NOT_ATTEMPTED}
        assert made.server.faults.count("Leases.Delete") == 1
        assert report.freed_bytes == report.predicted_bytes


async def test_runtime_lost_before_the_bulk_collection_ends_the_pass(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.server.faults.fail("Leases.Create", None, times=1, status="UNAVAILABLE", detail="closing")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert report.end is PassEnd.RUNTIME_LOST
        assert len(report.results) == len(preview.removals)


async def test_hold_placed_after_the_plan_keeps_the_image(rig: Opener) -> None:
    holds: list[Hold] = []
    async with rig(bulk=True, read_holds=lambda: tuple(holds)) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        now = made.node.clock.now()
        holds.append(Hold("1", victim.name, "why", "me", now, now + timedelta(hours=1)))
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        result = next(each for each in report.results if each.decision.id == victim.id)
        assert (result.outcome, "hold 1" in result.detail) == (Outcome.CHANGED, True)


async def test_holds_that_cannot_be_read_keep_every_image(rig: Opener) -> None:
    def unreadable() -> tuple[Hold, ...]:
        raise StoreError("holds.json: holds cannot be read: input/output error")

    async with rig(read_holds=unreadable) as made:
        (plan,) = (await made.collector.preview(Scope.IMAGES)).plans
        assert plan.removals == ()
        assert any("holds cannot be read" in warning for warning in plan.warnings)


async def test_unreadable_image_use_fails_the_images_and_deletes_no_name(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        made.server.faults.fail("ListPodSandbox", None, times=2, status="INTERNAL", detail="busy")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert {each.outcome for each in report.results} == {Outcome.FAILED}
        assert made.server.faults.count("Images.Delete") == 0


async def test_bulk_removal_keeps_an_image_named_again(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        another = replace(made.node.store.names[victim.name], name="registry.example.com/late:v1")

        def give_name() -> None:
            made.node.set_name(another)

        made.server.faults.before("Images.Delete", give_name, target=victim.id, times=1)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert made.node.resolve_image(another.name) == victim.id
        assert outcomes(report)[victim.id] is Outcome.CHANGED


async def test_concurrent_observations_do_not_share_caches(rig: Opener) -> None:
    async with rig(profile="2.1") as made:
        node, faults = made.node, made.server.faults
        image = next(iter(node.images.values()))
        reference = image.repo_tags[0]
        listed, detailed, go_on, ended = (asyncio.Event() for _ in range(4))
        faults.after("ListContainers", listed.set)
        faults.delay("ListPodSandbox", go_on)
        earlier = asyncio.ensure_future(made.observer.observe(Scope.IMAGES))
        await asyncio.wait_for(listed.wait(), 20)
        pod = node.add_pod("serving")
        mounting = node.add_container(pod, "model", reference, volume_images=[reference])
        slow = node.add_container(pod, "slow", reference)
        faults.delay("ContainerStatus", ended, target=slow.id)
        faults.after("ContainerStatus", detailed.set, target=mounting.id)
        later = asyncio.ensure_future(made.observer.observe(Scope.IMAGES))
        await asyncio.wait_for(detailed.wait(), 20)
        go_on.set()
        await earlier
        ended.set()
        found = {each.id: each for each in (await later).containers}
        assert found[mounting.id].volume_images
