"""The pods whose status is published on a node without a kubelet, from log events and from the history.

Pods that end during this run are taken from the log events, since a full disk delays their record. After a restart they
are read from the history, which is the queue on disk: a pod is due until the watch shows its final phase or its
deletion, so that deliveries need no record of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodeagent.cluster.plan import pod_status
from nodeagent.cluster.plan.pod_status import STORAGE_LIMITS, EndedPod, RuntimePod, StatusVerdict
from nodeagent.errors import ApiServerError, ApiServerRefusedError, NodeAgentError, StoreError
from nodeagent.host.systemd import userspace_id
from nodeagent.store.history import History
from nodeagent.telemetry.logging import subscribe, unsubscribe
from nodeagent.text import escape

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from nodeagent.cluster.session_task import RegistrationReporter
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.model.kubernetes import Node
    from nodeagent.model.runtime import Container, Sandbox
    from nodeagent.units import Clock

    ReadNode = Callable[[], Awaitable[Node | None]]
    PatchStatus = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]

POLL_S: Final = 1.0
WAIT_S: Final = 10.0
"""Seconds until a pod that waits is decided again."""
_PART: Final = "pod status"
_MAX_PENDING: Final = 1000
_MAX_EVICTIONS: Final = 500
_READ_FOR: Final = timedelta(days=7)
_RECORDED: Final = frozenset({"unclean_stop", "shutdown_incomplete"})
"""Log events about a stop that was added to the history at the start of the agent."""
_STOPPED: Final = frozenset({"stopped", "killed"})
_OUT_OF_SERVICE: Final = f"no pod status is published: the node has the taint {pod_status.OUT_OF_SERVICE_TAINT}"
_CONFLICT: Final = 409
_LATER: Final = frozenset({401, 403, _CONFLICT, 429})
"""HTTP statuses below 500 after which a pod remains due. 409: a conflict with another writer, or with a new pod of this
name, which the watch then shows."""


class PodStatuses:
    """Pods whose status is due; the queue outlives sessions and outages of the API server."""

    def __init__(self, context: DaemonContext) -> None:
        """Create an empty queue; :meth:`open` fills it."""
        self._context = context
        self._lock = threading.Lock()  # log events are published by other threads too
        self._pending: dict[str, EndedPod] = {}
        self._due_s: dict[str, float] = {}
        self._is_open = False
        self._is_read = False

    def open(self) -> None:
        """Start collecting pods; the next :meth:`publish` reads the history."""
        if not self._is_open:
            subscribe(self.add)
            self._is_open, self._is_read = True, False

    def close(self) -> None:
        """Stop collecting pods, and discard them."""
        unsubscribe(self.add)
        self._is_open = False
        with self._lock:
            self._pending.clear()
            self._due_s.clear()

    def add(self, event: Mapping[str, object]) -> None:
        """Add the pod of a log event that reports an eviction or a stopped pod."""
        if event.get("event") in _RECORDED:
            self._is_read = False
        found = _ended_pod(event, self._context.clock.now())
        if found is not None:
            self._put((found,))

    def _put(self, pods: Iterable[EndedPod]) -> None:
        """Add pods; of two ends of one pod the later one is kept."""
        with self._lock:
            for each in pods:
                known = self._pending.get(each.uid)
                if known is None or known.at <= each.at:
                    self._pending[each.uid] = each
            for uid in tuple(self._pending)[: max(0, len(self._pending) - _MAX_PENDING)]:
                del self._pending[uid]
                self._due_s.pop(uid, None)

    def _forget(self, pod: EndedPod) -> None:
        with self._lock:
            self._pending.pop(pod.uid, None)
            self._due_s.pop(pod.uid, None)

    async def publish(self, read_node: ReadNode, patch: PatchStatus, reporter: RegistrationReporter) -> float:
        """Publish the status of one due pod, if any; return the seconds until the next attempt.

        Args:
            read_node: returns the registered Node object; ``None`` if this agent may no longer report the node; raises
                ``ApiServerError``.
            patch: patches the status of a pod, given by namespace and name; raises ``ApiServerError``.
            reporter: logs and counts failures.
        """
        if not self._is_read:
            self._is_read = True
            await self._read_history()
        now_s = self._context.clock.monotonic_s()
        with self._lock:
            due = [each for uid, each in self._pending.items() if self._due_s.get(uid, 0.0) <= now_s]
            due.sort(key=lambda each: self._due_s.get(each.uid, 0.0))  # a refused pod follows the others
        if not due or not self._context.watched_pods.is_current:
            return POLL_S
        pods = await self._read_runtime()
        for each in due:
            if self._is_publishable(each, None if pods is None else pods.get(each.uid, RuntimePod())):
                return await self._publish(each, read_node, patch, reporter)
        return POLL_S

    def _is_publishable(self, pod: EndedPod, found: RuntimePod | None) -> bool:
        """Return whether a pod is published now; otherwise it is removed from the queue, or due later."""
        watched, clock = self._context.watched_pods, self._context.clock
        decision = pod_status.decide(pod, watched.state.pods, watched.pod_list(), found, clock.now())
        if decision.verdict is StatusVerdict.WAIT:
            self._due_s[pod.uid] = clock.monotonic_s() + WAIT_S
        elif decision.verdict is not StatusVerdict.PUBLISH:
            self._drop(pod, decision.because)
        return decision.verdict is StatusVerdict.PUBLISH

    def _drop(self, pod: EndedPod, because: str) -> None:
        self._forget(pod)
        if because:
            self._context.logger.info("pod_status_dropped", **_fields(pod), why=because)

    async def _publish(
        self, pod: EndedPod, read_node: ReadNode, patch: PatchStatus, reporter: RegistrationReporter
    ) -> float:
        try:
            node = await read_node()
        except ApiServerError as error:
            return reporter.failed(_PART, error)
        if node is None:
            return POLL_S
        if pod_status.is_out_of_service(node):
            return max(WAIT_S, reporter.failed(_PART, ApiServerRefusedError(_OUT_OF_SERVICE, 409)))
        try:
            await patch(pod.namespace, pod.name, pod_status.status_patch(pod, self._context.clock.now()))
        except ApiServerRefusedError as error:
            return self._after_refusal(pod, error, reporter)
        except ApiServerError as error:
            return reporter.failed(_PART, error)
        reporter.succeeded(_PART)
        self._forget(pod)
        self._context.logger.info("pod_status_published", **_fields(pod), reason=pod.reason, message=pod.message)
        return 0.0

    def _after_refusal(self, pod: EndedPod, error: ApiServerRefusedError, reporter: RegistrationReporter) -> float:
        """Drop a refused pod, or keep it due; return the seconds until the next attempt.

        The next pod waits unless the refusal concerns this pod only.
        """
        if error.status == 404:  # the watch shows the deletion later
            self._drop(pod, "")
            return 0.0
        delay_s = reporter.failed(_PART, error)
        if error.status not in _LATER and error.status < 500:
            self._drop(pod, str(error))
            return 0.0
        self._due_s[pod.uid] = self._context.clock.monotonic_s() + delay_s
        return 0.0 if error.status == _CONFLICT else delay_s

    async def _read_runtime(self) -> dict[str, RuntimePod] | None:
        """Return the pods in the runtime by UID; ``None`` without an answer."""
        agent = self._context.agent
        if agent is None:
            return None
        try:
            sandboxes, containers = await agent.cri.list_sandboxes(), await agent.cri.list_containers()
        except NodeAgentError:
            return None
        uids = {each.id: each.uid for each in sandboxes}
        found: dict[str, tuple[list[Sandbox], list[Container]]] = defaultdict(lambda: ([], []))
        for sandbox in sandboxes:
            found[sandbox.uid][0].append(sandbox)
        for container in containers:
            found[container.pod_uid or uids.get(container.sandbox_id, "")][1].append(container)
        return {uid: RuntimePod(tuple(of_pod), tuple(inside)) for uid, (of_pod, inside) in found.items()}

    async def _read_history(self) -> None:
        """Add the pods that ended before this run."""
        directory, clock = self._context.settings.state_directory, self._context.clock
        try:
            self._put(await asyncio.to_thread(read_ended_pods, directory, clock))
        except StoreError as error:
            self._context.logger.warning("store_notice", notice=str(error))


class _RecordedEviction(msgspec.Struct, frozen=True):
    victim: str | None = None
    message: str | None = None


def read_ended_pods(directory: Path, clock: Clock) -> tuple[EndedPod, ...]:
    """Return the pods in the history that were evicted, or ended with a stop of the node, the oldest first. Blocks.

    Raises:
        StoreError: the history cannot be read.
    """
    history, since = History(directory), clock.now() - _READ_FOR
    booted_at = clock.now() - timedelta(seconds=clock.monotonic_s())
    found = list(pod_status.pods_of_stops(history.read_stops(since=since), userspace_id(), booted_at))
    for each in history.read_evictions(since=since, limit=_MAX_EVICTIONS):
        ended_at = each.started_at + timedelta(seconds=each.duration_s)
        for action in each.actions:
            if action.outcome == "done":
                namespace, _, name = action.name.partition("/")
                message = _message(each.eviction, action.item_id) or action.sentence
                limited = action.reason in STORAGE_LIMITS
                status = pod_status.EVICTED, message
                found.append(EndedPod(action.item_id, namespace, name, *status, ended_at, is_disruption=not limited))
    return tuple(sorted(found, key=lambda each: (each.at, each.uid)))


def _message(document: str, uid: str) -> str:
    """Return the message of a recorded eviction; empty for a document of another pod, or without a message."""
    try:
        found = msgspec.json.decode(document, type=_RecordedEviction)
    except msgspec.MsgspecError:
        return ""
    return escape(found.message or "") if found.victim == uid else ""


def _ended_pod(event: Mapping[str, object], now: datetime) -> EndedPod | None:
    """Return the ended pod of a log event; ``None`` for another event."""
    uid, name = str(event.get("pod_uid") or ""), event.get("event")
    if not uid:
        return None
    if name == "evicted":
        namespace, pod, message = (str(event.get(each) or "") for each in ("pod_namespace", "pod_name", "message"))
        is_disruption = event.get("reason") not in STORAGE_LIMITS
        return EndedPod(uid, namespace, pod, pod_status.EVICTED, escape(message), now, is_disruption=is_disruption)
    if name == "pod_stopped" and event.get("outcome") in _STOPPED:
        namespace, _, rest = str(event.get("pod")).partition("/")
        return EndedPod(uid, namespace, rest, pod_status.TERMINATED, pod_status.TERMINATED_MESSAGE, now)
    return None


def _fields(pod: EndedPod) -> dict[str, str]:
    """Return the log fields of a pod."""
    return {"pod_namespace": pod.namespace, "pod_name": pod.name, "pod_uid": pod.uid}
