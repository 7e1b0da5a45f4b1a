"""The removals themselves, each behind its guard.

A guard looks at fresh runtime state right before the call. It does not repeat the rules: it asks the planner again
about the one item, so that a preview, a pass and a guard cannot disagree.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.errors import NodeAgentError, RuntimeTimeoutError, StoreError
from nodeagent.model import ContainerState, NodeSnapshot
from nodeagent.plan.decision import ReasonCode, Verdict
from nodeagent.plan.gc.images import plan_image_gc
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.clock import Clock
    from nodeagent.model import Container, Hold, Image, Sandbox
    from nodeagent.plan.decision import Decision
    from nodeagent.plan.gc.images import ImageGCPolicy


LONGEST_UNOBSERVED_S: Final = 600.0
"""How old a plan may be for a removal by age: use that began and ended since then was not seen."""


class FreshReader(Protocol):
    """What the guards read, never from a cache."""

    async def image(self, image_id: str) -> Image | None:
        """Return the image as it is now, ``None`` when it is gone."""

    async def users(self) -> tuple[tuple[Container, ...], tuple[Sandbox, ...]]:
        """Return all containers, with the images they mount, and all sandboxes, with their own images."""

    async def container(self, container_id: str) -> Container | None:
        """Return one container with its details, ``None`` when it is gone."""


class RuntimeActions(Protocol):
    """The calls that change the runtime. Source: CRI ``ImageService`` and ``RuntimeService``."""

    async def remove_image(self, reference: str) -> None:
        """Remove an image by id; success when it is already gone."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container; success when it is already gone."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox; success when it is already stopped or gone."""

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox; success when it is already gone."""


class LogActions(Protocol):
    """Removal below the log roots; blocking, so called in a thread."""

    def remove_container_logs(self, log_path: str, container_id: str) -> int:
        """Remove a container's current and rotated logs and its link; return the bytes freed."""

    def remove_pod_directory(self, name: str, uid: str) -> int:
        """Remove one pod log directory; return the bytes freed."""

    def remove_dead_link(self, name: str) -> bool:
        """Remove a link whose target is gone; false when it is no such link any more."""


class ImageRemover:
    """Removes one image after asking the planner about it again, on fresh state.

    Source: CRI ``RemoveImage``.
    """

    def __init__(  # noqa: PLR0913 - it composes the guard
        self,
        reader: FreshReader,
        actions: RuntimeActions,
        policy: ImageGCPolicy,
        template: NodeSnapshot,
        *,
        clock: Clock,
        read_holds: Callable[[], tuple[Hold, ...]],
    ) -> None:
        """Take the policy the plan was made with, and its snapshot for what does not change within a pass."""
        self._read_holds = read_holds
        self._reader = reader
        self._actions = actions
        self._template = replace(template, sandboxes_unread=frozenset())  # the plan settled what they mean
        self._clock = clock
        protection = replace(policy.protection, keep_last_n_tags_per_repository=0)
        self._policy = replace(
            policy, max_images_per_pass=0, max_bytes_per_pass=0, minimum_gain_bytes=0, protection=protection
        )

    async def remove(self, decision: Decision) -> Result:
        """Remove the image unless it is gone, in use or otherwise kept by now."""
        image = await self._reader.image(decision.id)
        if image is None:
            return Result(decision, Outcome.GONE, "already gone")
        kept = await self._kept_because({image.id: image}, [decision])
        if kept:
            return Result(decision, Outcome.CHANGED, f"kept: {kept[image.id]}")
        return await self._delete(image, decision)

    async def _delete(self, image: Image, decision: Decision) -> Result:
        """Remove an image that the guard has let pass."""
        try:
            await self._actions.remove_image(image.id)
        except RuntimeTimeoutError:
            if await self._reader.image(image.id) is not None:
                raise
            return Result(decision, Outcome.DONE, "removed, though the runtime did not answer in time")
        return Result(decision, Outcome.DONE)

    async def _kept_because(self, images: Mapping[str, Image], decisions: Sequence[Decision]) -> dict[str, str]:
        """Return why images of that id stay by now, asking the planner on fresh state; none of them for most."""
        try:
            holds = await asyncio.to_thread(self._read_holds)
        except StoreError as error:
            return dict.fromkeys(images, str(error))
        containers, sandboxes = await self._reader.users()
        usage = self._template.image_usage
        fresh = replace(
            self._template,
            observed_at=max(self._clock.now(), self._template.observed_at),
            images=tuple(images.values()),
            containers=containers,
            sandboxes=sandboxes,
            image_usage={image_id: usage[image_id] for image_id in images if image_id in usage},
            storage=None,
            holds=holds,
        )
        by_age = {each.id for each in decisions if each.reason.code is ReasonCode.UNUSED_TOO_LONG}
        unobserved_s = (fresh.observed_at - self._template.observed_at).total_seconds()
        stale: dict[str, str] = {}
        if unobserved_s > LONGEST_UNOBSERVED_S:  # such as while a person was asked
            why = f"image use was not observed for {format_duration(unobserved_s)} since the plan was made"
            stale = dict.fromkeys(by_age & images.keys(), why)
        return stale | {
            verdict.id: verdict.reason.sentence
            for verdict in plan_image_gc(fresh, self._policy, remove_all_unused=True).decisions
            if verdict.verdict is not Verdict.REMOVE
            # the maximum age does not look at the minimum age
            and not (verdict.reason.code is ReasonCode.TOO_YOUNG and verdict.id in by_age)
        }


class ContainerRemover:
    """Removes one dead container and then its logs.

    The container goes first: were it the other way round and the removal failed, its logs would be lost for nothing.
    Source: kubelet ``removeContainer``; CRI ``RemoveContainer``.
    """

    def __init__(self, reader: FreshReader, actions: RuntimeActions, logs: LogActions) -> None:
        self._reader = reader
        self._actions = actions
        self._logs = logs

    async def remove(self, decision: Decision) -> Result:
        """Remove the container unless it runs, or its pod came back."""
        container = await self._reader.container(decision.id)
        if container is None:
            return Result(decision, Outcome.GONE, "already gone")
        if container.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            return Result(decision, Outcome.CHANGED, f"kept: it is {container.state.value} now")
        if decision.reason.code is ReasonCode.POD_DELETED:
            alive = await self._pod_alive(container)
            if alive:
                return Result(decision, Outcome.CHANGED, f"kept: {alive}")
        try:
            await self._actions.remove_container(decision.id)
        except RuntimeTimeoutError:
            if await self._reader.container(decision.id) is not None:
                raise
        detail = await self._remove_logs(container)
        return Result(decision, Outcome.DONE, detail, freed_bytes=decision.frees_bytes)

    async def _pod_alive(self, container: Container) -> str:
        containers, sandboxes = await self._reader.users()
        return pod_alive(container.pod_uid, container.sandbox_id, containers, sandboxes)

    async def _remove_logs(self, container: Container) -> str:
        if not container.log_path:
            return ""
        try:
            await asyncio.to_thread(self._logs.remove_container_logs, container.log_path, container.id)
        except NodeAgentError as error:
            return f"its log stays: {error}"
        return ""


class SandboxRemover:
    """Stops and removes one sandbox.

    Source: kubelet ``removeSandbox``; CRI ``StopPodSandbox``, ``RemovePodSandbox``.
    """

    def __init__(self, reader: FreshReader, actions: RuntimeActions) -> None:
        self._reader = reader
        self._actions = actions

    async def remove(self, decision: Decision) -> Result:
        """Remove the sandbox unless it became ready or holds a container by now."""
        containers, sandboxes = await self._reader.users()
        sandbox = next((each for each in sandboxes if each.id == decision.id), None)
        if sandbox is None:
            return Result(decision, Outcome.GONE, "already gone")
        if sandbox.ready:
            return Result(decision, Outcome.CHANGED, "kept: it is ready now")
        held = [each.id[:12] for each in containers if each.sandbox_id == decision.id]
        if held:
            return Result(
                decision, Outcome.CHANGED, f"kept: it still has {len(held)} container(s): {', '.join(held[:3])}"
            )
        if decision.reason.code is ReasonCode.POD_DELETED:
            alive = pod_alive(sandbox.uid, sandbox.id, containers, sandboxes)
            if alive:
                return Result(decision, Outcome.CHANGED, f"kept: {alive}")
        await self._actions.stop_sandbox(decision.id)
        await self._actions.remove_sandbox(decision.id)
        return Result(decision, Outcome.DONE)


class PodLogRemover:
    """Removes one pod log directory, if nothing of its pod is left in the runtime."""

    def __init__(self, reader: FreshReader, logs: LogActions, uid_of: Callable[[str], str]) -> None:
        self._reader = reader
        self._logs = logs
        self._uid_of = uid_of

    async def remove(self, decision: Decision) -> Result:
        """Remove the directory unless the runtime knows a container or sandbox of that pod."""
        uid = self._uid_of(decision.id)
        containers, sandboxes = await self._reader.users()
        if any(each.uid == uid for each in sandboxes) or any(each.pod_uid == uid for each in containers):
            return Result(decision, Outcome.CHANGED, "kept: the runtime still knows its pod")
        try:
            freed = await asyncio.to_thread(self._logs.remove_pod_directory, decision.id, uid)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already gone")
        return Result(decision, Outcome.DONE, freed_bytes=freed)


class LogLinkRemover:
    """Removes one container log link whose target does not exist."""

    def __init__(self, reader: FreshReader, logs: LogActions, container_of: Callable[[str], str]) -> None:
        self._reader = reader
        self._logs = logs
        self._container_of = container_of

    async def remove(self, decision: Decision) -> Result:
        """Remove the link unless its container is still there and has not exited.

        A log rotation can leave the target missing for a moment. Source: kubelet ``removeDeadSymlinks``.
        """
        container_id = self._container_of(decision.id)
        if container_id:
            container = await self._reader.container(container_id)
            if container is not None and container.state is not ContainerState.EXITED:
                return Result(decision, Outcome.CHANGED, f"kept: its container is {container.state.value}")
        try:
            removed = await asyncio.to_thread(self._logs.remove_dead_link, decision.id)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already gone")
        return Result(decision, Outcome.DONE) if removed else Result(decision, Outcome.CHANGED, "its target is back")


def pod_alive(uid: str, sandbox_id: str, containers: tuple[Container, ...], sandboxes: tuple[Sandbox, ...]) -> str:
    """Return why a pod is not gone after all, or an empty text.

    A pod lives when a sandbox of it is ready or a container of it may be running.
    """
    ids = {each.id for each in sandboxes if uid and each.uid == uid} | {sandbox_id}
    if any(each.ready and each.id in ids for each in sandboxes):
        return "its pod has a ready sandbox now"
    active = (ContainerState.RUNNING, ContainerState.UNKNOWN)
    for each in containers:
        if each.state in active and (each.sandbox_id in ids or (uid and each.pod_uid == uid)):
            return f"container {each.name} of its pod is {each.state.value} now"
    return ""


__all__ = [
    "ContainerRemover",
    "FreshReader",
    "ImageRemover",
    "LogActions",
    "LogLinkRemover",
    "PodLogRemover",
    "RuntimeActions",
    "SandboxRemover",
    "pod_alive",
]
