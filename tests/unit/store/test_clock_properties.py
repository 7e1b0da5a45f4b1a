"""Property tests: no item younger than the limit is removed by age, for all clock errors, restarts and gaps.

The node has a true time. The agent reads only its boot clock, its wall clock, and wall clock timestamps written by
other programs.

Excluded are clock jumps without any evidence in the readings of the agent:

- a jump before the first recorded reading of a boot, shorter than the uptime;
- a jump back that is corrected between the last reading of one agent process and the first reading of the next process;
- a boot without the agent after an observed shutdown, if the clock was set back by its length and is not corrected.

Permitted are the following errors of an age:

- A jump that is corrected between two readings of one process: the item counts from the first of both readings.
- An item written by a wrong clock in the current boot, before the first reading: the item counts from the boot.
- An item written by a wrong clock in a boot without readings: any age from the next boot on.
- An item of an earlier boot, if the first recorded reading has a wrong clock: any age.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.loops.clock_reading import with_valid_times
from nodeagent.model.decision import Decision, ItemKind, ReasonCode
from nodeagent.record import replace
from nodeagent.store.clock_record import GRACE_S, TOLERANCE_S
from nodeagent.store.database import Store
from nodeagent.store.observation import GapLimits
from tests.unit.store.clock_node import DAY_S, T0, Node, Pod

YEARS_S: Final = 3650 * DAY_S
MAXIMUM_S: Final = 1800.0
POD_GRACE_S: Final = 300.0
SANDBOX_S: Final = 60.0
LOG_S: Final = 300.0
GAPS: Final = GapLimits(700, 600)
POLICY: Final = GCPolicy(images=ImageGCPolicy(high_threshold_percent=100, maximum_unused_age_s=MAXIMUM_S))
IMAGES: Final = ("a", "b")
ERROR_S: Final = TOLERANCE_S + 0.1


SECONDS = st.sampled_from([0.5, 5.0, 59.0, 61.0, 299.0, 301.0, 601.0, 701.0, 1801.0, 4000.0, 20 * 3600.0])
JUMPS = st.sampled_from([0.9, -0.9, 1.5, 30.0, -30.0, 600.0, -600.0, 7200.0, -7200.0, YEARS_S, -YEARS_S])


CLOCKS = st.sampled_from(["right", "right", "1970", "stopped", "+5h", "-5h"])
SHUTDOWNS = st.sampled_from([0.0, 5.0, 59.0])


class Clocks(RuleBasedStateMachine):
    """State machine of a node with an agent: rules change the clocks and items, and run passes."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.node = Node()
        self.store: Store | None = None
        self.read_in_boot = False
        self.jumped_in_boot = False
        self.unread_s = 0.0
        self.unread: list[tuple[float, float, float]] = []
        self.read_off_s = 0.0
        self.recorded = False
        self.detections: list[tuple[float, int, int]] = []
        self.process = 0
        self.removed: list[tuple[str, float]] = []
        for name in IMAGES:
            self.node.images[name] = self.node.write()

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # --- time

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.node.true_s += seconds if self.read_in_boot or not self.jumped_in_boot else min(seconds, 5.0)

    @precondition(lambda self: self.read_in_boot)
    @rule(jump_s=JUMPS)
    def wall_clock_jumps(self, jump_s: float) -> None:
        self.node.set_clock(self.node.wall_off_s + jump_s)
        self.jumped_in_boot = True

    @rule()
    def wall_clock_is_corrected(self) -> None:
        self.node.set_clock(0.0)

    @precondition(lambda self: self.read_in_boot)
    @rule(jump_s=st.sampled_from([7200.0, -600.0, -7200.0, YEARS_S, -YEARS_S]), observed=st.booleans())
    def wall_clock_jumps_for_a_moment(self, jump_s: float, *, observed: bool) -> None:
        self.jumped_in_boot = True
        self.node.set_clock(self.node.wall_off_s + jump_s)
        self.pod_ends("a")
        self.log_is_written()
        if observed:
            self.make_pass()
        self.node.true_s += 1
        self.node.set_clock(self.node.wall_off_s - jump_s)

    @rule(off_s=st.sampled_from([60.0, 20 * 3600.0]), clock=CLOCKS)
    def node_boots(self, off_s: float, clock: str) -> None:
        self.boot(off_s, clock, stopped_s=None)

    @rule(off_s=st.sampled_from([0.0, 60.0, 20 * 3600.0]), clock=CLOCKS, name=st.sampled_from(IMAGES), use_s=SHUTDOWNS)
    def node_is_rebooted(self, off_s: float, clock: str, name: str, use_s: float) -> None:
        """Stop the agent in a shutdown, in which a pod with an image still runs for a short time."""
        stopped_s = None
        if self.store is not None:
            self.store.stop(self.node.reading)
            stopped_s = self.node.true_s
        self.node.true_s += 0.001
        if use_s:
            self.image_is_used(name, use_s)
        self.boot(off_s, clock, stopped_s)

    @rule(
        is_orderly=st.booleans(),
        name=st.sampled_from(IMAGES),
        use_s=st.sampled_from([0.0, 59.0, 4000.0, 20 * 3600.0]),
        without_agent=st.integers(0, 2),
        clock=CLOCKS,
    )
    def node_is_rebooted_before_the_maximum_age(
        self, *, is_orderly: bool, name: str, use_s: float, without_agent: int, clock: str
    ) -> None:
        """Reboot after 1500 s of observation, possibly by boots without the agent, with use that no pass observes."""
        self.passes_run(5, 300.0)
        if is_orderly:
            self.node_is_rebooted(60.0, clock if not without_agent else "right", name, min(use_s, 59.0))
        else:
            self.agent_restarts()
            self.image_is_used(name, use_s)
            self.node_boots(60.0, clock if not without_agent else "right")
        for left in reversed(range(without_agent)):
            self.image_is_used(name, use_s)
            self.node_boots(60.0, clock if not left else "right")
        self.passes_run(4, 300.0)

    def boot(self, off_s: float, clock: str, stopped_s: float | None) -> None:
        node = self.node
        node.boots[node.boot] = (node.booted_s, node.true_s, stopped_s, node.wall_off_s)
        for pod in node.pods.values():
            node.end(pod)
        if not self.read_in_boot and self.jumped_in_boot:
            self.unread.append((node.booted_s, node.true_s, -math.inf))
        node.true_s += off_s
        node.boot, node.booted_s = node.boot + 1, node.true_s
        if clock == "right":
            node.wall_off_s = 0.0
        elif clock == "1970":
            node.wall_off_s = (datetime(1970, 1, 1, tzinfo=UTC) - T0).total_seconds() - node.true_s
        elif clock == "stopped":
            node.wall_off_s -= max(off_s, 20 * 3600.0)
        else:
            node.wall_off_s = 18_000.0 if clock == "+5h" else -18_000.0
        node.true_s += 5
        self.store, self.read_in_boot, self.jumped_in_boot = None, False, clock != "right"

    # --- changes of pods and images

    @rule(name=st.sampled_from(IMAGES))
    def pod_starts(self, name: str) -> None:
        if name not in self.node.images:
            self.node.images[name] = self.node.write()
        self.node.pods[self.node.name()] = Pod(name, self.node.write())

    @rule(name=st.sampled_from(IMAGES))
    def pod_ends(self, name: str) -> None:
        self.pod_starts(name)
        for pod in self.node.pods.values():
            self.node.end(pod)

    @rule()
    def pods_are_deleted(self) -> None:
        for name in list(self.node.pods):
            self.node.remove(name)

    @rule(name=st.sampled_from(IMAGES), seconds=SECONDS)
    def image_is_used(self, name: str, seconds: float) -> None:
        self.pod_starts(name)
        self.time_passes(seconds)
        self.pods_are_deleted()

    @rule(name=st.sampled_from(IMAGES))
    def image_is_pulled_again(self, name: str) -> None:
        self.node.images[name] = self.node.write()

    @rule()
    def log_is_written(self) -> None:
        self.node.logs["0" * 31 + "1"] = self.node.write()

    # --- the agent

    @rule()
    def agent_restarts(self) -> None:
        self.store = None

    @precondition(lambda self: not self.jumped_in_boot)
    @rule()
    def database_is_removed(self) -> None:
        self.store, self.read_in_boot, self.recorded = None, False, False
        for each in self.directory.glob("nodeagent.db*"):
            each.unlink()

    @rule()
    def database_is_corrupt(self) -> None:
        self.store = None
        if (self.directory / "nodeagent.db").exists():
            (self.directory / "nodeagent.db").write_bytes(b"not a database" * 1000)

    @rule(count=st.integers(1, 12), every_s=st.sampled_from([20.0, 300.0, 600.0]))
    def passes_run(self, count: int, every_s: float) -> None:
        for _ in range(count):
            self.make_pass()
            self.node.true_s += every_s

    @rule()
    def make_pass(self) -> None:
        node = self.node
        node.true_s += 0.001  # so that each event has a unique time
        if self.store is None:
            self.store, self.process = Store(self.directory, gaps=GAPS), self.process + 1
            self.note_undone_jump(node.booted_s)
        elif self.detections:
            self.note_undone_jump(self.detections[-1][0])
        node.lowest_off_s = self.read_off_s = node.wall_off_s
        at = node.reading
        trust = self.store.read_clock(at)
        snapshot = replace(node.snapshot(), clock=trust)
        snapshot = with_valid_times(snapshot, at, self.store.first_seen, with_details=True)
        pulled = {name: each.stamp for name, each in node.images.items()}
        use = self.store.observe(pulled, node.in_use(), at)
        if not self.recorded and self.jumped_in_boot:
            self.unread.append((-math.inf, node.booted_s, -math.inf))
        self.recorded = True
        if not self.read_in_boot:
            self.read_in_boot, self.unread_s = True, node.true_s - node.booted_s if self.jumped_in_boot else 0.0
        self.detections.append((node.true_s, node.boot, self.process))
        node.true_s += 0.001
        snapshot = replace(snapshot, image_usage=use.usage, image_use_observed_since=use.observed_since)
        for plan in plan_all(snapshot, POLICY).plans:
            for decision in plan.removals:
                self.check(decision)
                self.removed.append((decision.kind.value, node.true_s))
                self.carry_out(decision)

    def carry_out(self, decision: Decision) -> None:
        if decision.kind is ItemKind.IMAGE:
            del self.node.images[decision.id]
        elif decision.kind is ItemKind.SANDBOX:
            self.node.remove(decision.id.removeprefix("s-"))
        elif decision.kind is ItemKind.POD_LOG_DIRECTORY:
            del self.node.logs[decision.id.rpartition("_")[2]]

    # --- comparison with the true state

    def check(self, decision: Decision) -> None:
        node = self.node
        if decision.kind is ItemKind.IMAGE:
            assert decision.id not in node.in_use()
            unused_s = node.true_s - max(self.last_use_s(decision.id), node.images[decision.id].true_s)
            assert unused_s > MAXIMUM_S - ERROR_S, (decision, unused_s)
        elif decision.kind is ItemKind.POD_LOG_DIRECTORY:
            written_s = node.logs[decision.id.rpartition("_")[2]].true_s
            age_s = node.true_s - self.verifiable_s(written_s)
            assert age_s >= LOG_S - ERROR_S - self.unread_s, (decision, age_s)
        else:
            assert decision.reason.code is ReasonCode.POD_DELETED
            pod = node.pods[decision.id[2:]]
            assert pod.finished is not None
            last_s = max(self.verifiable_s(each.true_s) for each in (pod.created, pod.finished))
            inactive_s = node.true_s - max(last_s, node.booted_s)
            assert inactive_s >= POD_GRACE_S - ERROR_S - self.unread_s, (decision, inactive_s)
            created_s = self.verifiable_s(pod.created.true_s)
            assert node.true_s - created_s >= SANDBOX_S - ERROR_S - self.unread_s

    def note_undone_jump(self, oldest_s: float) -> None:
        """Record that items since the last reading can count from ``oldest_s``, if a jump back was corrected since."""
        node = self.node
        is_undone = abs(node.wall_off_s - self.read_off_s) <= 2 * TOLERANCE_S
        if self.read_in_boot and is_undone and node.lowest_off_s < node.wall_off_s:
            self.unread.append((self.detections[-1][0], node.true_s, oldest_s))

    def verifiable_s(self, written_s: float) -> float:
        """Return the true time of an item, or its earliest possible time if no reading shows the clock error.

        The result is never before the boot in the latter case.
        """
        oldest = [oldest_s for start_s, end_s, oldest_s in self.unread if start_s <= written_s <= end_s]
        return max(self.node.booted_s, min(oldest)) if oldest else written_s

    def last_use_s(self, name: str) -> float:
        """Return the true end of the last observable use; a use between two passes is not observable."""
        ends = [end for start, end in self.node.uses.get(name, ()) if not self.is_hidden(start, end)]
        return max(ends, default=-1e12)

    def is_hidden(self, start_s: float, end_s: float) -> bool:
        for (before_s, boot, process), (after_s, next_boot, next_process) in zip(
            self.detections, self.detections[1:], strict=False
        ):
            limit_s = GAPS.running_s if process == next_process else GAPS.restart_s
            if before_s < start_s and end_s < after_s:
                if boot == next_boot:
                    return after_s - before_s <= limit_s
                return self.unobserved_s(before_s, after_s, boot, next_boot) <= limit_s
        return False

    def unobserved_s(self, before_s: float, after_s: float, boot: int, next_boot: int) -> float:
        """Return the seconds in which the node ran between two boots' detections; infinite without a recorded stop."""
        _, ended_s, stopped_s, off_s = self.node.boots[boot]
        if stopped_s is None or stopped_s < before_s:
            return math.inf
        if next_boot > boot + 1 and self.node.wall_off_s < off_s - TOLERANCE_S:
            return 0.0  # the clock hides the length of a boot without the agent
        booted_s = self.node.boots[next_boot][0] if next_boot in self.node.boots else self.node.booted_s
        between = [self.node.boots[number] for number in range(boot + 1, next_boot)]
        return ended_s - before_s + sum(each[1] - each[0] for each in between) + after_s - booted_s

    @invariant()
    def removed_images_are_listed_no_more(self) -> None:
        assert set(self.node.images) <= set(IMAGES)


TestClocks = Clocks.TestCase
TestClocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("clock", ["right", "1970", "stopped", "+5h", "-5h"])
def test_every_dead_item_and_unused_image_is_removed_once_it_was_watched_for_long_enough(clock: str) -> None:
    machine = Clocks()
    machine.passes_run(3, 300.0)
    machine.pod_ends("a")
    machine.node_boots(60.0, clock)
    machine.log_is_written()
    machine.make_pass()
    machine.wall_clock_is_corrected()
    machine.passes_run(2 + int((MAXIMUM_S + GRACE_S) // 300) * 2, 300.0)
    machine.teardown()
    assert {kind for kind, _ in machine.removed} == {"container", "sandbox", "pod-log-directory", "image"}
    assert machine.node.images == {}


@pytest.mark.parametrize("watched", [False, True], ids=["new", "running-before"])
def test_items_of_a_clock_set_back_between_two_passes_count_from_their_observation(*, watched: bool) -> None:
    machine = Clocks()
    if watched:
        machine.pod_starts("a")
        machine.log_is_written()
    machine.make_pass()
    machine.wall_clock_jumps(-600.0)
    machine.pod_ends("a")
    machine.log_is_written()
    machine.wall_clock_is_corrected()
    machine.passes_run(3, 20.0)
    early = list(machine.removed)
    machine.passes_run(2, 300.0)
    machine.teardown()
    assert early == []
    assert {kind for kind, _ in machine.removed} == {"container", "sandbox", "pod-log-directory"}
