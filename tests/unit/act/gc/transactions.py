"""A pass over all images and its outcomes, for tests of image transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.plan.gc.scope import Scope

if TYPE_CHECKING:
    from nodeagent.act.gc.outcomes import Outcome, PassReport
    from tests.unit.act.conftest import Rig


CHANGES = ("Leases.Create", "Content.Write", "Images.Delete", "Images.Create", "Leases.Delete")


async def remove_all(made: Rig) -> PassReport:
    preview = await made.collector.preview(Scope.IMAGES)
    return await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)


def outcomes(report: PassReport) -> dict[str, Outcome]:
    return {each.decision.id: each.outcome for each in report.results}
