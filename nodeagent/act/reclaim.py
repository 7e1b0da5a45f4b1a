"""What the node gives back before any pod has to go, by the removers of garbage collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodeagent.act.collect import Preview
from nodeagent.plan.eviction.reclaim import ReclaimAction
from nodeagent.plan.gc import plan_containers
from nodeagent.plan.image_gc import plan_image_gc
from nodeagent.plan.scope import Scope

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from nodeagent.act.outcomes import PassReport
    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.eviction.reclaim import ReclaimStep
    from nodeagent.plan.gc import GCPolicy


class RunPreview(Protocol):
    """Carries out a preview as a pass of its own."""

    async def __call__(self, preview: Preview, stop: asyncio.Event) -> PassReport:
        """Carry out exactly what the preview lists.

        Raises:
            PassBusyError: another process acts on this node.
        """


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What one step brought.

    Attributes:
        report: of the pass it was; ``None`` where there was nothing to remove.
    """

    step: ReclaimStep
    report: PassReport | None


class Reclaimer:
    """Runs the steps of node-level reclaim."""

    def __init__(self, observe: Callable[[Scope], Awaitable[NodeSnapshot]], policy: GCPolicy, run: RunPreview) -> None:
        self._observe = observe
        self._policy = policy
        self._run = run

    async def run(self, step: ReclaimStep, stop: asyncio.Event) -> Reclaimed:
        """Observe, plan and carry out one step.

        Raises:
            RuntimeUnavailableError: the runtime does not answer.
            PassBusyError: another process acts on this node.
            NodeAgentError: the node could not be observed.
        """
        preview = await self.preview(step)
        return Reclaimed(step, await self._run(preview, stop) if preview.acts else None)

    async def preview(self, step: ReclaimStep) -> Preview:
        """Return what a step would remove.

        Raises:
            NodeAgentError: the node could not be observed.
        """
        if step.action is ReclaimAction.UNUSED_IMAGES:
            snapshot = await self._observe(Scope.IMAGES)
            return Preview(
                Scope.IMAGES, snapshot, (plan_image_gc(snapshot, self._policy.images, remove_all_unused=True),)
            )
        snapshot = await self._observe(Scope.CONTAINERS)
        made = plan_containers(snapshot, self._policy, evict_non_deleted_pods=True)
        plans = (made.logs,) if step.action is ReclaimAction.LOGS else (made.containers, made.sandboxes)
        return Preview(Scope.CONTAINERS, snapshot, plans)
