"""Container creations during a transaction that restores other images or creates its undo lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.record import replace
from tests.sim.store import Snapshot, SnapshotKind
from tests.unit.gc.transactions import begin_creation, outcomes

if TYPE_CHECKING:
    from tests.unit.gc.conftest import Opener


async def test_image_whose_container_is_prepared_during_the_restore_of_another_one_is_kept(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        first, late = [each.id for each in preview.removals if made.node.images[each.id].chain_id][:2]
        names = {*made.node.names_of(first), *made.node.names_of(late)}
        made.server.faults.before("Snapshots.List", begin_creation(made, first, "a", "1-a"))
        made.server.faults.before("Images.Create", begin_creation(made, late, "b", "1-b"), target=first)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert [outcomes(report)[each] for each in (first, late)] == [Outcome.CHANGED] * 2
        assert list(outcomes(report).values()).count(Outcome.DONE) == len(preview.removals) - 2
        assert names <= set(made.node.store.names)
        assert set(made.node.store.leases) == {"1-a", "1-b"}


async def test_image_whose_creation_waited_behind_other_writes_of_containerd_is_kept(rig: Opener) -> None:
    """Create the container when containerd processes the lease writes of the agent.

    containerd serializes writes, so that a creation can wait behind the garbage collection of an earlier transaction.
    """
    async with rig(bulk=True, undo_window=timedelta()) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        late = next(each.id for each in preview.removals if made.node.images[each.id].chain_id)
        names = set(made.node.names_of(late))
        create = begin_creation(made, late)
        waiting = iter([create])

        def proceed() -> None:
            for each in waiting:
                each()

        made.server.faults.before("Leases.AddResource", proceed)
        made.server.faults.before("Leases.Delete", proceed)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[late] is Outcome.CHANGED
        assert names <= set(made.node.store.names)
        assert list(outcomes(report).values()).count(Outcome.DONE) == len(preview.removals) - 1


async def test_image_whose_container_is_prepared_during_the_creation_of_the_undo_lease_is_kept(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        late = next(each.id for each in preview.removals if made.node.images[each.id].chain_id)
        names = set(made.node.names_of(late))

        def leased() -> None:  # after the transaction's lease; the next lease is the undo lease
            made.server.faults.before("Leases.Create", begin_creation(made, late, "b", "1-b"))

        made.server.faults.after("Leases.Create", leased)
        report = await made.collector.run(preview, trigger="command", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[late] is Outcome.CHANGED
        assert set(made.node.names_of(late)) == names
        (undo,) = await made.undo.list_undoable()
        assert set(undo.image_ids) == {each.id for each in preview.removals} - {late}
        assert undo.size_bytes == sum(each.frees_bytes or 0 for each in preview.removals if each.id != late)
        assert set(made.node.store.leases) == {"1-b", undo.lease_id}


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "not-loaded"])
async def test_image_whose_container_is_prepared_in_another_snapshotter_is_kept(rig: Opener, *, loaded: bool) -> None:
    async with rig(bulk=True) as made:
        victims = (await made.collector.preview(Scope.IMAGES)).removals
        late, other = [each.id for each in victims if made.node.images[each.id].chain_id][:2]
        config = made.node.store.blobs[other]
        made.node.store.blobs[other] = replace(
            config, labels={**config.labels, "containerd.io/gc.ref.snapshot.native": "sha256:0"}
        )
        if loaded:
            made.node.store.other_snapshotters["native"] = {}
        preview = await made.collector.preview(Scope.IMAGES)

        def prepare() -> None:
            parent = made.node.images[late].chain_id
            snapshot = Snapshot("c" * 64, parent, SnapshotKind.ACTIVE, 1, 1, made.node.now)
            made.node.store.other_snapshotters = {"native": {snapshot.key: snapshot}} if loaded else {}

        made.server.faults.before("Images.Delete", prepare, target=late)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert outcomes(report)[late] is (Outcome.CHANGED if loaded else Outcome.DONE)
