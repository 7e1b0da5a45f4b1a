"""Passes over all images, their outcomes, and crashes of the runtime, for tests of image transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.plan.gc.scope import Scope
from nodeagent.sim.store import RefusedError

if TYPE_CHECKING:
    from nodeagent.act.gc.outcomes import Outcome, PassReport
    from tests.unit.act.conftest import Rig


CHANGES = ("Leases.Create", "Content.Write", "Images.Delete", "Images.Create", "Leases.Delete")
STEPS = (
    *CHANGES,
    "ListContainers",
    "Snapshots.List",
    "Leases.List",
    "Images.List",
    "Images.Get",
    "Leases.ListResources",
)


async def remove_all(made: Rig) -> PassReport:
    preview = await made.collector.preview(Scope.IMAGES)
    return await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)


def outcomes(report: PassReport) -> dict[str, Outcome]:
    return {each.decision.id: each.outcome for each in report.results}


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
