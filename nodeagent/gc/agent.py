"""Composition of an agent that observes, plans and acts, from its settings.

The daemon and the one-shot commands both call ``open_agent``, so their agents cannot differ.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.errors import NodeAgentError, StoreError, UsageError
from nodeagent.gc.agent_parts import open_parts, pass_lock
from nodeagent.gc.collector import MAX_ROUNDS, Collector
from nodeagent.gc.executor import BatchRemover, DryRunWatch, PassEnd, PassReport, Remover, Result
from nodeagent.gc.guard import DEFAULT_SETTLE_S, HURRIED_SETTLE_S, CurrentReader
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.image_removers import TransactionalImageRemover
from nodeagent.gc.pass_history import HistoryRecorder, HistoryWriter, PassStart, past_pass, past_undo
from nodeagent.gc.pass_state import Preview, UndoTerms
from nodeagent.gc.plan.consistency import plan_leaks, withheld
from nodeagent.gc.plan.image_protection import kept_names
from nodeagent.gc.plan.policy import GCPolicy, Scope
from nodeagent.gc.plan.saved_plan import plan_id as make_plan_id
from nodeagent.gc.removers import (
    ContainerRemover,
    HostLogs,
    ImageRemover,
    ImageRemoverWithoutLeases,
    LeakRemover,
    LogLinkRemover,
    PodLogRemover,
    SandboxRemover,
)
from nodeagent.gc.restore import ImageUndo, NotUndoableError, RemovalRecovery, UndoReport
from nodeagent.gc.snapshot.usage import read_breakdown
from nodeagent.host.lock import process_lock
from nodeagent.host.node import boot_id
from nodeagent.host.processes import is_running, own_process
from nodeagent.loops.clock_reading import read_clocks
from nodeagent.model.decision import ItemKind, Plan
from nodeagent.model.node import CollectionForecast, Hold, NodeSnapshot, PodImages, Role, RoleDecision
from nodeagent.pods.images import no_pod_images
from nodeagent.pods.role import RoleWatch
from nodeagent.record import Record, replace
from nodeagent.runtime.cri import CriClient, DecodedLists, mounts_images
from nodeagent.runtime.storage_backend import CriOnlyStorage, StorageBackend
from nodeagent.store.history import History, configured_retention
from nodeagent.units import Clock, SystemClock

if TYPE_CHECKING:
    import threading

    from structlog.typing import FilteringBoundLogger

    from nodeagent.gc.plan.breakdown import Breakdown
    from nodeagent.gc.snapshot.node import NodeSnapshotReader
    from nodeagent.model.runtime import Container, UnlistedContent
    from nodeagent.pods.reader import PodReader
    from nodeagent.pods.sources import BoundPods
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.runtime.connection import CallObserver
    from nodeagent.settings.settings import Settings
    from nodeagent.store.clock_record import ClockReading
    from nodeagent.store.database import Store

_BREAKDOWN_WITHIN_S: Final = 10.0
_PASSES_OF_UNDO: Final = 1_000


@dataclass
class Agent:
    """Agent of one node: clients, observer, collector, undo and history.

    The class is the root of the composition, so it has more than ten attributes.

    Attributes:
        storage: the runtime's own image and layer records.
        bound_pods: pods bound to this node, with the state of the kubelet's list.
        watched_pods: pods of this node as watched at the API server.
        roles: role watch of this node, evaluated by every pass.
        record: whether the agent writes state files (image use, history).
        dry_run: whether passes only report the planned removals.
        shortfall_reported: whether the daemon reported the current shortfall.
    """

    settings: Settings
    clock: Clock
    cri: CriClient
    storage: StorageBackend
    store: Store
    history: History
    history_writer: HistoryWriter
    observer: NodeSnapshotReader
    collector: Collector
    recovery: RemovalRecovery
    undo: ImageUndo
    bound_pods: BoundPods
    watched_pods: WatchedPods
    roles: RoleWatch
    record: bool
    dry_run: bool
    shortfall_reported: bool = field(default=False, init=False)
    _reported_problem: str = field(default="", init=False)
    _reported_lists: str = field(default="", init=False)

    def acting(self) -> Agent:
        """Return this agent without ``dry_run``, for one pass that a user requests."""
        return dataclasses.replace(self, dry_run=False, collector=replace(self.collector, dry_run=False))

    @property
    def role(self) -> Role:
        """Most recently evaluated role of the node."""
        return self.roles.current.role

    @property
    def role_because(self) -> str:
        """Evidence for the most recently evaluated role."""
        return self.roles.current.reason

    async def evaluate_role(self) -> RoleDecision:
        """Evaluate and return the role of the node, with its evidence."""
        return await self.roles.evaluate(self.settings.role)

    def make_pod_reader(self) -> PodReader:
        """Return a new reader of the node's pods that uses every pod source of this agent."""
        from nodeagent.pods.reader import make_pod_reader  # noqa: PLC0415 - not needed for garbage collection

        measure = self.storage.measure_layer
        return make_pod_reader(
            self.cri, self.settings, self.clock, lambda: self.role, measure, watched=self.watched_pods
        )

    async def preview(self, scope: Scope) -> Preview:
        """Observe and plan a pass without any change to the node."""
        return await self.collector.preview(scope)

    async def read_exits(self, containers: Sequence[Container]) -> tuple[Container, ...]:
        """Return the containers with exit code, reason and finish time of the exited ones, for display only."""
        return await self.observer.read_exits(containers)

    async def run(  # noqa: PLR0913 - the options of a pass
        self,
        preview: Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_start: Callable[[PassStart], None] = lambda _: None,
        on_result: Callable[[Result], None] = lambda _: None,
        plan_id: str = "",
        dry_runs: DryRunWatch | None = None,
    ) -> PassReport:
        """Carry out the plans of a preview under the node's pass lock and record the pass in the history.

        The planned removals are recorded before the first removal starts. ``on_start`` is called before the first
        removal, unless there are no removals or the pass is a dry run. ``plan_id`` is the id of a saved plan; if empty,
        the id is computed from the preview. With ``dry_runs``, a dry run that plans the same removals as the previous
        dry run is recorded without them.

        Raises:
            PassBusyError: another process has the lock.
            NodeAgentError: a kubelet was detected since the preview, so deleted pods may not be inferred from CRI.
        """
        if preview.scope in (Scope.CONTAINERS, Scope.ALL) and preview.snapshot.role is Role.STANDALONE:
            role = await self.evaluate_role()
            if role.role is not Role.STANDALONE:
                raise NodeAgentError(f"the preview is out of date: {role.reason}; nothing was removed, try again")
        if not plan_id and preview.removals and self.record:
            plan_id = await asyncio.to_thread(make_plan_id, preview.scope, preview.snapshot, preview.plans)
        if self.dry_run or not preview.acts:
            report = await self.collector.run(preview, trigger=trigger, stop=stop, on_result=on_result)
        else:
            recorder = HistoryRecorder(
                self.history_writer if self.record else None, self.clock, plan_id=plan_id, on_start=on_start
            )
            with process_lock(pass_lock(self.settings)) as warning, _abandoning(recorder):
                report = await self.collector.run(
                    preview,
                    trigger=trigger,
                    stop=stop,
                    max_rounds=max_rounds,
                    on_result=on_result,
                    recorder=recorder,
                )
            report = replace(report, warnings=(*report.warnings, warning)) if warning else report
        recorded = report
        if self.dry_run and dry_runs is not None and not dry_runs.compare(report) and report.results:
            recorded = replace(report, results=(), end_detail=_unchanged(report, dry_runs.last.since))
        if self.record:
            await self.history_writer.finish(past_pass(recorded, preview.snapshot, plan_id))
            report = replace(report, warnings=(*report.warnings, *self.history.take_notices()))
        return report

    async def undo_removals(self, pass_id: str) -> UndoReport:
        """Restore the images removed by a pass, and record the undo in the history.

        ``pass_id`` is the id of the pass or a prefix of the id; empty selects the newest pass that can be undone.

        Raises:
            UsageError: no removal of the pass can be undone, or several passes match; the text contains the reason.
            NodeAgentError: see ``ImageUndo.undo``.
        """
        try:
            report = await self.undo.undo(pass_id)
        except NotUndoableError as error:
            raise UsageError(await self._not_undoable(pass_id, error)) from error
        if self.record:
            await self.history_writer.finish(past_undo(report))
        return report

    async def _not_undoable(self, pass_id: str, error: NotUndoableError) -> str:
        """Return the reason that a pass cannot be undone: unknown pass, no removed image, or expired undo window."""
        if not pass_id:
            return str(error)
        try:
            past = await asyncio.to_thread(partial(self.history.read, limit=_PASSES_OF_UNDO))
        except StoreError:
            return str(error)
        found = next((each for each in past if each.id.startswith(pass_id)), None)
        if found is None:
            return f"no pass {pass_id} in the history; 'nodeagent gc undo --list' lists the passes that can be undone"
        if not any(each.kind == ItemKind.IMAGE.value and each.outcome == "done" for each in found.actions):
            return f"nothing to undo: pass {found.id} removed no image"
        return (
            f"pass {found.id} cannot be undone: its undo window is over, or its removals had none "
            "(image_gc.undo_window; removals of the daemon for space are final)"
        )

    def read_clocks(self) -> ClockReading:
        """Return the current boot id, time since boot and wall time of this node."""
        return read_clocks(self.clock, boot_id())

    async def find_leaks(self, minimum_age_s: float, *, rooted: bool, include: Collection[str] = ()) -> Preview:
        """Return the preview of a removal of leaks, including the kept items; arguments as in ``plan_leaks``.

        Raises:
            ObservationError: the runtime provides no reference records (not containerd, or its API is disabled).
        """
        preview = await self.collector.preview(Scope.IMAGES)
        found = await self.observer.images.find_unlisted(preview.snapshot.images)
        at, snapshot = self.read_clocks(), preview.snapshot
        trust = await asyncio.to_thread(self.store.read_clock, at)

        def make() -> Plan:
            kept = kept_names(snapshot, self.settings.policy.images.protection, found.held)
            plan = plan_leaks(
                found,
                at.wall,
                minimum_age_s=minimum_age_s,
                rooted=rooted,
                include=include,
                clock=trust,
                kept=kept,
            )
            return withheld(plan, snapshot.contradictions, by_images=True)

        plan = await asyncio.to_thread(make)
        plan = replace(plan, warnings=(*plan.warnings, *await self.recovery.describe()))
        return Preview(Scope.LEAKS, preview.snapshot, (plan,))

    async def break_down(
        self,
        snapshot: NodeSnapshot,
        *,
        within_s: float,
        walk: bool = True,
        cancelled: threading.Event | None = None,
        private: bool = False,
    ) -> Breakdown:
        """Return the usage breakdown of the image filesystem; see ``read_breakdown``."""
        return await read_breakdown(
            snapshot,
            self.observer,
            self.storage,
            self.settings.pod_log_root,
            within_s=within_s,
            walk=walk,
            cancelled=cancelled,
            private=private,
        )

    async def break_down_shortfall(self, report: PassReport) -> Breakdown | None:
        """Return the filesystem usage breakdown after a pass that missed its target, otherwise ``None``.

        The result is also ``None`` after a dry run, and if the node or a filesystem cannot be read.
        """
        if report.end is not PassEnd.SHORTFALL or report.dry_run:
            return None
        try:
            snapshot = await self.observer.observe(Scope.ALL)
            return await self.break_down(snapshot, within_s=_BREAKDOWN_WITHIN_S)
        except NodeAgentError:
            return None

    def log_health(self, logger: FilteringBoundLogger) -> None:
        """Log the health of the state database, the history and the runtime's lists, once per change."""
        for notice in self.recovery.take_notices():
            logger.warning("image_removal_recovered", notice=notice)
        for notice in (*self.store.take_notices(), *self.history.take_notices()):
            logger.warning("store_notice", notice=notice)
        problem = self.store.problem or self.history_writer.problem
        if problem and problem != self._reported_problem:
            logger.warning("store_degraded", problem=problem)
        elif self._reported_problem and not problem:
            logger.info("store_recovered")
        self._reported_problem = problem
        lists = self.observer.list_problem
        if lists and lists != self._reported_lists:
            logger.warning("runtime_inconsistent", problem=lists)
        elif self._reported_lists and not lists:
            logger.info("runtime_consistent")
        self._reported_lists = lists

    async def log_interrupted(self, logger: FilteringBoundLogger) -> None:
        """Record the unfinished passes of ended processes as interrupted, and log each pass."""
        if not self.record:
            return
        for each in await asyncio.to_thread(self.history.close_interrupted):
            logger.warning(
                "pass_interrupted",
                pass_id=each.id,
                scope=each.scope,
                trigger=each.trigger,
                started_at=each.started_at.isoformat(timespec="milliseconds"),
                removed=each.removed,
                unknown=each.unknown,
            )


def _unchanged(report: PassReport, since: str) -> str:
    unchanged = f"the same {len(report.results)} removals as in dry run {since}"
    return f"{report.end_detail}; {unchanged}" if report.end_detail else unchanged


@contextmanager
def _abandoning(recorder: HistoryRecorder) -> Iterator[None]:
    """Record the pass as interrupted if the block raises."""
    try:
        yield
    except BaseException as error:
        recorder.abandon("cancelled" if isinstance(error, asyncio.CancelledError) else "crashed")
        raise


@asynccontextmanager
async def open_agent(  # noqa: PLR0913 - the options of a composition
    settings: Settings,
    *,
    record: bool,
    dry_run: bool,
    clock: Clock | None = None,
    observer_of_calls: CallObserver | None = None,
    roles: RoleWatch | None = None,
    watched_pods: WatchedPods | None = None,
    lists: DecodedLists | None = None,
    read_forecast: Callable[[], CollectionForecast | None] = lambda: None,
) -> AsyncIterator[Agent]:
    """Compose an agent from its settings; the connection to the runtime is closed on exit.

    Args:
        settings: a validated configuration.
        record: whether image use and history are written; if false, the agent writes no state files.
        dry_run: whether passes only report the planned removals.
        clock: source of time; defaults to the system clock.
        observer_of_calls: called after every call to the runtime; see ``RuntimeConnection``.
        roles: the daemon's role watch, with its hysteresis; defaults to a new role watch.
        watched_pods: the daemon's pod watch at the API server; defaults to a watch without pods.
        lists: the daemon's decoded lists of the runtime; defaults to empty lists.
        read_forecast: returns the growth of the image filesystem; defaults to none.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock = clock or SystemClock()
    roles = RoleWatch(clock) if roles is None else roles
    await roles.evaluate(settings.role)
    opened = open_parts(
        settings,
        record=record,
        clock=clock,
        roles=roles,
        watched_pods=watched_pods,
        observer_of_calls=observer_of_calls,
        lists=lists or DecodedLists(),
    )
    async with opened as parts:
        observer = parts.make_observer(read_forecast)
        lock = pass_lock(settings)
        window = timedelta(seconds=settings.undo_window_s if settings.bulk_removal else 0.0)
        recovery = RemovalRecovery(parts.storage, lock, clock)
        undo = ImageUndo(parts.storage, parts.cri, lock, clock, window)
        removers = RemoverFactory(
            parts.cri,
            parts.storage,
            HostLogs(settings.pod_log_root, settings.container_log_root, clock),
            clock,
            HoldFile(settings.state_directory).read,
            observer.images.find_unlisted,
            bulk=settings.bulk_removal,
            settle_s=settings.settle_s,
            read_pod_images=parts.read_pod_images,
        )
        collector = Collector(
            observer,
            removers,
            settings.policy,
            clock=clock,
            read_filesystem=parts.read_filesystem,
            collect_garbage=parts.storage.collect_garbage,
            recover=recovery.run,
            undo=undo,
            dry_run=dry_run,
        )
        history = History(settings.state_directory, writer=own_process(), is_running=is_running)
        writer = HistoryWriter(history, configured_retention(settings), clock, parts.is_clock_trusted)
        yield Agent(
            settings,
            clock,
            parts.cri,
            parts.storage,
            parts.store,
            history,
            writer,
            observer,
            collector,
            recovery,
            undo,
            parts.bound_pods,
            parts.watched_pods,
            roles,
            record,
            dry_run,
        )


class RemoverFactory(Record):
    """Factory of the removers of a round, from the snapshot and policy of the round.

    Attributes:
        cri: CRI client of the runtime.
        storage: the runtime's own image and layer records.
        logs: removal of logs.
        clock: measures the age of plans and logs.
        read_holds: reads the current holds; blocking.
        find_unlisted: reads the content that no listed image references.
        bulk: whether images are removed by name, in transactions, where the storage backend allows it.
        settle_s: maximum wait per transaction for container creations in progress, in seconds.
        read_pod_images: reads the images referenced by the pods of this node.
    """

    cri: CriClient
    storage: StorageBackend
    logs: HostLogs
    clock: Clock
    read_holds: Callable[[], tuple[Hold, ...]]
    find_unlisted: Callable[[], Awaitable[UnlistedContent]]
    bulk: bool
    settle_s: float = DEFAULT_SETTLE_S
    read_pod_images: Callable[[], Awaitable[PodImages]] = no_pod_images

    def __call__(
        self, snapshot: NodeSnapshot, policy: GCPolicy, *, hurried: bool = False, undo: UndoTerms | None = None
    ) -> Mapping[ItemKind, Remover | BatchRemover]:
        """Return the remover of each kind of item."""
        # Without a storage graph, containerd's records were unreadable at the observation: the guards use CRI alone.
        storage = self.storage if snapshot.storage is not None else CriOnlyStorage()
        reader = CurrentReader(
            self.cri,
            storage,
            snapshot,
            mounts_images=mounts_images(snapshot.runtime),
            layers=self.storage,
            read_pod_images=self.read_pod_images,
        )
        leaks = LeakRemover(self.find_unlisted, self.storage)
        return {
            ItemKind.BLOB: leaks,
            ItemKind.SNAPSHOT: leaks,
            ItemKind.LEASE: leaks,
            ItemKind.IMAGE_NAME: leaks,
            ItemKind.IMAGE: self._image_remover(reader, snapshot, policy, undo, hurried=hurried),
            ItemKind.CONTAINER: ContainerRemover(reader, self.cri, self.logs),
            ItemKind.SANDBOX: SandboxRemover(reader, self.cri),
            ItemKind.POD_LOG_DIRECTORY: PodLogRemover(reader, self.logs, policy.logs, snapshot, clock=self.clock),
            ItemKind.CONTAINER_LOG_LINK: LogLinkRemover(self.cri, self.logs),
        }

    def _image_remover(
        self,
        reader: CurrentReader,
        snapshot: NodeSnapshot,
        policy: GCPolicy,
        undo: UndoTerms | None,
        *,
        hurried: bool,
    ) -> Remover | BatchRemover:
        records = self.storage.removals if self.bulk else None
        if records is not None and snapshot.storage is not None:
            return TransactionalImageRemover(
                reader,
                self.cri,
                policy.images,
                snapshot,
                clock=self.clock,
                read_holds=self.read_holds,
                names=self.storage,
                records=records,
                settle_s=min(self.settle_s, HURRIED_SETTLE_S) if hurried else self.settle_s,
                undo=undo,
            )
        by_cri = ImageRemover(reader, self.cri, policy.images, snapshot, clock=self.clock, read_holds=self.read_holds)
        return by_cri if records is None else ImageRemoverWithoutLeases(by_cri, records.leases.list_open)
