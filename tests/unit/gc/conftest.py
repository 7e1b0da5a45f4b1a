"""A simulated node behind a real socket, with the real client, planner and executor."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from nodeagent.gc.agent import RemoverFactory
from nodeagent.gc.collector import Collector
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy
from nodeagent.gc.removers import HostLogs
from nodeagent.gc.restore import ImageUndo, RemovalRecovery
from nodeagent.gc.snapshot.node import NodeSnapshotReader
from nodeagent.host.lock import lock_identity
from nodeagent.model.node import Role
from nodeagent.pods.images import no_pod_images
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.storage_backend import ContainerdStorage
from nodeagent.runtime.storage_graph import LayerCache
from tests.sim.filesystem import SimFilesystem
from tests.sim.memory import SimMemory
from tests.sim.scenario import example_node
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nodeagent.gc.snapshot.images import ObservationStore, PodImageSource
    from nodeagent.model.node import CollectionForecast, Hold
    from tests.sim.node import SimNode
    from tests.sim.scenario import Scenario

    Opener = Callable[..., AbstractAsyncContextManager["Rig"]]

POLICY = GCPolicy(containers=ContainerGCPolicy(deleted_pod_grace_s=60.0))


class Rig(NamedTuple):
    """A simulated node with a garbage collector and its parts."""

    node: SimNode
    server: SimServer
    observer: NodeSnapshotReader
    collector: Collector
    logs: Path
    storage: ContainerdStorage
    recovery: RemovalRecovery
    undo: ImageUndo


@dataclass(frozen=True, kw_only=True)
class RigOptions:
    """Options of a rig; ``containerd_api`` overrides the setting of the containerd profile."""

    profile: str = "1.7"
    policy: GCPolicy = POLICY
    dry_run: bool = False
    deadlines: Mapping[str, float] | None = None
    bulk: bool = False
    containerd_api: bool | None = None
    settle_s: float = 0.0
    undo_window: timedelta = timedelta(minutes=10)
    read_holds: Callable[[], tuple[Hold, ...]] = tuple
    memory: ObservationStore | None = None
    read_pod_images: PodImageSource = no_pod_images
    read_forecast: Callable[[], CollectionForecast | None] = lambda: None
    make_scenario: Callable[[], Scenario] = example_node


@pytest.fixture
def rig(tmp_path: Path) -> Opener:
    """Return a rig factory: ``async with rig(profile="1.7", policy=..., dry_run=False, deadlines={}, bulk=False)``."""

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Rig]:
        chosen = RigOptions(**options)
        scenario = chosen.make_scenario()
        scenario.write_logs(tmp_path)
        simulated = SimServer(
            scenario.node, tmp_path / "s", profile=chosen.profile, containerd_api=chosen.containerd_api
        )
        async with (
            simulated as server,
            RuntimeConnection(server.endpoint, deadlines=chosen.deadlines) as connection,
        ):
            yield _compose(scenario.node, server, connection, tmp_path, chosen)

    return opened


def _compose(node: SimNode, server: SimServer, connection: RuntimeConnection, root: Path, options: RigOptions) -> Rig:
    async def standalone() -> Role:
        return Role.STANDALONE

    cri, clock = CriClient(connection), node.clock
    lock = root / "pass.lock"
    lock.touch()
    read_owner = partial(lock_identity, lock)
    storage = ContainerdStorage(
        ContainerdClient(connection), clock, lambda _path: LayerCache(clock=clock), read_owner=read_owner
    )
    pod_logs, container_logs = root / "pods", root / "containers"
    read = SimFilesystem(node).read
    observer = NodeSnapshotReader(
        cri,
        storage,
        imagefs_path="",
        pod_log_root=pod_logs,
        container_log_root=container_logs,
        confirm_s=0.0,
        clock=clock,
        read_boot_id=str,
        read_filesystem=read,
        memory=options.memory or SimMemory(),
        read_holds=options.read_holds,
        read_role=standalone,
        find_running=lambda _known: (frozenset(), False),
        read_pod_images=options.read_pod_images,
        read_forecast=options.read_forecast,
        rules=options.policy.images.protection.rules,
    )
    removers = RemoverFactory(
        cri,
        storage,
        HostLogs(pod_logs, container_logs, clock),
        clock,
        options.read_holds,
        observer.images.find_unlisted,
        bulk=options.bulk,
        settle_s=options.settle_s,
        read_pod_images=options.read_pod_images,
    )
    recovery = RemovalRecovery(storage, lock, clock, stable_s=0.0)
    undo = ImageUndo(storage, cri, lock, clock, options.undo_window)
    collector = Collector(
        observer,
        removers,
        options.policy,
        clock=clock,
        read_filesystem=read,
        collect_garbage=storage.collect_garbage,
        recover=recovery.run,
        undo=undo,
        dry_run=options.dry_run,
    )
    return Rig(node, server, observer, collector, root, storage, recovery, undo)
