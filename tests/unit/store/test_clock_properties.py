"""Property: no item is removed by age that is younger than that, for all clocks, restarts and gaps.

The node has a true time line. The agent reads only its boot clock, its wall clock, and times that others wrote by the
wall clock. Excluded is what no reading can show: a jump before the first recorded reading of a boot that is shorter
than the uptime, and such a jump back that is undone between two readings. An item of this boot that was written under a
wrong clock before the first reading may count from the boot, and one that was written under a wrong clock in a boot
without any reading may have any age. So may one of an earlier boot if the first recorded reading of all is by a wrong
clock.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodeagent.model import Container, ContainerState, LogTree, NodeSnapshot, PodLogDirectory, Sandbox
from nodeagent.observe.clock_reading import with_valid_times
from nodeagent.plan.decision import Decision, ItemKind, ReasonCode
from nodeagent.plan.gc.images import ImageGCPolicy
from nodeagent.plan.gc.planner import GCPolicy, plan_all
from nodeagent.store import ClockReading, GapLimits, Store
from nodeagent.store.clock_record import GRACE_S, TOLERANCE_S
from tests.unit.builders import RUNTIME, image

T0: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY_S: Final = 86_400.0
YEARS_S: Final = 3650 * DAY_S
MAXIMUM_S: Final = 1800.0
POD_GRACE_S: Final = 300.0
SANDBOX_S: Final = 60.0
LOG_S: Final = 300.0
GAPS: Final = GapLimits(700, 600)
POLICY: Final = GCPolicy(images=ImageGCPolicy(high_threshold_percent=100, maximum_unused_age_s=MAXIMUM_S))
IMAGES: Final = ("a", "b")
ERROR_S: Final = TOLERANCE_S + 0.1


@dataclass
class Written:
    """A time that was written by the wall clock, with its true time."""

    true_s: float
    stamp: datetime


@dataclass
class Pod:
    image: str
    created: Written
    finished: Written | None = None

    @property
    def last_s(self) -> float:
        return self.finished.true_s if self.finished is not None else self.created.true_s


@dataclass
class Node:
    """The true state of a node."""

    true_s: float = 0.0
    wall_off_s: float = 0.0
    booted_s: float = -20 * DAY_S
    boot: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    images: dict[str, Written] = field(default_factory=dict)
    logs: dict[str, Written] = field(default_factory=dict)
    uses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    names: int = 0

    @property
    def wall(self) -> datetime:
        return T0 + timedelta(seconds=self.true_s + self.wall_off_s)

    @property
    def reading(self) -> ClockReading:
        return ClockReading(f"boot {self.boot}", self.true_s - self.booted_s, self.wall)

    def write(self) -> Written:
        return Written(self.true_s, self.wall)

    def name(self) -> str:
        self.names += 1
        return f"{self.names:04}"

    def in_use(self) -> set[str]:
        return {pod.image for pod in self.pods.values()}

    def end(self, pod: Pod) -> None:
        if pod.finished is None:
            pod.finished = self.write()

    def remove(self, name: str) -> None:
        pod = self.pods.pop(name)
        started_s = pod.created.true_s
        self.uses.setdefault(pod.image, []).append((started_s, self.true_s))

    def snapshot(self) -> NodeSnapshot:
        def container(name: str, pod: Pod) -> Container:
            return Container(
                f"c-{name}",
                "main",
                f"s-{name}",
                ContainerState.EXITED if pod.finished else ContainerState.RUNNING,
                created_at=pod.created.stamp,
                finished_at=pod.finished.stamp if pod.finished else None,
                image_ref=pod.image,
                labels={"io.kubernetes.pod.uid": f"uid-{name}", "io.kubernetes.container.name": "main"},
            )

        return NodeSnapshot(
            self.wall,
            RUNTIME,
            images=tuple(image(name, f"r/{name}:1") for name in self.images),
            containers=tuple(container(name, pod) for name, pod in self.pods.items()),
            sandboxes=tuple(
                Sandbox(
                    f"s-{name}",
                    name,
                    "default",
                    f"uid-{name}",
                    pod.finished is None,
                    created_at=pod.created.stamp,
                    labels={"io.kubernetes.pod.uid": f"uid-{name}"},
                )
                for name, pod in self.pods.items()
            ),
            pod_log_directories=tuple(
                PodLogDirectory(f"default_x_{name}", name, True, LogTree(each.stamp, f"{each.true_s!r}".encode().hex()))
                for name, each in self.logs.items()
            ),
            booted_at=self.wall - timedelta(seconds=self.true_s - self.booted_s),
        )


SECONDS = st.sampled_from([0.5, 5.0, 59.0, 61.0, 299.0, 301.0, 601.0, 701.0, 1801.0, 4000.0, 20 * 3600.0])
JUMPS = st.sampled_from([0.9, -0.9, 1.5, 30.0, -30.0, 600.0, -600.0, 7200.0, -7200.0, YEARS_S, -YEARS_S])


class Clocks(RuleBasedStateMachine):  # 11 attributes: the expected state, which rules change and invariants compare
    """A node and its agent."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.node = Node()
        self.store: Store | None = None
        self.read_in_boot = False
        self.jumped_in_boot = False
        self.unread_s = 0.0
        self.unread_boots: list[tuple[float, float]] = []
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
        self.node.true_s += seconds if self.read_in_boot else min(seconds, 5.0)

    @precondition(lambda self: self.read_in_boot)
    @rule(jump_s=JUMPS)
    def wall_clock_jumps(self, jump_s: float) -> None:
        self.node.wall_off_s += jump_s
        self.jumped_in_boot = True

    @rule()
    def wall_clock_is_corrected(self) -> None:
        self.node.wall_off_s = 0.0

    @precondition(lambda self: self.read_in_boot)
    @rule(jump_s=st.sampled_from([7200.0, YEARS_S, -YEARS_S]), observed=st.booleans())
    def wall_clock_jumps_for_a_moment(self, jump_s: float, *, observed: bool) -> None:
        self.jumped_in_boot = True
        self.node.wall_off_s += jump_s
        self.pod_ends("a")
        self.log_is_written()
        if observed:
            self.make_pass()
        self.node.true_s += 1
        self.node.wall_off_s -= jump_s

    @rule(off_s=st.sampled_from([60.0, 20 * 3600.0]), clock=st.sampled_from(["right", "1970", "stopped", "+5h", "-5h"]))
    def node_boots(self, off_s: float, clock: str) -> None:
        node = self.node
        for pod in node.pods.values():
            node.end(pod)
        if not self.read_in_boot and self.jumped_in_boot:
            self.unread_boots.append((node.booted_s, node.true_s))
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

    # --- work on the node

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
        node.true_s += 0.001  # the order of events is that of their times
        if self.store is None:
            self.store, self.process = Store(self.directory, gaps=GAPS), self.process + 1
        at = node.reading
        trust = self.store.read_clock(at)
        snapshot = replace(node.snapshot(), clock=trust)
        snapshot = with_valid_times(snapshot, at, self.store.first_seen, logs=True)
        pulled = {name: each.stamp for name, each in node.images.items()}
        use = self.store.observe(pulled, node.in_use(), at)
        if not self.recorded and self.jumped_in_boot:
            self.unread_boots.append((-math.inf, node.booted_s))
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

    # --- the truth

    def check(self, decision: Decision) -> None:
        node = self.node
        if decision.kind is ItemKind.IMAGE:
            assert decision.id not in node.in_use()
            unused_s = node.true_s - max(self.last_use_s(decision.id), node.images[decision.id].true_s)
            assert unused_s > MAXIMUM_S - ERROR_S, (decision, unused_s)
        elif decision.kind is ItemKind.POD_LOG_DIRECTORY:
            written_s = node.logs[decision.id.rpartition("_")[2]].true_s
            age_s = node.true_s - written_s
            assert self.is_unverifiable(written_s) or age_s >= LOG_S - ERROR_S - self.unread_s, (decision, age_s)
        else:
            assert decision.reason.code is ReasonCode.POD_DELETED
            pod = node.pods[decision.id[2:]]
            assert pod.finished is not None
            if self.is_unverifiable(pod.created.true_s) or self.is_unverifiable(pod.finished.true_s):
                return
            inactive_s = node.true_s - max(pod.last_s, node.booted_s)
            assert inactive_s >= POD_GRACE_S - ERROR_S - self.unread_s, (decision, inactive_s)
            assert node.true_s - pod.created.true_s >= SANDBOX_S - ERROR_S - self.unread_s

    def is_unverifiable(self, written_s: float) -> bool:
        """Return whether a time was written in a boot without a reading that can show its error."""
        return any(start_s <= written_s <= end_s for start_s, end_s in self.unread_boots)

    def last_use_s(self, name: str) -> float:
        """Return the true end of the last use that the agent could observe: polling misses one between two passes."""
        ends = [end for start, end in self.node.uses.get(name, ()) if not self.is_hidden(start, end)]
        return max(ends, default=-1e12)

    def is_hidden(self, start_s: float, end_s: float) -> bool:
        for (before_s, boot, process), (after_s, next_boot, next_process) in zip(
            self.detections, self.detections[1:], strict=False
        ):
            limit_s = GAPS.running_s if process == next_process else GAPS.restart_s
            if before_s < start_s and end_s < after_s:
                return boot == next_boot and after_s - before_s <= limit_s
        return False

    @invariant()
    def removed_images_are_listed_no_more(self) -> None:
        assert set(self.node.images) <= set(IMAGES)


TestClocks = Clocks.TestCase
TestClocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


class RandomClocks(Clocks):
    """Other examples in every run; ``make campaign-clocks`` runs many."""


TestRandomClocks = RandomClocks.TestCase
TestRandomClocks.settings = settings(
    max_examples=int(os.environ.get("NODEAGENT_TEST_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
)


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
