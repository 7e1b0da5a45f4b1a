"""Undo of image removals on a simulated containerd, with crashes at every step."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from nodeagent.errors import NodeAgentError, PassBusyError, UsageError
from nodeagent.gc import pass_state as measurement
from nodeagent.gc.executor import Outcome
from nodeagent.gc.pass_state import undo_terms
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.gc.restore import ImageUndo, NotUndoableError, UndoOutcome
from nodeagent.host.lock import process_lock
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.record import replace
from nodeagent.runtime.storage_backend import CriOnlyStorage
from tests.sim.store import BLOCK_BYTES
from tests.unit.gc.transactions import CHANGES, LEASE_CHANGES, crash

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.gc.executor import PassReport
    from tests.unit.gc.conftest import Opener, Rig

WINDOW_S = 600.0
HOLDER_BYTES = BLOCK_BYTES
"""Disk usage of the blob that references the images of a lease."""


async def remove_all(made: Rig, trigger: str = "command", rounds: int = 1) -> PassReport:
    preview = await made.collector.preview(Scope.IMAGES)
    return await made.collector.run(preview, trigger=trigger, stop=asyncio.Event(), max_rounds=rounds)


def records(made: Rig, names: set[str]) -> dict[str, tuple[object, object]]:
    return {name: (made.node.store.names[name].target, made.node.store.names[name].labels) for name in names}


@pytest.mark.difference("image-transaction")
async def test_images_removed_by_a_command_are_restored_with_all_names(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        before = records(made, set(made.node.store.names))
        report = await remove_all(made)
        assert report.removed
        assert report.undo_until == made.node.now + timedelta(seconds=WINDOW_S)
        assert made.node.store.names.keys() < before.keys()
        made.node.collect_garbage()
        (undoable,) = await made.undo.list_undoable()
        assert undoable.pass_id == report.id
        assert set(undoable.image_ids) == {each.decision.id for each in report.removed}
        undone = await made.undo.undo("")
        assert {each.outcome for each in undone.results} == {UndoOutcome.RESTORED}
        assert records(made, set(made.node.store.names)) == before
        assert not made.node.store.leases
        with pytest.raises(NotUndoableError, match="nothing to undo"):
            await made.undo.undo("")


async def test_report_counts_leased_bytes_separately_and_the_end_of_the_window_frees_them(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        before_bytes = made.node.store.used_bytes
        report = await remove_all(made, rounds=5)
        assert report.end.value == "complete"
        assert (report.predicted_bytes, report.freed_bytes) == (0, None)
        assert report.undo_bytes == sum(each.decision.frees_bytes or 0 for each in report.removed)
        assert made.node.store.used_bytes == before_bytes + HOLDER_BYTES
        made.node.advance(WINDOW_S - 1)
        await made.recovery.run()
        assert made.node.store.used_bytes == before_bytes + HOLDER_BYTES
        made.node.advance(2)
        await made.recovery.run()
        assert before_bytes - made.node.store.used_bytes == report.undo_bytes
        assert not made.node.store.leases
        with pytest.raises(NotUndoableError):
            await made.undo.undo(report.id)


@pytest.mark.parametrize("trigger", ["interval", "once", "eviction"])
async def test_removals_for_space_by_the_daemon_are_final(rig: Opener, trigger: str) -> None:
    async with rig(bulk=True) as made:
        report = await remove_all(made, trigger)
        assert report.removed
        assert report.undo_until is None
        assert not made.node.store.leases


async def test_removals_are_final_without_a_window(rig: Opener) -> None:
    async with rig(bulk=True, undo_window=timedelta()) as made:
        report = await remove_all(made)
        assert report.freed_bytes == report.predicted_bytes > 0
        assert not made.node.store.leases


@pytest.mark.parametrize(
    ("trigger", "window_s", "space_needed", "age", "space"),
    [
        ("command", 600, False, True, True),
        ("control", 600, True, True, True),
        ("apply", 600, True, True, True),
        ("interval", 600, False, True, False),
        ("once", 600, False, True, False),
        ("interval", 600, True, False, False),
        ("eviction", 600, True, False, False),
        ("command", 0, False, False, False),
    ],
)
def test_window_covers_removals_by_age_and_those_of_users(
    trigger: str, window_s: int, space_needed: bool, age: bool, space: bool
) -> None:
    terms = undo_terms("p1", trigger, timedelta(seconds=window_s), space_needed=space_needed)

    def covered(kind: ItemKind, code: ReasonCode) -> bool:
        return terms is not None and terms.covers(Decision(kind, "x", "x", Verdict.REMOVE, Reason(code)))

    assert covered(ItemKind.IMAGE, ReasonCode.UNUSED_TOO_LONG) is age
    assert covered(ItemKind.IMAGE, ReasonCode.LEAST_RECENTLY_USED) is space
    assert not covered(ItemKind.CONTAINER, ReasonCode.POD_DELETED)


async def test_leased_bytes_count_as_on_their_way_so_that_no_further_image_is_removed(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        first = await remove_all(made)
        again = await made.collector.preview(Scope.IMAGES)
        assert not again.removals
        kept = {each.reason.code for plan in again.plans for each in plan.decisions}
        assert ReasonCode.UNDO_WINDOW_OPEN in kept
        report = await made.collector.run(again, trigger="interval", stop=asyncio.Event())
        assert not report.results
        assert [each.pass_id for each in await made.undo.list_undoable()] == [first.id]


async def test_undo_windows_end_before_a_further_image_is_removed_for_space(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        first = await remove_all(made)
        used_bytes = made.node.store.used_bytes
        tighter = GCPolicy(images=ImageGCPolicy(high_threshold_percent=2, low_threshold_percent=1, minimum_age_s=0))
    assert first.undo_bytes
    async with rig(bulk=True, policy=tighter) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        one = preview.removals[0]
        await made.collector.run(
            replace(preview, plans=tuple(replace(each, decisions=(one,)) for each in preview.plans)),
            trigger="command",
            stop=asyncio.Event(),
            max_rounds=1,
        )
        (leased,) = made.node.store.leases
        again = await made.collector.preview(Scope.IMAGES)
        assert again.removals
        assert again.pending_bytes == (one.frees_bytes or 0) + HOLDER_BYTES
        seen: list[bool] = []
        made.server.faults.before("Images.Delete", lambda: seen.append(leased in made.node.store.leases))
        report = await made.collector.run(again, trigger="interval", stop=asyncio.Event(), max_rounds=1)
        assert seen == [False]
        assert report.freed_bytes == report.predicted_bytes > (one.frees_bytes or 0)
        assert made.node.store.used_bytes < used_bytes
        assert not made.node.store.leases


async def test_image_pulled_again_meanwhile_is_kept_as_pulled(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        other = next(iter(made.node.images.values()))
        victim = next(each for each in preview.removals if each.id != other.id)
        tag = next(name for name in made.node.names_of(victim.id) if "@" not in name and name != victim.id)
        old = made.node.store.names[tag]
        target = made.node.store.names[other.id].target
        await made.collector.run(preview, trigger="command", stop=asyncio.Event(), max_rounds=1)
        made.node.set_name(replace(old, target=target, labels={"pulled": "again"}))
        undone = await made.undo.undo("")
        result = next(each for each in undone.results if each.id == victim.id)
        assert result.outcome is UndoOutcome.RESTORED
        assert tag in result.detail
        assert made.node.store.names[tag].labels == {"pulled": "again"}
        assert victim.id in made.node.store.names


async def test_unknown_pass_and_ambiguous_beginning_are_refused_without_a_change(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        for each in preview.removals[:2]:
            one = replace(
                preview, plans=tuple(replace(plan, decisions=(each,), ends_undo=False) for plan in preview.plans)
            )
            await made.collector.run(one, trigger="command", stop=asyncio.Event(), max_rounds=1)
            made.node.advance(1)
        names, leases = set(made.node.store.names), set(made.node.store.leases)
        newest, oldest = [each.pass_id for each in await made.undo.list_undoable()]
        assert newest > oldest
        with pytest.raises(NotUndoableError, match="passes that can be undone"):
            await made.undo.undo("1999")
        with pytest.raises(UsageError, match="several pass ids"):
            await made.undo.undo("20")
        with process_lock(made.logs / "pass.lock"), pytest.raises(PassBusyError):
            await made.undo.undo(oldest)
        assert (set(made.node.store.names), set(made.node.store.leases)) == (names, leases)
        assert (await made.undo.undo(oldest)).pass_id == oldest
        assert [each.pass_id for each in await made.undo.list_undoable()] == [newest]


async def test_undo_is_refused_on_a_runtime_without_leases(rig: Opener, tmp_path: Path) -> None:
    async with rig(containerd_api=False, bulk=True) as made:
        with pytest.raises(NodeAgentError, match="RemoveImage deletes immediately: this runtime is not containerd"):
            await made.undo.undo("")
        assert await made.undo.list_undoable() == ()
        assert not await made.undo.end_all()
    disabled = ImageUndo(CriOnlyStorage(), made.undo, tmp_path / "pass.lock", made.node.clock, timedelta())  # type: ignore[arg-type]
    with pytest.raises(NodeAgentError, match="containerd_api is off"):
        await disabled.undo("")


async def test_lease_of_an_incomplete_copy_restores_nothing(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        await remove_all(made)
        (lease,) = made.node.store.leases.values()
        lease.resources.pop()
        undone = await made.undo.undo("")
        assert {each.outcome for each in undone.results} == {UndoOutcome.FAILED}
        assert not made.node.store.names.keys() & {each.id for each in undone.results}


async def test_removal_is_final_if_no_lease_for_the_undo_can_be_created(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)

        def full() -> None:  # after the transaction's lease; the next lease is the undo lease
            made.server.faults.fail("Leases.Create", times=1, status="UNKNOWN", detail="no space left on device")

        made.server.faults.after("Leases.Create", full, times=1)
        report = await made.collector.run(preview, trigger="command", stop=asyncio.Event(), max_rounds=1)
        assert {each.outcome for each in report.results} == {Outcome.DONE}
        assert report.undo_until is None
        assert all("no undo possible" in each.detail and "no space left" in each.detail for each in report.results)
        assert not made.node.store.leases


async def test_open_window_is_listed_as_a_lease_of_the_agent(rig: Opener) -> None:
    async with rig(bulk=True) as made:
        report = await remove_all(made)
        (text,) = await made.recovery.describe()
        assert report.id in text
        assert "for an undo until" in text
        assert (await made.observer.images.find_unlisted()).unreferenced == ()


CRASHES = st.none() | st.tuples(st.sampled_from(CHANGES), st.integers(0, 40), st.booleans())
OPERATIONS = st.sampled_from(["remove", "undo", "recover", "collect", "restart", "wait", "pull"])
Steps = list[tuple[str, tuple[str, int, bool] | None]]


class Sequence:
    """A sequence of operations on a node that initially has all images."""

    def __init__(self, made: Rig, image_ids: list[str]) -> None:
        self._made = made
        self.names = {each: set(made.node.names_of(each)) for each in image_ids}
        self._stored = {name: made.node.store.names[name] for own in self.names.values() for name in own}

    async def run(self, step: str) -> None:
        match step:
            case "remove":
                await remove_all(self._made)
            case "undo":
                undone = await self._made.undo.undo("")
                restored = {each.id for each in undone.results if each.outcome is UndoOutcome.RESTORED}
                assert restored <= self._made.node.images.keys()
            case "recover":
                await self._made.recovery.run()
            case "collect":
                await self._made.storage.remove_orphaned_directories("overlayfs")
            case "restart":  # containerd runs garbage collection when it starts
                self._made.node.collect_garbage()
            case "wait":
                self._made.node.advance(WINDOW_S)
            case _:
                self._pull()

    def has_content(self, image_id: str) -> bool:
        return self._stored[image_id].target.digest in self._made.node.store.blobs

    def _pull(self) -> None:
        """Create all names of one removed image with content still on the node, as a pull does."""
        store = self._made.node.store
        removed = [each for each in self.names if not self.names[each] & set(store.names) and self.has_content(each)]
        for name in sorted(self.names[removed[0]]) if removed else ():
            self._made.node.set_name(replace(self._stored[name], created_at=self._made.node.now))


async def check_sequence(made: Rig, steps: Steps) -> bool:
    """Run a sequence and then the recovery; return whether the last step reached its crash."""
    sequence = Sequence(made, [each.id for each in (await made.collector.preview(Scope.IMAGES)).removals])
    crashed = False
    for step, at in steps:
        made.server.faults.clear()
        happened = crash(made, at) if at is not None else bool
        made.node.advance(1)
        with suppress(NodeAgentError):
            await sequence.run(step)
        crashed = happened()
    made.server.faults.clear()
    listed = [text for text in await made.recovery.describe() for lease in made.node.store.leases if lease in text]
    assert len(listed) == len(made.node.store.leases)
    made.node.advance(1)
    await made.recovery.run()
    made.node.collect_garbage()
    undoable = {image_id for each in await made.undo.list_undoable() for image_id in each.image_ids}
    for image_id, own in sequence.names.items():
        present = own & set(made.node.store.names)
        assert present in (set(), own), f"only a part of the names of image {image_id} is restored"
        assert sequence.has_content(image_id) or not (present or image_id in undoable)
    assert made.node.store.leases.keys() == {each.lease_id for each in await made.undo.list_undoable()}
    made.node.advance(WINDOW_S)
    await made.recovery.run()
    assert not made.node.store.leases
    return crashed


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(st.tuples(OPERATIONS, CRASHES), min_size=1, max_size=6))
@example(steps=[("remove", None), ("undo", None), ("remove", ("Leases.Create", 0, False))])
@example(steps=[("remove", None), ("undo", None), ("remove", ("Leases.Create", 0, True))])
async def test_any_sequence_with_crashes_leaves_every_image_whole_or_removed_and_no_lease_beyond_its_window(
    rig: Opener, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    async with rig(bulk=True) as made:
        await check_sequence(made, steps)


@pytest.mark.parametrize("method", LEASE_CHANGES)
@pytest.mark.parametrize(
    "steps",
    [
        ("remove",),
        ("remove", "undo"),
        ("remove", "undo", "remove"),
        ("remove", "wait", "recover"),
        ("remove", "wait", "remove"),
        ("collect",),
    ],
    ids=" ".join,
)
async def test_crash_at_any_change_of_a_lease_leaves_a_listed_lease_that_the_recovery_deletes(
    rig: Opener, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...], method: str
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    *before, last = steps
    for number in count():
        async with rig(bulk=True) as made:
            if not await check_sequence(made, [*((each, None) for each in before), (last, (method, number, True))]):
                break
