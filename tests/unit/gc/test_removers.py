"""Container and sandbox removals on a simulated node: removed items and remaining files or snapshots."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import ItemKind
from nodeagent.model.node import PodImages
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.gc.executor import PassReport, Result
    from tests.unit.gc.conftest import Opener


def result_of(report: PassReport, item_id: str) -> Result:
    return next(each for each in report.results if each.decision.id == item_id)


def created(log: Path) -> Path:
    log.touch()
    return log


def linked_elsewhere(log: Path, directory: Path) -> Path:
    """Replace the directory of a log by a symlink to ``directory``; return the new path of the log."""
    log.touch()
    log.parent.rename(directory)
    log.parent.symlink_to(directory)
    return directory / log.name


async def test_container_and_sandbox_that_remain_after_a_reported_removal_are_failed(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        for kind, method in ((ItemKind.CONTAINER, "RemoveContainer"), (ItemKind.SANDBOX, "RemovePodSandbox")):
            decision = next(each for each in preview.removals if each.kind is kind)
            records = made.node.containers if kind is ItemKind.CONTAINER else made.node.sandboxes
            record = records[decision.id]
            made.server.faults.after(
                method,
                lambda records=records, record=record: records.update({record.id: record}),  # type: ignore[misc]
                target=decision.id,
            )
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        failed = {each.decision.kind: each for each in report.failed}
        assert failed.keys() == {ItemKind.CONTAINER, ItemKind.SANDBOX}
        assert {each.detail.partition("; ")[0] for each in failed.values()} == {
            "the runtime reported the removal, but the item still exists"
        }


async def test_snapshot_left_by_a_container_removal_is_reported(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        victim = next(each for each in preview.removals if each.kind is ItemKind.CONTAINER)
        snapshot = made.node.store.snapshots[victim.id]
        made.server.faults.after("RemoveContainer", lambda: made.node.store.put_snapshot(snapshot), target=victim.id)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        result = result_of(report, victim.id)
        assert (result.outcome, "snapshot" in result.detail) == (Outcome.DONE, True)


async def test_snapshot_that_cannot_be_read_after_a_container_removal_is_reported(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        victim = next(each for each in preview.removals if each.kind is ItemKind.CONTAINER)
        unreadable = partial(made.server.faults.fail, "Snapshots.List", status="INTERNAL")
        made.server.faults.after("RemoveContainer", unreadable, target=victim.id)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        result = result_of(report, victim.id)
        assert result.outcome is Outcome.DONE
        assert result.detail == f"cannot read whether snapshot {victim.id[:12]} remains; see nodeagent gc leaks"


@pytest.mark.difference("log-removal-order")
async def test_container_whose_removal_fails_keeps_its_log(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        victim = next(each for each in preview.removals if each.kind is ItemKind.CONTAINER)
        log = created(Path(made.node.log_path(made.node.containers[victim.id])))
        made.server.faults.fail("RemoveContainer", status="INTERNAL", target=victim.id)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert result_of(report, victim.id).outcome is Outcome.FAILED
        assert log.exists()


async def test_log_that_cannot_be_removed_with_its_container_is_reported(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        victim = next(each for each in preview.removals if each.kind is ItemKind.CONTAINER)
        log = linked_elsewhere(Path(made.node.log_path(made.node.containers[victim.id])), made.logs / "elsewhere")
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        result = result_of(report, victim.id)
        assert (result.outcome, result.detail.partition(":")[0]) == (Outcome.DONE, "log kept")
        assert victim.id not in made.node.containers
        assert log.exists()


async def test_container_started_after_the_check_of_its_pod_is_kept(rig: Opener) -> None:
    async with rig() as made:
        preview = await made.collector.preview(Scope.CONTAINERS)
        victim = next(
            each
            for each in preview.removals
            if each.kind is ItemKind.CONTAINER and each.reason.code.value == "pod-deleted"
        )

        def start() -> None:
            known = made.node.containers[victim.id]
            made.node.containers[victim.id] = replace(known, state=ContainerState.RUNNING)

        made.server.faults.after("ListPodSandbox", start)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event())
        assert result_of(report, victim.id).outcome is Outcome.CHANGED
        assert victim.id in made.node.containers


@pytest.mark.parametrize("bulk", [False, True], ids=["CRI", "transactions"])
async def test_image_named_by_a_pod_bound_after_the_plan_is_kept(rig: Opener, *, bulk: bool) -> None:
    named: dict[str, tuple[str, ...]] = {}

    async def read() -> PodImages:
        return PodImages(dict(named))

    async with rig(bulk=bulk, read_pod_images=read) as made:
        preview = await made.collector.preview(Scope.IMAGES)
        victim = preview.removals[0]
        named[victim.name] = ("shop/new (kubelet)",)
        report = await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
        result = result_of(report, victim.id)
        assert result.outcome is Outcome.CHANGED
        assert result.detail == "kept: named by 1 pod(s) of this node: shop/new (kubelet)"
        assert victim.id in made.node.images
