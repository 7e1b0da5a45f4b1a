"""Composition: from a configuration to an agent that can observe, plan and act.

The daemon and the one-shot commands are composed by the same function, so that they cannot differ.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.act.collect import MAX_ROUNDS, Collector
from nodeagent.act.logs import HostLogs
from nodeagent.act.reader import RuntimeReader
from nodeagent.act.removers import (
    ContainerRemover,
    ImageRemover,
    LogLinkRemover,
    PodLogRemover,
    SandboxRemover,
)
from nodeagent.clock import SystemClock
from nodeagent.config.policies import policies
from nodeagent.host import podlogs
from nodeagent.host.filesystems import filesystem_type, read_filesystem
from nodeagent.host.lock import pass_lock
from nodeagent.host.node import boot_id, booted_at, find_kubelet
from nodeagent.model import Role
from nodeagent.observe import Observer, ObserverSettings, mounts_images
from nodeagent.plan.decision import ItemKind
from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.layers import LayerCache, disk_format
from nodeagent.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    from nodeagent.act.carry_out import Remover
    from nodeagent.act.collect import ActorFactory, Preview
    from nodeagent.act.outcomes import PassReport, Result
    from nodeagent.act.removers import LogActions
    from nodeagent.clock import Clock
    from nodeagent.config import Config
    from nodeagent.model import FsObservation, ImageUsage, NodeSnapshot
    from nodeagent.plan.gc import GCPolicy

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


@dataclass
class Agent:
    """A composed agent.

    Attributes:
        role: how it stands to a kubelet.
        role_because: what that was decided on.
        record: whether it may write its own state.
    """

    config: Config
    policy: GCPolicy
    clock: Clock
    cri: CriClient
    store: Store
    collector: Collector
    role: Role
    role_because: str
    record: bool
    dry_run: bool

    def __post_init__(self) -> None:
        self._told = ""

    async def run(
        self,
        preview: Preview,
        *,
        trigger: str,
        stop: asyncio.Event,
        max_rounds: int = MAX_ROUNDS,
        on_result: Callable[[Result], None] = lambda _: None,
    ) -> PassReport:
        """Carry out a preview while no other process acts on this node.

        Raises:
            PassBusyError: another process does.
        """
        if self.dry_run or not preview.removals:
            return await self.collector.run(preview, trigger=trigger, stop=stop, on_result=on_result)
        with pass_lock(Path(self.config.state.directory) / "pass.lock") as warning:
            report = await self.collector.run(
                preview, trigger=trigger, stop=stop, max_rounds=max_rounds, on_result=on_result
            )
        return replace(report, warnings=(*report.warnings, warning)) if warning else report

    def log_health(self, logger: FilteringBoundLogger) -> None:
        """Log how the agent's memory is doing, once per change."""
        for notice in self.store.take_notices():
            logger.warning("store_notice", notice=notice)
        problem = self.store.health.problem
        if problem and problem != self._told:
            logger.warning("store_degraded", problem=problem)
        elif self._told and not problem:
            logger.info("store_recovered")
        self._told = problem


@asynccontextmanager
async def open_agent(
    config: Config, *, record: bool, dry_run: bool, clock: Clock | None = None
) -> AsyncIterator[Agent]:
    """Compose an agent from a configuration and close its connection at the end.

    Args:
        config: a checked configuration.
        record: whether the memory of image use may be written; without it nothing on the node changes at all.
        dry_run: whether removals are only told.
        clock: the machine's own unless given.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
    """
    clock = clock or SystemClock()
    policy = policies(config)
    role, because = _role(config)
    store = await asyncio.to_thread(Store, Path(config.state.directory), read_only=not record)
    endpoint = discover_endpoint(config.runtime.endpoint or None)
    deadlines = dict.fromkeys(READ_METHODS, config.runtime.timeout_s)
    async with RuntimeConnection(endpoint, deadlines=deadlines) as connection:
        cri = CriClient(connection)

        containerd = ContainerdClient(connection) if config.runtime.containerd_api == "auto" else None

        def read(path: str) -> FsObservation:
            return read_filesystem(path, clock)

        def remember(
            listed: Mapping[str, datetime | None], in_use: Collection[str], now: datetime
        ) -> Mapping[str, ImageUsage]:
            store.note_clocks(boot_id(), clock.monotonic_s(), now)
            return store.remember(listed, in_use, now)

        observer = Observer(
            cri,
            containerd,
            lambda path: LayerCache(disk_format(filesystem_type(path)), clock),
            settings=ObserverSettings(
                imagefs_path=config.runtime.imagefs_path,
                pod_log_root=Path(config.container_gc.pod_log_root),
                container_log_root=Path(config.container_gc.container_log_root),
                role=role,
            ),
            clock=clock,
            read_filesystem=read,
            remember=remember,
            booted_at=booted_at(),
        )
        logs = HostLogs(Path(config.container_gc.pod_log_root), Path(config.container_gc.container_log_root))
        actors = actors_for(cri, containerd, logs, clock)
        collector = Collector(observer, actors, policy, clock=clock, read_filesystem=read, dry_run=dry_run)
        yield Agent(config, policy, clock, cri, store, collector, role, because, record, dry_run)


def _role(config: Config) -> tuple[Role, str]:
    if config.role != "auto":
        return Role(config.role), "configured"
    trace = find_kubelet()
    if trace is None:
        return Role.STANDALONE, "no trace of a kubelet on this node"
    return Role.BESIDE_KUBELET, f"{trace} exists"


def actors_for(cri: CriClient, containerd: ContainerdClient | None, logs: LogActions, clock: Clock) -> ActorFactory:
    """Return what makes the removers of a pass on this runtime."""

    def make(snapshot: NodeSnapshot, policy: GCPolicy) -> Mapping[ItemKind, Remover]:
        used = containerd if snapshot.storage is not None else None
        reader = RuntimeReader(cri, used, snapshot, mounts_images=mounts_images(snapshot.runtime))
        return {
            ItemKind.IMAGE: ImageRemover(reader, cri, policy.images, snapshot, clock),
            ItemKind.CONTAINER: ContainerRemover(reader, cri, logs),
            ItemKind.SANDBOX: SandboxRemover(reader, cri),
            ItemKind.POD_LOG_DIRECTORY: PodLogRemover(reader, logs, podlogs.pod_uid),
            ItemKind.CONTAINER_LOG_LINK: LogLinkRemover(reader, logs, podlogs.link_container_id),
        }

    return make
