"""Evicting one pod: look again, stop its containers, and see that its processes are gone."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import NodeAgentError, RuntimeUnavailableError
from nodeagent.plan.eviction.protection import Protection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nodeagent.clock import Clock
    from nodeagent.model.pods import PodHandle, PodInventory
    from nodeagent.plan.eviction.planner import Eviction
    from nodeagent.plan.eviction.policy import EvictionPolicy

LOOK_EVERY_S: Final = 0.05
_SHOWN: Final = 5


class EvictionOutcome(StrEnum):
    """What became of an eviction. The values are part of the JSON output and of logs."""

    EVICTED = "evicted"
    GONE = "gone"
    CHANGED = "changed"
    FAILED = "failed"
    DRY_RUN = "dry-run"


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """How an eviction ended.

    Attributes:
        detail: why, where the outcome alone does not say.
        took_s: until its processes were gone, or until it was given up.
        hurried: whether its grace was cut short.
    """

    outcome: EvictionOutcome
    detail: str = ""
    took_s: float = 0.0
    hurried: bool = False


class Evictor(Protocol):
    """Makes one pod go. Through the runtime here; the Kubernetes API is another way to the same end."""

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod, unless it changed since it was chosen.

        Args:
            eviction: whom, and with what grace.
            handle: its sandboxes, containers and cgroups.
            hurry: set to cut its grace short.

        Raises:
            RuntimeUnavailableError: the runtime is gone; nothing more can be done in this pass.
        """


class StopActions(Protocol):
    """The calls that stop a pod. Source: CRI ``RuntimeService``."""

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop a container: TERM, and KILL after ``timeout_s``; success when it is gone."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox; success when it is already stopped or gone."""


class CriEvictor:
    """Evicts through the container runtime.

    Source: CRI ``StopContainer``, ``StopPodSandbox``; kubelet ``killPod``.
    """

    def __init__(  # noqa: PLR0913 - it composes the guard
        self,
        actions: StopActions,
        look: Callable[[], Awaitable[PodInventory]],
        policy: EvictionPolicy,
        *,
        clock: Clock,
        read_processes: Callable[[Iterable[str]], frozenset[int] | None],
        verify_s: float,
    ) -> None:
        """Compose an evictor.

        Args:
            actions: what stops containers and sandboxes.
            look: the pods as they are now.
            policy: what is protected.
            clock: for how long things take.
            read_processes: which processes are in cgroups; ``None`` where that cannot be told.
            verify_s: how long processes may take to go once the runtime has stopped everything.
        """
        self._actions = actions
        self._look = look
        self._policy = policy
        self._clock = clock
        self._read_processes = read_processes
        self._verify_s = verify_s
        self._closing: set[asyncio.Future[list[str]]] = set()

    async def evict(self, eviction: Eviction, handle: PodHandle, hurry: asyncio.Event) -> EvictionResult:
        """Evict a pod; see :class:`Evictor`."""
        began_s = self._clock.monotonic_s()
        changed = await self._why_not(eviction, handle)
        if changed is not None:
            return changed
        errors = await self._stop_containers(handle, eviction.grace_s, hurry)
        closing = self._close(handle)
        left = await self._wait_gone(handle, closing)
        if closing.done():
            errors += closing.result()
        took_s = self._clock.monotonic_s() - began_s
        hurried = hurry.is_set() and eviction.grace_s > 0
        if not left and not (errors and not handle.cgroups):
            detail = f"though: {'; '.join(errors)}" if errors else ""
            return EvictionResult(EvictionOutcome.EVICTED, detail, took_s, hurried)
        return EvictionResult(EvictionOutcome.FAILED, "; ".join([*errors, *([left] if left else [])]), took_s, hurried)

    async def _why_not(self, eviction: Eviction, handle: PodHandle) -> EvictionResult | None:
        """Return why the pod is let be after all; ``None`` if it is to go."""
        seen = await self._look()
        uid = eviction.pod.uid
        pod = next((each for each in seen.facts if each.uid == uid), None)
        if pod is None:
            return EvictionResult(EvictionOutcome.GONE, "it ended by itself")
        if set(seen.handles[uid].sandbox_ids) != set(handle.sandbox_ids):
            return EvictionResult(EvictionOutcome.CHANGED, "kept: it was started anew meanwhile")
        kept = Protection(seen.facts, self._policy).why_kept(pod)
        return EvictionResult(EvictionOutcome.CHANGED, f"kept: {kept.sentence}") if kept is not None else None

    async def _stop_containers(self, handle: PodHandle, grace_s: float, hurry: asyncio.Event) -> list[str]:
        """Stop every container at once; return what failed, in words. A runtime that does not answer is not waited for.

        Raises:
            RuntimeUnavailableError: the runtime is gone.
        """
        works = [asyncio.ensure_future(self._tell_to_stop(handle, math.ceil(grace_s)))]
        told = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait({works[0], told}, timeout=grace_s + self._verify_s, return_when=asyncio.FIRST_COMPLETED)
            if not works[0].done():
                works.append(asyncio.ensure_future(self._tell_to_stop(handle, 0)))
                await asyncio.wait(works, timeout=self._verify_s)
            if works[-1].done():
                return works[-1].result()
            return [f"StopContainer was not answered within {self._verify_s:g} s"]
        finally:
            told.cancel()
            for each in works:
                each.cancel()

    async def _tell_to_stop(self, handle: PodHandle, timeout_s: int) -> list[str]:
        return await self._all(self._actions.stop_container(each, timeout_s) for each in handle.container_ids)

    def _close(self, handle: PodHandle) -> asyncio.Future[list[str]]:
        """Begin to stop the sandboxes. It goes on by itself, within the call's own deadline, if it takes long."""
        closing = asyncio.ensure_future(self._all(self._actions.stop_sandbox(each) for each in handle.sandbox_ids))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        closing.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return closing

    async def _all(self, calls: Iterable[Awaitable[None]]) -> list[str]:
        """Make calls at once; return what failed, in words.

        Raises:
            RuntimeUnavailableError: the runtime is gone.
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

    async def _wait_gone(self, handle: PodHandle, closing: asyncio.Future[list[str]]) -> str:
        """Wait until no process of the pod is left; return what is left, in words.

        Where its processes cannot be told the runtime's answer has to do.
        """
        ends_s = self._clock.monotonic_s() + self._verify_s
        while True:
            left = await asyncio.to_thread(self._read_processes, handle.cgroups) if handle.cgroups else None
            if (left is None and closing.done()) or left == frozenset():
                return ""
            if self._clock.monotonic_s() >= ends_s:
                if not left:
                    return f"StopPodSandbox was not answered within {self._verify_s:g} s"
                shown = ", ".join(str(pid) for pid in sorted(left)[:_SHOWN])
                return f"{len(left)} process(es) are still there after {self._verify_s:g} s: {shown}"
            await asyncio.wait({closing}, timeout=LOOK_EVERY_S)
            if closing.done():
                await asyncio.sleep(0 if left is None else LOOK_EVERY_S)
