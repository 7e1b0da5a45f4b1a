"""Image transactions while containerd refuses a number of writes, as on a full disk, but serves reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings, strategies as st

from nodeagent.gc import image_removers as transactional_remover, pass_state as measurement
from nodeagent.gc.plan.policy import Scope
from tests.sim.store import RefusedError
from tests.unit.gc.transactions import CHANGES, use_during_removal, whole

if TYPE_CHECKING:
    import pytest

    from tests.unit.gc.conftest import Opener, Rig


def refuse(made: Rig, first: int, number: int, detail: str, *, after: bool) -> None:
    """Refuse ``number`` write calls, the first at index ``first``; with ``after``, the refused calls take effect."""
    seen = iter(range(1 << 30))

    def count() -> None:
        if first <= next(seen) < first + number:
            raise RefusedError("UNKNOWN", detail)

    for method in CHANGES:
        (made.server.faults.after if after else made.server.faults.before)(method, count, times=None)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    first=st.integers(0, 60),
    number=st.sampled_from([1, 2, 3, 8, 1000]),
    detail=st.sampled_from(["no space left on device", "database is closed"]),
    after=st.booleans(),
    used=st.none() | st.integers(0, 20),
    undoable=st.booleans(),
    parts=st.sampled_from([(2,), (1, 2), transactional_remover.PARTS]),
)
async def test_refused_changes_leave_every_image_whole_or_removed(  # noqa: PLR0917
    rig: Opener,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    number: int,
    detail: str,
    after: bool,
    used: int | None,
    undoable: bool,
    parts: tuple[int, ...],
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)
    monkeypatch.setattr(transactional_remover, "PARTS", parts)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        names = {each.id: set(made.node.names_of(each.id)) for each in preview.removals}
        in_use = use_during_removal(made, preview, used)
        refuse(made, first, number, detail, after=after)
        trigger = "command" if undoable else "test"
        await made.collector.run(preview, trigger=trigger, stop=asyncio.Event(), max_rounds=1)
        await made.recovery.run()
        made.server.faults.clear()
        await made.recovery.run()
        made.node.collect_garbage()
        present, removed = whole(made, names)
        used_now = {each.image_id for each in made.node.containers.values()}
        # Without a lease the agent deletes no name, so that the container of the image in use is not started.
        assert in_use in present or in_use not in used_now
        undo = {image_id for each in await made.undo.list_undoable() for image_id in each.image_ids}
        assert undo <= removed
        assert len(made.node.store.leases) == len(await made.undo.list_undoable())
