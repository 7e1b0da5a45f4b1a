"""Batches of image transactions, their leases and the candidates of a transaction, on a simulated containerd."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc import image_removers as transactional_remover
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import ReasonCode
from nodeagent.record import replace
from nodeagent.runtime.containerd import PINNED_LABEL
from tests.unit.gc.transactions import CHANGES, begin_creation, outcomes, remove_all

if TYPE_CHECKING:
    from tests.unit.gc.conftest import Opener

FULL = "write /var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db: no space left on device"


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


async def test_names_are_deleted_during_the_collection_of_the_transaction_before(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
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


async def test_lease_of_the_next_transaction_is_created_during_the_deletion_of_names_before_it(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
    async with rig(bulk=True, undo_window=timedelta()) as made:
        two_leases = asyncio.Event()
        made.server.faults.before("Images.Delete", two_leases.wait)

        def set_if_two() -> None:
            if len(made.node.store.leases) > 1:
                two_leases.set()

        made.server.faults.after("Leases.Create", set_if_two, times=None)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert not made.node.store.leases


async def test_stop_after_the_lease_of_the_next_transaction_deletes_the_lease_and_no_name(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
    async with rig(bulk=True, undo_window=timedelta()) as made:
        stop = asyncio.Event()
        made.server.faults.before("Images.Delete", stop.wait)

        def stop_if_two() -> None:
            if len(made.node.store.leases) > 1:
                stop.set()

        made.server.faults.after("Content.Write", stop_if_two, times=None)
        preview = await made.collector.preview(Scope.IMAGES)
        report = await made.collector.run(preview, trigger="test", stop=stop, max_rounds=1)
        assert Counter(outcomes(report).values()) == {
            Outcome.DONE: 1,
            Outcome.NOT_ATTEMPTED: len(preview.removals) - 1,
        }
        assert made.server.faults.count("Leases.Create") == 2
        assert not made.node.store.leases


async def test_stop_during_a_batch_begins_no_further_transaction(rig: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        stop = asyncio.Event()
        made.server.faults.before("Leases.Create", stop.set)
        report = await made.collector.run(preview, trigger="test", stop=stop, max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.NOT_ATTEMPTED}
        assert made.server.faults.count("Leases.Create") == 1
        assert not made.node.store.leases


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
    """Simulate a containerd that ignores the lease header or the labels of a content write."""
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

        before = set(made.node.store.names)
        made.server.faults.after("Content.Write", lose, times=None)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert not made.server.faults.count("Images.Delete")
        assert not made.server.faults.count("RemoveImage")
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


@pytest.mark.parametrize("method", ["Leases.Create", "Content.Write"])
async def test_lease_that_is_refused_once_is_created_at_the_next_attempt(rig: Opener, method: str) -> None:
    async with rig(bulk=True) as made:
        made.server.faults.fail(method, status="INTERNAL", detail="busy")
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert not made.server.faults.count("RemoveImage")


@pytest.mark.parametrize("parts", [(1,), transactional_remover.PARTS])
async def test_images_are_kept_with_the_reason_if_containerd_refuses_every_lease(
    rig: Opener, monkeypatch: pytest.MonkeyPatch, parts: tuple[int, ...]
) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", parts)
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        made.server.faults.fail("Leases.Create", times=None, status="INTERNAL", detail="database is closed")
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert all("database is closed" in each.detail for each in report.results)
        assert all('image_gc.removal = "cri"' in each.detail for each in report.results)
        assert made.server.faults.count("Leases.Create") == 3
        assert not made.server.faults.count("RemoveImage")
        assert set(made.node.store.names) == before


async def test_images_are_leased_without_a_blob_where_the_disk_is_too_full_for_it(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        used = next(each.id for each in preview.removals if made.node.images[each.id].chain_id)
        names = set(made.node.names_of(used))
        made.server.faults.fail("Content.Write", times=None, detail=FULL)
        made.server.faults.before("Snapshots.List", begin_creation(made, used))
        made.server.faults.before("Images.Create", made.node.collect_garbage, target=used)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert {each for each, outcome in outcomes(report).items() if outcome is Outcome.CHANGED} == {used}
        assert list(outcomes(report).values()).count(Outcome.DONE) == len(report.results) - 1
        assert names <= set(made.node.store.names)
        assert not made.server.faults.count("RemoveImage")


async def test_images_are_removed_by_cri_only_while_the_disk_is_too_full_for_any_lease(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
    async with rig(bulk=True) as made:
        made.server.faults.fail("Leases.Create", times=1, detail=FULL)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert made.server.faults.count("RemoveImage") == 1


async def test_images_with_more_names_than_one_lease_can_record_are_removed_in_several_transactions(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(bulk=True) as made:
        assert made.storage.removals is not None
        sizes = [len(encoded) for _, encoded in (await made.storage.removals.leases.list_names()).values()]
        monkeypatch.setattr(transactional_remover, "MAX_LABELS_BYTES", 4 * max(sizes) * 4 // 3)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert not made.server.faults.count("RemoveImage")
        assert made.server.faults.count("Leases.Create") > 1


@pytest.mark.parametrize("method", ["Leases.Create", "Content.Write"])
async def test_lease_that_is_not_created_in_time_removes_nothing_without_protection(rig: Opener, method: str) -> None:
    async with rig(bulk=True, deadlines={"leases.Create": 0.2, "content.Write": 0.2}) as made:
        before = set(made.node.store.names)
        made.server.faults.delay(method, times=None)
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert not made.server.faults.count("RemoveImage")
        assert set(made.node.store.names) == before


async def test_images_are_kept_if_the_records_of_containerd_were_unreadable_at_the_observation(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        await made.collector.preview(Scope.IMAGES)  # reads and stores the origin of the images
        made.server.faults.fail("Content.List", times=None, status="INTERNAL")
        report = await remove_all(made)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert not made.server.faults.count("RemoveImage")
        made.server.faults.clear()
        assert set(outcomes(await remove_all(made)).values()) == {Outcome.DONE}


async def test_number_of_changes_depends_on_the_names_only(rig: Opener) -> None:
    async with rig(bulk=True, undo_window=timedelta()) as made:
        before = len(made.node.store.names)
        await remove_all(made)
        deleted = before - len(made.node.store.names)
        written = set(CHANGES) - {"Leases.AddResource"}  # one for each kind of content
        changes = Counter(call.method for call in made.server.calls if call.method in written)
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
