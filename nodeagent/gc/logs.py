"""Removers of pod log directories, log links and unreferenced content; each reads the item again first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.gc.executor import BATCH, Outcome, Result, caught
from nodeagent.gc.plan.consistency import piece_name
from nodeagent.gc.plan.pod_logs import keep_tree
from nodeagent.host import pod_logs as log_removal
from nodeagent.host.pod_logs import read_log_tree
from nodeagent.model import ContainerState, LogTree, NodeSnapshot, UnreferencedPiece
from nodeagent.model.decision import Decision, ItemKind
from nodeagent.record import Record, replace

if TYPE_CHECKING:
    from nodeagent.clock import Clock
    from nodeagent.errors import NodeAgentError
    from nodeagent.gc.guard import CurrentReader
    from nodeagent.gc.plan.policy import PodLogPolicy
    from nodeagent.runtime.cri import CriClient
    from nodeagent.runtime.storage_backend import StorageBackend


class PodLogRemover:
    """Remover of one pod log directory, after a new reading of the directory tree."""

    def __init__(
        self, reader: CurrentReader, logs: HostLogs, policy: PodLogPolicy, template: NodeSnapshot, *, clock: Clock
    ) -> None:
        """Compose the remover; ``policy`` and ``template`` are those of the plan."""
        self._reader = reader
        self._logs = logs
        self._policy = policy
        self._clock = clock
        self._trust = template.clock
        self._directories = {each.name: each for each in template.pod_log_directories}
        self._template = template

    @cached_property
    def _listed(self) -> frozenset[str]:
        """UIDs of the pods that the runtime listed at the observation; computed for the first removal only."""
        return frozenset([each.uid for each in self._template.sandboxes]).union(
            [each.pod_uid for each in self._template.containers]
        )

    async def remove(self, decision: Decision) -> Result:
        """Remove the directory unless the runtime lists its pod, or its files changed, are open or unreadable."""
        planned = self._directories.get(decision.id)
        if planned is None or planned.tree is None:
            return Result(decision, Outcome.CHANGED, "kept: not read by the observation of this pass")
        containers, sandboxes = await self._reader.users()
        if any(each.uid == planned.uid for each in sandboxes) or any(
            each.pod_uid == planned.uid for each in containers
        ):
            return Result(decision, Outcome.CHANGED, "kept: the runtime lists a container or sandbox of its pod")
        tree = await asyncio.to_thread(self._logs.read_pod_directory, decision.id)
        if tree is None:
            return Result(decision, Outcome.GONE, "already removed")
        checked = replace(tree, unchanged_s=0.0)
        if tree.digest == planned.tree.digest:  # the plan replaces implausible times by their observation
            checked = replace(tree, changed_at=planned.tree.changed_at, unchanged_s=planned.tree.unchanged_s)
        # no minimum age for a pod listed at the observation: the removal of its containers changed the directory
        minimum_age_s = 0.0 if planned.uid in self._listed else self._policy.minimum_age_s
        kept = keep_tree(checked, self._policy, self._clock.now(), self._trust, minimum_age_s=minimum_age_s)
        if kept is not None:
            return Result(decision, Outcome.CHANGED, f"kept: {kept.sentence}")
        try:
            freed = await asyncio.to_thread(self._logs.remove_pod_directory, decision.id, planned.uid, tree.changed_at)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already removed")
        return Result(decision, Outcome.DONE, freed_bytes=freed)


class LogLinkRemover(Record):
    """Remover of one container log link whose target does not exist."""

    cri: CriClient
    logs: HostLogs

    async def remove(self, decision: Decision) -> Result:
        """Remove the link unless its container exists and has not exited.

        During a log rotation the target is missing for a moment. Source: kubelet ``removeDeadSymlinks``.
        """
        container_id = log_removal.link_container_id(decision.id)
        if container_id:
            container = await self.cri.get_container(container_id)
            if container is not None and container.state is not ContainerState.EXITED:
                return Result(decision, Outcome.CHANGED, f"kept: container is {container.state.value}")
        try:
            removed = await asyncio.to_thread(self.logs.remove_dead_link, decision.id)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already removed")
        return (
            Result(decision, Outcome.DONE)
            if removed
            else Result(decision, Outcome.CHANGED, "kept: its target exists again")
        )


class HostLogs(Record):
    """Remover of pod logs below the kubelet's log roots; paths are checked in ``host.log_removal``.

    Attributes:
        pod_log_root: root directory of pod logs.
        container_log_root: directory of the links to container logs.
        clock: limits the time of a directory walk.
    """

    pod_log_root: Path
    container_log_root: Path
    clock: Clock

    def remove_container_logs(self, log_path: str, container_id: str) -> int:
        """Remove a container's current and rotated logs, then its links; return the bytes freed."""
        freed = log_removal.remove_container_logs(self.pod_log_root, Path(log_path)).size_bytes
        log_removal.remove_links_of(self.container_log_root, container_id)
        return freed

    def read_pod_directory(self, name: str) -> LogTree | None:
        """Return a reading of one pod log directory; ``None`` if it does not exist."""
        return read_log_tree(self.pod_log_root, name, self.clock)

    def remove_pod_directory(self, name: str, uid: str, changed_at: datetime) -> int:
        """Remove one pod log directory unless an entry changed after ``changed_at``; return the bytes freed."""
        return log_removal.remove_pod_log_directory(self.pod_log_root, name, uid, changed_at).size_bytes

    def remove_dead_link(self, name: str) -> bool:
        """Remove a link whose target does not exist; return false if the target exists again."""
        return log_removal.remove_dead_log_link(self.container_log_root, name)


class LeakRemover:
    """Remover of unreferenced blobs and snapshots in batches; all references are read again before each batch."""

    batch_size = BATCH
    settled_s = 0.0

    def __init__(
        self, find_unreferenced: Callable[[], Awaitable[tuple[UnreferencedPiece, ...]]], storage: StorageBackend
    ) -> None:
        self._find_unreferenced = find_unreferenced
        self._storage = storage
        self._deleted = False

    async def remove_many(self, decisions: Sequence[Decision], stop: asyncio.Event) -> list[Result | NodeAgentError]:
        """Delete the blobs and snapshots that are still unreferenced, in plan order: a snapshot after its children.

        A stop request takes effect after the batch.

        Raises:
            RuntimeUnavailableError: the runtime is unavailable.
        """
        del stop
        unreferenced = {piece_name(each): each for each in await self._find_unreferenced()}
        return [await caught(self._delete(each, unreferenced.get(each.name))) for each in decisions]

    async def _delete(self, decision: Decision, found: UnreferencedPiece | None) -> Result:
        if found is None:
            return Result(decision, Outcome.CHANGED, "kept: already removed, or referenced again")
        if found.rooted and not decision.reason.details.get("rooted"):
            return Result(decision, Outcome.CHANGED, "kept: labelled containerd.io/gc.root since the plan")
        if decision.kind is ItemKind.BLOB:
            existed = await self._storage.delete_content(decision.id)
        else:
            existed = await self._storage.remove_snapshot(found.snapshotter, decision.id)
        self._deleted = self._deleted or existed
        return Result(decision, Outcome.DONE if existed else Outcome.GONE)

    async def finish(self) -> tuple[Result, ...]:
        """Run the runtime's garbage collection, which removes the data of deleted records from disk."""
        if self._deleted:
            await self._storage.collect_garbage()
        return ()
