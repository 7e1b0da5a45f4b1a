"""A daemon with agents and reloads on a simulated node, with a manual clock."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from nodeagent.api import requests as api
from nodeagent.daemon import service_manager as service, supervisor
from nodeagent.daemon.context import DaemonContext
from nodeagent.daemon.control.requests import CALLER, Caller
from nodeagent.daemon.control.service import ControlService
from nodeagent.daemon.service_manager import ReloadTask
from nodeagent.daemon.supervisor import serve_agents
from nodeagent.errors import UsageError
from nodeagent.gc import pass_state as measurement
from nodeagent.host.systemd import Notifier
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.loops.pause import pause, restore_pause, resume
from nodeagent.loops.reload_grace import restore_grace
from nodeagent.model.runtime import ContainerState
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from nodeagent.telemetry import logging as log
from tests.sim.content import Layer
from tests.sim.node import SimNode
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.daemon.context import Reloaded
    from nodeagent.settings.settings import Settings

IMAGE = "registry.example/app:v1"
REMOVING = (
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "RemoveImage",
    "Images.Delete",
    "Leases.Delete",
)
SCOPES = frozenset({"containers", "images"})
GRACE_S = 60.0


@dataclass
class Daemon:
    """A running daemon and its log."""

    place: Place
    context: DaemonContext
    stream: io.StringIO
    mark: int = 0
    _read_to: int = 0
    _events: list[dict[str, Any]] = field(default_factory=list)

    def logged(self, event: str = "") -> list[dict[str, Any]]:
        """Return the logged events, or only the events named ``event``."""
        new = self.stream.getvalue()[self._read_to :]
        self._read_to += len(new)
        self._events += [json.loads(line) for line in new.splitlines()]
        return [each for each in self._events if not event or each["event"] == event]

    async def reload(self) -> Reloaded:
        """Request a reload as the control API does; return its result."""
        waiting: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self.context.awaiting_reload.append(waiting)
        self.context.reload.set()
        return await asyncio.wait_for(waiting, 30)

    async def set(self, **changes: object) -> Reloaded:
        """Write settings, reload, and wait until the new settings are in force; return the result of the reload."""
        self.place.write(**changes)
        reloaded = await self.reload()
        await self.wait_for_passes()
        return reloaded

    async def advance(self, seconds: float) -> None:
        self.place.sim.clock.advance(seconds)
        await self.wait_for_passes()

    async def pause(self) -> None:
        await pause(self.context, by="root", is_root=True, why="test", seconds=3600)
        await self.wait_for_passes()

    async def resume(self) -> None:
        if await resume(self.context, by="root", is_root=True):
            self.mark = len(self.logged())
        await self.wait_for_passes()

    async def trigger(self, loop: str) -> dict[str, Any]:
        """Run a loop immediately, as ``nodeagent trigger LOOP --wait`` does; return its result."""
        shown: dict[str, Any] = json.loads(await self._service().trigger(api.TriggerRequest(loop=loop, wait=True)))
        return shown

    async def apply(self, scope: str) -> None:
        """Run a GC pass, as ``nodeagent gc --yes`` of a group member does."""
        async for _ in self._service().apply(api.ApplyRequest(scope=scope)):
            pass

    async def apply_plan(self, scope: str) -> None:
        """Save and execute a plan, as a confirmed ``nodeagent gc`` of a group member does."""
        service = self._service()
        saved = await service.plan(api.PlanRequest(scope=scope, lasts_seconds=600))
        async for _ in service.apply(api.ApplyRequest(plan=saved)):
            pass

    async def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(await self._service().status(api.Empty()))
        return shown

    def _service(self) -> ControlService:
        """Return the control API service with a group member as the caller."""
        CALLER.set(Caller("member", is_root=False))
        return ControlService(self.context)

    async def wait_for_passes(self) -> None:
        """Wait until every loop of the current agent has finished a pass or is paused."""
        async with asyncio.timeout(30):
            while not self._settled():  # noqa: ASYNC110 - log writes set no asyncio.Event
                await asyncio.sleep(0.001)

    def _settled(self) -> bool:
        context = self.context
        if context.agent is None or context.renew.is_set() or context.grace.over():
            return False
        if context.pass_lock.pause() is not None:
            return True
        events = self.logged()
        since = max((number for number, each in enumerate(events) if each["event"] == "agent_started"), default=0)
        done = {each["scope"] for each in events[max(since, self.mark) :] if each["event"] == "pass_finished"}
        return done >= SCOPES


@dataclass
class Place:
    """A simulated node with runtime, configuration and state directory, for successive daemons."""

    directory: Path
    sim: SimNode = field(default_factory=SimNode)
    settings: dict[str, object] = field(default_factory=dict)
    removed: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sim.root_path = str(self.directory)
        Path(self.sim.imagefs_path).mkdir()
        self.sandbox = self.sim.add_pod("web")
        self.server = SimServer(self.sim, self.directory / "s")
        for method in REMOVING:
            self.server.faults.before(method, self._noter(method), times=None)
        self.add_garbage()

    def _noter(self, method: str) -> Any:
        return lambda: self.removed.append((method, self.now_s))

    @property
    def now_s(self) -> float:
        return self.sim.clock.monotonic_s()

    def add_garbage(self) -> None:
        """Add a dead container and, unless present, its image, which no other pod uses."""
        if self.sim.resolve_image(IMAGE) is None:
            self.sim.add_image(IMAGE, layers=[Layer("base", 1 << 20)])
        self.sim.add_container(self.sandbox, "app", IMAGE, state=ContainerState.EXITED, age_s=3600)

    def write(self, **changes: object) -> None:
        """Change settings in the configuration file; two underscores separate section and key."""
        self.settings |= changes
        here, top, tables = self.directory, [], dict[str, list[str]]()
        for key, value in self.settings.items():
            section, _, name = key.rpartition("__")
            line = f"{name} = {json.dumps(value)}"
            tables.setdefault(section, []).append(line) if section else top.append(line)
        (here / "config.toml").write_text(
            "\n".join([*top, *(f"[{name}]\n" + "\n".join(lines) for name, lines in tables.items())]) + "\n"
        )

    def load(self) -> Settings:
        return checked(Origin(self.directory / "config.toml"))

    @asynccontextmanager
    async def daemon(self, *, settled: bool = True) -> AsyncIterator[Daemon]:
        """Run a daemon within the block; yield the daemon.

        Args:
            settled: whether to wait for the first pass of every loop.
        """
        stream, clock = io.StringIO(), self.sim.clock
        logger = log.configure("json", "debug", stream)  # with repeated states
        context = DaemonContext(self.load(), logger, clock, LoopStatuses(clock), PassLock(clock))
        made = Daemon(self, context, stream)

        async def read(settings: Settings) -> Settings:
            return checked(settings.origin)  # without a child process, which takes a second to start

        restore_pause(context)
        restore_grace(context.grace, context.settings)
        with (
            mock.patch.object(supervisor, "GRACE_POLL_S", 0.001),
            mock.patch.object(service, "read_again", read),
            mock.patch.object(measurement, "SETTLE_WITHIN_S", 0.0),  # simulated removals free no bytes
        ):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ReloadTask(context, Notifier({})).run(context.stop))
                tasks.create_task(serve_agents(context))
                try:
                    if settled:
                        await made.wait_for_passes()
                    yield made
                finally:
                    context.stop.set()
                    context.pass_lock.end()


@asynccontextmanager
async def place(**changes: object) -> AsyncIterator[Place]:
    """Serve a simulated node within the block; its daemon is in dry run unless ``changes`` disable dry run."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        made = Place(Path(name))
        made.write(
            role="standalone",
            dry_run=True,
            runtime__endpoint=f"unix://{name}/s",
            state__directory=f"{name}/state",
            control__socket="",
            eviction__enabled="off",
            shutdown__enabled="off",
            container_gc__minimum_age="0s",
            container_gc__max_per_pod_container=0,
            container_gc__pod_log_root=f"{name}/pods",
            container_gc__container_log_root=f"{name}/containers",
        )
        made.write(**changes)
        async with made.server:
            yield made


@asynccontextmanager
async def daemon(**changes: object) -> AsyncIterator[Daemon]:
    """Run a daemon on a new simulated node within the block; yield the daemon."""
    async with place(**changes) as here, here.daemon() as made:
        yield made


async def refused(request: Any) -> bool:
    """Return whether a request fails with ``UsageError``."""
    with suppress(UsageError):
        await request
        return False
    return True
