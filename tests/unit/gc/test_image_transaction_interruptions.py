"""Interrupted image transactions on a simulated containerd: crashes at every step, cancellation, recovery."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.errors import NodeAgentError
from nodeagent.gc import image_removers as transactional_remover, pass_state as measurement
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.restore import RemovalRecovery
from nodeagent.host.lock import process_lock
from tests.unit.gc.transactions import CHANGES, crash, outcomes, remove_all, use_during_removal, whole

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from nodeagent.runtime.leases import OpenRemoval
    from tests.unit.gc.conftest import Opener, Rig


async def open_removals(made: Rig) -> tuple[OpenRemoval, ...]:
    assert made.storage.removals is not None
    return await made.storage.removals.leases.list_open()


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


async def test_runtime_lost_after_some_transactions_of_a_batch_reports_the_images_of_each(
    rig: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
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
    monkeypatch.setattr(transactional_remover, "PARTS", (1,))
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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    first=st.tuples(st.sampled_from(CHANGES), st.integers(0, 40), st.booleans()),
    second=st.none() | st.tuples(st.sampled_from(CHANGES), st.integers(0, 40), st.booleans()),
    used=st.none() | st.integers(0, 20),
    restarted=st.booleans(),
    parts=st.sampled_from([(1,), (1, 2), transactional_remover.PARTS]),
)
async def test_crash_at_any_step_leaves_every_image_whole_or_removed_and_no_lease(  # noqa: PLR0917
    rig: Opener,
    monkeypatch: pytest.MonkeyPatch,
    first: tuple[str, int, bool],
    second: tuple[str, int, bool] | None,
    used: int | None,
    restarted: bool,
    parts: tuple[int, ...],
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    monkeypatch.setattr(transactional_remover, "PARTS", parts)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        names = {each.id: set(made.node.names_of(each.id)) for each in preview.removals}
        in_use = use_during_removal(made, preview, used)
        crash(made, first)
        with suppress(NodeAgentError):
            await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        made.server.faults.clear()
        undecided = {each.image_id for lease in await open_removals(made) for each in lease.names}
        for next_crash in (second, None):
            made.server.faults.clear()
            if restarted:  # containerd runs garbage collection when it starts
                made.node.collect_garbage()
            if next_crash is not None:
                crash(made, next_crash)
            await made.recovery.run()
        made.node.collect_garbage()
        present, removed = whole(made, names)
        assert not made.node.store.leases
        assert in_use in present or not in_use
        assert not undecided & removed


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
        made.node.delete_image_name(last)  # containerd executes the cancelled deletion after the restore
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
