"""Composition of the eviction task, for standalone nodes and for evictions through the API server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.api.common import encode_line
from nodeagent.errors import NodeAgentError
from nodeagent.eviction import LOOP_NAME, documents
from nodeagent.eviction.actions import EvictionRecord, Monitors, PassActions
from nodeagent.eviction.consumers import find_consumers
from nodeagent.eviction.container_removal import ContainerCleaner, CriContainerCleaner
from nodeagent.eviction.effects import EvictionFile, OutstandingEffects
from nodeagent.eviction.evictor import CriEvictor, EvictionOutcome, EvictionResult, Evictor
from nodeagent.eviction.loop import EvictionLoop
from nodeagent.eviction.page_cache import CgroupCacheReclaimer, PageCache
from nodeagent.eviction.plan.effects import pod_fields
from nodeagent.eviction.plan.state import suspended
from nodeagent.eviction.pod_monitor import OomKillMonitor, PodMonitor
from nodeagent.eviction.reclaimer import ImageObservation, Reclaimer
from nodeagent.eviction.reporting import EvictionReporter
from nodeagent.eviction.signals import EvictionSignalReader, SignalMonitor
from nodeagent.gc.executor import PassEnd, PassReport, PassTrigger, Result
from nodeagent.gc.loop import log_result, log_start
from nodeagent.gc.pass_state import Preview, make_visible
from nodeagent.gc.removers import HostLogs
from nodeagent.host.cgroups import is_populated, list_children, read_processes
from nodeagent.host.pod_disk import find_upper_directories, snapshotter_of
from nodeagent.host.processes import kill_processes
from nodeagent.host.psi_triggers import PressureTriggers
from nodeagent.loops.memory import lock_memory
from nodeagent.loops.passes import wait_for_any
from nodeagent.model.decision import ItemKind
from nodeagent.model.node import Role
from nodeagent.pods.role import ROLE_POLL_S
from nodeagent.record import Record
from nodeagent.store.history import PLANNED, RUNNING, UNKNOWN, PastAction, PastPass
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    import asyncio

    from nodeagent.daemon.context import DaemonContext, DaemonTask
    from nodeagent.eviction.api_evictor import RoleEvictor
    from nodeagent.gc.agent import Agent
    from nodeagent.gc.pass_history import HistoryWriter
    from nodeagent.model.pods import PodInventory
    from nodeagent.pods.reader import PodReader
    from nodeagent.runtime.storage_backend import StorageBackend

_ENDS = {
    EvictionOutcome.EVICTED: PassEnd.COMPLETE,
    EvictionOutcome.GONE: PassEnd.NOTHING_TO_DO,
    EvictionOutcome.DRY_RUN: PassEnd.COMPLETE,
}
_BEGUN: Final = EvictionResult(EvictionOutcome.FAILED)
"""Placeholder result of an eviction that has begun but has no result yet."""
_BEGUN_WITHIN_S: Final = 0.5
_URGENTLY_BEGUN_WITHIN_S: Final = 0.1
_FINISHED_WITHIN_S: Final = 0.1


def eviction_tasks(context: DaemonContext, agent: Agent) -> Sequence[DaemonTask]:
    """Return the eviction task, or no task if the configuration disables eviction in every role."""
    off = agent.settings.eviction.off_because(Role.STANDALONE)
    if off:
        context.loop_statuses.disabled(LOOP_NAME, off)
        context.logger.info("loop_disabled", loop=LOOP_NAME, because=off)
        return ()
    return (EvictionTask(context, agent, partial(_make_loop, context, agent)),)


class EvictionTask(Record):
    """Runs the eviction loop while evictions are enabled in the role of the agent; otherwise waits.

    Attributes:
        make: returns an eviction loop that ends when evictions are refused.
    """

    context: DaemonContext
    agent: Agent
    make: Callable[[], DaemonTask]

    async def run(self, stop: asyncio.Event) -> None:
        """Run the eviction loop while evictions are enabled, until ``stop`` is set."""
        logged = False
        while not stop.is_set():
            if off := await refusal(self.agent):
                self._disable(off, log=not logged)
                logged = True
                await wait_for_any(ROLE_POLL_S, stop)
                continue
            logged = False
            await self.make().run(stop)

    def _disable(self, off: str, *, log: bool) -> None:
        """Report the loop as disabled and reset the thresholds' grace periods, since signals are no longer evaluated.

        Evicted pods with remaining containers remain recorded, in the daemon context and in the state directory, with
        their outstanding effects. A kubelet removes the containers itself; on a standalone node the removal resumes
        together with evictions.
        """
        self.context.loop_statuses.disabled(LOOP_NAME, off)
        self.context.eviction = suspended(self.context.eviction, self.context.clock.monotonic_s())
        if log:
            refused = self.agent.settings.eviction.refused(self.agent.role)
            level = self.context.logger.warning if refused else self.context.logger.info
            level("loop_disabled", loop=LOOP_NAME, because=off)
            for victim in self.context.eviction.victims:
                if not victim.cleared:
                    detail = f"removal suspended: eviction is disabled: {off}"
                    self.context.logger.warning("eviction_cleanup_failed", **pod_fields(victim), detail=detail)


async def refusal(agent: Agent) -> str:
    """Return the reason for not evicting pods on this node now; empty if eviction is enabled."""
    role = await agent.evaluate_role()
    return agent.settings.eviction.off_because(role.role, role.reason)


def _make_loop(context: DaemonContext, agent: Agent) -> EvictionLoop:
    settings = agent.settings.eviction
    if why_not := lock_memory():
        context.logger.warning("memory_not_locked", because=why_not)
    logger = context.logger.bind(loop=LOOP_NAME)
    reporter = EvictionReporter(logger, context.clock)
    pod_reader = agent.make_pod_reader()
    signal_reader = EvictionSignalReader(
        settings, agent.clock, pod_log_root=agent.settings.pod_log_root, all_memory_parts=False
    )
    read_layout = partial(
        signal_reader.read_layout,
        agent.cri,
        agent.settings.imagefs_path,
        agent.observer.images.find_filesystems,
    )

    async def read_pods(with_disk: bool) -> PodInventory:  # noqa: FBT001 - the only parameter
        return await pod_reader.read(with_disk=with_disk)

    monitors = Monitors(
        SignalMonitor(context, signal_reader, read_layout, reporter),
        PodMonitor(
            read_pods, OomKillMonitor(context.logger), reporter, context.clock, read_usage=pod_reader.read_usage
        ),
        reporter,
    )
    reclaims_cache = settings.reclaim_cache and not agent.dry_run
    images = ImageObservation(agent.observer.observe, context.clock)
    evictor, cleaner, admission = _make_evictor(agent, pod_reader)
    loop = EvictionLoop(
        context,
        settings,
        PassActions(
            refused=partial(refusal, agent),
            evictor=evictor,
            admission=admission,
            reclaimer=_make_reclaimer(context, agent, images, monitors.signals),
            images=images,
            effects=OutstandingEffects(
                context,
                cleaner,
                find_layers=find_upper_directories,
                file=EvictionFile(agent.settings.state_directory) if agent.record else None,
                logger=logger,
            ),
            history=AgentEvictionHistory(agent.history_writer if agent.record else None),
            dry_run=agent.dry_run,
            relieve_with_cache=PageCache(CgroupCacheReclaimer(), monitors, context.clock).relieve
            if reclaims_cache
            else None,
            removes_volumes=lambda: agent.role is Role.BESIDE_KUBELET,
            find_consumers=partial(find_consumers, agent, monitors.signals.layout),
        ),
        monitors,
        PressureTriggers(lambda name: loop.wake(name)),  # noqa: PLW0108 - the loop is created later
    )
    return loop


def _make_evictor(agent: Agent, pod_reader: PodReader) -> tuple[Evictor, ContainerCleaner, RoleEvictor | None]:
    """Return the evictor, the container cleaner, and the admission of evictions through the API server or ``None``."""
    settings = agent.settings.eviction
    read_quickly = partial(pod_reader.read, with_usage=False, quick=True)
    local = CriEvictor(
        agent.cri,
        read_quickly,
        settings.policy,
        clock=agent.clock,
        read_processes=read_processes,
        kill_processes=kill_processes,
        is_populated=is_populated,
        verify_s=settings.verify_s,
        list_children=list_children,
    )
    cleaner = _make_cleaner(agent)
    if not settings.through_api:
        return local, cleaner, None
    from nodeagent.eviction.api_evictor import make_cleaner, make_evictor  # noqa: PLC0415 - imports OpenSSL

    by_role = make_evictor(agent, local, read_quickly)
    return by_role, make_cleaner(agent, cleaner), by_role


def _make_reclaimer(
    context: DaemonContext, agent: Agent, images: ImageObservation, signals: SignalMonitor
) -> Reclaimer:
    states = StateLog(context.logger, context.clock)

    async def run(preview: Preview, stop: asyncio.Event) -> PassReport:
        def log(result: Result) -> None:
            log_result(states, result, dry_run=agent.dry_run)

        images.discard()
        start = partial(log_start, states)
        return await agent.run(
            preview, trigger=PassTrigger.EVICTION, stop=stop, max_rounds=1, on_start=start, on_result=log
        )

    def evicted() -> dict[str, tuple[str, ...]]:
        if agent.role is Role.BESIDE_KUBELET:
            return {}  # the kubelet removes the containers of evicted pods
        return {each.uid: each.sandbox_ids for each in context.eviction.victims}

    async def has_logs_elsewhere() -> bool:
        return (await signals.layout()).has_separate_logs

    return Reclaimer(
        images.observe,
        agent.settings.policy,
        run,
        evicted=evicted,
        collect_garbage=agent.storage.collect_garbage,
        has_separate_logs=has_logs_elsewhere,
    )


class AgentEvictionHistory(Record):
    """Records evictions in the history of an agent, unless recording is disabled (no ``writer``)."""

    writer: HistoryWriter | None

    async def begin(self, record: EvictionRecord) -> None:
        """Record a chosen eviction; wait for the disk for at most half a second, for memory or PIDs at most 0.1 s."""
        if self.writer is not None:
            within_s = _URGENTLY_BEGUN_WITHIN_S if record.eviction.is_urgent else _BEGUN_WITHIN_S
            await self.writer.begin(past_eviction(record), within_s)

    async def finish(self, record: EvictionRecord) -> None:
        """Record a finished eviction; wait for the disk for a bounded time, for memory or PIDs not at all."""
        if self.writer is not None:
            within_s = 0.0 if record.eviction.is_urgent else _FINISHED_WITHIN_S
            await self.writer.finish(past_eviction(record), within_s)

    def abandon(self, record: EvictionRecord, cause: str) -> None:
        """Record an unfinished eviction as interrupted."""
        if self.writer is not None:
            self.writer.interrupt(record.id, cause)


def _make_cleaner(agent: Agent) -> CriContainerCleaner:
    storage, settings = agent.storage, agent.settings
    logs = HostLogs(settings.pod_log_root, settings.container_log_root, agent.clock)
    return CriContainerCleaner(agent.cri, partial(_collect_garbage, storage), partial(_remove_orphans, storage), logs)


async def _collect_garbage(storage: StorageBackend) -> None:
    """Run the garbage collection of the runtime; on Btrfs commit, so that the freed space is visible.

    Raises:
        NodeAgentError: the collection failed.
    """
    await storage.collect_garbage()
    with suppress(NodeAgentError):
        await make_visible((await storage.read_store_paths()).values())


async def _remove_orphans(storage: StorageBackend, layers: Collection[str]) -> None:
    """Remove the orphaned snapshot directories of the snapshotters that stored these writable layers.

    Raises:
        NodeAgentError: the runtime failed or refused the call.
    """
    for snapshotter in sorted({snapshotter_of(each) for each in layers} - {""}):
        await storage.remove_orphaned_directories(snapshotter)


def past_eviction(record: EvictionRecord) -> PastPass:
    """Return the history entry of an eviction."""
    eviction, result = record.eviction, record.result or _BEGUN
    frees = eviction.ranked.frees if eviction.ranked is not None else None
    return PastPass(
        id=record.id,
        started_at=record.started_at,
        duration_s=result.took_s,
        trigger=PassTrigger.EVICTION,
        scope="pods",
        plan_id="",
        dry_run=record.dry_run,
        result=_ENDS.get(result.outcome, PassEnd.SHORTFALL).value if record.result is not None else RUNNING,
        detail=result.detail,
        actions=(
            PastAction(
                kind=ItemKind.POD.value,
                item_id=eviction.pod.uid,
                name=f"{eviction.pod.namespace}/{eviction.pod.name}",
                references=(),
                outcome=_outcome(record),
                detail=result.detail,
                reason=eviction.reason.code.value,
                sentence=eviction.reason.sentence,
                frees_bytes=None if frees is None else int(frees),
                duration_s=result.took_s,
            ),
        ),
        eviction=encode_line(
            documents.EvictionRecordDocument.of_record(
                record, UNKNOWN if record.result is None else result.outcome.value
            )
        ),
    )


def _outcome(record: EvictionRecord) -> str:
    if record.result is None:
        return PLANNED
    return "done" if record.result.outcome is EvictionOutcome.EVICTED else record.result.outcome.value
