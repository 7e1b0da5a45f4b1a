"""Evictions through a fake API server without a network, and a fake kubelet that ends deleted pods."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodeagent.errors import ApiServerRefusedError, ApiServerUnavailableError
from nodeagent.eviction.api_evictor import ApiEvictor
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.model.pods import PodHandle, PodInventory
from nodeagent.pods.plan.watch import after_connection, after_events, after_list
from nodeagent.pods.pod_api import parse_event
from nodeagent.pods.watched import WatchedPods
from tests.support.api_pods import Pods, pod as api_pod
from tests.support.virtual_time import START, LoopClock
from tests.unit.eviction.plan.cases import at, pod as pod_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.model.pressure import PodFacts
    from nodeagent.pods.plan.watch import PodEvent
    from nodeagent.units import Clock


@dataclass
class Cluster:
    """A fake API server and kubelet with pods in the namespace ``shop``.

    Attributes:
        answers: errors of the next requests; a request with ``None`` is executed.
        lost: number of the next requests that take effect without a response to the client.
        is_stuck: whether deleted pods continue to run.
        ends_s: seconds to end a pod, per second of its grace period, of which at least one counts.
        running: facts of the pods in the runtime, by name.
        requests: method, name, version and grace period of each request.
        runtime_error: error of every pod list of the runtime.
        is_closed: whether the connection to the API server is closed.
    """

    clock: Clock = field(default_factory=LoopClock)

    pods: Pods = field(default_factory=Pods)
    answers: list[Exception | None] = field(default_factory=list)
    lost: int = 0
    is_stuck: bool = False
    ends_s: float = 0.5
    running: dict[str, PodFacts] = field(default_factory=dict)
    requests: list[tuple[str, str, str, int]] = field(default_factory=list)
    runtime_error: Exception | None = None
    is_closed: bool = True

    def __post_init__(self) -> None:
        self.watched = WatchedPods(self.clock)
        self.watched.address = "API server"
        self._kills: set[asyncio.Task[None]] = set()

    def add(self, name: str, *, static: bool = False, **fields: Any) -> PodFacts:
        """Add a pod to the API server and to the runtime; return its facts."""
        annotations = {"kubernetes.io/config.mirror": "hash"} if static else {}
        self.pods.put(api_pod(name, metadata={"namespace": "shop", "annotations": annotations}))
        self.running[name] = pod_facts(name, **fields)
        return self.running[name]

    def sync(self) -> None:
        """Deliver the pod changes of the API server to the pod watch."""
        state, now_s = self.watched.state, self.clock.monotonic_s()
        if state.listed_s is None:
            state = after_list(state, (), "1", requested_s=now_s, now_s=now_s, now=START)
        events: list[PodEvent] = [
            parse_event(json.dumps(event).encode()) for _, event in self.pods.changes(int(state.resource_version))
        ]
        for each in events:
            state = after_events(state, [each], now_s, START)
        self.watched.state = after_connection(state, now_s, START)

    async def read_pods(self) -> PodInventory:
        if self.runtime_error is not None:
            raise self.runtime_error
        facts = tuple(self.running.values())
        return PodInventory(facts, (), {each.uid: PodHandle(each.uid, ("s",)) for each in facts}, at(0))

    async def evict(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        await self._end("POST", (namespace, name, uid), resource_version, grace_s)

    async def delete(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        await self._end("DELETE", (namespace, name, uid), resource_version, grace_s)

    def close(self) -> None:
        self.is_closed = True

    async def _end(self, method: str, target: tuple[str, str, str], version: str, grace_s: int) -> None:
        namespace, name, uid = target
        self.is_closed = False
        self.requests.append((method, name, version, grace_s))
        failure = self.answers.pop(0) if self.answers else None
        if failure is not None:
            raise failure
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options = {"gracePeriodSeconds": grace_s, "preconditions": preconditions}
        status, answer = self.pods.end(namespace, name, options, by_eviction=method == "POST")
        if status >= 300:
            details = answer.get("details", {})
            causes = tuple(each["reason"] for each in details.get("causes", ()))
            raise ApiServerRefusedError(answer["message"], status, kind=details.get("kind", ""), causes=causes)
        self._kill(name, grace_s)
        self.sync()
        if self.lost:
            self.lost -= 1
            raise ApiServerUnavailableError("no answer")

    def _kill(self, name: str, grace_s: int) -> None:
        """Remove a deleted pod from the runtime after its grace period, as the kubelet does."""
        if not self.is_stuck:
            work = asyncio.ensure_future(self._killed(name, max(self.ends_s, grace_s * self.ends_s)))
            self._kills.add(work)

    async def _killed(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        found = self.running.pop(name, None)
        if found is not None and found.uid in self.pods.pods:
            self.pods.delete(found.uid)
            self.sync()

    def evictor(self, **fields: Any) -> ApiEvictor:
        """Return an evictor for the pods of this cluster."""
        values: dict[str, Any] = {
            "clock": self.clock,
            "read_processes": _unreadable,
            "verify_s": 5.0,
            "jitter": lambda: 0.0,
        }
        return ApiEvictor(self, self.watched, self.read_pods, EvictionPolicy(), **(values | fields))


def _unreadable(_: Iterable[str]) -> None:
    return None
