"""A node with a simulated runtime and logind, and daemons with an inhibitor task."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.errors import InhibitorError
from nodeagent.host.dbus import Bus, acquire_lock
from nodeagent.host.systemd import LogindUnit, PodSlices
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.pods.role import RoleWatch
from nodeagent.settings.settings import Config
from nodeagent.shutdown.environment import HostServices, Intervals
from nodeagent.shutdown.recorder import ShutdownFiles
from nodeagent.shutdown.task import InhibitorTask
from nodeagent.store.history import History
from nodeagent.telemetry import logging as log
from nodeagent.units import SystemClock
from tests.support.descriptor_store import CopyingStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nodeagent.model.stops import NodeStop, StopEnd
    from nodeagent.settings.settings import Settings
    from nodeagent.units import Clock
    from tests.sim.server import SimServer
    from tests.support.login1 import Login1, PrivateBus
    from tests.unit.kubelet_double import KubeletDouble

WITHIN_S = 10.0
BOOT = "11111111-0000"
QUICK = Intervals(retry_s=0.05, role_poll_s=0.05)
IMAGE = "registry.test/app:v1"
BANDS: list[dict[str, float]] = [{"min_priority": 0, "seconds": 1.0}, {"min_priority": 1000, "seconds": 0.5}]


class FakeLogindUnit(LogindUnit):
    """A fake systemd unit of logind that counts restarts."""

    def __init__(self) -> None:
        self.active = True
        self.restarts = 0
        self.refuse = False

    def runs_beside_the_bus(self) -> bool:
        return self.active

    def restart(self) -> None:
        self.restarts += 1
        if self.refuse:
            raise InhibitorError("not restarted")


class FakePodSlices(PodSlices):
    """Fake slices of pods.

    Attributes:
        changes: for each change, whether the slices were then exempt.
        refuse: whether every change fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[bool] = []
        self.refuse = False

    @property
    def exempted(self) -> bool:
        return self.changes[-1:] == [True]

    def exempt(self) -> None:
        self._note(exempt=True)

    def restore(self) -> None:
        self._note(exempt=False)

    def _note(self, *, exempt: bool) -> None:
        if self.refuse:
            raise InhibitorError("cannot write the drop-in")
        self.changes.append(exempt)


class Place:
    """A node with simulated runtime, logind and state directory, for successive daemons."""

    def __init__(self, directory: Path, bus: PrivateBus, login1: Login1, server: SimServer) -> None:
        self.directory = directory
        self.bus = bus
        self.login1 = login1
        self.server = server
        (directory / "run").mkdir()
        self.files = ShutdownFiles(directory / "state", directory / "run")
        self.history = History(directory / "state")
        self.store = CopyingStore()
        self.logind = FakeLogindUnit()
        self.slices = FakePodSlices()
        self.boot_id = BOOT

    def settings(self, **shutdown: Any) -> Settings:
        dry_run = shutdown.pop("dry_run", False)
        return convert(
            Config,
            {
                "role": "standalone",
                "dry_run": dry_run,
                "runtime": {"endpoint": self.server.endpoint, "timeout": "1s"},
                "state": {"directory": str(self.directory / "state")},
                "shutdown": {"by_priority": BANDS, **shutdown},
            },
        ).settings()

    def pod(self, name: str, priority: int | None = 0, **more: Any) -> str:
        """Run a pod with one container; return the container's id."""
        annotations = {} if priority is None else {"nodeagent.dev/priority": str(priority)}
        sandbox = self.server.node.add_pod(name, namespace="shop", uid=f"uid-{name}", annotations=annotations, **more)
        return self.server.node.add_container(sandbox, "main", IMAGE).id

    def running(self) -> set[str]:
        node = self.server.node
        return {node.sandboxes[each.sandbox_id].name for each in node.containers.values() if each.running}

    def recorded_end(self) -> StopEnd | None:
        """Return the result of the node stop in the state file; ``None`` before the first, asynchronous write."""
        stop = self.files.read_stop()
        return None if stop is None else stop.end

    def last(self) -> NodeStop:
        stop = self.files.read_stop()
        assert stop is not None
        return stop

    def outcomes(self) -> dict[str, str]:
        stop = self.files.read_stop()
        return {each.name: each.outcome.value if each.outcome else "" for each in (stop.pods if stop else ())}


class Daemon:
    """A daemon with a running inhibitor task, and its log."""

    def __init__(
        self,
        place: Place,
        settings: Settings,
        *,
        adopted: int | None = None,
        kubelet: KubeletDouble | None = None,
        intervals: Intervals | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.stream = io.StringIO()
        logger = log.configure("json", "debug", self.stream)
        clock = clock or SystemClock()
        self.context = DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))
        if kubelet is not None:
            self.context.roles = RoleWatch(kubelet.clock, logger, reader=kubelet)
        host = HostServices(
            place.bus.address,
            place.directory,
            place.store,
            place.logind,
            place.slices,
            place.boot_id,
            place.directory / "run",
        )
        self.inhibitor = InhibitorTask(self.context, host=host, adopted=adopted, intervals=intervals)
        self.directory = place.directory
        self.stop = asyncio.Event()
        self.task = asyncio.ensure_future(self.inhibitor.run(self.stop))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.stream.getvalue().splitlines()) if each["event"] == name]

    async def until(self, target: str | Callable[[], object], times: int = 1) -> None:
        """Wait until an event is logged ``times`` times, or until a condition is true."""
        async with asyncio.timeout(WITHIN_S):
            while not (len(self.events(target)) >= times if isinstance(target, str) else target()):
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)  # polled, since log writes set no asyncio.Event

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, WITHIN_S)

    async def kill(self) -> None:
        """Cancel the task without a record in the state directory, as SIGKILL does."""
        self.inhibitor.recorder.files = ShutdownFiles(self.directory / "elsewhere")
        self.task.cancel()
        await asyncio.wait({self.task})


@asynccontextmanager
async def daemon_on(
    place: Place,
    *,
    settings: Settings | None = None,
    adopted: int | None = None,
    kubelet: KubeletDouble | None = None,
    intervals: Intervals | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Daemon]:
    """Run a daemon on the node within the block; yield the daemon."""
    daemon = Daemon(
        place, settings or place.settings(), adopted=adopted, kubelet=kubelet, intervals=intervals, clock=clock
    )
    try:
        yield daemon
    finally:
        if not daemon.task.done():
            await daemon.end()
        place.store.forget()


async def ready(daemon: Daemon) -> None:
    await daemon.until("inhibitor_lock_acquired")
    await daemon.until("shutdown_ready")


async def other_lock(place: Place) -> int:
    """Acquire the inhibitor lock of another owner, which delays logind further; return its descriptor."""
    async with Bus(place.bus.address, deadline_s=WITHIN_S) as bus:
        return await acquire_lock(bus, "other", "test")
