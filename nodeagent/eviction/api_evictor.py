"""Eviction of one pod by the role of the agent: through the API server beside a kubelet, otherwise through the runtime.

The preconditions of a request to the API server are the UID and resource version of the selected pod. After an accepted
request, the pod counts as evicted only once its processes have ended: the kubelet stops the containers. No request is
sent for static pods, mirror pods, and pods that the API server does not list.

The role can change while the eviction loop runs. Beside a kubelet, the agent never stops or removes the containers of
an evicted pod: the kubelet would restart stopped containers, and removes the containers of a deleted pod itself.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

import msgspec

from nodeagent.errors import ApiServerError, ApiServerRefusedError, ConfigError
from nodeagent.eviction.container_removal import CleanupResult, ContainerCleaner, present_layers
from nodeagent.eviction.evictor import EvictionOutcome, EvictionResult, Evictor, change_of
from nodeagent.eviction.plan import api_eviction
from nodeagent.gc.pass_state import make_visible
from nodeagent.guarded_call import call_kernel
from nodeagent.host.cgroups import read_processes
from nodeagent.kube.api_client import ApiClient, ApiRequest
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model.node import Role
from nodeagent.model.runtime import Container, ContainerState
from nodeagent.pods.plan.facts import ANNOTATION_MIRROR
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.eviction.plan.effects import Victim
    from nodeagent.eviction.plan.policy import EvictionPolicy
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.gc.agent import Agent
    from nodeagent.model.pods import PodHandle, PodInventory, PodSpec
    from nodeagent.pods.watched import WatchedPods
    from nodeagent.units import Clock

POLL_S: Final = 0.2
NEWER_WITHIN_S: Final = 2.0
"""Maximum wait after a conflict (HTTP 409) until the watch delivers the newer version of the pod."""
KILLED_WITHIN_S: Final = 10.0
"""Minimum time limit for the end of a pod's processes. Source: kubelet ``killPodNow``."""
_ATTEMPTS: Final = 3


class EvictionRequests(Protocol):
    """Eviction and deletion requests for pods; a failed request raises ``ApiServerError``. See :class:`EvictionApi`."""

    async def evict(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Request the eviction of a pod with this UID, and this resource version unless it is empty."""

    async def delete(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Request the deletion of a pod with this UID and resource version, despite its disruption budget."""

    def close(self) -> None:
        """Close the connection; the next request opens a new connection."""


@dataclass(eq=False)
class ApiEvictor:
    """Evictor of pods through the API server.

    Attributes:
        requests: sends eviction and deletion requests.
        watched: pods of this node as watched at the API server.
        read_pods: returns the current pods of the runtime.
        policy: eviction policy with the protected pods.
        clock: measures durations.
        read_processes: returns the processes in cgroups; ``None`` if they cannot be read.
        verify_s: time added to the grace period until the processes of an evicted pod have to end.
        jitter: returns a random number from 0 to 1, which shortens the delay of a repeated request.
        overrides_budgets: whether a pod protected by its disruption budget may be deleted as the last resort.
    """

    requests: EvictionRequests
    watched: WatchedPods
    read_pods: Callable[[], Awaitable[PodInventory]]
    policy: EvictionPolicy
    _: KW_ONLY
    clock: Clock
    read_processes: Callable[[Iterable[str]], frozenset[int] | None]
    verify_s: float
    jitter: Callable[[], float]
    overrides_budgets: bool = False
    _memory: api_eviction.EvictionMemory = field(default_factory=api_eviction.EvictionMemory, init=False)

    def refused_eviction(self, eviction: Eviction) -> api_eviction.RefusedEviction | None:
        """Return the reason to postpone the request for a pod; ``None`` if the request can be sent now."""
        state, uid = self.watched.state, eviction.pod.uid
        if uid in self._memory.deletable:
            return None
        return api_eviction.refused_eviction(
            self._memory,
            uid,
            state.pods,
            answered_s=state.answered_s if self.watched.is_current else None,
            hard=_is_hard(eviction),
            now_s=self.clock.monotonic_s(),
        )

    def permit_deletion(self, uids: Collection[str]) -> frozenset[str]:
        """Permit the deletion of pods whose eviction was refused by a budget; return the UIDs of permitted pods."""
        found = filter(self._memory.is_overridable, uids) if self.overrides_budgets else ()
        self._memory = replace(self._memory, deletable=frozenset(found))
        return self._memory.deletable

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod; see :class:`Evictor`."""
        try:
            return await self._evict(eviction, handle, hurry)
        finally:
            self.requests.close()  # evictions are rare, and a reload discards the evictor

    async def _evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        began_s, uid = self.clock.monotonic_s(), eviction.pod.uid
        deletes, self._memory = uid in self._memory.deletable, replace(self._memory, deletable=frozenset())
        grace_s = 0 if deletes else max(api_eviction.LEAST_GRACE_S, math.ceil(eviction.grace_s))
        answer, then = api_eviction.Answer(0), None
        for left in reversed(range(_ATTEMPTS)):
            changed = change_of(await self.read_pods(), eviction, handle, self.policy)
            if changed is not None:
                return changed
            spec = self.watched.state.pods.get(uid)
            if because := self._unknown_to_api(eviction, spec):
                return EvictionResult(EvictionOutcome.REFUSED, because)
            assert spec is not None  # noqa: S101 - a pod without an object is unknown
            answer = await self._send(spec, spec.resource_version, grace_s, deletes=deletes)
            then = self._after(answer, eviction, repeats=left > 0)
            if then.step is not api_eviction.Step.COMPARE:
                break
            await self._await_newer(spec)
        took_s = self.clock.monotonic_s() - began_s
        if then is None or then.step is not api_eviction.Step.WAIT:
            unknown = then is not None and then.effect_unknown
            outcome = EvictionOutcome.FAILED if unknown else EvictionOutcome.REFUSED
            return EvictionResult(outcome, answer.text, took_s, may_end=False)  # a further request will show the effect
        remaining, hurried = await self._wait_ended(eviction, handle, grace_s, hurry)
        if remaining:  # the pod may still end: until then no other pod is evicted for the same shortage
            self._memory = api_eviction.may_end(self._memory, uid, self.clock.monotonic_s())
        how = "deleted despite its disruption budget" if deletes else "evicted through the API server"
        detail = f"{how}: {remaining}" if remaining else how
        took_s = self.clock.monotonic_s() - began_s
        outcome = EvictionOutcome.FAILED if remaining else EvictionOutcome.EVICTED
        return EvictionResult(outcome, detail, took_s, hurried, may_end=bool(remaining))

    def _unknown_to_api(self, eviction: Eviction, spec: PodSpec | None) -> str:
        """Return the reason that no request can be sent for a pod; empty if a request can be sent."""
        pod = eviction.pod
        if not self.watched.is_current:
            return "the pods of the API server are not current"
        if spec is None or spec.malformed or not spec.resource_version:
            return "the API server does not list this pod"
        if (spec.namespace, spec.name) != (pod.namespace, pod.name):
            return "the API server lists another pod with this UID"
        return "kept: mirror pod" if ANNOTATION_MIRROR in spec.annotations else ""

    def _after(self, answer: api_eviction.Answer, eviction: Eviction, *, repeats: bool) -> api_eviction.Consequence:
        uid, hard = eviction.pod.uid, _is_hard(eviction)
        then = api_eviction.consequence(
            answer, self._memory.count(uid), hard=hard, jitter=self.jitter(), repeats=repeats
        )
        self._memory = api_eviction.remember(self._memory, uid, answer, then, self.clock.monotonic_s())
        return then

    async def _send(self, spec: PodSpec, version: str, grace_s: int, *, deletes: bool) -> api_eviction.Answer:
        request = self.requests.delete if deletes else self.requests.evict
        try:
            await request(spec.namespace, spec.name, spec.uid, version, grace_s)
        except ApiServerRefusedError as error:
            return api_eviction.Answer(error.status, error.kind, error.causes, error.retry_after_s, str(error))
        except ApiServerError as error:
            return api_eviction.Answer(0, text=str(error))
        return api_eviction.Answer(200)

    async def _await_newer(self, spec: PodSpec) -> None:
        """Wait up to ``NEWER_WITHIN_S`` seconds until the watch delivers another version of a pod."""
        ends_s = self.clock.monotonic_s() + NEWER_WITHIN_S
        while self.clock.monotonic_s() < ends_s:
            current = self.watched.state.pods.get(spec.uid)
            if current is None or current.resource_version != spec.resource_version:
                return
            await asyncio.sleep(POLL_S)

    async def _wait_ended(
        self, eviction: Eviction, handle: PodHandle, grace_s: int, hurry: asyncio.Event
    ) -> tuple[str, bool]:
        """Wait for the end of a pod's processes.

        Returns:
            The remaining processes as text, empty for none, and whether the grace period was shortened.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        hurried, limit_s = False, max(KILLED_WITHIN_S, 1.5 * grace_s) + self.verify_s
        ends_s = self.clock.monotonic_s() + limit_s
        while remaining := await self._remaining(handle):
            if hurry.is_set() and not hurried and grace_s > api_eviction.LEAST_GRACE_S:
                hurried = True
                spec = self.watched.state.pods.get(eviction.pod.uid)
                if spec is not None:  # no version: the accepted eviction changed the version
                    await self._send(spec, "", api_eviction.LEAST_GRACE_S, deletes=False)
                ends_s = min(ends_s, self.clock.monotonic_s() + KILLED_WITHIN_S + self.verify_s)
            if self.clock.monotonic_s() >= ends_s:
                return f"accepted, but {remaining} after {limit_s:g} s", hurried
            await asyncio.sleep(POLL_S)
        return "", hurried

    async def _remaining(self, handle: PodHandle) -> str:
        """Return the remaining processes of a pod as text; empty for none.

        If the pod's cgroups cannot be read, the pod list of the runtime is used.
        """
        processes = await call_kernel(self.read_processes, handle.cgroups) if handle.cgroups else None
        if processes is not None:
            return f"{len(processes)} processes are running" if processes else ""
        return "the runtime lists the pod as active" if handle.uid in (await self.read_pods()).handles else ""


def _is_hard(eviction: Eviction) -> bool:
    return eviction.status is None or eviction.status.threshold.hard


KUBELET_FREED_WITHIN_S: Final = 90.0
"""Maximum time until a kubelet has freed the space of an evicted pod: its container GC runs once a minute."""
_ACTIVE: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class RoleEvictor(Record):
    """Evictor for the current role: through the API server beside a kubelet, otherwise through the runtime."""

    local: Evictor
    api: ApiEvictor
    is_beside_kubelet: Callable[[], bool]

    @property
    def freed_within_s(self) -> float | None:
        """Maximum seconds until an evicted pod's space is freed; ``None`` if the agent removes its containers."""
        return KUBELET_FREED_WITHIN_S if self.is_beside_kubelet() else None

    def refused_eviction(self, eviction: Eviction) -> api_eviction.RefusedEviction | None:
        """Return the reason to postpone an eviction; ``None`` if the pod can be evicted now."""
        return self.api.refused_eviction(eviction) if self.is_beside_kubelet() else None

    def permit_deletion(self, uids: Collection[str]) -> frozenset[str]:
        """Permit the deletion of pods whose eviction was refused by a budget; return the UIDs of permitted pods."""
        return self.api.permit_deletion(uids) if self.is_beside_kubelet() else frozenset()

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod; see :class:`Evictor`."""
        evictor: Evictor = self.api if self.is_beside_kubelet() else self.local
        return await evictor.evict(eviction, handle, hurry)


class RoleCleaner(Record):
    """Cleaner of the containers of evicted pods; beside a kubelet, it only observes their removal.

    Attributes:
        local: removes containers.
        list_containers: returns all containers of the runtime.
        is_beside_kubelet: returns whether a kubelet manages this node.
        watched: pods of this node as watched at the API server.
    """

    local: ContainerCleaner
    list_containers: Callable[[], Awaitable[tuple[Container, ...]]]
    is_beside_kubelet: Callable[[], bool]
    watched: WatchedPods

    async def clean_up(self, victim: Victim) -> CleanupResult:
        """Remove or observe the containers of an evicted pod; see :class:`ContainerCleaner`."""
        if not self.is_beside_kubelet():
            return await self.local.clean_up(victim)
        remaining = [each for each in await self.list_containers() if each.sandbox_id in victim.sandbox_ids]
        if remaining:
            active = not victim.verified and any(each.state in _ACTIVE for each in remaining)
            running = active and self._is_not_requested(victim.uid)
            return CleanupResult(confirmed=False, running=running)  # no failure: the kubelet removes them later
        if await present_layers(victim.layers):
            return CleanupResult(confirmed=False)
        await make_visible(victim.layers)
        return CleanupResult(confirmed=bool(victim.layers))

    def _is_not_requested(self, uid: str) -> bool:
        """Return whether the API server lists a pod without a deletion timestamp: its eviction had no effect."""
        spec = self.watched.state.pods.get(uid)
        return self.watched.is_current and spec is not None and not spec.deleting


class EvictionApi(Record):
    """Eviction and deletion requests for pods. Every request raises the errors of :meth:`ApiClient.send`."""

    client: ApiClient

    async def evict(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Evict a pod, provided that its UID and resource version match; an empty version matches every version.

        Source: Kubernetes API-initiated eviction, ``policy/v1``; ``DeleteOptions`` of ``meta/v1``.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _options(uid, resource_version, grace_s),
        }
        await self._send("POST", f"{_path(namespace, name)}/eviction", body)

    async def delete(self, namespace: str, name: str, uid: str, resource_version: str, grace_s: int) -> None:
        """Delete a pod, provided that its UID and resource version match; an empty version matches every version.

        With ``grace_s`` 0 the API server removes the Pod object immediately.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **_options(uid, resource_version, grace_s)}
        await self._send("DELETE", _path(namespace, name), body)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    async def _send(self, method: str, target: str, body: dict[str, Any]) -> None:
        await self.client.send(ApiRequest(method, target, msgspec.json.encode(body)), msgspec.Raw)


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _options(uid: str, resource_version: str, grace_s: int) -> dict[str, Any]:
    preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
    return {"gracePeriodSeconds": grace_s, "preconditions": preconditions}


def make_evictor(agent: Agent, local: Evictor, read_pods: Callable[[], Awaitable[PodInventory]]) -> RoleEvictor:
    """Return the evictor of an agent; ``local`` evicts pods on a standalone node.

    Raises:
        ConfigError: no API server is configured.
    """
    settings, kubernetes = agent.settings.eviction, agent.settings.kubernetes
    if kubernetes.access is None or agent.watched_pods is None:
        raise ConfigError("kubernetes.evict_pods = true requires kubeconfig or server")
    api = ApiEvictor(
        EvictionApi(ApiClient(kubernetes.access, ApiCredentials(kubernetes.access))),
        agent.watched_pods,
        read_pods,
        settings.policy,
        clock=agent.clock,
        read_processes=read_processes,
        verify_s=settings.verify_s,
        jitter=random.random,
        overrides_budgets=kubernetes.override_disruption_budgets,
    )
    return RoleEvictor(local, api, partial(_is_beside_kubelet, agent))


def make_cleaner(agent: Agent, local: ContainerCleaner) -> RoleCleaner:
    """Return the cleaner of an agent; ``local`` removes the containers of evicted pods on a standalone node."""
    is_beside_kubelet = partial(_is_beside_kubelet, agent)
    return RoleCleaner(local, agent.cri.list_containers, is_beside_kubelet, agent.watched_pods)


def _is_beside_kubelet(agent: Agent) -> bool:
    return agent.role is Role.BESIDE_KUBELET
