"""The thresholds of a resource, and the outlook of the resources that a part grows."""

from __future__ import annotations

import pytest

from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.model.pressure import FilesystemLayout, Signal
from nodeagent.trend.document_readings import grown_by
from nodeagent.trend.plan.outlook import TrendPolicy, thresholds_of
from tests.unit.outlooks import NO_TREND, UNKNOWN, hard, outlook


@pytest.mark.parametrize(
    ("resource", "hard_eviction", "names"),
    [
        (Signal.MEMORY_AVAILABLE, "", ["full"]),
        (Signal.PID_AVAILABLE, "", ["full"]),
        (Signal.NODEFS_INODES_FREE, "", ["full"]),
        (Signal.SWAP_FREE, "", []),
        (Signal.SWAP_FREE, "swap.free<10%", ["hard"]),
        (Signal.MEMORY_PSI_FULL, "memory.psi.full>20", []),
        ("imagefs.available on /io.psi.some", "", ["full"]),
    ],
)
def test_full_swap_is_no_threshold_and_a_stall_has_none(resource: str, hard_eviction: str, names: list[str]) -> None:
    policy = TrendPolicy(parse_thresholds(hard=hard_eviction), None, FilesystemLayout.SINGLE)
    assert [each.name for each in thresholds_of(str(resource), 100.0, policy)] == names


def test_a_resource_without_thresholds_is_not_one_of_unknown_growth() -> None:
    unknown = outlook(hard(**UNKNOWN), growth=())
    outlooks = [outlook(growth=(), resource="io.psi.some"), unknown, outlook(hard(**NO_TREND), resource="memory")]
    assert grown_by(outlooks, ["shop/other"]) == (unknown,)
