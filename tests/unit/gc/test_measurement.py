"""Measurement of the image filesystem after a pass for an eviction threshold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc import pass_state as measurement
from nodeagent.gc.executor import Outcome, PassTrigger, Result
from nodeagent.gc.pass_state import Measurement, PassProgress, readings_of
from nodeagent.gc.plan.policy import Scope
from nodeagent.record import replace
from tests.unit.builders import MIB, NOW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.runtime import FsObservation
    from tests.unit.gc.conftest import Opener


@pytest.mark.parametrize(
    ("changes_mib", "readings"),
    [
        pytest.param((0, -1, -2, -3), 2, id="other writers consume the freed bytes"),
        pytest.param((0, 1, 0, -3), 3, id="bytes consumed after a partial release"),
        pytest.param((0, 0, 1 << 20), 3, id="bytes freed at the third reading"),
    ],
)
async def test_measurement_for_an_eviction_waits_for_the_freed_bytes_only_until_others_consume_them(
    rig: Opener, monkeypatch: pytest.MonkeyPatch, changes_mib: Iterable[int], readings: int
) -> None:
    monkeypatch.setattr(measurement, "SETTLE_STEP_S", 0.001)
    async with rig(bulk=True) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        (before,) = readings_of(preview.snapshot)
        progress = PassProgress(NOW, preview, PassTrigger.EVICTION, made.collector.policy)
        progress.plans.extend(preview.plans)
        progress.results.extend(Result(each, Outcome.DONE) for each in preview.removals)
        changes, read = iter(changes_mib), []

        def read_filesystem(path: str) -> FsObservation:
            assert path == before.path
            read.append(replace(before, available_bytes=before.available_bytes + next(changes) * MIB))
            return read[-1]

        (measured,) = await Measurement(progress, read_filesystem, asyncio.Event(), hurried=True).read()
    assert (len(read), measured.after) == (readings, read[-1])
