"""Observation of image use across reboots, also of a node that reboots more often than the maximum unused age."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import Store
from nodeagent.store.observation import GapLimits, gap_limits
from tests.unit.builders import image, snapshot
from tests.unit.store.test_observation import DAY_S, T0, at, observe_s

if TYPE_CHECKING:
    from pathlib import Path


def reboot(directory: Path, stop_s: float = 3000.0, off_s: float = 60.0, **changes: Any) -> float:
    """Observe use for 3000 s, stop, and boot another kernel; return the seconds observed 1000 s after the boot.

    The first detection is 100 s after the boot. ``changes`` are of the parts of the sequence.
    """
    gaps = changes.get("gaps", GapLimits(900, 900))
    store = Store(directory, gaps=gaps)
    for each in range(0, 3001, 300):
        observe_s(store, at(each))
    if changes.get("stopped", True):
        store.stop(at(stop_s, wall_s=changes.get("stop_wall_s")))
    booted_s = stop_s + changes.get("running_s", 0.0) + off_s
    for _ in range(changes.get("boots_without_agent", 0)):
        booted_s += 700.0
    ahead_s = changes.get("ahead_s", 0.0)
    observed_s: float | None = None
    first_s = changes.get("first_s", 100.0)
    for passed_s in (first_s, first_s + 300.0, first_s + 600.0, first_s + 900.0):
        reopened = Store(directory, gaps=gaps)
        wall = T0 + timedelta(seconds=booted_s + passed_s + ahead_s)
        observed_s = observe_s(reopened, ClockReading("next boot", passed_s, wall))
        ahead_s = changes.get("corrected_s", ahead_s)
    assert observed_s is not None
    return observed_s


@pytest.mark.parametrize(
    ("changes", "observed_s"),
    [
        pytest.param({}, 3000 + 1000, id="short"),
        pytest.param({"stop_s": 3200.0}, 3200 + 1000, id="stop-after-the-last-detection"),
        pytest.param({"ahead_s": 30.0, "corrected_s": 0.0, "first_s": 10.0}, 3000 + 910, id="corrected-early"),
        pytest.param({"stopped": False}, 900, id="stop-not-recorded"),
        pytest.param({"off_s": 1000.0}, 900, id="off-for-long"),
        pytest.param({"boots_without_agent": 2}, 900, id="boots-without-agent"),
        pytest.param({"first_s": 900.0}, 900, id="runtime-started-late"),
        pytest.param({"stop_s": 3000.0 + 901.0}, 900, id="no-pass-for-long-before-the-stop"),
        pytest.param({"ahead_s": -4000.0}, 900, id="clock-behind"),
        pytest.param({"ahead_s": 4000.0}, 900, id="clock-ahead"),
        pytest.param({"off_s": 90_000.0, "ahead_s": -90_000.0, "corrected_s": 0.0}, 900, id="clock-stopped"),
    ],
)
def test_observation_continues_over_a_reboot_only_if_the_unobserved_time_is_proven_to_be_short(
    tmp_path: Path, changes: dict[str, Any], observed_s: float
) -> None:
    assert reboot(tmp_path, **changes) == pytest.approx(observed_s, abs=0.001)


def test_earlier_boots_count_only_after_the_wall_clock_is_settled(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for each in range(0, 1201, 300):
        observe_s(store, at(each))
    store.stop(at(1200))
    store = Store(tmp_path)

    def boot(seconds: float, wall_s: float = 0.0) -> ClockReading:
        return ClockReading("next boot", seconds, T0 + timedelta(seconds=1260 + seconds + wall_s))

    found = [observe_s(store, boot(each)) for each in (10, 300, 609, 611)]
    assert found == [0, 290, 599, 1811]
    found = [observe_s(store, boot(each, wall_s=-30)) for each in (620, 900, 1219, 1221)]
    assert found == [610, 890, 1209, 2421]


def test_image_used_until_the_reboot_counts_as_used_until_the_first_detection_after_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for each in range(0, 1201, 300):
        store.observe({"a": None, "b": None}, {"a"}, at(each))
    store.stop(at(1200))
    first = ClockReading("next boot", 50, T0 + timedelta(seconds=1500))
    usage = Store(tmp_path).observe({"a": None, "b": None}, (), first).usage
    assert usage["a"].last_used == first.wall - timedelta(microseconds=1)
    assert usage["b"].first_detected == first.wall - timedelta(seconds=1250)


@pytest.mark.difference("image-use-recorded")
@pytest.mark.parametrize("every_d", [0.5, 5.0, 6.9])
@pytest.mark.parametrize("clock_s", [0.0, 600.0, -600.0], ids=["right", "set forward", "set back"])
def test_image_is_removed_in_time_on_a_node_that_reboots_more_often_than_the_maximum_age(
    tmp_path: Path, every_d: float, clock_s: float
) -> None:
    maximum_s, interval_s, used_s = 7 * DAY_S, 3600.0, 2 * DAY_S
    gaps, true_s, boots, booted_s, wall_s = gap_limits(interval_s, maximum_s), 0.0, 0, -DAY_S, 0.0
    policy, store, removed_s = ImageGCPolicy(high_threshold_percent=100, maximum_unused_age_s=maximum_s), None, None
    pulled = T0 - timedelta(days=30)
    while removed_s is None and true_s < 20 * DAY_S:
        true_s += interval_s
        if true_s - booted_s >= every_d * DAY_S:
            if store is not None:
                store.stop(ClockReading(f"boot {boots}", true_s - booted_s, T0 + timedelta(seconds=true_s + wall_s)))
            true_s, store, boots = true_s + 150.0, None, boots + 1
            booted_s, true_s = true_s, true_s + 40.0
        if boots == 1 and true_s - booted_s > DAY_S / 4:
            wall_s = clock_s
        store = store or Store(tmp_path, gaps=gaps)
        reading = ClockReading(f"boot {boots}", true_s - booted_s, T0 + timedelta(seconds=true_s + wall_s))
        record = store.observe({"a": pulled}, {"a"} if true_s < used_s else (), reading)
        node = snapshot(
            image("a", "r/a:1"),
            observed_at=reading.wall,
            image_usage=record.usage,
            image_use_observed_since=record.observed_since,
            clock=record.clock,
        )
        if plan_image_gc(node, policy).removals:
            removed_s = true_s
    assert removed_s is not None
    reboots_s = (removed_s / (every_d * DAY_S) + 1) * 300.0
    if clock_s < 0:  # a clock set back beyond the stop shows no length of the gap: the observation starts in that boot
        reboots_s += every_d * DAY_S
    assert maximum_s <= removed_s - (used_s - interval_s) <= maximum_s + 2 * interval_s + reboots_s
