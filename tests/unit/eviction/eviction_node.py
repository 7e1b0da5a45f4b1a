"""A fake node with scripted signal readings and actions, for tests of eviction passes."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.daemon.context import DaemonContext
from nodeagent.errors import NodeAgentError
from nodeagent.eviction.actions import Monitors, PassActions
from nodeagent.eviction.container_removal import CleanupResult
from nodeagent.eviction.effects import OutstandingEffects
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.eviction.loop import EvictionLoop
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.thresholds import for_layout
from nodeagent.eviction.pod_monitor import OomKillMonitor, PodMonitor
from nodeagent.eviction.reclaimer import IMAGE_ACTIONS, UNKNOWN_AMOUNTS, Reclaimable, Reclaimed
from nodeagent.eviction.reporting import EvictionReporter
from nodeagent.eviction.settings import EvictionSettings
from nodeagent.eviction.signals import (
    EvaluatedSignals,
    EvictionSignalReader,
    SignalLayout,
    SignalMonitor,
    SignalReadings,
)
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.pods import PodHandle, PodInventory
from nodeagent.model.pressure import FilesystemLayout, Moment, OtherFilesystem, PodFacts, SignalReading
from nodeagent.record import replace
from nodeagent.telemetry import logging as log
from tests.unit.eviction.plan.cases import at, disk, pod, read, thresholds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from nodeagent.eviction.actions import EvictionRecord
    from nodeagent.eviction.api_evictor import RoleEvictor
    from nodeagent.eviction.effects import EvictionFile
    from nodeagent.eviction.page_cache import PageCache
    from nodeagent.eviction.plan.effects import Victim
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.eviction.plan.reclaim import ReclaimStep
    from nodeagent.eviction.plan.state import EvictionState
    from nodeagent.eviction.reclaimer import ImageObservation
    from nodeagent.gc.plan.image_targets import SpaceNeeded
    from nodeagent.host.psi_triggers import PressureTriggers


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
    """Fake signal readings and actions of the eviction loop; each reading advances the clock."""

    clock: Clock = field(default_factory=Clock)
    readings: Callable[[], tuple[SignalReading, ...]] = lambda: (NO_PRESSURE,)
    pods: tuple[PodFacts, ...] = ()
    outcomes: dict[str, EvictionOutcome] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    eviction_s: float = 0.0
    reclaimed: list[str] = field(default_factory=list)
    reclaims: dict[str, Callable[[], Reclaimed]] = field(default_factory=dict)
    needed: list[SpaceNeeded] = field(default_factory=list)
    reclaim_error: Exception | None = None
    reclaimable: Reclaimable = UNKNOWN_AMOUNTS
    reclaim_gate: asyncio.Event | None = None
    cleaned_up: list[str] = field(default_factory=list)
    cleanup: Callable[[], CleanupResult] = lambda: CleanupResult(confirmed=True)
    pods_error: Exception | None = None
    hangs: bool = False
    watch_s: float = 60.0
    list_s: float = 0.0
    lists: int = 0
    gate: asyncio.Event | None = None
    on_list: Callable[[], object] = lambda: None
    known: bool = True
    begun: list[EvictionRecord] = field(default_factory=list)
    records: list[EvictionRecord] = field(default_factory=list)
    abandoned: list[tuple[str, str]] = field(default_factory=list)
    limits: str = "memory.available<100Mi"
    soft: dict[str, str] = field(default_factory=dict)
    policy: EvictionPolicy = field(default_factory=EvictionPolicy)
    layout: FilesystemLayout = FilesystemLayout.SINGLE
    others: tuple[OtherFilesystem, ...] = ()
    dry_run: bool = False
    refusal: str = ""
    file: EvictionFile | None = None
    through_api: RoleEvictor | None = None
    effects: OutstandingEffects = field(init=False)
    listed: PodInventory | None = None

    def __post_init__(self) -> None:
        self.stream = io.StringIO()
        logger = log.configure("json", "info", self.stream)
        self.context = DaemonContext(None, logger, self.clock, LoopStatuses(self.clock), PassLock(self.clock))  # type: ignore[arg-type]

    async def read(self, layout: SignalLayout, *, urgently: bool = False) -> SignalReadings:
        del layout, urgently
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
        configured = thresholds(self.limits, **self.soft)
        of_others = (each for each in for_layout(configured, self.layout, self.others)[0] if each.filesystem)
        return SignalLayout(SignalPaths("/"), self.layout, (*configured, *of_others), others=self.others)

    async def read_pods(self, with_disk: bool) -> PodInventory:
        del with_disk
        if self.pods_error is not None:
            raise self.pods_error
        if self.hangs:
            await asyncio.Event().wait()
        self.lists += 1
        self.on_list()
        if self.gate is not None:
            await self.gate.wait()
        if self.pods_error is not None:
            raise self.pods_error
        at, self.clock.seconds = self.now(), self.clock.seconds + self.list_s
        remaining = tuple(each for each in self.pods if each.uid not in {f"uid-{name}" for name in self.evicted})
        self.listed = PodInventory(remaining, (), {each.uid: PodHandle(each.uid, ("s",)) for each in remaining}, at)
        return self.listed

    async def usage_of_last_list(self) -> PodInventory | None:
        return self.listed

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
            self.clock.seconds += self.eviction_s
        return EvictionResult(outcome, "", 0.5, hurry.is_set())

    async def run(
        self,
        step: ReclaimStep,
        needed: SpaceNeeded,
        stop: asyncio.Event,
        planned: Callable[[Reclaimable], None] = lambda _: None,
    ) -> Reclaimed:
        self.needed.append(needed)
        planned(self.reclaimable if step.action in IMAGE_ACTIONS else UNKNOWN_AMOUNTS)
        if self.reclaim_error is not None:
            raise self.reclaim_error
        if stop.is_set():
            raise NodeAgentError("stopped")
        self.reclaimed.append(step.text)
        if self.reclaim_gate is not None and step.action in IMAGE_ACTIONS:
            await self.reclaim_gate.wait()
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

    def monitors(self, read_usage: Callable[[], Awaitable[PodInventory | None]] | None = None) -> Monitors:
        reporter = EvictionReporter(self.context.logger, self.clock)
        return Monitors(
            SignalMonitor(
                self.context, self, self.read_layout, reporter, watch_s=0.001 if self.hangs else self.watch_s
            ),
            PodMonitor(
                self.read_pods,
                OomKillMonitor(self.context.logger),
                reporter,
                self.clock,
                read_usage=read_usage or self.read_usage,
                listed_within_s=0.001 if self.hangs else 60.0,
            ),
            reporter,
        )

    def loop(
        self,
        page_cache: Callable[[Monitors], PageCache] | None = None,
        triggers: PressureTriggers | None = None,
        read_usage: Callable[[], Awaitable[PodInventory | None]] | None = None,
        images: ImageObservation | None = None,
    ) -> EvictionLoop:
        settings = EvictionSettings(enabled=True, policy=self.policy, thresholds=thresholds(self.limits, **self.soft))
        self.effects = OutstandingEffects(
            self.context, self, find_layers=lambda _: {}, file=self.file, logger=self.context.logger
        )
        monitors = self.monitors(read_usage)
        return EvictionLoop(
            self.context,
            settings,
            PassActions(
                refused=self.refused,
                evictor=self.through_api or self,
                admission=self.through_api,
                reclaimer=self,
                effects=self.effects,
                history=self,
                dry_run=self.dry_run,
                settle_step_s=0.0,
                relieve_with_cache=None if page_cache is None else page_cache(monitors).relieve,
                images=images,
            ),
            monitors,
            triggers,  # type: ignore[arg-type] # unused by single passes
        )

    def events(self, name: str = "") -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [each for each in lines if not name or each["event"] == name]

    def result(self) -> str:
        return self.context.loop_statuses.all[0].result


async def run_pass(node: Node, loop: EvictionLoop | None = None) -> float:
    return await (loop or node.loop()).run_pass(asyncio.Event())


# ---- outstanding effects

DISK = "imagefs.available<100Mi"


def disk_node(**fields: Any) -> Node:
    """Return a node with pressure on a dedicated imagefs: one pod with 300 MiB, five pods with 1 MiB each."""
    values: dict[str, Any] = {
        "limits": DISK,
        "layout": FilesystemLayout.DEDICATED_IMAGEFS,
        "pods": (pod("writer", writable=disk(300)), *(pod(f"quiet-{n}", writable=disk(1)) for n in range(5))),
        "readings": lambda: (read("imagefs.available", 50),),
    }
    return Node(**(values | fields))


async def run_passes(node: Node, loop: EvictionLoop, seconds: float) -> None:
    """Run an eviction pass each second for ``seconds``."""
    ends_s = node.clock.seconds + seconds
    while node.clock.seconds < ends_s:
        await run_pass(node, loop)
        await asyncio.sleep(0)  # lets the background removal of containers run
        node.clock.seconds += 1.0
