"""Gapless observation of image use, and image removal by age, which requires the observation."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.store.clock_record import GRACE_S, TOLERANCE_S, ClockReading
from nodeagent.store.database import Store
from nodeagent.store.observation import GapLimits, gap_limits
from tests.unit.builders import container, image, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.runtime import ImageUseRecord

T0 = datetime(2026, 1, 10, 12, tzinfo=UTC)
DAY_S = 86_400.0


def at(seconds: float, *, boot: str = "boot", wall_s: float | None = None) -> ClockReading:
    return ClockReading(boot, 1000 + seconds, T0 + timedelta(seconds=seconds if wall_s is None else wall_s))


def observe_s(store: Store, reading: ClockReading) -> float | None:
    """Record listed images at a time; return the seconds of gapless observation, ``None`` if not observed."""
    since = store.observe({"a": None}, (), reading).observed_since
    return None if since is None else (reading.wall - since).total_seconds()


@pytest.mark.parametrize(
    ("interval_s", "maximum_s", "limits"),
    [
        (300.0, 0.0, GapLimits(900, 900)),
        (300.0, 14 * DAY_S, GapLimits(900, 900)),
        (60.0, 14 * DAY_S, GapLimits(600, 600)),
        (3600.0, 14 * DAY_S, GapLimits(10_800, 10_800)),
        (None, 14 * DAY_S, GapLimits(600, 600)),
        (300.0, 120.0, GapLimits(900, 120)),
        (2.0, 1.0, GapLimits(6, 1)),
    ],
)
def test_gap_limits_follow_from_interval_and_maximum_unused_age(
    interval_s: float | None, maximum_s: float, limits: GapLimits
) -> None:
    assert gap_limits(interval_s, maximum_s) == limits


@pytest.mark.parametrize(("gap_s", "observed_s"), [(900, 900), (901, 0)])
def test_observation_continues_over_a_gap_within_the_running_limit(
    tmp_path: Path, gap_s: float, observed_s: float
) -> None:
    store = Store(tmp_path, gaps=GapLimits(900, 60))
    assert [observe_s(store, at(0)), observe_s(store, at(gap_s))] == [0, observed_s]


@pytest.mark.difference("image-use-recorded")
@pytest.mark.parametrize(("gap_s", "observed_s"), [(60, 60), (61, 0)])
@pytest.mark.parametrize("read_only", [False, True], ids=["run", "preview"])
def test_observation_continues_over_a_restart_within_the_restart_limit(
    tmp_path: Path, gap_s: float, observed_s: float, *, read_only: bool
) -> None:
    gaps = GapLimits(900, 60)
    observe_s(Store(tmp_path, gaps=gaps), at(0))
    assert observe_s(Store(tmp_path, gaps=gaps, read_only=read_only), at(gap_s)) == observed_s


@pytest.mark.parametrize(
    "later",
    [at(10, boot="another boot"), at(10, boot=""), at(-10)],
    ids=["reboot", "boot id unknown", "boot clock behind"],
)
def test_other_or_unknown_boot_restarts_the_observation(tmp_path: Path, later: ClockReading) -> None:
    observe_s(Store(tmp_path), at(0))
    assert observe_s(Store(tmp_path), later) == 0


def test_unknown_boot_restarts_the_observation_with_each_detection(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert [observe_s(store, at(each, boot="")) for each in (0, 10, 20)] == [0, 0, 0]


@pytest.mark.parametrize("wall_s", [3650 * DAY_S, -3650 * DAY_S])
def test_step_of_the_wall_clock_does_not_extend_the_observation(tmp_path: Path, wall_s: float) -> None:
    store = Store(tmp_path)
    observe_s(store, at(0))
    assert observe_s(store, at(60, wall_s=wall_s)) == 60
    assert observe_s(Store(tmp_path), at(90)) == 90


def test_small_steps_of_the_wall_clock_do_not_add_up_to_an_age(tmp_path: Path) -> None:
    store, steps, step_s = Store(tmp_path), 100, 0.9
    store.observe({"a": None}, {"a"}, at(0))
    for number in range(1, steps + 1):
        now = at(5 * number, wall_s=number * (5 + step_s))
        record = store.observe({"a": None}, (), now)
    used = record.usage["a"].last_used
    assert used is not None
    assert (now.wall - used).total_seconds() == pytest.approx(5 * (steps - 1), abs=0.001)
    assert record.clock.untrusted_until is not None


def test_status_reads_without_recording_a_detection(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.observed_since(at(0)) is None
    observe_s(store, at(0))
    assert store.observed_since(at(600)) == T0
    assert store.observed_since(at(601)) is None
    assert observe_s(store, at(600)) == 600


def test_detection_finished_after_a_later_one_is_merged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    observe_s(store, at(0))
    store.observe({"a": None, "b": None}, {"b"}, at(20))
    late = store.observe({"a": None}, {"a"}, at(10))
    assert late.observed_since == T0
    assert store.usage()["a"].last_used == at(20).wall
    assert store.usage()["b"].last_used == at(20).wall
    assert observe_s(store, at(30)) == 30


def test_detection_finished_after_a_step_of_the_wall_clock_is_in_the_grace_period(tmp_path: Path) -> None:
    store = Store(tmp_path)
    observe_s(store, at(0))
    observe_s(store, at(20, wall_s=-3650 * DAY_S))
    late = store.observe({"a": None}, (), at(10))
    assert late.observed_since == T0
    assert late.clock.untrusted_until == at(20 + GRACE_S).wall


def _write_meta(directory: Path, key: str, value: str) -> None:
    with closing(sqlite3.connect(directory / "nodeagent.db", isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("observed_since_s", "nan"),
        ("observed_since_s", "-1"),
        ("observed_since_s", "1e300"),
        ("observed_last_s", "inf"),
        ("observed_last_s", "x"),
        ("observed_last_us", "1.5"),
    ],
)
def test_database_with_impossible_values_is_corrupt(tmp_path: Path, key: str, value: str) -> None:
    observe_s(Store(tmp_path), at(0))
    _write_meta(tmp_path, key, value)
    store = Store(tmp_path)
    assert store.take_notices()
    assert observe_s(store, at(60)) == 0


def test_database_without_an_observation_is_read(tmp_path: Path) -> None:
    observe_s(Store(tmp_path), at(0))
    with closing(sqlite3.connect(tmp_path / "nodeagent.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM meta WHERE key LIKE 'observed%'")
    store = Store(tmp_path)
    assert (observe_s(store, at(60)), store.problem, store.take_notices()) == (0, "", ())


# --- removal by age

IMAGES = ("a", "b")


@dataclass
class World:
    """True state of a node, independent of its clocks and of the agent's observation.

    Attributes:
        true_s: true time in seconds.
        used_s: true end in seconds of the last observable use, by image; a use between two detections within the gap
            limit is not observable.
        hidden_s: true end in seconds of a use that is not detected yet, by image.
    """

    directory: Path
    interval_s: float
    maximum_s: float
    true_s: float = 0.0
    booted_s: float = -1000.0
    boots: int = 0
    wall_s: float = 0.0
    running: set[str] = field(default_factory=set)
    used_s: dict[str, float] = field(default_factory=dict)
    hidden_s: dict[str, float] = field(default_factory=dict)
    detected_s: float | None = None
    store: Store | None = None
    restarted: bool = True

    @property
    def gaps(self) -> GapLimits:
        return gap_limits(self.interval_s, self.maximum_s)

    @property
    def clocks(self) -> ClockReading:
        wall = T0 + timedelta(seconds=self.true_s + self.wall_s)
        return ClockReading(f"boot {self.boots}", self.true_s - self.booted_s, wall)

    def pass_time(self, seconds: float) -> None:
        self.true_s += seconds
        for each in self.running:
            self.hidden_s[each] = self.true_s

    def toggle(self, name: str) -> None:
        if name in self.running:
            self.running.remove(name)
        else:
            self.running.add(name)
            self.hidden_s[name] = self.true_s

    def use_beyond_a_detection(self, seconds: float) -> None:
        self.running.add("a")
        self.detect(IMAGES)
        self.pass_time(seconds)
        self.running.discard("a")

    def use_while_not_listed(self, seconds: float) -> None:
        self.running.add("b")
        self.detect(IMAGES[:1])
        self.pass_time(seconds)
        self.running.discard("b")

    def jump(self, seconds: float) -> None:
        self.wall_s += seconds

    def restart(self, down_s: float) -> None:
        self.store, self.restarted = None, True
        self.pass_time(down_s)

    def reboot(self, down_s: float) -> None:
        self.running.clear()
        self.boots, self.booted_s = self.boots + 1, self.true_s
        self.restart(down_s)

    def lose_database(self, down_s: float) -> None:
        self.restart(down_s)
        for each in self.directory.glob("nodeagent.db*"):
            each.unlink()
        self.detected_s = None

    def make_passes(self, count: int) -> None:
        for _ in range(count):
            self.pass_time(self.interval_s)
            self.detect(IMAGES)

    def make_passes_while_the_clock_is_stepped(self, count: int) -> None:
        for _ in range(count):
            self.jump(0.9)
            self.make_passes(1)

    def detect(self, listed: Iterable[str]) -> None:
        """Run a pass, and check its removals against the true state."""
        reader = Store(self.directory, read_only=True, gaps=self.gaps) if self.store is None else None
        self.store = self.store or Store(self.directory, gaps=self.gaps)
        pulled: dict[str, datetime | None] = {each: T0 - timedelta(days=400) for each in listed}
        in_use = self.running & pulled.keys()
        record = self.store.observe(pulled, in_use, self.clocks)
        if reader is not None:
            assert reader.observe(pulled, in_use, self.clocks) == record
        self._record_observable_use()
        self._check_removals(record, pulled.keys())

    def _record_observable_use(self) -> None:
        limit_s = self.gaps.restart_s if self.restarted else self.gaps.running_s
        near = self.detected_s is not None and self.true_s - self.detected_s <= limit_s
        for name, until_s in self.hidden_s.items():
            undetected = name not in self.running and self.used_s.get(name, -1.0) != self.detected_s
            if not (near and undetected):
                self.used_s[name] = until_s
        self.hidden_s.clear()
        for name in self.running:
            self.used_s[name] = self.true_s
        self.detected_s, self.restarted = self.true_s, False

    def _check_removals(self, record: ImageUseRecord, listed: Iterable[str]) -> None:
        node = snapshot(
            *(image(each, f"r/{each}:1") for each in listed),
            observed_at=self.clocks.wall,
            image_usage=record.usage,
            image_use_observed_since=record.observed_since,
            containers=tuple(container(f"of-{each}", image_ref=each) for each in sorted(self.running)),
        )
        policy = ImageGCPolicy(high_threshold_percent=100, maximum_unused_age_s=self.maximum_s)
        for decision in plan_image_gc(node, policy).removals:
            assert decision.id not in self.running
            last_s = self.used_s.get(decision.id, -1e9)
            assert self.true_s - last_s > self.maximum_s - 2 * TOLERANCE_S, (decision.id, last_s, self.true_s)


SECONDS = st.sampled_from(
    [0.0, 0.5, 1.0, 5.0, 9.0, 60.0, 299.0, 301.0, 599.0, 601.0, 901.0, 1799.0, 1801.0, 4000.0, 2 * DAY_S]
)
JUMPS = st.sampled_from([0.9, -0.9, 59.0, -61.0, 3600.0, -3600.0, 3650 * DAY_S, -3650 * DAY_S])
STEPS = st.one_of(
    st.tuples(st.just("pass_time"), SECONDS),
    st.tuples(st.just("make_passes"), st.integers(1, 8)),
    st.tuples(st.just("make_passes"), st.integers(1, 8)),
    st.tuples(st.just("detect"), st.sampled_from([IMAGES, IMAGES, IMAGES, IMAGES[:1]])),
    st.tuples(st.just("toggle"), st.sampled_from(IMAGES)),
    st.tuples(st.just("use_beyond_a_detection"), SECONDS),
    st.tuples(st.just("use_while_not_listed"), SECONDS),
    st.tuples(st.just("jump"), JUMPS),
    st.tuples(st.just("make_passes_while_the_clock_is_stepped"), st.integers(1, 8)),
    st.tuples(st.just("restart"), SECONDS),
    st.tuples(st.just("reboot"), SECONDS),
    st.tuples(st.just("lose_database"), SECONDS),
)


@given(
    st.sampled_from([2.0, 2.0, 300.0, 3600.0]),
    st.sampled_from([10.0, 10.0, 1800.0, 86_400.0]),
    st.lists(STEPS, max_size=40),
)
def test_image_used_within_the_maximum_unused_age_is_never_removed_by_age(
    interval_s: float, maximum_s: float, steps: list[tuple[str, object]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name), interval_s, maximum_s)
        for step, value in steps:
            getattr(world, step)(value)
