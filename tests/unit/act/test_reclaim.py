"""What the node gives back, step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.act.outcomes import PassEnd, PassReport
from nodeagent.act.reclaim import Reclaimer
from nodeagent.model import NodeSnapshot
from nodeagent.model.pressure import FilesystemRole
from nodeagent.plan.eviction.reclaim import ReclaimAction, ReclaimStep
from nodeagent.plan.gc import GCPolicy
from nodeagent.plan.image_gc import ImageGCPolicy
from nodeagent.plan.scope import Scope
from tests.unit.builders import NOW, RUNTIME, image, used

if TYPE_CHECKING:
    from nodeagent.act.collect import Preview

POLICY = GCPolicy(images=ImageGCPolicy(minimum_age_s=0.0))
SNAPSHOT = NodeSnapshot(
    NOW, RUNTIME, images=(image("old"), image("older")), image_usage={"old": used(9), "older": used(99)}
)


class Node:
    def __init__(self) -> None:
        self.observed: list[Scope] = []
        self.run_: list[Preview] = []

    async def observe(self, scope: Scope) -> NodeSnapshot:
        self.observed.append(scope)
        return SNAPSHOT

    async def run(self, preview: Preview, stop: asyncio.Event) -> PassReport:
        assert not stop.is_set()
        self.run_.append(preview)
        return PassReport("id", preview.scope.value, "eviction", NOW, 0.1, False, preview.plans, (), PassEnd.COMPLETE)


def step(action: ReclaimAction) -> ReclaimStep:
    return ReclaimStep(action, FilesystemRole.IMAGEFS)


async def test_all_unused_images_go_whatever_the_thresholds() -> None:
    node = Node()
    done = await Reclaimer(node.observe, POLICY, node.run).run(step(ReclaimAction.UNUSED_IMAGES), asyncio.Event())
    assert done.report is not None
    (preview,) = node.run_
    assert node.observed == [Scope.IMAGES]
    assert [each.id for each in preview.removals] == ["older", "old"]


async def test_a_step_with_nothing_to_remove_runs_nothing() -> None:
    node = Node()
    reclaimer = Reclaimer(node.observe, POLICY, node.run)
    for action in (ReclaimAction.DEAD_CONTAINERS, ReclaimAction.LOGS):
        done = await reclaimer.run(step(action), asyncio.Event())
        assert done.report is None
    assert node.observed == [Scope.CONTAINERS] * 2
    assert node.run_ == []


async def test_each_step_has_its_own_plans() -> None:
    reclaimer = Reclaimer(Node().observe, POLICY, Node().run)
    kinds = {action: [plan.kind for plan in (await reclaimer.preview(step(action))).plans] for action in ReclaimAction}
    assert kinds == {
        ReclaimAction.DEAD_CONTAINERS: ["containers", "sandboxes"],
        ReclaimAction.LOGS: ["logs"],
        ReclaimAction.UNUSED_IMAGES: ["images"],
    }
