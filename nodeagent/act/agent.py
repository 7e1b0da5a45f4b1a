"""Composition: from a configuration to an agent that can observe, plan and act.

The daemon and the one-shot commands are composed by the same function, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.act.gc.bulk_removal import BulkImageRemover
from nodeagent.act.gc.collector import MAX_ROUNDS, Collector, Preview
from nodeagent.act.gc.history_record import past_pass
from nodeagent.act.gc.leak_removal import LeakRemover
from nodeagent.act.gc.log_removal import HostLogs
from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.act.gc.recheck import RuntimeReader
from nodeagent.act.gc.removers import (
    ContainerRemover,
    ImageRemover,
    LogLinkRemover,
    PodLogRemover,
    SandboxRemover,
)
from nodeagent.clock import SystemClock
from nodeagent.errors import NodeAgentError
from nodeagent.host import podlogs
from nodeagent.host.filesystems import filesystem_type, read_filesystem
from nodeagent.host.lock import process_lock
from nodeagent.host.node import boot_id, booted_at
from nodeagent.model import Role
from nodeagent.observe.node_role import RoleWatch
from nodeagent.observe.node_snapshot import Observer, ObserverSettings, mounts_images
from nodeagent.observe.storage_usage import survey
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.leaks import plan_leaks
from nodeagent.plan.gc.saved_plan import plan_id as make_plan_id
from nodeagent.plan.gc.scope import Scope
from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.containerd_records import SnapshotUsage, Stamp
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.metadata_graph import SNAPSHOTS, Node
from nodeagent.runtime.storage_graph import LayerCache, disk_format
from nodeagent.store import ClockReading, HoldFile, SnapshotFigures, Store, gap_limits
from nodeagent.store.history import History, Retention

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.gc.collector import ActorFactory
    from nodeagent.act.gc.executor import BatchRemover, Remover
    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.act.gc.removers import LogActions
    from nodeagent.clock import Clock
    from nodeagent.config.settings import Settings
    from nodeagent.model import FsObservation, Hold, ImageUseRecord, NodeSnapshot, RoleDecision, UnreferencedPiece
    from nodeagent.plan.gc.planner import GCPolicy
    from nodeagent.plan.gc.storage_breakdown import Breakdown
    from nodeagent.runtime.connection import CallObserver

_BREAKDOWN_WITHIN_S: Final = 10.0
_PIECES = (ItemKind.BLOB, ItemKind.SNAPSHOT)
READ_METHODS = (
    "Version",
    "Status",
    "ListImages",
    "ImageStatus",
    "ImageFsInfo",
    "ListPodSandbox",
    "PodSandboxStatus",
    "ListContainers",
    "ContainerStatus",
    "ListContainerStats",
)
REMOVE_METHODS = (
    "RemoveImage",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "images.Delete",
    "leases.Delete",
)


@dataclass
class Agent:
    """A composed agent.

    Attributes:
        roles: its role on this node, evaluated by every pass.
        record: whether it may write its own state.
    """

    settings: Settings
    clock: Clock
    cri: CriClient
    store: Store
    history: History
    containerd: ContainerdClient | None
    observer: Observer
    collector: Collector
    roles: RoleWatch
    record: bool
    dry_run: bool

    def __post_init__(self) -> None:
        self._told = ""
        self.shortfall_told = False

    @property
    def role(self) -> Role:
        """Role evaluated last."""
        return self.roles.current.role

    @property
    def role_because(self) -> str:
        """Evidence for the role evaluated last."""
        return self.roles.current.reason

    async def evaluate_role(self) -> RoleDecision:
        """Return the role now."""
        return await self.roles.evaluate(self.settings.role)

    async def run(  # noqa: PLR0913 - what a run is told
        self,
        preview: Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_result: Callable[[Result], None] = lambda _: None,
        plan_id: str = "",
    ) -> PassReport:
        """Carry out a preview while no other process acts on this node, and note it in the history.

        ``plan_id`` is that of a saved plan; else the preview gives one.

        Raises:
            PassBusyError: another process does.
            NodeAgentError: a kubelet was found since the preview, so that its pods may not be deleted after all.
        """
        if preview.scope in (Scope.CONTAINERS, Scope.ALL) and preview.snapshot.role is Role.STANDALONE:
            role = await self.evaluate_role()
            if role.role is not Role.STANDALONE:
                raise NodeAgentError(f"the preview is out of date: {role.reason}; nothing was removed, try again")
        if self.dry_run or not preview.acts:
            report = await self.collector.run(preview, trigger=trigger, stop=stop, on_result=on_result)
        else:
            with process_lock(self.settings.state_directory / "pass.lock") as warning:
                report = await self.collector.run(
                    preview, trigger=trigger, stop=stop, max_rounds=max_rounds, on_result=on_result
                )
            report = replace(report, warnings=(*report.warnings, warning)) if warning else report
        if self.record:
            await asyncio.to_thread(self._note, preview, report, plan_id)
            report = replace(report, warnings=(*report.warnings, *self.history.take_notices()))
        return report

    async def find_leaks(self, minimum_age_s: float, *, rooted: bool) -> Preview:
        """Return what nothing on the node holds, and what of it may be deleted.

        Raises:
            ObservationError: the runtime cannot tell what holds what.
        """
        preview = await self.collector.preview(Scope.IMAGES)
        found = await self.observer.find_unreferenced()
        plan = plan_leaks(found, self.clock.now(), minimum_age_s=minimum_age_s, rooted=rooted)
        return Preview(Scope.LEAKS, preview.snapshot, (plan,))

    async def break_down(self, snapshot: NodeSnapshot, *, within_s: float, walk: bool = True) -> Breakdown:
        """Return what fills the image filesystem; see ``survey``."""
        return await survey(
            snapshot, self.observer, self.containerd, self.settings.pod_log_root, within_s=within_s, walk=walk
        )

    async def break_down_shortfall(self, report: PassReport) -> Breakdown | None:
        """Return what fills the image filesystem after a pass that ended short of its target.

        ``None`` after any other pass and after a dry run, and where it cannot be read.
        """
        if report.end is not PassEnd.SHORTFALL or report.dry_run:
            return None
        try:
            snapshot = await self.observer.observe(Scope.ALL)
            return await self.break_down(snapshot, within_s=_BREAKDOWN_WITHIN_S)
        except NodeAgentError:
            return None

    def _note(self, preview: Preview, report: PassReport, plan_id: str) -> None:
        if not plan_id and preview.removals:
            plan_id = make_plan_id(preview.scope, preview.snapshot, preview.plans)
        retention = Retention(timedelta(seconds=self.settings.history_age_s), self.settings.history_bytes)
        self.history.add(past_pass(report, preview.snapshot, plan_id), retention)

    def log_health(self, logger: FilteringBoundLogger) -> None:
        """Log how the agent's memory is doing, once per change."""
        for notice in (*self.store.take_notices(), *self.history.take_notices()):
            logger.warning("store_notice", notice=notice)
        problem = self.store.health.problem or self.history.problem
        if problem and problem != self._told:
            logger.warning("store_degraded", problem=problem)
        elif self._told and not problem:
            logger.info("store_recovered")
        self._told = problem


@asynccontextmanager
async def open_agent(  # noqa: PLR0913 - what an agent is composed from
    settings: Settings,
    *,
    record: bool,
    dry_run: bool,
    clock: Clock | None = None,
    observer_of_calls: CallObserver | None = None,
    roles: RoleWatch | None = None,
) -> AsyncIterator[Agent]:
    """Compose an agent from its settings and close its connection at the end.

    Args:
        settings: a checked configuration.
        record: whether the memory of image use may be written; without it nothing on the node changes at all.
        dry_run: whether removals are only told.
        clock: the machine's own unless given.
        observer_of_calls: told of every call to the runtime; see ``RuntimeConnection``.
        roles: the daemon's, with its hysteresis; one without memory unless given.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock = clock or SystemClock()
    roles = RoleWatch(clock) if roles is None else roles
    await roles.evaluate(settings.role)
    gaps = gap_limits(settings.image_interval_s, settings.policy.images.maximum_unused_age_s)
    store = await asyncio.to_thread(Store, settings.state_directory, read_only=not record, gaps=gaps)
    endpoint = discover_endpoint(settings.endpoint or None)
    deadlines = dict.fromkeys(READ_METHODS, settings.timeout_s) | dict.fromkeys(
        REMOVE_METHODS, settings.removal_timeout_s
    )
    async with RuntimeConnection(endpoint, deadlines=deadlines, observer=observer_of_calls) as connection:
        cri = CriClient(connection)

        containerd = ContainerdClient(connection) if settings.containerd_api else None

        holds = HoldFile(settings.state_directory)

        async def read_role_now() -> Role:
            return (await roles.evaluate(settings.role)).role

        def read(path: str) -> FsObservation:
            return read_filesystem(path, clock)

        def remember(
            listed: Mapping[str, datetime | None], in_use: Collection[str], now: datetime, monotonic_s: float
        ) -> ImageUseRecord:
            return store.observe(listed, in_use, ClockReading(boot_id(), monotonic_s, now))

        observer = Observer(
            cri,
            containerd,
            lambda path: LayerCache(disk_format(filesystem_type(path)), clock, StoredUsage(store)),
            settings=ObserverSettings(
                imagefs_path=settings.imagefs_path,
                pod_log_root=settings.pod_log_root,
                container_log_root=settings.container_log_root,
            ),
            clock=clock,
            read_filesystem=read,
            remember=remember,
            read_holds=holds.read,
            read_role=read_role_now,
            booted_at=booted_at(),
        )
        collect_garbage = partial(containerd.collect_garbage, clock) if containerd is not None else None
        logs = HostLogs(settings.pod_log_root, settings.container_log_root)
        actors = actors_for(
            cri, containerd, logs, clock, holds.read, observer.find_unreferenced, bulk=settings.bulk_removal
        )
        collector = Collector(
            observer,
            actors,
            settings.policy,
            clock=clock,
            read_filesystem=read,
            collect_garbage=collect_garbage,
            dry_run=dry_run,
        )
        history = History(settings.state_directory)
        yield Agent(settings, clock, cri, store, history, containerd, observer, collector, roles, record, dry_run)


class StoredUsage:
    """The store's notes on snapshots in the terms of the layer graph."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> dict[Node, tuple[Stamp, SnapshotUsage]]:
        """Return the usage of each remembered snapshot, with the time the snapshot was made."""
        return {
            Node(SNAPSHOTS + snapshotter, key): (
                Stamp(told.created_s, told.created_ns),
                SnapshotUsage(told.size_bytes, told.inodes),
            )
            for (snapshotter, key), told in self._store.snapshot_usage().items()
        }

    def write(self, learned: Mapping[Node, tuple[Stamp, SnapshotUsage]], gone: Collection[Node]) -> None:
        """Remember what was learned; forget what has gone."""
        self._store.note_snapshot_usage(
            {_name(node): SnapshotFigures(*created, *used) for node, (created, used) in learned.items()},
            [_name(node) for node in gone],
        )


def _name(node: Node) -> tuple[str, str]:
    return node.kind.removeprefix(SNAPSHOTS), node.id


def actors_for(  # noqa: PLR0913, PLR0917 - it composes the removers
    cri: CriClient,
    containerd: ContainerdClient | None,
    logs: LogActions,
    clock: Clock,
    read_holds: Callable[[], tuple[Hold, ...]],
    find_unreferenced: Callable[[], Awaitable[tuple[UnreferencedPiece, ...]]],
    *,
    bulk: bool,
) -> ActorFactory:
    """Return what makes the removers of a pass on this runtime."""

    def make(snapshot: NodeSnapshot, policy: GCPolicy) -> Mapping[ItemKind, Remover | BatchRemover]:
        used = containerd if snapshot.storage is not None else None
        reader = RuntimeReader(cri, used, snapshot, mounts_images=mounts_images(snapshot.runtime))
        images: Remover
        if used is not None and bulk:
            images = BulkImageRemover(
                reader, cri, policy.images, snapshot, clock=clock, read_holds=read_holds, names=used
            )
        else:
            images = ImageRemover(reader, cri, policy.images, snapshot, clock=clock, read_holds=read_holds)
        leaks = {} if containerd is None else dict.fromkeys(_PIECES, LeakRemover(find_unreferenced, containerd, clock))
        return {
            **leaks,
            ItemKind.IMAGE: images,
            ItemKind.CONTAINER: ContainerRemover(reader, cri, logs),
            ItemKind.SANDBOX: SandboxRemover(reader, cri),
            ItemKind.POD_LOG_DIRECTORY: PodLogRemover(reader, logs, podlogs.pod_uid),
            ItemKind.CONTAINER_LOG_LINK: LogLinkRemover(reader, logs, podlogs.link_container_id),
        }

    return make
