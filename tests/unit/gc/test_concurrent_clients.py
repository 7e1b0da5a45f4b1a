"""Other clients that change the same images during a transaction: pulls, removals, a second agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.restore import RemovalRecovery
from nodeagent.record import replace
from tests.unit.gc.transactions import outcomes, remove_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.gc.conftest import Opener, Rig


async def test_tag_pulled_with_another_digest_during_the_wait_refers_to_the_new_image(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        old, new = preview.removals[0].id, preview.removals[1].id
        names = set(made.node.names_of(old))
        tag = next(name for name in names if "@" not in name and name != old)
        record, target = made.node.store.names[tag], made.node.store.names[new].target

        def pull() -> None:
            made.node.advance(1)
            made.node.set_name(replace(record, target=target, created_at=made.node.now))

        made.server.faults.before("Snapshots.List", pull)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert [outcomes(report)[each] for each in (old, new)] == [Outcome.CHANGED] * 2
        assert made.node.store.names[tag].target == target
        assert names <= set(made.node.store.names)
        assert {name for name in names if made.node.store.names[name].target == record.target} == names - {tag}
        assert not made.node.store.leases


async def test_image_removed_by_another_client_during_the_wait_is_removed_and_no_other_one(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        others = set(made.node.store.names) - {n for each in preview.removals for n in made.node.names_of(each.id)}
        victim = preview.removals[0].id

        def remove() -> None:
            for name in made.node.names_of(victim) if victim in made.node.images else ():
                made.node.delete_image_name(name)
            made.node.collect_garbage()

        made.server.faults.before("Snapshots.List", remove)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert set(made.node.store.names) == others
        assert not made.node.store.leases


def another_agent(made: Rig, directory: Path) -> RemovalRecovery:
    """Return the removal recovery of a second agent with its own state directory."""
    return RemovalRecovery(made.storage, directory / "other.lock", made.node.clock, stable_s=0.0)


@pytest.mark.parametrize("call", ["Images.Delete", "Snapshots.List", "Leases.Delete"])
async def test_removal_in_progress_is_left_alone_by_an_agent_with_another_state_directory(
    rig: Opener, tmp_path: Path, call: str
) -> None:
    """Run the recovery of a second agent during a transaction: the recovery must not change the transaction.

    Otherwise the second agent would restore the names and release the lease while the first agent is stalled, and the
    first agent would then delete the names without a lease.
    """
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        names = {name for each in preview.removals for name in made.node.names_of(each.id)}
        second = another_agent(made, tmp_path)
        leases: list[int] = []

        async def recover() -> None:
            (sentence,) = await second.describe()
            assert "of an agent with another state directory; passes after" in sentence
            await second.run()
            leases.append(len(made.node.store.leases))

        made.server.faults.before(call, recover)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert leases == [1]
        assert set(outcomes(report).values()) == {Outcome.DONE}
        assert not names & set(made.node.store.names)
        assert not made.node.store.leases


@pytest.mark.parametrize("call", ["Snapshots.List", "Leases.Delete"])
async def test_images_restored_by_a_second_agent_after_a_long_suspension_are_kept(
    rig: Opener, tmp_path: Path, call: str
) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        preview = await made.collector.preview(Scope.IMAGES)
        second = another_agent(made, tmp_path)

        async def recover() -> None:
            made.node.advance(3600)
            await second.run()

        made.server.faults.before(call, recover)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.node.collect_garbage()
        assert set(outcomes(report).values()) == {Outcome.CHANGED}
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


async def test_agent_that_was_suspended_before_its_deletions_deletes_no_name(rig: Opener, tmp_path: Path) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        preview = await made.collector.preview(Scope.IMAGES)
        second = another_agent(made, tmp_path)

        async def suspend() -> None:
            made.node.advance(3600)
            await second.run()
            assert not made.node.store.leases

        made.server.faults.after("Leases.ListResources", suspend)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.FAILED}
        assert not made.server.faults.count("Images.Delete")
        assert set(made.node.store.names) == before


async def test_removal_of_an_earlier_boot_is_restored_by_any_agent(rig: Opener, tmp_path: Path) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        made.server.faults.fail("Leases.Delete", times=1, status="UNAVAILABLE")
        await remove_all(made)
        second = another_agent(made, tmp_path)
        await second.run()
        assert before - set(made.node.store.names)
        (lease,) = made.node.store.leases.values()
        lease.labels["nodeagent/owner"] = "5f2d0b3e-0000-4000-8000-000000000000 1:2"
        await second.run()
        assert set(made.node.store.names) == before
        assert not made.node.store.leases
