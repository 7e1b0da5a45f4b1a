"""Image removal in transactions on a simulated containerd, with crashes at every step."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent._proto.runtime.v1 import api_pb2
from nodeagent.act.gc import measurement, transactional_remover
from nodeagent.act.gc.outcomes import Outcome, PassReport
from nodeagent.act.gc.removal_recovery import RemovalRecovery
from nodeagent.errors import NodeAgentError
from nodeagent.host.lock import process_lock
from nodeagent.plan.decision import ReasonCode
from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.plan.gc.images import ImageGCPolicy
from nodeagent.plan.gc.planner import GCPolicy
from nodeagent.plan.gc.scope import Scope
from nodeagent.runtime.containerd_facts import PINNED_LABEL
from nodeagent.sim.store import Lease, RefusedError, Snapshot, SnapshotKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.protobuf.message import Message

    from nodeagent.runtime.image_leases import OpenRemoval
    from tests.unit.act.conftest import Opener, Rig

CHANGES = ("Leases.Create", "Content.Write", "Images.Delete", "Images.Create", "Leases.Delete")
STEPS = (*CHANGES, "ListContainers", "Snapshots.List", "Leases.List", "Images.List", "Images.Get")
RECENT = {"containerd.io/gc.expire": "2099-01-01T00:00:00Z"}


async def remove_all(made: Rig) -> PassReport:
    preview = await made.collector.preview(Scope.IMAGES)
    return await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)


def outcomes(report: PassReport) -> dict[str, Outcome]:
    return {each.decision.id: each.outcome for each in report.results}


def begin_creation(made: Rig, image_id: str) -> Callable[[], None]:
    """Return an action that prepares the snapshot of a new container, whose record is not written yet."""

    def prepare() -> None:
        store = made.node.store
        store.add_lease(Lease("1234-abcd", made.node.now, dict(RECENT), [("c" * 64, "snapshots/overlayfs")]))
        parent = next(image for image in known.values() if image.id == image_id).chain_id
        store.put_snapshot(Snapshot("c" * 64, parent, SnapshotKind.ACTIVE, 1, 1, made.node.now))

    known = dict(made.node.images)
    return prepare


async def test_image_of_a_container_being_created_gets_all_names_back(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        before = {name: made.node.store.names[name] for name in made.node.names_of(victim.id)}
        # Prepared after the names were deleted, by a creation that had read the image record before.
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


async def test_image_pulled_again_since_the_plan_is_kept(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        made.node.advance(60)
        old = made.node.store.names[victim.id]
        made.node.set_name(replace(old, updated_at=made.node.now))
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[victim.id] is Outcome.CHANGED
        assert made.server.faults.count("Images.Delete", victim.id) == 0


async def test_interrupted_removal_of_this_moment_is_left_to_the_pass_that_holds_the_lock(
    rig: Opener, tmp_path: Path
) -> None:
    async with rig(bulk=True) as made:
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        await remove_all(made)
        with process_lock(tmp_path / "pass.lock"):
            await made.recovery.run()
            assert made.node.store.leases
        await made.recovery.run()
        assert not made.node.store.leases


async def open_removals(made: Rig) -> tuple[OpenRemoval, ...]:
    assert made.storage.removals is not None
    return await made.storage.removals.leases.list_open()


async def test_names_are_deleted_during_the_collection_of_the_transaction_before(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PART", 1)
    async with rig(bulk=True, undo_window=timedelta()) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        collected = asyncio.Event()
        made.server.faults.delay("Leases.Delete", collected, times=None)
        work = asyncio.ensure_future(made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1))
        await made.server.faults.arrival("Images.Delete", preview.removals[-1].id)
        collected.set()
        assert set(outcomes(await work).values()) == {Outcome.DONE}
        assert made.server.faults.count("Leases.Create") == len(preview.removals)
        assert not made.node.store.leases


async def test_runtime_lost_after_some_transactions_of_a_batch_reports_the_images_of_each(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    monkeypatch.setattr(transactional_remover, "PART", 1)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        names = {each.id: set(made.node.names_of(each.id)) for each in preview.removals}
        crash(made, ("Leases.Delete", 1, False))
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.server.faults.clear()
        await made.recovery.run()
        present, removed = whole(made, names)
        assert {each for each, outcome in outcomes(report).items() if outcome is Outcome.DONE} == removed
        assert {each for each, outcome in outcomes(report).items() if outcome is Outcome.FAILED} == present
        assert present
        assert removed


async def test_interrupted_transaction_that_cannot_be_restored_yet_does_not_delay_others(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PART", 1)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        before = set(made.node.store.names)
        made.server.faults.fail("Leases.Delete", times=None)
        await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.server.faults.clear()
        first = (await open_removals(made))[0].names[0].image_id
        made.server.faults.fail("Images.Create", target=first, times=None)
        await made.recovery.run()
        assert before - set(made.node.store.names) == set(made.node.names_of(first)) or first not in made.node.images
        (lease,) = await open_removals(made)
        assert {each.image_id for each in lease.names} == {first}
        made.server.faults.clear()
        await made.recovery.run()
        assert set(made.node.store.names) == before


async def test_stop_during_a_batch_begins_no_further_transaction(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_remover, "PART", 1)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stop = asyncio.Event()
        made.server.faults.before("Leases.Create", stop.set)
        report = await made.collector.run(preview, trigger="test", stop=stop, max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.NOT_ATTEMPTED}
        assert made.server.faults.count("Leases.Create") == 1
        assert not made.node.store.leases


def whole(made: Rig, names: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """Return the ids of the present and the removed images; fail for one in between."""
    present = {image_id for image_id, own in names.items() if own & set(made.node.store.names)}
    for image_id in present:
        assert names[image_id] <= set(made.node.store.names)
        assert image_id in made.node.images
        chain_id = made.node.images[image_id].chain_id
        assert not chain_id or chain_id in made.node.store.snapshots
    return present, names.keys() - present


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    first=st.tuples(st.sampled_from(CHANGES), st.integers(0, 40), st.booleans()),
    second=st.none() | st.tuples(st.sampled_from(CHANGES), st.integers(0, 40), st.booleans()),
    used=st.none() | st.integers(0, 20),
    restarted=st.booleans(),
    part=st.sampled_from([1, 2, transactional_remover.PART]),
)
async def test_crash_at_any_step_leaves_every_image_whole_or_removed_and_no_lease(  # noqa: PLR0917
    rig: Opener,
    monkeypatch: pytest.MonkeyPatch,
    first: tuple[str, int, bool],
    second: tuple[str, int, bool] | None,
    used: int | None,
    restarted: bool,
    part: int,
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    monkeypatch.setattr(transactional_remover, "PART", part)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        names = {each.id: set(made.node.names_of(each.id)) for each in preview.removals}
        in_use = preview.removals[used % len(preview.removals)].id if used is not None else ""
        if in_use:
            start = partial(made.node.start_container, in_use)
            made.server.faults.before("Images.Delete", start, target=in_use, times=1)
        crash(made, first)
        with suppress(NodeAgentError):
            await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.server.faults.clear()
        undecided = {each.image_id for lease in await open_removals(made) for each in lease.names}
        for next_crash in (second, None):
            made.server.faults.clear()
            if restarted:  # containerd collects garbage at its start
                made.node.collect_garbage()
            if next_crash is not None:
                crash(made, next_crash)
            await made.recovery.run()
        made.node.collect_garbage()
        present, removed = whole(made, names)
        assert not made.node.store.leases
        assert in_use in present or not in_use
        assert not undecided & removed


def crash(made: Rig, at: tuple[str, int, bool]) -> None:
    """End the runtime's responses at the n-th call of a method, before or after its effect, for all later calls."""
    method, number, after = at
    seen = iter(range(1 << 30))

    def count() -> None:
        if next(seen) == number:
            for each in STEPS:
                made.server.faults.fail(each, times=None, status="UNAVAILABLE", detail="crashed")
            if after:
                raise RefusedError("UNAVAILABLE", "crashed")

    hook = made.server.faults.after if after else made.server.faults.before
    hook(method, count, times=None)


async def test_open_removal_is_listed_with_its_expiry(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        await remove_all(made)
        (text,) = await made.recovery.describe()
        (lease,) = made.node.store.leases
        assert lease in text
        assert "containerd deletes it after" in text


async def test_cancelled_removal_restores_all_names_at_once(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        before = set(made.node.store.names)
        last = preview.removals[-1].id
        made.server.faults.delay("Images.Delete", target=last)
        work = asyncio.ensure_future(made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1))
        await made.server.faults.arrival("Images.Delete", last)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        assert set(made.node.store.names) == before
        made.node.delete_image_name(last)  # the cancelled deletion takes effect late
        made.node.collect_garbage()
        await made.recovery.run()
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


async def test_deletion_that_timed_out_restores_the_batch_and_keeps_the_lease_until_the_next_pass(rig: Opener) -> None:
    async with rig(bulk=True, deadlines={"images.Delete": 0.5}) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        before = set(made.node.store.names)
        late = preview.removals[0].id
        made.server.faults.delay("Images.Delete", target=late)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert Outcome.DONE not in outcomes(report).values()
        made.node.delete_image_name(late)
        made.node.collect_garbage()
        await made.recovery.run()
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


async def test_interrupted_removal_is_completed_before_a_pass_and_not_by_a_preview(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        made.server.faults.fail("Images.Create", times=None, status="UNAVAILABLE")
        await remove_all(made)
        made.server.faults.clear()
        missing = before - set(made.node.store.names)
        await made.collector.preview(Scope.IMAGES)
        assert missing == before - set(made.node.store.names) != set()
        assert made.node.store.leases
        await made.collector.prepare(Scope.IMAGES)
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


async def test_recent_removal_is_not_restored_without_the_lock(rig: Opener, tmp_path: Path) -> None:
    async with rig(bulk=True) as made:
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        await remove_all(made)
        recovery = RemovalRecovery(made.storage, tmp_path / "occupied" / "pass.lock", made.node.clock, stable_s=0.0)
        (tmp_path / "occupied").write_text("")
        await recovery.run()
        assert made.node.store.leases
        made.node.advance(3600)
        await recovery.run()
        assert not made.node.store.leases


async def test_name_deleted_late_by_the_interrupted_process_is_restored_before_the_lease_is_released(
    rig: Opener,
) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        report = await remove_all(made)
        late = report.results[0].decision.id
        delete = partial(made.node.delete_image_name, late)
        made.server.faults.after("Images.Create", delete, target=late, times=1)
        await made.recovery.run()
        made.node.collect_garbage()
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


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


async def test_lease_that_cannot_be_completed_nor_deleted_removes_nothing(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        made.server.faults.fail("Content.Write", times=None)
        made.server.faults.fail("Leases.Delete", times=None)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert set(made.node.store.names) == before


@pytest.mark.parametrize("part", ["blob", "label", "resource"])
async def test_lease_without_the_content_of_an_image_is_not_used(rig: Opener, part: str) -> None:
    """As of a server that ignores the header of the lease, or labels of a write."""
    async with rig(bulk=True) as made:

        def lose() -> None:
            (lease,) = made.node.store.leases.values()
            ((digest, _),) = lease.resources
            if part == "resource":
                lease.resources.clear()
            elif part == "blob":
                made.node.store.remove_blob(digest)
            else:
                made.node.store.blobs[digest].labels.popitem()

        made.server.faults.after("Content.Write", lose, times=1)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        calls = [call.method for call in made.server.calls]
        assert "Images.Delete" not in calls
        assert calls.count("RemoveImage") == len(report.results)
        assert not made.node.store.leases


@pytest.mark.parametrize("method", ["Leases.Create", "Content.Write"])
async def test_lease_that_is_not_created_in_time_removes_nothing_without_protection(rig: Opener, method: str) -> None:
    async with rig(bulk=True, deadlines={"leases.Create": 0.2, "content.Write": 0.2}) as made:
        before = set(made.node.store.names)
        made.server.faults.delay(method, times=None)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert not made.server.faults.count("RemoveImage")
        assert set(made.node.store.names) == before


async def test_number_of_changes_depends_on_the_names_only(rig: Opener) -> None:
    async with rig(bulk=True, undo_window=timedelta()) as made:
        before = len(made.node.store.names)
        await remove_all(made)
        deleted = before - len(made.node.store.names)
        changes = Counter(call.method for call in made.server.calls if call.method in CHANGES)
        assert changes == {"Leases.Create": 1, "Content.Write": 1, "Images.Delete": deleted, "Leases.Delete": 1}


async def test_image_pinned_by_the_label_of_any_name_is_kept(rig: Opener) -> None:
    async with rig(profile="1.6") as made:
        victim = (await made.collector.preview(Scope.IMAGES)).removals[0]
        name = next(each for each in made.node.names_of(victim.id) if each != victim.id)
        made.node.set_name(replace(made.node.store.names[name], labels={PINNED_LABEL: "pinned"}))
        (plan,) = (await made.collector.preview(Scope.IMAGES)).plans
        assert {each.id: each.reason.code for each in plan.decisions}[victim.id] is ReasonCode.PINNED
        made.node.set_name(replace(made.node.store.names[name], labels={}))
        assert victim.id in {each.id for each in (await made.collector.preview(Scope.IMAGES)).removals}
