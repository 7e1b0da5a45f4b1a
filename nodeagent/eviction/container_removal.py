"""Removal of an evicted pod's containers, verified by the directories of their writable layers.

After an eviction for the filesystem with the logs, the pod's log directory is removed too, as the kubelet removes the
logs with each container: another pod would be evicted for their space otherwise. After other evictions the logs and the
sandbox show the cause of the usage, so they are kept until node-level reclaim or container garbage collection removes
both. A sandbox is removed immediately if the pod filled one of the sandbox files that the runtime
mounts into containers, such as ``/etc/hostname``: only the removal of the sandbox frees that space, and other pods
would be evicted until then. Volumes are not managed by the agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Protocol

from nodeagent.errors import NodeAgentError, RuntimeUnsupportedError
from nodeagent.gc.pass_state import make_visible
from nodeagent.host.pod_disk import large_file
from nodeagent.model.node import LogOpeners, LogTree
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.eviction.plan.effects import Victim

STOP_WAIT_S: Final = 2.0
_SHOWN: Final = 3
_ACTIVE: Final = frozenset({ContainerState.RUNNING, ContainerState.UNKNOWN})


class CleanupResult(Record):
    """Result of one attempt to remove the containers of a victim.

    Attributes:
        confirmed: whether the removal of all containers and their writable layers is verified.
        removed: number of containers removed by this attempt.
        running: whether nothing was removed, as a container may run and the victim is not verified to be stopped.
        detail: failures, remaining containers and remaining layers, as text; empty if there are none.
    """

    confirmed: bool
    removed: int = 0
    running: bool = False
    detail: str = ""


class ContainerCleaner(Protocol):
    """Remover of the containers of evicted pods."""

    async def clean_up(self, victim: Victim) -> CleanupResult:
        """Remove the containers of an evicted pod; may be repeated until the removal is confirmed.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            NodeAgentError: the runtime's lists could not be read.
        """


class CleanupActions(Protocol):
    """Runtime calls for the removal of containers and sandboxes. Source: CRI ``RuntimeService``."""

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes."""

    async def list_containers(self) -> tuple[Container, ...]:
        """Return all containers in any state."""

    async def get_container(self, container_id: str) -> Container | None:
        """Return the current state of one container; ``None`` if it does not exist."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox; success if it is already stopped."""

    async def remove_container(self, container_id: str) -> None:
        """Remove a container; success if it is already removed."""

    async def remove_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox; success if it is already removed."""


class LogDirectories(Protocol):
    """Log directories of pods; see :class:`HostLogs`. Its methods block."""

    def read_pod_directory(self, name: str) -> LogTree | None:
        """Return a reading of one pod log directory; ``None`` if it does not exist."""

    def remove_pod_directory(self, name: str, uid: str, changed_at: datetime) -> int:
        """Remove one pod log directory unless an entry changed after ``changed_at``; return the bytes freed."""


@dataclass(eq=False)
class CriContainerCleaner:
    """Remover of the containers of evicted pods, through the container runtime.

    Source: CRI ``StopPodSandbox``, ``RemoveContainer``, ``RemovePodSandbox``; kubelet ``removeContainer``.

    Attributes:
        actions: calls to the container runtime.
        collect_garbage: runs the runtime's garbage collection and waits for its end. With ``None``, only the
            missing directory of a layer confirms the removal of the layer.
        remove_orphans: removes the directories of snapshots whose removal failed. containerd itself retries a
            failed removal only when another snapshot is removed.
        logs: removes the log directories of victims; with ``None`` logs are kept.
    """

    actions: CleanupActions
    collect_garbage: Callable[[], Awaitable[None]] | None
    remove_orphans: Callable[[Collection[str]], Awaitable[None]] | None = None
    logs: LogDirectories | None = None
    _stopping: dict[str, asyncio.Future[None]] = field(default_factory=dict, init=False)

    async def clean_up(self, victim: Victim) -> CleanupResult:
        """Remove the containers of a pod; see :class:`ContainerCleaner`.

        Only containers in the sandboxes of the evicted pod are removed, each after a new reading of its state: an
        exited container cannot start again, and a created container cannot start once its sandbox is stopped. A
        container that may be running is kept, with its sandbox.
        """
        listed = await self._containers_of(victim)
        active = [each for each in listed if each.state in _ACTIVE]
        if active and not victim.verified:
            return CleanupResult(confirmed=False, running=True, detail=f"running: {_names(active)}")
        stopping = self._begin_stopping(victim, {each.sandbox_id for each in active})
        errors: list[str] = []
        removed = await self._remove_all(listed, {ContainerState.EXITED}, errors)
        if await self._stopped(stopping, errors) and not active:
            removed += await self._remove_all(listed, {ContainerState.EXITED, ContainerState.CREATED}, errors)
        remaining = await self._containers_of(victim) if listed else []
        if remaining:
            errors.append(f"not removed: {_names(remaining)}")
        files_freed = not remaining and await self._remove_files(victim, errors)
        uncollected = await self._collect()
        present = await asyncio.to_thread(_present, victim.layers)
        if present and not remaining and self.remove_orphans is not None:
            try:
                await self.remove_orphans(present)
            except NodeAgentError as error:
                errors.append(f"orphaned snapshots not removed: {error}")
            present = await asyncio.to_thread(_present, present)
        if present:
            errors.append(f"{len(present)} writable layer(s) still on the disk: {', '.join(present[:_SHOWN])}")
        confirmed = files_freed and not present and (not uncollected or bool(victim.layers))
        if confirmed:
            await make_visible(victim.layers)
        if uncollected and not confirmed:
            errors.append(uncollected)
        return CleanupResult(confirmed, removed, detail="; ".join(dict.fromkeys(errors)))

    async def _containers_of(self, victim: Victim) -> list[Container]:
        return [each for each in await self.actions.list_containers() if each.sandbox_id in victim.sandbox_ids]

    def _begin_stopping(self, victim: Victim, kept: set[str]) -> asyncio.Future[None]:
        """Stop the ready sandboxes of a victim in the background, except ``kept``; return the task.

        A hanging network plugin must not delay the removal of containers.
        """
        running = self._stopping.get(victim.uid)
        if running is None or running.done():
            running = self._stopping[victim.uid] = asyncio.ensure_future(self._stop_sandboxes(victim, kept))
            running.add_done_callback(lambda ended: self._end_stopping(victim.uid, ended))
        return running

    def _end_stopping(self, uid: str, ended: asyncio.Future[None]) -> None:
        if self._stopping.get(uid) is ended:
            del self._stopping[uid]
        if not ended.cancelled():
            ended.exception()  # retrieved, since asyncio logs unretrieved exceptions

    async def _stop_sandboxes(self, victim: Victim, kept: set[str]) -> None:
        for sandbox in await self.actions.list_sandboxes():
            if sandbox.ready and sandbox.id in victim.sandbox_ids and sandbox.id not in kept:
                await self.actions.stop_sandbox(sandbox.id)

    async def _stopped(self, stopping: asyncio.Future[None], errors: list[str]) -> bool:
        """Wait up to ``STOP_WAIT_S`` seconds; return whether the sandboxes are stopped."""
        done, _ = await asyncio.wait({stopping}, timeout=STOP_WAIT_S)
        if not done:
            errors.append(f"no answer to StopPodSandbox within {STOP_WAIT_S:g} s")
            return False
        try:
            stopping.result()
        except NodeAgentError as error:
            errors.append(str(error))
            return False
        return True

    async def _remove_all(
        self, listed: Iterable[Container], states: Collection[ContainerState], errors: list[str]
    ) -> int:
        """Remove the containers whose current state is in ``states``; return the number of removed containers."""
        removed = 0
        for each in listed:
            try:
                container = await self.actions.get_container(each.id)
                if container is not None and container.state in states:
                    await self.actions.remove_container(container.id)
                    removed += 1
            except NodeAgentError as error:
                errors.append(str(error))
        return removed

    async def _remove_files(self, victim: Victim, errors: list[str]) -> bool:
        """Remove the large files of the sandboxes and the logs of a victim; return whether their space is freed."""
        filled = await self._remove_filled_sandboxes(victim, errors)
        if filled:
            errors.append(
                f"{len(filled)} large file(s) of its sandboxes still on the disk: {', '.join(filled[:_SHOWN])}"
            )
        logs_kept = await self._remove_logs(victim)
        if logs_kept:
            errors.append(logs_kept)
        return not filled and not logs_kept

    async def _remove_filled_sandboxes(self, victim: Victim, errors: list[str]) -> list[str]:
        """Remove the stopped sandboxes that have a large file; return the paths of the remaining large files."""
        large = await asyncio.to_thread(_large, victim.sandbox_files)
        filled = {PurePosixPath(each).parent.name for each in large} & set(victim.sandbox_ids)
        if not filled:
            return large
        try:
            for sandbox in await self.actions.list_sandboxes():
                if sandbox.id in filled and not sandbox.ready:
                    await self.actions.remove_sandbox(sandbox.id)
        except NodeAgentError as error:
            errors.append(str(error))
        return await asyncio.to_thread(_large, large)

    async def _remove_logs(self, victim: Victim) -> str:
        """Remove the log directory of a victim without containers; return why its space is not freed, else empty.

        The minimum ages of logs and sandboxes do not apply.
        """
        if self.logs is None or not victim.log_directory:
            return ""
        try:
            return await self._remove_directory(victim, self.logs)
        except FileNotFoundError:
            return ""
        except NodeAgentError as error:
            return f"logs kept: {error}"

    async def _remove_directory(self, victim: Victim, logs: LogDirectories) -> str:
        tree = await asyncio.to_thread(logs.read_pod_directory, victim.log_directory)
        if tree is None:
            return ""
        sandboxes = await self.actions.list_sandboxes()
        if any(each.uid == victim.uid and each.id not in victim.sandbox_ids for each in sandboxes):
            return "logs kept: the pod has another sandbox"
        if tree.problem or tree.openers is LogOpeners.WRITERS:
            return f"logs kept: {tree.problem or f'open for writing: {tree.openers_detail}'}"
        await asyncio.to_thread(logs.remove_pod_directory, victim.log_directory, victim.uid, tree.changed_at)
        # the space is freed once the reader, such as a log shipper, closes the file; the next attempt confirms it
        return f"logs removed, but open: {tree.openers_detail}" if tree.openers is LogOpeners.READERS else ""

    async def _collect(self) -> str:
        """Run the runtime's garbage collection; return the error text, empty on success."""
        if self.collect_garbage is None:
            return "garbage not collected: runtime.containerd_api is off"
        try:
            await self.collect_garbage()
        except RuntimeUnsupportedError:  # not containerd: RemoveContainer also removed the layer
            return ""
        except NodeAgentError as error:
            return f"garbage not collected: {error}"
        return ""


async def present_layers(paths: Iterable[str]) -> list[str]:
    """Return the directories of writable layers that exist or cannot be read."""
    return await asyncio.to_thread(_present, paths)


def _present(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist or cannot be read; blocking."""
    found = []
    for path in paths:
        try:
            os.lstat(path)
        except FileNotFoundError:
            continue
        except OSError:
            pass
        found.append(path)
    return found


def _large(paths: Iterable[str]) -> list[str]:
    """Return the paths of large files; blocking."""
    return [each for each in paths if large_file(each) is not None]


def _names(containers: list[Container]) -> str:
    shown = ", ".join(f"{each.name} ({each.id[:12]}, {each.state.value})" for each in containers[:_SHOWN])
    return shown if len(containers) <= _SHOWN else f"{shown} and {len(containers) - _SHOWN} more"
