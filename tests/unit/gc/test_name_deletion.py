"""Deletion and restore of image names, with failed and delayed calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope

if TYPE_CHECKING:
    from tests.unit.gc.conftest import Opener

_LATE_S = 0.2


@pytest.mark.parametrize("status", ["INTERNAL", "DEADLINE_EXCEEDED"])
async def test_name_deleted_after_the_failed_deletion_of_another_one_is_restored(rig: Opener, status: str) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        before = set(made.node.store.names)
        first = next(each.id for each in preview.removals if len(made.node.names_of(each.id)) > 2)
        failed, late = sorted(set(made.node.names_of(first)) - {first})[:2]
        decided = asyncio.Event()

        async def until_decided() -> None:
            """Delay the deletion until the transaction releases its lease, at most ``_LATE_S``."""
            with suppress(TimeoutError):
                await asyncio.wait_for(decided.wait(), _LATE_S)

        made.server.faults.fail("Images.Delete", target=failed, status=status)
        made.server.faults.before("Images.Delete", until_decided, target=late)
        made.server.faults.before("Leases.Delete", decided.set)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert {each.decision.id: each.outcome for each in report.results}[first] is Outcome.FAILED
        made.node.collect_garbage()
        await made.recovery.run()
        assert set(made.node.names_of(first)) == {each for each in before if each in {first, failed, late}}
        assert not made.node.store.leases


async def test_name_that_cannot_be_restored_leaves_no_other_image_without_names(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        before = set(made.node.store.names)
        preview = await made.collector.preview(Scope.IMAGES)
        refused = preview.removals[0].id
        missing = set(made.node.names_of(refused))
        made.server.faults.fail("Snapshots.List", status="INTERNAL", times=None)  # image use unreadable
        made.server.faults.fail("Images.Create", target=refused, status="INTERNAL", times=None)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        assert Outcome.DONE not in {each.outcome for each in report.results}
        assert set(made.node.store.names) == before - missing
        made.server.faults.clear()
        await made.recovery.run()
        assert set(made.node.store.names) == before
        assert not made.node.store.leases
