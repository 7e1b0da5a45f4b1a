"""Passes on random simulated stores: the prediction is the measurement, and no removal is beyond the needed space."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.eviction.reclaimer import Reclaimer
from nodeagent.gc.executor import PassTrigger
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import ItemKind
from nodeagent.model.pressure import FilesystemRole
from nodeagent.record import replace
from tests.sim.scenario import example_node
from tests.unit.builders import MIB
from tests.unit.gc.conftest import POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.gc.executor import PassReport
    from nodeagent.gc.pass_state import Preview
    from nodeagent.model.decision import Decision
    from tests.unit.gc.conftest import Opener, Rig

STORES = 40
SANDBOX_BYTES = 64 * 1024
"""Upper bound of the writable layer of a sandbox, which no prediction includes."""
AT_ANY_AGE = replace(POLICY, images=replace(POLICY.images, minimum_age_s=0.0))
STEPS = (ReclaimAction.DEAD_CONTAINERS, ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES)


def freed(decisions: Sequence[Decision]) -> tuple[int, int]:
    return sum(each.frees_bytes or 0 for each in decisions), sum(each.frees_inodes or 0 for each in decisions)


def used(made: Rig) -> tuple[int, int]:
    """Return the used bytes and inodes after the garbage collection of the runtime."""
    made.node.collect_garbage()
    return made.node.used_bytes, made.node.inodes - made.node.inodes_free


@pytest.mark.parametrize("seed", range(STORES))
async def test_pass_over_all_items_frees_the_predicted_bytes_and_no_image_too_many(rig: Opener, seed: int) -> None:
    policy = replace(AT_ANY_AGE, images=replace(AT_ANY_AGE.images, low_threshold_percent=40 + seed))
    async with rig(make_scenario=partial(example_node, seed), policy=policy, bulk=bool(seed % 2)) as made:
        preview = await made.collector.preview(Scope.ALL)
        before, available = used(made)[0], made.node.available_bytes
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        measured = before - used(made)[0]
        predicted, _ = freed(preview.removals)
        sandboxes = sum(each.kind is ItemKind.SANDBOX for each in preview.removals)
        assert predicted <= measured <= predicted + sandboxes * SANDBOX_BYTES
        assert {each.decision.id for each in report.removed} == {each.id for each in preview.removals}
        low_bytes = made.node.capacity_bytes * (100 - policy.images.low_threshold_percent) // 100
        assert preview.removals[-1].kind is ItemKind.IMAGE
        assert available + freed(preview.removals[:-1])[0] < low_bytes


@pytest.mark.parametrize("inodes", [False, True])
@pytest.mark.parametrize("seed", range(STORES))
async def test_reclaim_steps_free_the_predicted_space_and_end_with_the_needed_removal(
    rig: Opener, seed: int, inodes: bool
) -> None:
    async with rig(make_scenario=partial(example_node, seed), policy=AT_ANY_AGE, bulk=True) as made:
        previews: list[Preview] = []

        async def run(preview: Preview, stop: asyncio.Event) -> PassReport:
            previews.append(preview)
            return await made.collector.run(preview, trigger=PassTrigger.EVICTION, stop=stop, max_rounds=1)

        reclaimer = Reclaimer(made.observer.observe, AT_ANY_AGE, run)
        missing = random.Random(seed).choice((1, 300, 3_000, 30_000)) * (1 if inodes else MIB)
        for action in STEPS:
            needed = SpaceNeeded(inodes=missing) if inodes else SpaceNeeded(missing)
            before, previews[:] = used(made), []
            done = await reclaimer.run(ReclaimStep(action, FilesystemRole.IMAGEFS), needed, asyncio.Event())
            gained = tuple(one - other for one, other in zip(before, used(made), strict=True))
            removals = [each for preview in previews for each in preview.removals]
            predicted = freed(removals)
            containers = sum(each.kind in {ItemKind.CONTAINER, ItemKind.SANDBOX} for each in removals)
            assert predicted[0] <= gained[0] <= predicted[0] + containers * SANDBOX_BYTES
            assert not removals or not needed.met_by(*freed(removals[:-1]))
            if action is ReclaimAction.IRREPLACEABLE_IMAGES and removals:
                assert needed.met_by(*predicted)
            if not containers:
                assert predicted[1] == gained[1]
            missing -= gained[inodes]
            if missing <= 0:
                return
            assert done.complete or containers
