"""Removers of pod log directories and container log links; each reads the item again before its removal."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from nodeagent.act.gc.outcomes import Outcome, Result
from nodeagent.model import ContainerState, NodeSnapshot
from nodeagent.plan.gc.pod_logs import keep_tree
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.act.gc.removers import FreshReader, LogActions
    from nodeagent.clock import Clock
    from nodeagent.plan.decision import Decision
    from nodeagent.plan.gc.policy import PodLogPolicy


class PodLogRemover:
    """Remover of one pod log directory, after a new reading of the directory tree."""

    def __init__(
        self, reader: FreshReader, logs: LogActions, policy: PodLogPolicy, template: NodeSnapshot, *, clock: Clock
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


class LogLinkRemover:
    """Remover of one container log link whose target does not exist."""

    def __init__(self, reader: FreshReader, logs: LogActions, container_of: Callable[[str], str]) -> None:
        self._reader = reader
        self._logs = logs
        self._container_of = container_of

    async def remove(self, decision: Decision) -> Result:
        """Remove the link unless its container exists and has not exited.

        During a log rotation the target is missing for a moment. Source: kubelet ``removeDeadSymlinks``.
        """
        container_id = self._container_of(decision.id)
        if container_id:
            container = await self._reader.container(container_id)
            if container is not None and container.state is not ContainerState.EXITED:
                return Result(decision, Outcome.CHANGED, f"kept: container is {container.state.value}")
        try:
            removed = await asyncio.to_thread(self._logs.remove_dead_link, decision.id)
        except FileNotFoundError:
            return Result(decision, Outcome.GONE, "already removed")
        return (
            Result(decision, Outcome.DONE)
            if removed
            else Result(decision, Outcome.CHANGED, "kept: its target exists again")
        )
