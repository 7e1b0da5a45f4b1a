"""Eviction passes over scripted readings: reclaim, choice of the pod, eviction, effects and log events."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.act.eviction.container_removal import CleanupResult
from nodeagent.act.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.act.eviction.reclaimer import Reclaimed
from nodeagent.act.gc.outcomes import Outcome, PassEnd, PassReport, Result
from nodeagent.config.eviction import EvictionSettings
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.eviction.composition import past_eviction
from nodeagent.daemon.eviction.loop import EvictionLoop
from nodeagent.daemon.eviction.oom_kills import OomKillMonitor
from nodeagent.daemon.eviction.outstanding_effects import OutstandingEffects
from nodeagent.daemon.eviction.pass_actions import Monitors, PassActions
from nodeagent.daemon.eviction.pod_monitor import PodMonitor
from nodeagent.daemon.eviction.reporting import EvictionReporter
from nodeagent.daemon.eviction.signal_monitor import SignalMonitor
from nodeagent.daemon.loop_status import LoopStatuses
from nodeagent.daemon.pass_lock import PassLock, Pause, PausedBy
from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.host.node import boot_id
from nodeagent.host.signals import SignalPaths
from nodeagent.model.pods import PodHandle, PodInventory
from nodeagent.model.pressure import EmptyDirFacts, FilesystemLayout, FilesystemRole, Moment, Observation, PodFacts
from nodeagent.observe.eviction_signals import EvaluatedSignals, EvictionSignalReader, SignalLayout, SignalReadings
from nodeagent.plan.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.plan.eviction.policy import EvictionPolicy
from nodeagent.plan.eviction.reclaim import ReclaimAction, ReclaimStep
from nodeagent.plan.eviction.state import suspended
from nodeagent.store.evictions import EvictionFile
from nodeagent.telemetry import logging as log
from tests.unit.plan.eviction.cases import at, disk, known, pod, read, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from nodeagent.daemon.eviction.pass_result import EvictionRecord
    from nodeagent.plan.eviction.effects import Victim
    from nodeagent.plan.eviction.eviction import Eviction
    from nodeagent.plan.eviction.state import EvictionState

NO_PRESSURE = read(available_mib=900)
LOW = read(available_mib=50)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return at(self.seconds).at

    def monotonic_s(self) -> float:
        return at(self.seconds).monotonic_s


@dataclass
class Node:
    """Fake readings and actions of the loop; each reading advances the clock."""

    clock: Clock = field(default_factory=Clock)
    readings: Callable[[], tuple[Observation, ...]] = lambda: (NO_PRESSURE,)
    pods: tuple[PodFacts, ...] = ()
    outcomes: dict[str, EvictionOutcome] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    reclaimed: list[str] = field(default_factory=list)
    reclaims: dict[str, Callable[[], Reclaimed]] = field(default_factory=dict)
    reclaim_error: Exception | None = None
    cleaned_up: list[str] = field(default_factory=list)
    cleanup: Callable[[], CleanupResult] = lambda: CleanupResult(confirmed=True)
    pods_error: Exception | None = None
    hangs: bool = False
    known: bool = True
    begun: list[EvictionRecord] = field(default_factory=list)
    records: list[EvictionRecord] = field(default_factory=list)
    abandoned: list[tuple[str, str]] = field(default_factory=list)
    limits: str = "memory.available<100Mi"
    soft: dict[str, str] = field(default_factory=dict)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    layout: FilesystemLayout = FilesystemLayout.SINGLE
    dry_run: bool = False
    refusal: str = ""
    file: EvictionFile | None = None
    effects: OutstandingEffects = field(init=False)

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
        reader = EvictionSignalReader(
            EvictionSettings(policy=self.policy), self.clock, pod_log_root=Path("/var/log/pods")
        )
        return reader.evaluate_readings(layout, readings, state)

    def now(self) -> Moment:
        return Moment(self.clock.now(), self.clock.monotonic_s())

    async def read_layout(self) -> SignalLayout:
        return SignalLayout(SignalPaths("/"), self.layout, thresholds(self.limits, **self.soft))

    async def read_pods(self, with_disk: bool) -> PodInventory:
        del with_disk
        if self.pods_error is not None:
            raise self.pods_error
        if self.hangs:
            await asyncio.Event().wait()
        remaining = tuple(each for each in self.pods if each.uid not in {f"uid-{name}" for name in self.evicted})
        return PodInventory(remaining, (), {each.uid: PodHandle(each.uid, ("s",)) for each in remaining}, self.now())

    async def read_usage(self) -> PodInventory | None:
        self.hangs, hanging = False, self.hangs
        try:
            return await self.read_pods(with_disk=False) if self.known else None
        finally:
            self.hangs = hanging

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
            raise NodeAgentError("stopped")
        self.reclaimed.append(step.text)
        return self.reclaims.get(step.text, lambda: Reclaimed(step, None))()

    async def clean_up(self, victim: Victim) -> CleanupResult:
        self.cleaned_up.append(victim.name)
        return self.cleanup()

    async def begin(self, record: EvictionRecord) -> None:
        assert record.eviction.pod.name not in self.evicted
        self.begun.append(record)

    async def finish(self, record: EvictionRecord) -> None:
        self.records.append(record)

    def abandon(self, record: EvictionRecord, cause: str) -> None:
        self.abandoned.append((record.id, cause))

    def loop(self) -> EvictionLoop:
        reporter = EvictionReporter(self.context.logger)
        settings = EvictionSettings(enabled=True, policy=self.policy, thresholds=thresholds(self.limits, **self.soft))
        self.effects = OutstandingEffects(
            self.context, self, find_layers=lambda _: {}, file=self.file, logger=self.context.logger
        )
        return EvictionLoop(
            self.context,
            settings,
            PassActions(
                refused=self.refused,
                evictor=self,
                reclaimer=self,
                effects=self.effects,
                history=self,
                dry_run=self.dry_run,
                settle_step_s=0.0,
            ),
            Monitors(
                SignalMonitor(self.context, self, self.read_layout, reporter, watch_s=0.001),
                PodMonitor(
                    self.read_pods,
                    OomKillMonitor(self.context.logger),
                    reporter,
                    self.clock,
                    read_usage=self.read_usage,
                    listed_within_s=0.001 if self.hangs else 60.0,
                ),
                reporter,
            ),
            triggers=None,  # type: ignore[arg-type]
        )

    def events(self, name: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [each for each in lines if not name or each["event"] == name]

    def result(self) -> str:
        return self.context.loop_statuses.all[0].result


async def run_pass(node: Node, loop: EvictionLoop | None = None) -> float:
    return await (loop or node.loop()).run_pass(asyncio.Event())


async def test_pass_without_pressure_takes_no_action() -> None:
    node = Node(pods=(pod(),))
    assert await run_pass(node) > 1
    assert (node.evicted, node.result(), node.events()) == ([], "no-pressure", [])


async def test_pass_evicts_one_pod_and_the_next_one_reads_the_signals_again() -> None:
    node = Node(pods=(pod("small", memory=10), pod("big", memory=500)))
    node.readings = lambda: (LOW,) if not node.evicted else (NO_PRESSURE,)
    loop = node.loop()
    await run_pass(node, loop)
    assert node.evicted == ["big"]
    await run_pass(node, loop)
    assert node.evicted == ["big"]
    assert [each["event"] for each in node.events()] == [
        "condition_changed",
        "threshold_met",
        "eviction_started",
        "evicted",
        "threshold_cleared",
    ]
    (record,) = node.records
    assert (record.eviction.pod.name, record.after) == ("big", NO_PRESSURE.available)
    (begun,) = node.begun
    intended = past_eviction(begun)
    assert (intended.id, intended.result, intended.actions[0].outcome) == (record.id, "running", "planned")
    assert json.loads(intended.eviction)["outcome"] == "unknown"
    entry = past_eviction(record)
    assert (entry.id, entry.result, entry.actions[0].outcome) == (record.id, "complete", "done")
    document = json.loads(entry.eviction)
    assert [each["name"] for each in document["ranking"]] == ["shop/big", "shop/small"]
    assert document["available_before"] == LOW.available


@pytest.mark.parametrize(
    ("error", "recorded", "abandoned"),
    [
        (RuntimeUnavailableError("no socket"), ["runtime unavailable: no socket"], []),
        (KeyError("bug"), [], ["crashed"]),
        (asyncio.CancelledError(), [], ["cancelled"]),
    ],
    ids=["runtime lost", "bug", "cancelled"],
)
async def test_eviction_that_raises_is_recorded_with_its_cause(
    error: BaseException, recorded: list[str], abandoned: list[str]
) -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))

    async def evict(eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        del eviction, handle, hurry
        raise error

    node.evict = evict  # type: ignore[method-assign]
    with suppress(asyncio.CancelledError):
        await run_pass(node)
    assert [each.result.detail for each in node.records if each.result] == recorded
    assert node.abandoned == [(node.begun[0].id, each) for each in abandoned]


@pytest.mark.parametrize("outcome", [EvictionOutcome.FAILED, EvictionOutcome.CHANGED])
async def test_next_pod_is_evicted_after_a_failed_eviction(outcome: EvictionOutcome) -> None:
    node = Node(pods=(pod("stuck", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["stuck"] = outcome
    await run_pass(node)
    assert node.evicted == ["next"]
    assert [each["outcome"] for each in node.events("eviction_failed")] == [outcome.value]


async def test_pod_that_ended_by_itself_ends_the_pass() -> None:
    node = Node(pods=(pod("ended", memory=500), pod("next", memory=400)), readings=lambda: (LOW,))
    node.outcomes["ended"] = EvictionOutcome.GONE
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "gone")


async def test_pod_is_evicted_by_the_last_list_while_the_runtime_does_not_answer() -> None:
    node = Node(pods=(pod("small", memory=10), pod("big", memory=500)), readings=lambda: (LOW,), hangs=True)
    await asyncio.wait_for(run_pass(node), 5)
    assert node.evicted == ["big"]
    (event,) = node.events("pods_not_listed")
    assert (event["pods"], event["level"]) == (2, "warning")


async def test_rejected_reading_is_repeated_within_a_second() -> None:
    node = Node(pods=(pod(),), readings=lambda: (read(available_mib=2000),))
    assert await run_pass(node) <= 1


async def test_protected_pods_are_kept_and_logged_once() -> None:
    node = Node(pods=(pod(namespace="kube-system"), pod("static", static=known(value=True))))
    node.readings = lambda: (LOW,)
    loop = node.loop()
    assert await run_pass(node, loop) == 10.0
    await run_pass(node, loop)
    assert node.evicted == []
    (event,) = node.events("no_evictable_pod")
    assert event["because"] == "1 protected-namespace, 1 static-pod"


async def test_pod_is_evicted_only_after_insufficient_node_level_reclaim() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
    )
    await run_pass(node)
    assert node.reclaimed == [
        "dead-containers on nodefs",
        "logs on nodefs",
        "unused-images on nodefs",
        "irreplaceable-images on nodefs",
    ]
    assert node.evicted == ["writer"]

    enough = Node(limits="nodefs.available<10%", pods=(pod("writer", writable=disk(300)),))
    enough.readings = lambda: (read("nodefs.available", 50 if len(enough.reclaimed) < 2 else 500),)
    await run_pass(enough)
    assert enough.reclaimed == ["dead-containers on nodefs", "logs on nodefs"]
    assert (enough.evicted, enough.result()) == ([], "reclaimed")


async def test_no_pod_is_evicted_while_another_pass_runs() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=PassBusyError("another pass is running"),
    )
    assert await run_pass(node) <= 1
    assert (node.evicted, node.result()) == ([], "reclaiming")


async def test_pod_is_evicted_after_failed_reclaim_steps() -> None:
    node = Node(
        limits="nodefs.available<10%",
        pods=(pod("writer", writable=disk(300)),),
        readings=lambda: (read("nodefs.available", 50),),
        reclaim_error=NodeAgentError("no snapshot"),
    )
    await run_pass(node)
    assert node.evicted == ["writer"]
    assert len(node.events("reclaim_failed")) == 4


async def test_dry_run_logs_the_eviction_once_and_evicts_nothing() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), dry_run=True)
    loop = node.loop()
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert node.evicted == []
    (event,) = node.events("would_evict")
    assert event["pod_name"] == "web"
    assert [each.dry_run for each in node.records] == [True]


async def test_eviction_limit_stops_evictions_and_is_logged() -> None:
    node = Node(
        pods=tuple(pod(f"p{number}") for number in range(4)),
        limits="memory.psi.full>40",
        readings=lambda: (read("memory.psi.full", available=99.0, capacity=100),),
        policy=EvictionPolicy(max_evictions_per_window=2),
    )
    loop = node.loop()
    await run_passes(node, loop, 60)
    assert len(node.evicted) == 2
    (event,) = node.events("eviction_limit_reached")
    assert event["level"] == "error"


async def test_no_pod_is_evicted_during_a_pause() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    node.context.pass_lock.add_pause(Pause(PausedBy.SHUTDOWN, "the node is shutting down"))
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "pressure")


@pytest.mark.parametrize("end", ["pause", "stop"])
async def test_chosen_pod_is_not_evicted_after_a_pause_or_stop(end: str) -> None:
    stop = asyncio.Event()

    class Interrupted(Node):
        async def read_pods(self, with_disk: bool) -> PodInventory:
            if end == "pause":
                self.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "debugging"))
            else:
                stop.set()
            return await super().read_pods(with_disk)

    node = Interrupted(readings=lambda: (LOW,), pods=(pod("hog", memory=500),))
    await node.loop().run_pass(stop)
    assert node.evicted == []
    assert node.context.loop_statuses.all[0].failures == 0


async def test_hard_threshold_shortens_the_grace_period_of_a_soft_eviction() -> None:
    node = Node(
        pods=(pod("slow", memory=500),),
        limits="memory.available<100Mi",
        soft={"soft": "memory.available<300Mi", "soft_grace_period": "memory.available=50ms"},
    )
    reads = 0

    def readings() -> tuple[Observation, ...]:
        nonlocal reads
        reads += 1
        return (read(available_mib=200 if reads < 6 else 50),)

    node.readings = readings
    loop = node.loop()
    for _ in range(3):
        await run_pass(node, loop)
        if node.evicted:
            break
    assert node.evicted == ["slow"]
    assert node.records[0].result is not None
    assert node.records[0].result.hurried
    assert len(node.events("eviction_grace_shortened")) == 1


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (RuntimeUnavailableError("no socket"), "runtime-unavailable"),
        (NodeAgentError("x"), "failed"),
        (KeyError("bug"), "crashed"),
    ],
)
async def test_pass_after_a_failed_one_evicts(error: Exception, result: str) -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,), pods_error=error)
    loop = node.loop()
    await run_pass(node, loop)
    assert (node.evicted, node.result()) == ([], result)
    node.pods_error = None
    await run_pass(node, loop)
    assert node.evicted == ["web"]


async def test_pod_over_its_storage_limit_is_evicted_without_pressure() -> None:
    over = pod("greedy", writable=disk(300), ephemeral_limit_bytes=200 << 20)
    over = replace(over, usage=replace(over.usage, ephemeral_bytes=300 << 20))  # type: ignore[type-var]
    node = Node(pods=(pod("modest"), over))
    await run_pass(node)
    assert node.evicted == ["greedy"]


def over_limit(name: str, **fields: Any) -> PodFacts:
    """Return a pod with 20 bytes in an emptyDir of 10."""
    return pod(name, memory=1, empty_dirs=(EmptyDirFacts("tmp", 20, 10),), **fields)


@pytest.mark.parametrize(
    ("limits", "reading"),
    [
        ("io.psi.some>50", read("io.psi.some", available=99.0, capacity=100)),
        ("memory.available<100Mi", LOW),
    ],
    ids=["stalled on I/O", "memory without candidates"],
)
async def test_pod_over_its_storage_limit_is_evicted_behind_a_threshold_without_a_victim(
    limits: str, reading: Observation
) -> None:
    static = pod("static", memory=900, static=known(value=True))
    node = Node(pods=(over_limit("greedy", memory_request_bytes=known(None)), static), limits=limits)
    node.readings = lambda: (reading,)

    async def read_pods(with_disk: bool) -> PodInventory:
        await asyncio.sleep(0.01 if with_disk else 0)  # the walk takes longer than the interval of the readings
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    await run_pass(node)
    assert (node.evicted, node.result()) == (["greedy"], "evicted")


async def test_cheap_pods_over_their_storage_limits_do_not_use_up_the_evictions_for_memory() -> None:
    cheap = tuple(over_limit(f"cheap-{number}") for number in range(10))
    node = Node(pods=cheap, policy=EvictionPolicy(max_evictions_per_window=3, max_limit_evictions_per_window=3))
    loop = node.loop()
    await run_passes(node, loop, 600)
    assert len(node.evicted) == 3
    node.pods = (*cheap, pod("hog", memory=900))
    node.readings = lambda: (LOW,) if "hog" not in node.evicted else (NO_PRESSURE,)
    await run_pass(node, loop)
    assert node.evicted[3:] == ["hog"]


async def test_memory_evictions_above_the_limit_are_slowed_and_reported() -> None:
    node = Node(
        pods=tuple(pod(f"p{number}") for number in range(9)),
        readings=lambda: (LOW,),
        policy=EvictionPolicy(max_evictions_per_window=2),
    )
    loop = node.loop()
    await run_passes(node, loop, 40)
    assert 4 <= len(node.evicted) <= 6
    assert node.result() in {"slowed", "evicted"}
    assert {each["level"] for each in node.events("eviction_limit_reached")} == {"error"}


async def test_memory_pressure_interrupts_the_measurement_of_disk_usage() -> None:
    node = Node(
        limits="memory.available<100Mi,nodefs.available<10%",
        pods=(pod("writer", writable=disk(300), memory=1), pod("eater", memory=500)),
    )
    measuring = asyncio.Event()

    async def read_pods(with_disk: bool) -> PodInventory:
        if with_disk:
            measuring.set()
            await asyncio.Event().wait()
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    node.readings = lambda: (
        read("nodefs.available", 50),
        read(available_mib=50 if measuring.is_set() and not node.evicted else 900),
    )
    loop = node.loop()
    await run_pass(node, loop)
    assert (node.evicted, node.result()) == ([], "urgent")
    await run_pass(node, loop)
    assert node.evicted == ["eater"]


async def test_eviction_is_cancelled_when_a_kubelet_starts_during_the_pass() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))

    async def read_pods(with_disk: bool) -> PodInventory:
        node.refusal = "a kubelet manages this node"
        return await Node.read_pods(node, with_disk)

    node.read_pods = read_pods  # type: ignore[method-assign]
    await run_pass(node)
    assert (node.evicted, node.result()) == ([], "called-off")


def test_eviction_state_outlives_the_loop() -> None:
    node = Node(pods=(pod(),), readings=lambda: (LOW,))
    asyncio.run(run_pass(node))
    assert len(node.context.eviction.evicted_s) == 1


# ---- outstanding effects

DISK = "imagefs.available<100Mi"


def disk_node(**fields: Any) -> Node:
    """Return a node with a dedicated imagefs, one pod with 300 MiB and five pods with 1 MiB."""
    values: dict[str, Any] = {
        "limits": DISK,
        "layout": FilesystemLayout.DEDICATED_IMAGEFS,
        "pods": (pod("writer", writable=disk(300)), *(pod(f"quiet-{n}", writable=disk(1)) for n in range(5))),
        "readings": lambda: (read("imagefs.available", 50),),
    }
    return Node(**(values | fields))


async def run_passes(node: Node, loop: EvictionLoop, seconds: float) -> None:
    """Run a pass each second for ``seconds``."""
    ends_s = node.clock.seconds + seconds
    while node.clock.seconds < ends_s:
        await run_pass(node, loop)
        await asyncio.sleep(0)  # lets the background removal of containers run
        node.clock.seconds += 1.0


async def test_no_second_pod_is_evicted_before_the_bytes_of_the_first_are_freed() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="snapshot still on the disk"))
    loop = node.loop()
    await run_passes(node, loop, 25)
    assert node.evicted == ["writer"]
    assert len(node.cleaned_up) > 1
    (withheld,) = node.events("eviction_withheld")
    assert (withheld["reason"], withheld["action"]) == ("effect-outstanding", "eviction of shop/writer")
    assert [each["detail"] for each in node.events("eviction_cleanup_failed")] == ["snapshot still on the disk"]
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, loop, 15)
    assert node.evicted == ["writer"]
    (measured,) = node.events("effect_measured")
    assert measured["end"] == "measured"
    assert node.context.eviction.outstanding == ()


async def test_another_pod_is_evicted_after_a_verified_and_insufficient_effect() -> None:
    node = disk_node()
    loop = node.loop()
    await run_pass(node, loop)
    assert node.evicted == ["writer"]
    await run_pass(node, loop)
    assert node.evicted == ["writer", "quiet-0"]
    assert node.events("effect_measured")[0]["end"] == "confirmed"


async def test_eviction_without_effect_pauses_evictions_but_not_reclaim() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    loop = node.loop()
    await run_passes(node, loop, 29)
    before = len(node.reclaimed)
    await run_passes(node, loop, 25)
    assert node.evicted == ["writer"]
    assert len(node.reclaimed) > before
    (ineffective,) = node.events("eviction_ineffective")
    assert (ineffective["level"], ineffective["end"]) == ("error", "missing")
    await run_passes(node, loop, 15)
    assert node.evicted == ["writer", "quiet-0"]


async def test_eviction_with_a_prediction_of_zero_pauses_evictions_but_not_reclaim() -> None:
    node = disk_node(
        limits="nodefs.available<100Mi",
        pods=(pod("chatty", logs=disk(300), writable=disk(2)), pod("quiet", logs=disk(1))),
        readings=lambda: (read("nodefs.available", 50),),
    )
    loop = node.loop()
    await run_pass(node, loop)
    before = len(node.reclaimed)
    await run_passes(node, loop, 20)
    assert node.evicted == ["chatty"]
    assert len(node.reclaimed) > before
    (event,) = node.events("eviction_ineffective")
    assert (event["predicted_bytes"], event["logs_bytes"]) == (0, 300 << 20)


async def test_reclaim_is_measured_before_the_next_step() -> None:
    def reclaimed() -> Reclaimed:
        return Reclaimed(ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), report(500 << 20))

    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    loop = node.loop()
    await run_pass(node, loop)
    node.reclaims.clear()
    await run_passes(node, loop, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])
    node.readings = lambda: (read("imagefs.available", 550),)
    await run_passes(node, loop, 20)
    assert (node.reclaimed, node.evicted) == (["dead-containers on imagefs"], [])


async def test_next_reclaim_step_follows_a_missing_effect_at_its_bound() -> None:
    def reclaimed() -> Reclaimed:
        return Reclaimed(ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), report(500 << 20))

    node = disk_node(reclaims={"dead-containers on imagefs": reclaimed})
    loop = node.loop()
    await run_pass(node, loop)
    node.reclaims.clear()
    await run_passes(node, loop, 35)
    assert node.reclaimed[:3] == [
        "dead-containers on imagefs",
        "dead-containers on imagefs",
        "unused-images on imagefs",
    ]
    assert node.evicted[:1] == ["writer"]
    assert [each["action"] for each in node.events("effect_missing")] == ["dead-containers on imagefs"]


async def test_pods_of_two_filesystems_are_evicted_while_one_effect_is_outstanding() -> None:
    node = disk_node(
        limits=f"nodefs.available<100Mi,{DISK}",
        pods=(
            pod("writer", writable=disk(300)),
            pod("chatty", logs=disk(300), writable=disk(1)),
            pod("quiet", writable=disk(1), logs=disk(1)),
        ),
        readings=lambda: (read("imagefs.available", 50), read("nodefs.available", 50)),
        cleanup=lambda: CleanupResult(confirmed=False, detail="busy"),
    )
    await run_passes(node, node.loop(), 25)
    assert sorted(node.evicted) == ["chatty"]  # the effect of its layer on imagefs is outstanding as well

    node = disk_node(
        limits=f"{DISK},pid.available<100",
        pods=(pod("writer", writable=disk(300), pids=1), pod("forks", pids=500, writable=disk(0))),
        readings=lambda: (read("imagefs.available", 50), read("pid.available", available=50, capacity=1000)),
        cleanup=lambda: CleanupResult(confirmed=False, detail="busy"),
    )
    await run_passes(node, node.loop(), 20)
    assert sorted(node.evicted) == ["forks", "writer"]


async def test_pod_that_was_not_stopped_is_retried_before_another_pod_is_evicted() -> None:
    node = disk_node()
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.cleanup = lambda: CleanupResult(confirmed=False, running=True, detail="running: app")
    loop = node.loop()
    await run_pass(node, loop)
    assert (node.evicted, node.result()) == ([], "failed")
    await run_passes(node, loop, 25)
    assert len(node.events("eviction_failed")) == 1
    await run_passes(node, loop, 30)
    assert (node.evicted, len(node.events("eviction_failed"))) == ([], 2)
    await run_passes(node, loop, 15)
    assert node.evicted[:1] == ["quiet-0"]


async def test_removal_is_completed_after_a_late_end_and_no_other_pod_is_evicted() -> None:
    node = disk_node()
    node.outcomes["writer"] = EvictionOutcome.FAILED
    node.cleanup = lambda: CleanupResult(confirmed=False, running=True, detail="running: app")
    loop = node.loop()
    await run_passes(node, loop, 10)
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, loop, 20)
    assert (node.evicted, node.context.eviction.outstanding) == ([], ())
    assert [each["end"] for each in node.events("effect_measured")] == ["measured"]


@pytest.mark.parametrize("outcome", [EvictionOutcome.GONE, EvictionOutcome.CHANGED])
async def test_eviction_not_carried_out_has_no_outstanding_effect(outcome: EvictionOutcome) -> None:
    node = disk_node(pods=(pod("writer", writable=disk(300)),))
    node.outcomes["writer"] = outcome
    await run_pass(node)
    assert (node.context.eviction.outstanding, node.context.eviction.victims) == ((), ())


async def test_restarted_daemon_completes_the_eviction_and_evicts_no_other_pod(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path), cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert node.evicted == ["writer"]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock, pods=node.pods[1:])
    again.cleanup = lambda: CleanupResult(confirmed=False, detail="busy")
    loop = again.loop()
    await again.effects.restore()
    await run_passes(again, loop, 25)
    assert again.evicted == []
    assert set(again.cleaned_up) == {"writer"}
    assert [each["pod_name"] for each in again.events("eviction_resumed")] == ["writer"]
    again.cleanup = lambda: CleanupResult(confirmed=True)
    again.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(again, loop, 15)
    assert (again.evicted, again.context.eviction.outstanding) == ([], ())
    await again.effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1][0].cleared


async def test_interrupted_eviction_that_stopped_nothing_is_dropped_after_a_restart(tmp_path: Path) -> None:
    node = disk_node(file=EvictionFile(tmp_path))

    async def disconnect(*_: object) -> EvictionResult:
        raise RuntimeUnavailableError("no connection")

    node.evict = disconnect  # type: ignore[method-assign,assignment]
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert EvictionFile(tmp_path).read(boot_id())[1]

    again = disk_node(file=EvictionFile(tmp_path), clock=node.clock)
    again.cleanup = lambda: CleanupResult(confirmed=False, running=True)
    loop = again.loop()
    await again.effects.restore()
    await run_passes(again, loop, 4)
    assert again.evicted == ["writer"]


async def test_unreadable_record_pauses_evictions_for_disk_space_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "evictions.json").write_text("{")
    node = disk_node(file=EvictionFile(tmp_path))
    loop = node.loop()
    await node.effects.restore()
    await run_passes(node, loop, 25)
    assert (node.evicted, bool(node.reclaimed)) == ([], True)
    await run_passes(node, loop, 10)
    assert node.evicted[:1] == ["writer"]
    assert "outstanding evictions unknown" in node.events("eviction_warning")[0]["warning"]


async def test_unwritable_record_does_not_stop_evictions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = disk_node(file=EvictionFile(tmp_path / "file"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    assert node.evicted == ["writer"]
    assert len(node.events("eviction_warning")) == 1


async def test_outstanding_effects_outlive_a_reload() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    loop = node.loop()
    await run_pass(node, loop)
    await node.effects.close()
    await run_passes(node, node.loop(), 25)
    assert node.evicted == ["writer"]


async def test_eviction_suspended_beside_a_kubelet_is_completed_when_evictions_resume() -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    await run_pass(node)
    await node.effects.close()
    node.context.eviction = suspended(node.context.eviction, node.clock.monotonic_s())
    node.cleanup = lambda: CleanupResult(confirmed=True)
    node.readings = lambda: (read("imagefs.available", 350),)
    await run_passes(node, node.loop(), 20)
    assert (node.evicted, node.context.eviction.outstanding) == (["writer"], ())
    assert [each.cleared for each in node.context.eviction.victims] == [True]


@pytest.mark.parametrize("end", ["pause", "dry-run"])
async def test_containers_are_not_removed_in_a_pause_or_dry_run(end: str) -> None:
    node = disk_node(cleanup=lambda: CleanupResult(confirmed=False, detail="busy"))
    await run_passes(node, node.loop(), 3)
    attempts = len(node.cleaned_up)
    if end == "pause":
        node.context.pass_lock.add_pause(Pause(PausedBy.OPERATOR, "debugging"))
    node.dry_run = end == "dry-run"
    await run_passes(node, node.loop(), 20)
    assert len(node.cleaned_up) == attempts


async def test_new_memory_pressure_after_an_eviction_is_acted_on_at_once() -> None:
    node = Node(pods=(pod("one", memory=500), pod("two", memory=400)))
    reads = 0

    def readings() -> tuple[Observation, ...]:
        nonlocal reads
        reads += 1 if node.evicted == ["one"] else 0
        return (NO_PRESSURE,) if reads == 1 else (LOW,)

    node.readings = readings
    loop = node.loop()
    await run_pass(node, loop)
    assert node.evicted == ["one"]
    await run_pass(node, loop)
    assert node.evicted == ["one", "two"]


async def test_no_second_pod_is_evicted_for_a_stall_within_its_averaging_window() -> None:
    node = Node(
        pods=(pod("one", memory=500), pod("two", memory=400)),
        limits="memory.psi.full>10%",
        readings=lambda: (read("memory.psi.full", available=50, capacity=100), NO_PRESSURE),
    )
    loop = node.loop()
    await run_passes(node, loop, 8)
    assert node.evicted == ["one"]
    await run_passes(node, loop, 5)
    assert node.evicted == ["one", "two"]


def report(frees_bytes: int | None) -> PassReport:
    """Return the report of a pass that removed one container."""
    reason = Reason(ReasonCode.OVER_TOTAL_LIMIT, {"total": 2, "limit": 1})
    decision = Decision(ItemKind.CONTAINER, "c", "c", Verdict.REMOVE, reason, frees_bytes)
    results = (Result(decision, Outcome.DONE),)
    return PassReport("id", "containers", "eviction", at(0).at, 0.1, False, (), results, PassEnd.COMPLETE)
