"""Other clients that change the same images during a transaction: pulls, removals, a second agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.act.gc.outcomes import Outcome
from nodeagent.act.gc.removal_recovery import RemovalRecovery
from nodeagent.plan.gc.scope import Scope
from tests.unit.act.gc.transactions import outcomes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.act.conftest import Opener


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


async def test_images_restored_by_a_second_agent_during_the_wait_are_kept(rig: Opener, tmp_path: Path) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        preview = await made.collector.preview(Scope.IMAGES)
        second = RemovalRecovery(made.storage, tmp_path / "other.lock", made.node.clock, stable_s=0.0)
        made.server.faults.before("Snapshots.List", second.run)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert set(outcomes(report).values()) == {Outcome.CHANGED}
        assert set(made.node.store.names) == before
        assert not made.node.store.leases


async def test_images_restored_by_a_second_agent_at_the_release_are_reported_as_kept(
    rig: Opener, tmp_path: Path
) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        preview = await made.collector.preview(Scope.IMAGES)
        second = RemovalRecovery(made.storage, tmp_path / "other.lock", made.node.clock, stable_s=0.0)
        made.server.faults.before("Leases.Delete", second.run)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.node.collect_garbage()
        assert set(outcomes(report).values()) == {Outcome.CHANGED}
        assert set(made.node.store.names) == before
        assert not made.node.store.leases
