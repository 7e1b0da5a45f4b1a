"""The duty that evicts: what it reads, reclaims, chooses and tells, over scripted readings."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.act.eviction.container_removal import Cleared
from nodeagent.act.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.act.eviction.reclaimer import Reclaimed
from nodeagent.act.gc.outcomes import Outcome, PassEnd, PassReport, Result
from nodeagent.config.eviction import EvictionSettings
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.eviction.composition import past_eviction
from nodeagent.daemon.eviction.loop import EvictionLoop, PassRecord
from nodeagent.daemon.eviction.oom_kills import OomKillMonitor
from nodeagent.daemon.eviction.outstanding_effects import OutstandingEffects
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock, Pause
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.host.node import boot_id
from nodeagent.host.signals import SignalPaths
from nodeagent.model.pods import PodHandle, PodInventory
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Moment, Observation, PodFacts
from nodeagent.observe.eviction_signals import EvaluatedSignals, EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.plan.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.eviction.reclaim import ReclaimAction, ReclaimStep
from nodeagent.store.evictions import EvictionFile
from nodeagent.telemetry import logging as log
from tests.unit.plan.eviction.cases import at, disk, known, pod, read, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from nodeagent.plan.eviction.effects import Victim
    from nodeagent.plan.eviction.planner import Eviction
    from nodeagent.plan.eviction.state import EvictionState

EASE = read(available_mib=900)
LOW = read(available_mib=50)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes with the looks."""
    monkeypatch.setattr("nodeagent.daemon.eviction.loop.SETTLE_STEP_S", 0.0)
    monkeypatch.setattr("nodeagent.daemon.eviction.loop.WATCH_S", 0.001)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return at(self.seconds).at

    def monotonic_s(self) -> float:
        return at(self.seconds).monotonic_s


@dataclass
class Node:
    """What the duty sees and does; time passes with each look."""

    clock: Clock = field(default_factory=Clock)
    readings: Callable[[], tuple[Observation, ...]] = lambda: (EASE,)
    pods: tuple[PodFacts, ...] = ()
    outcomes: dict[str, EvictionOutcome] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    reclaimed: list[str] = field(default_factory=list)
    reclaims: dict[str, Callable[[], Reclaimed]] = field(default_factory=dict)
    reclaim_error: Exception | None = None
    cleared: list[str] = field(default_factory=list)
    clears: Callable[[], Cleared] = lambda: Cleared(confirmed=True)
    gather_error: Exception | None = None
    records: list[PassRecord] = field(default_factory=list)
    limits: str = "memory.available<100Mi"
    soft: dict[str, str] = field(default_factory=dict)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    layout: FilesystemLayout = FilesystemLayout.SINGLE
    dry_run: bool = False
    refusal: str = ""
    file: EvictionFile | None = None

    def __post_init__(self) -> None:
        self.stream = io.StringIO()
        logger = log.configure("json", "info", self.stream)
        self.context = DaemonContext(None, logger, self.clock, LoopStatuses(self.clock), PassLock(self.clock))  # type: ignore[arg-type]

    async def read(self, layout: SignalLayout) -> SignalReadings:
        del layout
        self.clock.seconds += 0.1
        moment = Moment(self.clock.now(), self.clock.monotonic_s())
        return SignalReadings(tuple(replace(each, observed_at=moment) for each in self.readings()), (), moment)

    def evaluate_readings(
        self, layout: SignalLayout, readings: SignalReadings, state: EvictionState
    ) -> EvaluatedSignals:
        reader = EvictionSignalReader(EvictionSettings(policy=self.policy), self.clock)
        return reader.evaluate_readings(layout, readings, state)

    def now(self) -> Moment:
        return Moment(self.clock.now(), self.clock.monotonic_s())

    async def survey(self) -> SignalLayout:
        return SignalLayout(SignalPaths("/"), self.layout, thresholds(self.limits, **self.soft))

    async def gather(self, on_disk: bool) -> PodInventory:
        del on_disk
        if self.gather_error is not None:
            raise self.gather_error
        here = tuple(each for each in self.pods if each.uid not in {f"uid-{name}" for name in self.evicted})
        return PodInventory(here, (), {each.uid: PodHandle(each.uid, ("s",)) for each in here}, self.now())

    async def refused(self) -> str:
        return self.refusal

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        assert handle.uid == eviction.pod.uid
        outcome = self.outcomes.get(eviction.pod.name, EvictionOutcome.EVICTED)
        if outcome is EvictionOutcome.EVICTED:
            if eviction.grace_s:
                await asyncio.wait_for(hurry.wait(), 5)
            self.evicted.append(eviction.pod.name)
        return EvictionResult(outcome, "", 0.5, hurry.is_set())

    async def run(self, step: ReclaimStep, stop: asyncio.Event) -> Reclaimed:
        if self.reclaim_error is not None:
            raise self.reclaim_error
        if stop.is_set():
            raise NodeAgentError("told to stop")
        self.reclaimed.append(step.text)
        return self.reclaims.get(step.text, lambda: Reclaimed(step, None))()

    async def clear(self, victim: Victim) -> Cleared:
        self.cleared.append(victim.name)
        return self.clears()

    async def note(self, record: PassRecord) -> None:
        self.records.append(record)

    def duty(self) -> EvictionLoop:
        return EvictionLoop(
            self.context,
            EvictionSettings(enabled=True, policy=self.policy, thresholds=thresholds(self.limits, **self.soft)),
            refused=self.refused,
            dry_run=self.dry_run,
            reader=self,  # type: ignore[arg-type]
            survey=self.survey,
            gather=self.gather,
            evictor=self,
            reclaimer=self,  # type: ignore[arg-type]
            effects=OutstandingEffects(
                self.context, self, find_layers=lambda _: {}, file=self.file, logger=self.context.logger
            ),
            wakes=None,  # type: ignore[arg-type]
            oom=OomKillMonitor(self.context.logger),
            note=self.note,
        )

    def told(self, name: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [each for each in lines if not name or each["event"] == name]

    def result(self) -> str:
        return self.context.loop_statuses.lines[0].result


async def turn(node: Node, duty: EvictionLoop | None = None) -> float:
    return await (duty or node.duty()).turn(asyncio.Event())


async def test_a_node_at_ease_is_left_alone() -> None:
    node = Node(pods=(pod(),))
    assert await turn(node) > 1
    assert (node.evicted, node.result(), node.told()) == ([], "no-pressure", [])


async def test_one_pod_goes_in_a_pass_and_the_next_looks_again() -> None:
    node = Node(pods=(pod("small", memory=10), pod("big", memory=500)))
    node.readings = lambda: (LOW,) if not node.evicted else (EASE,)
    duty = node.duty()
    await turn(node, duty)
    assert node.evicted == ["big"]
    await turn(node, duty)
    assert node.evicted == ["big"]
    assert [each["event"] for each in node.told()] == [
        "condition_changed",
        "threshold_met",
        "eviction_started",
        "evicted",
        "threshold_cleared",
    ]
    (record,) = node.records
    assert (record.eviction.pod.name, record.after) == ("big", EASE.available)
    past = past_eviction(record)
    document = json.loads(past.eviction)
    assert [each["name"] for each in document["ranking"]] == ["shop/big", "shop/small"]
    assert document["available_before"] == LOW.available


@pytest.mark.parametrize("outcome", [EvictionOutcome.FAILED, EvictionOutcome.CHANGED])
async def test_a_pod_that_cannot_go_gives_way_to_the_next(outcome: EvictionOutcome) -> None:
    node = Node(pods=(pod("stuck", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["stuck"] = outcome
    await turn(node)
    assert node.evicted == ["next"]
    assert [each["outcome"] for each in node.told("eviction_failed")] == [outcome.value]


async def test_a_pod_that_went_by_itself_ends_the_pass() -> None:
    node = Node(pods=(pod("gone", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["gone"] = EvictionOutcome.GONE
    await turn(node)
    assert (node.evicted, node.result()) == ([], "gone")


async def test_protected_pods_stay_and_that_nobody_goes_is_told_once() -> None:
    node = Node(pods=(pod(namespace="kube-system"), pod("static", static=known(value=True))))
    node.readings = lambda: (LOW,)
    duty = node.duty()
    assert await turn(node, duty) == 10.0
    await turn(node, duty)
    assert node.evicted == []
    (told,) = node.told("no_evictable_pod")
    assert told["because"] == "1 protected-namespace, 1 static-pod"


async def test_the_node_gives_back_first_and_pods_only_go_if_that_is_not_enough() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
    )
    await turn(node)
    assert node.reclaimed == ["dead-containers on nodefs", "logs on nodefs", "unused-images on nodefs"]
    assert node.evicted == ["writer"]

    enough = Node(limits="nodefs.available<10%", pods=(pod("writer", writable=disk(300)),))
    enough.readings = lambda: (read("nodefs.available", 50 if len(enough.reclaimed) < 2 else 500),)
    await turn(enough)
    assert enough.reclaimed == ["dead-containers on nodefs", "logs on nodefs"]
    assert (enough.evicted, enough.result()) == ([], "reclaimed")


async def test_while_another_process_reclaims_no_pod_goes() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=PassBusyError("another pass is running"),
    )
    assert await turn(node) <= 1
    assert (node.evicted, node.result()) == ([], "reclaiming")


async def test_a_step_that_fails_does_not_keep_pods_for_ever() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=NodeAgentError("no snapshot"),
    )
    await turn(node)
    assert node.evicted == ["writer"]
    assert len(node.told("reclaim_failed")) == 3


async def test_a_dry_run_tells_once_and_touches_nothing() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), dry_run=True)
    duty = node.duty()
    await turn(node, duty)
    await turn(node, duty)
    assert node.evicted == []
    (told,) = node.told("would_evict")
    assert told["pod_name"] == "web"
    assert [each.dry_run for each in node.records] == [True]


async def test_the_limit_of_evictions_stops_and_is_told() -> None:
    node = Node(
        pods=tuple(pod(f"p{number}") for number in range(4)),
        readings=lambda: (LOW,),
        policy=EvictionPolicy(max_evictions_per_window=2),
    )
    duty = node.duty()
    for _ in range(4):
        await turn(node, duty)
    assert len(node.evicted) == 2
    (told,) = node.told("eviction_limit_reached")
    assert told["level"] == "error"


async def test_while_paused_nobody_goes() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    node.context.pass_lock.hold(Pause("shutdown", "the node goes down"))
    await turn(node)
    assert (node.evicted, node.result()) == ([], "pressure")


@pytest.mark.parametrize("end", ["pause", "stop"])
async def test_nobody_goes_who_was_chosen_as_a_pause_or_the_end_came(end: str) -> None:
    stop = asyncio.Event()

    class Late(Node):
        async def gather(self, on_disk: bool) -> PodInventory:
            if end == "pause":
                self.context.pass_lock.hold(Pause("operator", "looking"))
            else:
                stop.set()
            return await super().gather(on_disk)

    node = Late(readings=lambda: (LOW,), pods=(pod("hog", memory=500),))
    await node.duty().turn(stop)
    assert node.evicted == []
    assert node.context.loop_statuses.lines[0].failures == 0


async def test_a_hard_threshold_cuts_a_soft_grace_short() -> None:
    node = Node(
        pods=(pod("slow", memory=500),),
        limits="memory.available<100Mi",
        soft={"soft": "memory.available<300Mi", "soft_grace_period": "memory.available=50ms"},
    )
    looks = 0

    def readings() -> tuple[Observation, ...]:
        nonlocal looks
        looks += 1
        return (read(available_mib=200 if looks < 6 else 50),)

    node.readings = readings
    duty = node.duty()
    for _ in range(3):
        await turn(node, duty)
        if node.evicted:
            break
    assert node.evicted == ["slow"]
    assert node.records[0].result.hurried
    assert len(node.told("eviction_grace_shortened")) == 1


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RuntimeUnavailableError("no socket"), "runtime-unavailable"),
        (NodeAgentError("x"), "failed"),
        (KeyError("bug"), "crashed"),
    ],
)
async def test_what_fails_ends_the_pass_and_the_next_goes_on(error: Exception, result: str) -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), gather_error=error)
    duty = node.duty()
    await turn(node, duty)
    assert (node.evicted, node.result()) == ([], result)
    node.gather_error = None
    await turn(node, duty)
    assert node.evicted == ["web"]


async def test_a_pod_over_its_own_storage_limit_goes_without_any_pressure() -> None:
    over = pod("greedy", writable=disk(300), ephemeral_limit_bytes=200 << 20)
    over = replace(over, usage=replace(over.usage, ephemeral_bytes=300 << 20))  # type: ignore[type-var]
    node = Node(pods=(pod("modest"), over))
    await turn(node)
    assert node.evicted == ["greedy"]


async def test_memory_that_runs_out_while_disks_are_measured_comes_first() -> None:
    node = Node(
        limits="memory.available<100Mi,nodefs.available<10%",
        pods=(pod("writer", writable=disk(300), memory=1), pod("eater", memory=500)),
    )
    measuring = asyncio.Event()

    async def gather(on_disk: bool) -> PodInventory:
        if on_disk:
            measuring.set()
            await asyncio.Event().wait()
        return await Node.gather(node, on_disk)

    node.gather = gather  # type: ignore[method-assign]
    node.readings = lambda: (
        read("nodefs.available", 50),
        read(available_mib=50 if measuring.is_set() and not node.evicted else 900),
    )
    duty = node.duty()
    await turn(node, duty)
    assert (node.evicted, node.result()) == ([], "urgent")
    await turn(node, duty)
    assert node.evicted == ["eater"]


async def test_kubelet_that_starts_during_a_pass_calls_the_eviction_off() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))

    async def gather(on_disk: bool) -> PodInventory:
        node.refusal = "a kubelet manages this node"
        return await Node.gather(node, on_disk)

    node.gather = gather  # type: ignore[method-assign]
    await turn(node)
    assert (node.evicted, node.result()) == ([], "called-off")


def test_what_is_remembered_outlives_the_duty() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    asyncio.run(turn(node))
    assert len(node.context.eviction.evicted_s) == 1


# ---- outstanding effects

DISK = "imagefs.available<100Mi"


def disk_node(**fields: Any) -> Node:
    """Return a node whose imagefs lies apart, with one writer of 300 MiB among five bystanders of 1 MiB."""
    values: dict[str, Any] = {
        "limits": DISK,
        "layout": FilesystemLayout.DEDICATED_IMAGEFS,
        "pods": (pod("writer", writable=disk(300)), *(pod(f"quiet-{n}", writable=disk(1)) for n in range(5))),
        "readings": lambda: (read("imagefs.available", 50),),
    }
    return Node(**(values | fields))


async def pass_lock(node: Node, duty: EvictionLoop, seconds: float) -> None:
    """Make passes for so long, one each second."""
    ends_s = node.clock.seconds + seconds
    while node.clock.seconds < ends_s:
        await turn(node, duty)
        await asyncio.sleep(0)  # what goes on in the background
        node.clock.seconds += 1.0


async def test_no_second_pod_is_evicted_before_the_first_ones_bytes_are_back() -> None:
    node = disk_node(clears=lambda: Cleared(confirmed=False, detail="snapshot still on the disk"))
    duty = node.duty()
    await pass_lock(node, duty, 25)
    assert node.evicted == ["writer"]
    assert len(node.cleared) > 1
    (withheld,) = node.told("eviction_withheld")
    assert (withheld["reason"], withheld["action"]) == ("effect-outstanding", "eviction of shop/writer")
    assert [each["detail"] for each in node.told("eviction_cleanup_failed")] == ["snapshot still on the disk"]
    node.clears = lambda: Cleared(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await pass_lock(node, duty, 15)
    assert node.evicted == ["writer"]
    (measured,) = node.told("effect_measured")
    assert measured["end"] == "measured"
    assert node.context.eviction.outstanding == ()


async def test_another_pod_is_evicted_once_the_first_ones_effect_is_verified_and_does_not_suffice() -> None:
    node = disk_node()
    duty = node.duty()
    await turn(node, duty)
    assert node.evicted == ["writer"]
    await turn(node, duty)
    assert node.evicted == ["writer", "quiet-0"]
    assert node.told("effect_measured")[0]["end"] == "confirmed"


async def test_eviction_that_frees_nothing_pauses_evictions_and_not_reclaim() -> None:
    node = disk_node(clears=lambda: Cleared(confirmed=False, detail="busy"))
    duty = node.duty()
    await pass_lock(node, duty, 29)
    before = len(node.reclaimed)
    await pass_lock(node, duty, 25)
    assert node.evicted == ["writer"]
    assert len(node.reclaimed) > before
    (ineffective,) = node.told("eviction_ineffective")
    assert (ineffective["level"], ineffective["end"]) == ("error", "missing")
    await pass_lock(node, duty, 15)
    assert node.evicted == ["writer", "quiet-0"]


async def test_eviction_predicted_to_free_nothing_there_leaves_reclaim_to_go_on_and_no_pod() -> None:
    node = disk_node(
        limits="nodefs.available<100Mi",
        pods=(pod("chatty", logs=disk(300), writable=disk(2)), pod("quiet", logs=disk(1))),
        readings=lambda: (read("nodefs.available", 50),),
    )
    duty = node.duty()
    await turn(node, duty)
    before = len(node.reclaimed)
    await pass_lock(node, duty, 20)
    assert node.evicted == ["chatty"]
    assert len(node.reclaimed) > before
    (told,) = node.told("eviction_ineffective")
    assert (told["predicted_bytes"], told["logs_bytes"]) == (0, 300 << 20)


async def test_reclaim_is_measured_before_the_next_step() -> None:
    def reclaimed() -> Reclaimed:
        return Reclaimed(ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), report(500 << 20))

    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    duty = node.duty()
    await turn(node, duty)
    node.reclaims.clear()
    await pass_lock(node, duty, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])
    node.readings = lambda: (read("imagefs.available", 550),)
    await pass_lock(node, duty, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])


async def test_reclaim_whose_effect_is_missing_at_its_bound_gives_way_to_the_next_step() -> None:
    def reclaimed() -> Reclaimed:
        return Reclaimed(ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), report(500 << 20))

    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    duty = node.duty()
    await turn(node, duty)
    node.reclaims.clear()
    await pass_lock(node, duty, 35)
    assert node.reclaimed[:3] == [
        "dead-containers on imagefs",
        "dead-containers on imagefs",
        "unused-images on imagefs",
    ]
    assert node.evicted[:1] == ["writer"]
    assert [each["action"] for each in node.told("effect_missing")] == ["dead-containers on imagefs"]


async def test_pods_of_two_filesystems_are_evicted_while_one_effect_is_outstanding() -> None:
    node = disk_node(
        limits=f"nodefs.available<100Mi,{DISK}",
        pods=(
            pod("writer", writable=disk(300)),
            pod("chatty", logs=disk(300), writable=disk(1)),
            pod("quiet", writable=disk(1), logs=disk(1)),
        ),
        readings=lambda: (read("imagefs.available", 50), read("nodefs.available", 50)),
        clears=lambda: Cleared(confirmed=False, detail="busy"),
    )
    await pass_lock(node, node.duty(), 25)
    assert sorted(node.evicted) == ["chatty"]  # its own layer on imagefs is outstanding as well

    node = disk_node(
        limits=f"{DISK},pid.available<100",
        pods=(pod("writer", writable=disk(300), pids=1), pod("forks", pids=500, writable=disk(0))),
        readings=lambda: (read("imagefs.available", 50), read("pid.available", available=50, capacity=1000)),
        clears=lambda: Cleared(confirmed=False, detail="busy"),
    )
    await pass_lock(node, node.duty(), 20)
    assert sorted(node.evicted) == ["forks", "writer"]


async def test_pod_that_could_not_be_stopped_for_disk_space_is_tried_again_before_another_one() -> None:
    node = disk_node()
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.clears = lambda: Cleared(confirmed=False, running=True, detail="running: app")
    duty = node.duty()
    await turn(node, duty)
    assert (node.evicted, node.result()) == ([], "failed")
    await pass_lock(node, duty, 25)
    assert len(node.told("eviction_failed")) == 1
    await pass_lock(node, duty, 30)
    assert (node.evicted, len(node.told("eviction_failed"))) == ([], 2)
    await pass_lock(node, duty, 15)
    assert node.evicted[:1] == ["quiet-0"]


async def test_pod_that_ends_late_is_cleared_and_no_other_one_is_evicted() -> None:
    node = disk_node()
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.clears = lambda: Cleared(confirmed=False, running=True, detail="running: app")
    duty = node.duty()
    await pass_lock(node, duty, 10)
    node.clears = lambda: Cleared(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await pass_lock(node, duty, 20)
    assert (node.evicted, node.context.eviction.outstanding) == ([], ())
    assert [each["end"] for each in node.told("effect_measured")] == ["measured"]


@pytest.mark.parametrize("outcome", [EvictionOutcome.GONE, EvictionOutcome.CHANGED])
async def test_eviction_that_was_not_carried_out_leaves_nothing_outstanding(outcome: EvictionOutcome) -> None:
    node = disk_node(pods=(pod("writer", writable=disk(300)),))
    node.outcomes["writer"] = outcome
    await turn(node)
    assert (node.context.eviction.outstanding, node.context.eviction.victims) == ((), ())


async def test_restarted_daemon_completes_the_eviction_and_evicts_no_other_pod(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path), clears=lambda: Cleared(confirmed=False, detail="busy"))
    duty = node.duty()
    await turn(node, duty)
    await duty._effects.close()
    assert node.evicted == ["writer"]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock, pods=node.pods[1:])
    again.clears = lambda: Cleared(confirmed=False, detail="busy")
    duty = again.duty()
    await duty._effects.restore()
    await pass_lock(again, duty, 25)
    assert again.evicted == []
    assert set(again.cleared) == {"writer"}
    assert [each["pod_name"] for each in again.told("eviction_resumed")] == ["writer"]
    again.clears = lambda: Cleared(confirmed=True)
    again.readings = lambda: (read("imagefs.available", 350),)
    await pass_lock(again, duty, 15)
    assert (again.evicted, again.context.eviction.outstanding) == ([], ())
    await duty._effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1][0].cleared


async def test_eviction_cut_off_before_it_stopped_anything_is_forgotten_after_a_restart(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path))

    async def lost(*_: object) -> EvictionResult:
        raise RuntimeUnavailableError("gone")

    node.evict = lost  # type: ignore[method-assign,assignment]
    duty = node.duty()
    await turn(node, duty)
    await duty._effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock)
    again.clears = lambda: Cleared(confirmed=False, running=True)
    duty = again.duty()
    await duty._effects.restore()
    await pass_lock(again, duty, 4)
    assert again.evicted == ["writer"]


async def test_unreadable_record_pauses_evictions_for_disk_space_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "evictions.json").write_text("{")
    node = disk_node(file=EvictionFile(tmp_path))
    duty = node.duty()
    await duty._effects.restore()
    await pass_lock(node, duty, 25)
    assert (node.evicted, bool(node.reclaimed)) == ([], True)
    await pass_lock(node, duty, 10)
    assert node.evicted[:1] == ["writer"]
    assert "outstanding evictions unknown" in node.told("eviction_warning")[0]["warning"]


async def test_record_that_cannot_be_written_stops_no_eviction(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = disk_node(file=EvictionFile(tmp_path / "file"))
    duty = node.duty()
    await turn(node, duty)
    await duty._effects.close()
    assert node.evicted == ["writer"]
    assert len(node.told("eviction_warning")) == 1


async def test_reload_goes_on_with_what_is_outstanding() -> None:
    node = disk_node(clears=lambda: Cleared(confirmed=False, detail="busy"))
    duty = node.duty()
    await turn(node, duty)
    await duty._effects.close()
    await pass_lock(node, node.duty(), 25)
    assert node.evicted == ["writer"]


@pytest.mark.parametrize("end", ["pause", "dry-run"])
async def test_containers_are_not_removed_in_a_pause_or_dry_run(end: str) -> None:
    node = disk_node(clears=lambda: Cleared(confirmed=False, detail="busy"))
    await pass_lock(node, node.duty(), 3)
    tried = len(node.cleared)
    if end == "pause":
        node.context.pass_lock.hold(Pause("operator", "looking"))
    node.dry_run = end == "dry-run"
    await pass_lock(node, node.duty(), 20)
    assert len(node.cleared) == tried


async def test_memory_that_runs_short_again_after_an_eviction_is_acted_on_at_once() -> None:
    node = Node(pods=(pod("one", memory=500), pod("two", memory=400)))
    looks = 0

    def readings() -> tuple[Observation, ...]:
        nonlocal looks
        looks += 1 if node.evicted == ["one"] else 0
        return (EASE,) if looks == 1 else (LOW,)

    node.readings = readings
    duty = node.duty()
    await turn(node, duty)
    assert node.evicted == ["one"]
    await turn(node, duty)
    assert node.evicted == ["one", "two"]


async def test_stall_that_outlasts_an_eviction_costs_no_second_pod_within_its_window() -> None:
    node = Node(
        pods=(pod("one", memory=500), pod("two", memory=400)),
        limits="memory.psi.full>10%",
        readings=lambda: (read("memory.psi.full", available=50, capacity=100), EASE),
    )
    duty = node.duty()
    await pass_lock(node, duty, 8)
    assert node.evicted == ["one"]
    await pass_lock(node, duty, 5)
    assert node.evicted == ["one", "two"]


def report(frees_bytes: int | None) -> PassReport:
    """Return the report of a pass that removed one container."""
    reason = Reason(ReasonCode.OVER_TOTAL_LIMIT, {"total": 2, "limit": 1})
    decision = Decision(ItemKind.CONTAINER, "c", "c", Verdict.REMOVE, reason, frees_bytes)
    results = (Result(decision, Outcome.DONE),)
    return PassReport("id", "containers", "eviction", at(0).at, 0.1, False, (), results, PassEnd.COMPLETE)
