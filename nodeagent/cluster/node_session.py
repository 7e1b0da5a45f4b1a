"""One session of registration and heartbeats, until this agent may no longer report the node."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.cluster.plan import heartbeat, registration
from nodeagent.cluster.plan.node_status import NodeStatusPolicy, node_object, node_status
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.loops.passes import AnnouncedPart, ShutdownAnnouncement, wait_for_any
from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    from nodeagent.cluster.session_task import RegistrationReporter
    from nodeagent.model.kubernetes import Lease, Node, NodeFacts, NodeStatus, StatusCondition
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.model.stops import NodeStop
    from nodeagent.units import Clock

_CHANGE_POLL_S: Final = 0.5
_STOP_WITHIN_S: Final = 1.0
_REMEMBERED: Final = 16
_UNCORDON_AFTER_S: Final = 10.0
"""Time without a shutdown after the start: a restarted agent resumes a shutdown in progress within seconds."""
_REVIEWED_AFTER_S: Final = 10.0
"""Time after the start in which the record of an unclean stop is added to the history."""
_CONFLICT: Final = 409
_LASTING: Final = frozenset({401, 403, 404, 422})
"""Refusals that last longer than a shutdown waits."""
_RESOLUTION_S: Final = 0.001
"""Shortest wait in seconds; rounding can leave a remainder below the resolution of the clock."""


class NodeRequests(Protocol):
    """Requests about one node; each raises ``ApiServerError``."""

    async def get_node(self) -> Node | None:
        """Return the Node object; ``None`` if it does not exist."""

    async def create_node(self, node: Node) -> Node:
        """Create the Node object; return the stored object."""

    async def patch_node(self, patch: Mapping[str, Any]) -> Node:
        """Patch metadata or spec of the Node object; return the stored object."""

    async def patch_status(self, patch: Mapping[str, Any]) -> Node:
        """Patch the status of the Node object; return the stored object."""

    async def get_lease(self) -> Lease | None:
        """Return the Lease; ``None`` if it does not exist."""

    async def write_lease(self, lease: Lease) -> Lease:
        """Create or replace the Lease; return the stored Lease."""


class SessionEnd(StrEnum):
    """Reason for the end of a session."""

    STOPPED = "stopped"
    REFUSED = "refused"
    DELETED = "deleted"
    REPLACED = "replaced"
    CONTESTED = "contested"


async def _no_stops() -> Sequence[NodeStop]:
    return ()


class SessionParts(Record):
    """Collaborators of a session.

    Attributes:
        lease_requests: requests of the Lease loop.
        status_requests: requests of the registration and the status loop, over another connection.
        read_facts: returns the current facts of the node.
        refusal: returns the reason for not reporting the node now; empty if this agent may report it.
        is_shutting_down: returns whether a graceful shutdown is in progress; does no I/O.
        read_pressure: returns the active pressure conditions as of now, for :attr:`NodeFacts.pressure`; does no I/O.
        jitter: returns a number from 0 to 1.
        send_event: sends a waiting Event, if any; returns the seconds until the next attempt.
        read_labels: returns the configured labels of the node; ``None`` if they are unknown.
        announcement: whether the API server knows of a shutdown.
        read_stops: returns the last recorded stop of the node, empty if none or unreadable.
        publish_pod: publishes the status of a pod that has ended, if any, with a function that returns the registered
            Node object, ``None`` if this agent may no longer report it; returns the seconds until the next attempt.
            ``None`` if no pod status is published.
    """

    lease_requests: NodeRequests
    status_requests: NodeRequests
    read_facts: Callable[[], Awaitable[NodeFacts]]
    refusal: Callable[[], Awaitable[str]]
    is_shutting_down: Callable[[], bool]
    read_pressure: Callable[[], frozenset[NodeCondition] | None]
    jitter: Callable[[], float]
    send_event: Callable[[Node], Awaitable[float]]
    read_labels: Callable[[], Awaitable[Mapping[str, str] | None]]
    announcement: ShutdownAnnouncement = field(default_factory=ShutdownAnnouncement)
    read_stops: Callable[[], Awaitable[Sequence[NodeStop]]] = _no_stops
    publish_pod: Callable[[Callable[[], Awaitable[Node | None]]], Awaitable[float]] | None = None


class NodeSession:
    """Registers the node, then keeps its Lease and its status current."""

    def __init__(
        self,
        parts: SessionParts,
        policies: tuple[registration.RegistrationPolicy, NodeStatusPolicy],
        clock: Clock,
        reporter: RegistrationReporter,
        *,
        contested: bool = False,
    ) -> None:
        """Prepare a session.

        Args:
            parts: collaborators of the session.
            policies: configuration of the registration and of the node status.
            clock: wall time of heartbeats, monotonic time of intervals.
            reporter: logs and counts failures.
            contested: whether another process renewed the Lease during the previous session.
        """
        self._parts = parts
        self._registration, self._status = policies
        self._clock = clock
        self._reporter = reporter
        self._contested = contested
        self._own_labels: Mapping[str, str] = {}
        self._applied: Mapping[str, str] | None = None
        self._is_mark_stale = False
        self._end = SessionEnd.STOPPED
        self._ended = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> SessionEnd:
        """Run until ``stop`` is set or the session ends by itself; return the reason.

        A request without an answer delays the stop by a second at most.
        """
        work, stopped = asyncio.create_task(self._work()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._ended.set()
            done, _ = await asyncio.wait({work}, timeout=_STOP_WITHIN_S)
            if done:
                work.result()
        finally:
            stopped.cancel()
            work.cancel()
            await asyncio.wait({work})
        return self._end

    async def _work(self) -> None:
        node = await self._register()
        if node is None:
            return
        self._parts.announcement.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_lease(node))
                tasks.create_task(self._keep_status(node))
                tasks.create_task(self._keep_labels(node))
                tasks.create_task(self._keep_cordon(node))
                tasks.create_task(self._send_events(node))
                tasks.create_task(self._annotate_stop(node))
                tasks.create_task(self._publish_pods(node))
        finally:
            self._parts.announcement.end()

    def _finish(self, end: SessionEnd, because: str) -> None:
        if not self._ended.is_set():
            self._end = end
            self._ended.set()
            self._reporter.ended(because, expected=end is SessionEnd.REFUSED)

    async def _is_refused(self) -> bool:
        because = await self._parts.refusal()
        if because:
            self._finish(SessionEnd.REFUSED, because)
        return bool(because)

    async def _wait(self, seconds: float) -> None:
        self._reporter.waiting(seconds)
        await wait_for_any(seconds, self._ended)

    # ---- registration

    async def _register(self) -> Node | None:
        """Return the Node object once it is registered; ``None`` if the session ends earlier."""
        sighting: heartbeat.LeaseSighting | None = None
        while not self._ended.is_set() and not await self._is_refused():
            try:
                facts = await self._parts.read_facts()
                requests = self._parts.status_requests
                own = node_object(facts, self._status, now=self._clock.now())
                found = await requests.get_node()
                lease = None if found is None else await requests.get_lease()
                now_s = self._clock.monotonic_s()
                sighting = heartbeat.sight_lease(sighting, lease, now_s)
                lease_free = heartbeat.is_lease_free(sighting, now_s)
                labels = await self._parts.read_labels()
                policy = self._registration if labels is None else replace(self._registration, labels=labels)
                plan = registration.plan_registration(
                    found, own, policy, lease_free=lease_free, contested=self._contested
                )
                node = await self._apply(plan, found)
            except ApiServerError as error:
                await self._wait(self._reporter.failed("registration", error))
                continue
            self._own_labels = own.metadata.labels
            self._applied = None if plan.verdict is registration.RegistrationVerdict.KEEP else labels
            self._reporter.succeeded("registration")
            if node is not None:
                self._reporter.registered(plan, own.metadata.name)
                return node
            self._reporter.refused(plan, own.metadata.name)
            await self._wait(heartbeat.STATUS_POLL_S)
        return None

    async def _apply(self, plan: registration.RegistrationPlan, found: Node | None) -> Node | None:
        """Carry out a plan; return the registered object, ``None`` if the plan refuses it."""
        if plan.node is not None:
            return await self._parts.status_requests.create_node(plan.node)
        if plan.patch is not None:
            return await self._parts.status_requests.patch_node(plan.patch)
        return found if plan.verdict is registration.RegistrationVerdict.KEEP else None

    # ---- Lease

    async def _keep_lease(self, node: Node) -> None:
        lease: Lease | None = None
        written: deque[str] = deque(maxlen=_REMEMBERED)
        while not self._ended.is_set() and not await self._is_refused():
            started_s = self._clock.monotonic_s()
            try:
                if lease is None:
                    lease = await self._parts.lease_requests.get_lease()
                    if lease is not None and written and lease.spec.renew_time not in written:
                        retried = f"retried {heartbeat.LEASE_DURATION_S} s after its last renewal"
                        because = f"another process renews the Lease; {retried}"
                        self._finish(SessionEnd.CONTESTED, because)
                        return
                    # the control plane deletes the Lease of a deleted Node object, also each new one
                    if written and await self._read_own(self._parts.lease_requests, node) is None:
                        return
                renewed = heartbeat.renewed_lease(lease, node, self._clock.now(), written[-1] if written else "")
                written.append(renewed.spec.renew_time)
                lease = await self._parts.lease_requests.write_lease(renewed)
            except ApiServerError as error:
                lease = None  # the effect of the write is unknown, or the API server refused an outdated Lease
                await self._wait(self._reporter.failed("lease", error))
                continue
            self._reporter.succeeded("lease")
            await self._wait(max(0.0, heartbeat.LEASE_INTERVAL_S - (self._clock.monotonic_s() - started_s)))

    # ---- status

    async def _keep_status(self, node: Node) -> None:
        memory, conditions = heartbeat.ReportMemory(), node.status.conditions
        while not self._ended.is_set() and not await self._is_refused():
            shutting_down = self._parts.is_shutting_down()
            facts = await self._parts.read_facts()
            status = self._status_of(facts, conditions, memory)
            conditions = status.conditions
            if heartbeat.report_reason(memory, status, self._clock.monotonic_s()) is heartbeat.ReportReason.UNCHANGED:
                self._announced(AnnouncedPart.STATUS, shutting_down=shutting_down)
                await self._wait_for_change(heartbeat.STATUS_POLL_S, shutting_down=shutting_down, facts=facts)
                continue
            try:
                # read before each report, since the node controller writes conditions too
                found = await self._read_own(self._parts.status_requests, node)
                if found is None:
                    return
                self._note_mark(found)
                status = self._status_of(facts, found.status.conditions, memory)
                await self._parts.status_requests.patch_status(heartbeat.status_patch(status, found.status.addresses))
            except ApiServerError as error:
                delay_s = self._reporter.failed("status", error)
                self._given_up(AnnouncedPart.STATUS, error)
                await self._wait_for_change(delay_s, shutting_down=shutting_down)
                continue
            self._reporter.succeeded("status")
            conditions = status.conditions
            memory = heartbeat.remember_report(status, self._clock.monotonic_s(), self._parts.jitter())
            self._announced(AnnouncedPart.STATUS, shutting_down=shutting_down)
            await self._wait_for_change(heartbeat.STATUS_POLL_S, shutting_down=shutting_down, facts=facts)

    def _status_of(
        self, facts: NodeFacts, previous: Sequence[StatusCondition], memory: heartbeat.ReportMemory
    ) -> NodeStatus:
        return heartbeat.complete_status(node_status(facts, self._status, previous, now=self._clock.now()), memory)

    async def _read_own(self, requests: NodeRequests, node: Node) -> Node | None:
        """Return the current Node object; ``None``, with the session ended, if it was deleted or replaced."""
        found = await requests.get_node()
        if found is None:
            self._finish(SessionEnd.DELETED, "the Node object was deleted")
        elif found.metadata.uid != node.metadata.uid:
            self._finish(SessionEnd.REPLACED, "the Node object was deleted and created again")
        else:
            return found
        return None

    # ---- labels

    async def _keep_labels(self, node: Node) -> None:
        """Apply the configured labels to a kept object and after each change.

        Labels are applied after two equal readings, since the file of labels can be read while it is rewritten. The
        reading of the registration does not count: it adds labels only, and precedes the first one here at once.

        A refusal, such as of a label that a node certificate may not set, does not affect the heartbeats.
        """
        previous: Mapping[str, str] | None = None
        while not self._ended.is_set() and not await self._is_refused():
            labels, wait_s = await self._parts.read_labels(), heartbeat.STATUS_POLL_S
            is_stable, previous = labels == previous, labels
            if labels is not None and is_stable and labels != self._applied:
                try:
                    await self._set_labels(node, labels)
                    self._applied = labels
                except ApiServerRefusedError as error:
                    is_conflict = error.status == _CONFLICT
                    wait_s = heartbeat.FIRST_RETRY_S if is_conflict else self._reporter.failed("labels", error)
                except ApiServerError as error:
                    wait_s = self._reporter.failed("labels", error)
            await wait_for_any(wait_s, self._ended)

    async def _set_labels(self, node: Node, labels: Mapping[str, str]) -> None:
        """Patch the labels of the Node object, unless they are as configured already."""
        requests = self._parts.status_requests
        found = await requests.get_node()
        if found is None or found.metadata.uid != node.metadata.uid:
            return  # deleted or replaced: the status loop ends the session
        plan = registration.plan_labels(found, {**labels, **self._own_labels})
        if plan.patch is not None:
            await requests.patch_node(plan.patch)
        self._reporter.succeeded("labels")
        if plan.changed or plan.kept:
            self._reporter.labels_changed(plan, found.metadata.name)

    # ---- cordon

    async def _keep_cordon(self, node: Node) -> None:
        """Cordon the node at the start of a shutdown; end a cordon of the agent afterwards, or at a start.

        The annotation of a cordon that another program ended is removed.
        """
        # None if unknown: after a request without a response, and after a start during a shutdown.
        cordoned: bool | None = registration.has_ending_cordon(node, self._registration)
        self._note_mark(node)
        if not self._is_mark_stale and not self._parts.is_shutting_down():
            await self._wait_for_change(_UNCORDON_AFTER_S, shutting_down=False)
        if cordoned and self._parts.is_shutting_down():
            cordoned = None
        while not self._ended.is_set() and not await self._is_refused():
            shutting_down, wait_s = self._parts.is_shutting_down(), heartbeat.STATUS_POLL_S
            if cordoned is not shutting_down or (self._is_mark_stale and not shutting_down):
                try:
                    await self._set_cordon(node, cordoned=shutting_down)
                    cordoned = shutting_down
                    self._announced(AnnouncedPart.CORDON, shutting_down=shutting_down)
                except ApiServerRefusedError as error:
                    wait_s = (
                        heartbeat.FIRST_RETRY_S if error.status == _CONFLICT else self._reporter.failed("cordon", error)
                    )
                    self._given_up(AnnouncedPart.CORDON, error)
                except ApiServerError as error:
                    cordoned, wait_s = None, self._reporter.failed("cordon", error)
            await self._wait_for_change(wait_s, shutting_down=shutting_down)

    async def _set_cordon(self, node: Node, *, cordoned: bool) -> None:
        """Cordon the node for a shutdown, or end such a cordon, unless that is done already."""
        requests = self._parts.status_requests
        found = await requests.get_node()
        if found is None or found.metadata.uid != node.metadata.uid:
            return  # deleted or replaced: the status loop ends the session
        if cordoned:
            patch = registration.plan_cordon(found)
        else:
            patch = registration.plan_uncordon(found, self._registration, is_stale=self._is_mark_stale)
        stored = found if patch is None else await requests.patch_node(patch)
        self._is_mark_stale = cordoned and patch is None and self._is_mark_stale
        self._reporter.succeeded("cordon")
        if stored.spec.unschedulable is not found.spec.unschedulable:
            self._reporter.cordon_changed(found.metadata.name, is_cordoned=cordoned)

    def _note_mark(self, found: Node) -> None:
        """Remember a stale annotation until its removal, since an operator may cordon the node before.

        During a shutdown the reading may precede the agent's own cordon.
        """
        if registration.has_stale_mark(found) and not self._parts.is_shutting_down():
            self._is_mark_stale = True

    def _announced(self, part: AnnouncedPart, *, shutting_down: bool) -> None:
        """Record that the API server knows of the shutdown, or that none is in progress."""
        if shutting_down:
            self._parts.announcement.settle(part)
        else:
            self._parts.announcement.expect(part)

    def _given_up(self, part: AnnouncedPart, error: ApiServerError) -> None:
        """Expect a refused part no longer; the shutdown would wait for it in vain."""
        if isinstance(error, ApiServerRefusedError) and error.status in _LASTING:
            self._parts.announcement.settle(part)

    # ---- unclean stop

    async def _annotate_stop(self, node: Node) -> None:
        """Set or remove the annotation of an unclean stop, once its record is reviewed after the start."""
        wait_s = _REVIEWED_AFTER_S
        while not await wait_for_any(wait_s, self._ended) and not await self._is_refused():
            if not (stops := await self._parts.read_stops()):
                return
            try:
                found = await self._read_own(self._parts.status_requests, node)
                if found is None:
                    return
                patch = registration.plan_unclean_stop(found, stops[0])
                if patch is not None:
                    await self._parts.status_requests.patch_node(patch)
            except ApiServerError as error:
                wait_s = self._reporter.failed("unclean stop", error)
                continue
            self._reporter.succeeded("unclean stop")
            return

    # ---- Events

    async def _send_events(self, node: Node) -> None:
        while not self._ended.is_set() and not await self._is_refused():
            await wait_for_any(await self._parts.send_event(node), self._ended)

    # ---- pods

    async def _publish_pods(self, node: Node) -> None:
        publish = self._parts.publish_pod

        async def read_node() -> Node | None:
            """Return the Node object, with the role of the agent evaluated immediately before a write."""
            if await self._is_refused():
                return None
            return await self._read_own(self._parts.status_requests, node)

        while publish is not None and not self._ended.is_set():
            await wait_for_any(await publish(read_node), self._ended)

    async def _wait_for_change(self, seconds: float, *, shutting_down: bool, facts: NodeFacts | None = None) -> None:
        """Wait ``seconds``, or until a graceful shutdown starts or is cancelled: logind's delay is a few seconds.

        With ``facts``, also until a pressure condition becomes active: the scheduler must not bind the replacement of
        an evicted pod to this node.
        """
        until_s = self._clock.monotonic_s() + seconds
        while (left_s := until_s - self._clock.monotonic_s()) > _RESOLUTION_S and not self._ended.is_set():
            if self._parts.is_shutting_down() is not shutting_down:
                return
            if facts is not None and (self._parts.read_pressure() or frozenset()) - (facts.pressure or frozenset()):
                return
            await wait_for_any(min(left_s, _CHANGE_POLL_S), self._ended)
