"""All tasks of the node's part in a cluster, and the task that registers a standalone node, across reloads."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nodeagent.cluster import NAME
from nodeagent.cluster.client_certificate import ClientCertificateTask
from nodeagent.cluster.conditions import ConditionsTask, TaintsTask
from nodeagent.cluster.events import EventOutbox, EventsTask
from nodeagent.cluster.failed_pods import FailedPodsTask
from nodeagent.cluster.plan.node_status import SHUTTING_DOWN
from nodeagent.cluster.pod_watch import PodWatchTask
from nodeagent.cluster.session_task import RegistrationReporter
from nodeagent.errors import StoreError
from nodeagent.loops.passes import PausedBy, wait_for_any
from nodeagent.model.node import Role
from nodeagent.pods.role import ROLE_POLL_S
from nodeagent.record import Record, replace
from nodeagent.store.history import History
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    from nodeagent.cluster.pod_status import PodStatuses
    from nodeagent.daemon.context import DaemonContext, DaemonTask
    from nodeagent.model.kubernetes import Node, NodeFacts
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.model.stops import NodeStop
    from nodeagent.runtime.cri import CriClient
    from nodeagent.settings.settings import Settings

    ReadFacts = Callable[[CriClient | None, frozenset[NodeCondition] | None], Awaitable[NodeFacts]]

RUNTIME_LOST_S: Final = 30.0
"""Seconds without an answer of the runtime until the node is not ready. Source: kubelet ``runtimeState`` threshold."""
_AGAIN_S: Final = 10.0
_LASTING_S: Final = 600.0
"""Maximum delay in seconds of a registration after a deletion, and the lifetime of an object that resets the delay."""


class RegistrationTask:
    """Runs sessions while registration is enabled, active and not refused."""

    def __init__(self, context: DaemonContext, again_s: float = _AGAIN_S) -> None:
        """Create the task; :meth:`run` imports the client of the API server if a session starts.

        Args:
            context: context of the daemon.
            again_s: seconds until a deleted Node object is created again, if configured; doubled if the new one is
                deleted soon.
        """
        self._context = context
        self._again_s = again_s
        self._logger = context.logger.bind(task=NAME)
        self._contested = False
        self._deletions = 0
        self._ran = False
        self._last = LastFacts()
        self._outbox: EventOutbox | None = None
        self._pod_statuses: PodStatuses | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run registration sessions until stopped.

        Events are collected from the beginning: an unclean stop is logged before the first session.
        """
        try:
            kubernetes = self._context.settings.kubernetes
            if kubernetes.register_node and not kubernetes.publish_events:
                self._outbox = EventOutbox(self._context.clock)
                self._outbox.open()
            await self._run(stop)
        finally:
            if self._outbox is not None:
                self._outbox.close()
            self._close_pod_statuses()

    def _close_pod_statuses(self) -> None:
        if self._pod_statuses is not None:
            self._pod_statuses.close()

    async def _run(self, stop: asyncio.Event) -> None:
        logged = ""
        while not stop.is_set():
            settings = self._context.settings
            if because := await self._refusal(settings):
                if settings.kubernetes.register_node or logged or self._ran:
                    self._disable(because, logged)
                    logged = because
                await wait_for_any(ROLE_POLL_S, stop)
                continue
            logged, self._ran = "", True
            try:
                await self._run_session(settings, stop)
            except Exception:  # an unexpected error must not end the daemon's other tasks
                self._logger.exception("pass_crashed", loop=NAME)
                await wait_for_any(ROLE_POLL_S, stop)

    def _disable(self, because: str, logged: str) -> None:
        """Report the task as disabled, and log the reason if it changed."""
        self._close_pod_statuses()
        if self._outbox is not None:
            self._outbox.close()
        self._context.loop_statuses.disabled(NAME, because)
        if because != logged:  # logged as a warning if a kubelet prevents the configured registration
            refused = not self._context.dry_run and self._context.roles.current.role is Role.BESIDE_KUBELET
            (self._logger.warning if refused else self._logger.info)("loop_disabled", loop=NAME, because=because)

    async def _refusal(self, settings: Settings) -> str:
        """Return the reason for not reporting the node now; empty if the agent may report it."""
        off = settings.kubernetes.off_because(Role.STANDALONE)
        if off:
            return off
        if self._context.settings.invalid_because:
            return "the configuration is invalid"
        if self._context.settings is not settings:
            return "the configuration was reloaded"
        if self._context.dry_run:
            return "dry run: the API server is not written to"
        role = await self._context.roles.evaluate(settings.role)
        return settings.kubernetes.off_because(role.role, role.reason)

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # imported here, since a daemon without registration does not need h11, ssl and the API objects
        from nodeagent.cluster.facts import LabelReader, NodeFactsReader, status_policy  # noqa: PLC0415
        from nodeagent.cluster.node_session import NodeSession, SessionEnd, SessionParts  # noqa: PLC0415
        from nodeagent.cluster.pod_status import PodStatuses  # noqa: PLC0415
        from nodeagent.host.node import node_name  # noqa: PLC0415
        from nodeagent.kube.api_client import ApiClient, NodeApi  # noqa: PLC0415
        from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
        from nodeagent.pods.pod_api import patch_pod_status  # noqa: PLC0415

        access = settings.kubernetes.access
        if access is None:
            return
        credentials = ApiCredentials(access)
        name = node_name(settings.kubelet.node_name)
        lease, status, events = (NodeApi(ApiClient(access, credentials), name) for _ in range(3))
        pods = ApiClient(access, credentials)
        outbox = self._outbox = self._outbox or EventOutbox(self._context.clock)
        if settings.kubernetes.publish_events:
            outbox.close()  # EventsTask sends the Events
        else:
            outbox.open()
        states = StateLog(self._logger, self._context.clock)
        reporter = RegistrationReporter(states, self._context.loop_statuses)
        statuses = self._pod_statuses = self._pod_statuses or PodStatuses(self._context)
        if settings.kubernetes.publish_pod_status:
            statuses.open()
        else:
            statuses.close()

        async def read_stops() -> Sequence[NodeStop]:
            try:
                return await asyncio.to_thread(History(settings.state_directory).read_stops, limit=1)
            except StoreError as error:
                self._logger.warning("store_notice", notice=str(error))
                return ()

        async def publish_pod(read_node: Callable[[], Awaitable[Node | None]]) -> float:
            return await statuses.publish(read_node, partial(patch_pod_status, pods), reporter)

        configured = settings.kubernetes
        labels = LabelReader(configured.registration.labels, configured.labels_file, states)
        reader = NodeFactsReader(settings, self._context.clock)
        facts = FactsSource(self._context, settings, reader.read, self._last)
        parts = SessionParts(
            lease_requests=lease,
            status_requests=status,
            read_facts=facts.read,
            refusal=lambda: self._refusal(settings),
            is_shutting_down=facts.is_shutting_down,
            read_pressure=facts.read_pressure,
            jitter=random.random,
            send_event=lambda node: outbox.send(events, node, reporter),
            read_stops=read_stops,
            publish_pod=publish_pod if settings.kubernetes.publish_pod_status else None,
            read_labels=labels.read,
            announcement=self._context.shutdown_announcement,
        )
        started_s = self._context.clock.monotonic_s()
        session = NodeSession(
            parts,
            (settings.kubernetes.registration, status_policy(settings)),
            self._context.clock,
            reporter,
            contested=self._contested,
        )
        try:
            end = await session.run(stop)
        finally:
            for each in (lease, status, events, pods):
                each.close()
        self._contested = end is SessionEnd.CONTESTED
        if end is SessionEnd.DELETED:
            lasted_s = self._context.clock.monotonic_s() - started_s
            self._deletions = 1 if lasted_s > _LASTING_S else self._deletions + 1
            await self._wait_after_deletion(settings, stop)

    async def _wait_after_deletion(self, settings: Settings, stop: asyncio.Event) -> None:
        """Wait for a reload: an operator who deletes a Node object does not expect it to be created again.

        With ``register_node = "always"``, wait for a delay that doubles while each new object is deleted soon.
        """
        clock, because = self._context.clock, "the Node object was deleted; a restart or reload registers again"
        ends_s = math.inf
        if settings.kubernetes.register_again:
            delay_s = min(self._again_s * 2.0 ** min(self._deletions - 1, 16), _LASTING_S)
            because = f"the Node object was deleted; registering again after {delay_s:g} s"
            ends_s = clock.monotonic_s() + delay_s
        self._disable(because, "")
        while not stop.is_set() and self._context.settings is settings and (left_s := ends_s - clock.monotonic_s()) > 0:
            await wait_for_any(min(left_s, ROLE_POLL_S), stop)


@dataclass
class LastFacts:
    """The last observation with a runtime; it outlives sessions, since a reload interrupts the runtime client.

    Attributes:
        facts: observed facts; ``None`` before the first observation.
        at_s: monotonic time of the observation, in seconds.
    """

    facts: NodeFacts | None = None
    at_s: float = 0.0


class FactsSource(Record):
    """Observations of the node for its status; a short absence of the runtime is not reported.

    Attributes:
        context: daemon context with the agent, the eviction state and the pauses.
        settings: settings of the session.
        read_facts: reads the facts, with or without a runtime.
        last: the last facts, replaced by each observation with a runtime.
    """

    context: DaemonContext
    settings: Settings
    read_facts: ReadFacts
    last: LastFacts

    def is_shutting_down(self) -> bool:
        """Return whether a graceful shutdown is in progress."""
        return self.context.pass_lock.pause_of(PausedBy.SHUTDOWN) is not None

    def read_pressure(self) -> frozenset[NodeCondition] | None:
        """Return the active pressure conditions; ``None`` if thresholds are not evaluated."""
        return None if self.settings.eviction.off_because(Role.STANDALONE) else self.context.eviction.reported

    async def read(self) -> NodeFacts:
        """Return the current facts, or the last facts if the runtime was lost less than 30 s ago."""
        agent = self.context.agent
        pressure = self.read_pressure()
        facts = await self.read_facts(None if agent is None else agent.cri, pressure)
        now_s = self.context.clock.monotonic_s()
        if facts.runtime_version:
            self.last.facts, self.last.at_s = facts, now_s
        elif self.last.facts is not None and now_s - self.last.at_s < RUNTIME_LOST_S:
            facts = replace(self.last.facts, observed_at=facts.observed_at, pressure=pressure)
        if self.is_shutting_down():
            facts = replace(facts, not_ready=(*facts.not_ready, SHUTTING_DOWN))
        return facts


def kubernetes_tasks(context: DaemonContext) -> tuple[DaemonTask, ...]:
    """Return the tasks; each is idle until it is configured."""
    return (
        ClientCertificateTask(context),
        RegistrationTask(context),
        PodWatchTask(context),
        ConditionsTask(context),
        TaintsTask(context),
        EventsTask(context),
        FailedPodsTask(context),
    )
