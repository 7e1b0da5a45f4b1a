"""One registration session of the agent with a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nodeagent.cluster.events import EventOutbox
from nodeagent.cluster.node_session import NodeSession, SessionEnd, SessionParts
from nodeagent.cluster.plan.node_status import SHUTTING_DOWN, NodeStatusPolicy
from nodeagent.cluster.plan.registration import RegistrationPolicy
from nodeagent.cluster.session_task import RegistrationReporter
from nodeagent.loops.passes import LoopStatuses, ShutdownAnnouncement
from nodeagent.model.kubernetes import Machine, NodeFacts
from nodeagent.record import replace
from nodeagent.telemetry import logging as log
from nodeagent.telemetry.logging import StateLog
from tests.support.api_server import ApiServer
from tests.support.virtual_time import START, LoopClock, play
from tests.unit.cluster.direct_api import DirectApi

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from nodeagent.cluster.pod_status import PodStatuses
    from nodeagent.model.stops import NodeStop

FACTS = NodeFacts(
    name="node-1",
    machine=Machine("node-1", ("192.0.2.10",), 2000, 4 << 30, machine_id="m", system_uuid="u", architecture="amd64"),
    observed_at=START,
    ephemeral_bytes=10 << 30,
    runtime_version="containerd://1.6.20",
    images=(),
    pressure=frozenset(),
    agent_version="1",
)
KUBELET_NODE = {
    "metadata": {"labels": {"kubernetes.io/os": "linux"}},
    "status": {
        "nodeInfo": {"machineID": "m", "systemUUID": "u"},
        "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
    },
}


@dataclass
class SetClock(LoopClock):
    """Clock of the virtual loop, set forward or back by ``off_s``."""

    off_s: float = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.off_s)


@dataclass
class Cluster:
    """A fake API server and one registration session of the agent."""

    server: ApiServer = field(default_factory=partial(ApiServer, "register_node"))
    facts: NodeFacts = FACTS
    labels: Mapping[str, str] | None = field(default_factory=dict)
    refusal: str = ""
    shutting_down: bool = False
    policy: RegistrationPolicy = field(default_factory=RegistrationPolicy)
    contested: bool = False
    clock: SetClock = field(default_factory=SetClock)
    log: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.lease_api, self.status_api, self.event_api = (DirectApi(self.server) for _ in range(3))
        self.outbox = EventOutbox(self.clock)
        self.announcement = ShutdownAnnouncement()
        self.pod_statuses: PodStatuses | None = None
        self.stops: tuple[NodeStop, ...] = ()

    async def read_facts(self) -> NodeFacts:
        return replace(self.facts, not_ready=(SHUTTING_DOWN,)) if self.shutting_down else self.facts

    async def read_labels(self) -> Mapping[str, str] | None:
        return None if self.labels is None else {**self.policy.labels, **self.labels}

    async def refused(self) -> str:
        return self.refusal

    async def read_stops(self) -> tuple[NodeStop, ...]:
        return self.stops

    def session(self) -> NodeSession:
        logger, statuses = log.configure("json", "info", self.log), self.pod_statuses
        parts = SessionParts(
            self.lease_api,
            self.status_api,
            self.read_facts,
            self.refused,
            lambda: self.shutting_down,
            lambda: self.facts.pressure,
            lambda: 0.0,
            lambda node: self.outbox.send(self.event_api, node, reporter),
            self.read_labels,
            self.announcement,
            self.read_stops,
            None if statuses is None else lambda read: statuses.publish(read, self.status_api.patch_pod, reporter),
        )
        reporter = RegistrationReporter(StateLog(logger, self.clock), LoopStatuses(self.clock))
        return NodeSession(parts, (self.policy, NodeStatusPolicy()), self.clock, reporter, contested=self.contested)

    def run(self, seconds: float, script: Callable[[], Awaitable[None]] | None = None) -> SessionEnd:
        """Run a session for ``seconds``, concurrently with a script; return the end of the session."""

        async def work() -> SessionEnd:
            stop = asyncio.Event()
            running = asyncio.create_task(self.session().run(stop))
            acting = asyncio.create_task(_nothing() if script is None else _awaited(script))
            await asyncio.wait({running}, timeout=seconds)
            stop.set()
            await acting
            return await running

        return play(work())

    def logged(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [each for each in found if each["event"] == event]

    @property
    def unschedulable(self) -> bool:
        return bool(self.server.node["spec"].get("unschedulable"))

    def ready(self) -> dict[str, Any]:
        conditions: list[dict[str, Any]] = self.server.node["status"]["conditions"]
        return next(each for each in conditions if each["type"] == "Ready")


async def _nothing() -> None: ...


async def _awaited(script: Callable[[], Awaitable[None]]) -> None:
    await script()
