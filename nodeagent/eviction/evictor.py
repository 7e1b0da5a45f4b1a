"""Eviction of one pod: re-read it, stop its containers, and verify the end of its processes.

For a hard threshold on memory or PIDs (no grace period), the agent kills the processes of the containers directly,
before it calls StopContainer: without free memory, a runtime took up to 20 s to stop a container, and the OOM killer
acted first. The kill requires no pod list from the runtime and waits at most 0.3 s for the list, since the names of
the cgroup directories contain the container ids. Without a new list, the cgroups of the pod show its containers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.eviction.plan.policy import EvictionPolicy, Protection
from nodeagent.guarded_call import call_kernel
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.eviction.plan.ranking import Eviction
    from nodeagent.model.pods import PodHandle, PodInventory
    from nodeagent.units import Clock

POLL_S: Final = 0.05
_SHOWN: Final = 5
_LIST_WITHIN_S: Final = 0.3
CLOSED_AFTER_S: Final = 1.0


class EvictionOutcome(StrEnum):
    """Outcome of an eviction. The values are part of the JSON output and of logs."""

    EVICTED = "evicted"
    GONE = "gone"
    CHANGED = "changed"
    REFUSED = "refused"
    FAILED = "failed"
    DRY_RUN = "dry-run"


class EvictionResult(Record):
    """Result of an eviction.

    Attributes:
        detail: cause of the outcome; may be empty.
        took_s: seconds until the end of the pod's processes, or until the end of a failed attempt.
        hurried: whether the grace period of the pod was shortened.
        may_end: whether the pod may still end after a failure; ``None`` if that depends on the resource.
    """

    outcome: EvictionOutcome
    detail: str = ""
    took_s: float = 0.0
    hurried: bool = False
    may_end: bool | None = None


class Evictor(Protocol):
    """Evictor of pods, through the container runtime or through the Kubernetes API."""

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod unless it changed since the plan was made.

        Args:
            eviction: the pod and its grace period.
            handle: its sandboxes, containers and cgroups.
            hurry: event that shortens the pod's grace period when set.

        Raises:
            RuntimeUnavailableError: the runtime does not answer; the pass ends.
        """


class StopActions(Protocol):
    """Runtime calls that stop a pod. Source: CRI ``RuntimeService``."""

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop a container: stop signal, then SIGKILL after ``timeout_s``; success if the container does not exist."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox; success if it is already stopped or does not exist."""


@dataclass(eq=False)
class CriEvictor:
    """Evictor of pods through the container runtime.

    Source: CRI ``StopContainer``, ``StopPodSandbox``; kubelet ``killPod``.

    Attributes:
        actions: stops containers and sandboxes.
        read_pods: returns the current pods.
        policy: eviction policy with the protected pods.
        clock: measures durations.
        read_processes: returns the processes in cgroups; ``None`` if they cannot be read.
        kill_processes: kills the processes in cgroups; returns the error, empty for none.
        is_populated: returns whether a cgroup has a process that has not freed its memory yet.
        verify_s: time limit for the end of the processes after the runtime stopped the containers.
        list_children: returns the names of the child cgroups of a cgroup; ``None`` if unreadable.
        closed_after_s: delay in seconds before the runtime stops a pod whose processes were killed directly.
    """

    actions: StopActions
    read_pods: Callable[[], Awaitable[PodInventory]]
    policy: EvictionPolicy
    clock: Clock
    read_processes: Callable[[Iterable[str]], frozenset[int] | None]
    kill_processes: Callable[[Iterable[str]], str]
    is_populated: Callable[[Iterable[str]], bool]
    verify_s: float
    list_children: Callable[[str], frozenset[str] | None]
    closed_after_s: float = CLOSED_AFTER_S
    _closing: set[asyncio.Future[list[str]]] = field(default_factory=set, init=False)  # referenced until their end

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod; see :class:`Evictor`."""
        began_s = self.clock.monotonic_s()
        cgroups = _container_cgroups(handle) if _is_killable(eviction) else ()
        urgent = bool(cgroups) and eviction.grace_s <= 0
        changed = await self._changed(eviction, handle, within_s=_LIST_WITHIN_S if urgent else None)
        if changed is not None:
            return changed
        errors = []
        if urgent:
            error, running = await self._kill(cgroups)
            if not error:
                self._in_background(self._stop_and_close(handle))
                outcome = EvictionOutcome.FAILED if running else EvictionOutcome.EVICTED
                return EvictionResult(outcome, running, self.clock.monotonic_s() - began_s)
            errors.append(f"not killed directly: {error}")
        errors += await self._stop_containers(handle, eviction.grace_s, hurry, cgroups)
        closing = self._close(handle)
        remaining = await self._wait_ended(handle, closing)
        if closing.done():
            errors += closing.result()
        took_s = self.clock.monotonic_s() - began_s
        hurried = hurry.is_set() and eviction.grace_s > 0
        if not remaining and not (errors and not handle.cgroups):
            detail = f"despite errors: {'; '.join(errors)}" if errors else ""
            return EvictionResult(EvictionOutcome.EVICTED, detail, took_s, hurried)
        return EvictionResult(
            EvictionOutcome.FAILED, "; ".join([*errors, *([remaining] if remaining else [])]), took_s, hurried
        )

    async def _kill(self, cgroups: Sequence[str]) -> tuple[str, str]:
        """Kill the processes in the cgroups of containers; return the error, and the remaining processes as text.

        Both texts are empty on success. A large process takes seconds to free its memory after SIGKILL.
        """
        error = await call_kernel(self.kill_processes, cgroups)
        ends_s = self.clock.monotonic_s() + self.verify_s
        while not await call_kernel(self._have_ended, cgroups):
            if error:
                return error, ""
            if self.clock.monotonic_s() >= ends_s:
                return "", self._running(self.read_processes(cgroups))
            await asyncio.sleep(POLL_S)
        return "", ""

    def _running(self, pids: frozenset[int] | None) -> str:
        """Return the remaining processes as text; ``pids`` may be empty or ``None`` while memory is being freed."""
        if not pids:
            return f"processes not ended {self.verify_s:g} s after SIGKILL"
        shown = ", ".join(str(pid) for pid in sorted(pids)[:_SHOWN])
        return f"{len(pids)} process(es) still running after {self.verify_s:g} s: {shown}"

    def _have_ended(self, cgroups: Sequence[str]) -> bool:
        """Return whether all processes in cgroups ended and freed their memory; blocking."""
        return self.read_processes(cgroups) == frozenset() and not self.is_populated(cgroups)

    async def _changed(self, eviction: Eviction, handle: PodHandle, *, within_s: float | None) -> EvictionResult | None:
        """Read a pod again; return the result if the pod ended or changed, ``None`` if it can be evicted.

        With a time limit ``within_s`` in seconds, the pod counts as unchanged if its cgroup has no other containers, or
        if the runtime does not list its pods in time.
        """
        if within_s is not None and await call_kernel(self._has_same_containers, handle):
            return None
        try:
            async with asyncio.timeout(within_s):
                pods = await self.read_pods()
        except TimeoutError:
            return None
        return change_of(pods, eviction, handle, self.policy)

    def _has_same_containers(self, handle: PodHandle) -> bool:
        """Return whether the cgroups of a pod are those of its listed containers and sandboxes; blocking."""
        children = None if handle.cgroup is None else self.list_children(handle.cgroup)
        if children is None:
            return False
        listed = {each.cgroup.rpartition("/")[2] for each in handle.containers if each.cgroup is not None}
        ids = (*handle.container_ids, *handle.sandbox_ids)
        return listed <= children and all(any(each in name for each in ids) for name in children)

    async def _stop_containers(
        self, handle: PodHandle, grace_s: float, hurry: asyncio.Event, cgroups: Sequence[str]
    ) -> list[str]:
        """Stop all containers of a pod concurrently, within a bounded time; return the error texts.

        When ``hurry`` is set, the processes in ``cgroups`` are killed directly.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        works = [asyncio.ensure_future(self._stop_all(handle, math.ceil(grace_s)))]
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait(
                {works[0], hurried}, timeout=grace_s + self.verify_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not works[0].done():
                if hurry.is_set() and cgroups and await self._kill(cgroups) == ("", ""):
                    return []
                works.append(asyncio.ensure_future(self._stop_all(handle, 0)))
                await asyncio.wait(works, timeout=self.verify_s)
            if works[-1].done():
                return works[-1].result()
            return [f"no answer to StopContainer within {self.verify_s:g} s"]
        finally:
            hurried.cancel()
            for each in works:
                each.cancel()

    async def _stop_all(self, handle: PodHandle, timeout_s: int) -> list[str]:
        return await self._all(self.actions.stop_container(each, timeout_s) for each in handle.container_ids)

    def _close(self, handle: PodHandle) -> asyncio.Future[list[str]]:
        """Stop the sandboxes in the background; return the task, whose result is the error texts."""
        return self._in_background(self._all(self.actions.stop_sandbox(each) for each in handle.sandbox_ids))

    async def _stop_and_close(self, handle: PodHandle) -> list[str]:
        """Stop the containers, whose processes were killed, then their sandboxes; return the error texts.

        The delay leaves the processors to further evictions: a runtime that does not know of the end of a process yet
        starts programs to kill it.
        """
        await asyncio.sleep(self.closed_after_s)
        errors = await self._stop_all(handle, 0)
        return errors + await self._all(self.actions.stop_sandbox(each) for each in handle.sandbox_ids)

    def _in_background(self, calls: Coroutine[Any, Any, list[str]]) -> asyncio.Future[list[str]]:
        work = asyncio.ensure_future(calls)
        self._closing.add(work)
        work.add_done_callback(self._closing.discard)
        work.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return work

    async def _all(self, calls: Iterable[Awaitable[None]]) -> list[str]:
        """Run runtime calls concurrently; return the error texts.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
        """
        errors = []
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, RuntimeUnavailableError) or (
                isinstance(result, BaseException) and not isinstance(result, NodeAgentError)
            ):
                raise result
            if isinstance(result, NodeAgentError):
                errors.append(str(result))
        return errors

    async def _wait_ended(self, handle: PodHandle, closing: asyncio.Future[list[str]]) -> str:
        """Wait for the end of a pod's processes; return the remaining processes as text, empty for none.

        If the processes cannot be read, the end of the StopPodSandbox calls counts as the end of the processes.
        """
        ends_s = self.clock.monotonic_s() + self.verify_s
        while True:
            remaining = await call_kernel(self.read_processes, handle.cgroups) if handle.cgroups else None
            if (remaining is None and closing.done()) or remaining == frozenset():
                return ""
            if self.clock.monotonic_s() >= ends_s:
                if not remaining:
                    return f"no answer to StopPodSandbox within {self.verify_s:g} s"
                return self._running(remaining)
            await asyncio.wait({closing}, timeout=POLL_S)
            if closing.done():
                await asyncio.sleep(0 if remaining is None else POLL_S)


def change_of(
    pods: PodInventory, eviction: Eviction, handle: PodHandle, policy: EvictionPolicy
) -> EvictionResult | None:
    """Return the result for a pod that ended or changed since its selection; ``None`` if it can be evicted."""
    uid = eviction.pod.uid
    pod = next((each for each in pods.facts if each.uid == uid), None)
    if pod is None:
        return EvictionResult(EvictionOutcome.GONE, "pod ended by itself")
    if not set(pods.handles[uid].sandbox_ids) <= set(handle.sandbox_ids):
        return EvictionResult(EvictionOutcome.CHANGED, "kept: pod has another sandbox now")
    kept = Protection(pods.facts, policy).keep_reason(pod)
    return EvictionResult(EvictionOutcome.CHANGED, f"kept: {kept.sentence}") if kept is not None else None


def _is_killable(eviction: Eviction) -> bool:
    """Return whether an eviction is for memory or PIDs, so that its containers may be killed directly.

    Otherwise the OOM killer could act first, or the runtime could start no process to stop the pod.
    """
    return eviction.status is not None and eviction.is_urgent


def _container_cgroups(handle: PodHandle) -> tuple[str, ...]:
    """Return the cgroups of the running containers; empty unless every directory name contains the container id.

    The pod's own cgroup is not used: it could also contain processes outside the containers.
    """
    known = [
        each.cgroup
        for each in handle.containers
        if each.cgroup is not None and each.id and each.id in each.cgroup.rpartition("/")[2]
    ]
    return tuple(known) if len(known) == len(handle.containers) else ()
