"""Eviction passes on a node with several image filesystems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import NodeAgentError, ObservationError
from nodeagent.model.pressure import FilesystemLayout
from nodeagent.record import replace
from tests.unit.builders import MIB
from tests.unit.eviction.eviction_node import DISK, Node, run_pass, run_passes
from tests.unit.eviction.plan.cases import pod, read
from tests.unit.eviction.plan.test_other_filesystems import (
    KATA,
    LAZY,
    LOGS,
    ON_FIRST,
    ON_KATA,
    logger,
    on,
    writer,
)
from tests.unit.eviction.test_storage_limits import over_limit

if TYPE_CHECKING:
    from nodeagent.eviction.reclaimer import Reclaimed
    from nodeagent.eviction.signals import SignalLayout
    from nodeagent.model.pressure import OtherFilesystem, SignalReading

PODS = (writer("kata", ON_KATA, mib=300), writer("first", ON_FIRST, mib=900), pod("hog", pids=900))


def kata_node(**fields: Any) -> Node:
    """Return a node with pressure on Kata's image filesystem until the first eviction."""
    node = Node(limits=DISK, layout=FilesystemLayout.DEDICATED_IMAGEFS, others=(KATA,), pods=PODS, **fields)
    node.readings = lambda: (read("imagefs.available", 900), on(KATA, 900 if node.evicted else 50))
    return node


async def test_pod_there_is_evicted_after_reclaim_there() -> None:
    node = kata_node()
    loop = node.loop()
    await run_passes(node, loop, 5)
    assert node.evicted == ["kata"]
    assert node.reclaimed == ["dead-containers on /kata", "unused-images on /kata", "irreplaceable-images on /kata"]
    (started,) = node.events("eviction_started")
    assert (started["threshold"], started["signal"]) == ("imagefs.available<100Mi on /kata", "imagefs.available")
    assert [each["threshold"] for each in node.events("threshold_met")] == ["imagefs.available<100Mi on /kata"]
    assert node.events("threshold_cleared")


async def test_nothing_there_is_evicted_while_reclaim_there_fails_and_other_thresholds_are_acted_on() -> None:
    node = kata_node(reclaims={"unused-images on /kata": _unknown_images})
    node.limits = f"{DISK},pid.available<10"
    short = read("pid.available", available=5, capacity=1000)
    node.readings = lambda: (on(KATA, 50), *(() if node.evicted else (short,)))
    loop = node.loop()
    await run_passes(node, loop, 5)
    assert node.evicted == ["hog"]
    assert {each["step"] for each in node.events("reclaim_failed")} == {"unused-images on /kata"}
    assert {each["signal"] for each in node.events("eviction_started")} == {"pid.available"}


async def test_storage_limits_are_checked_while_reclaim_there_fails() -> None:
    node = kata_node(reclaims={"unused-images on /kata": _unknown_images})
    node.pods = (*PODS, over_limit("greedy"))
    await run_pass(node)
    assert (node.evicted, node.result()) == (["greedy"], "evicted")


async def test_threshold_there_remains_met_after_image_reclaim_that_follows_another_step_fails() -> None:
    node = kata_node(reclaims={"unused-images on /kata": _unknown_images})
    await run_pass(node)
    assert node.reclaimed == ["dead-containers on /kata", "unused-images on /kata"]
    assert (node.evicted, node.result()) == ([], "pressure")


def _unknown_images() -> Reclaimed:
    raise ObservationError("/kata is no longer known as an image filesystem")


async def test_other_filesystems_are_found_again_each_minute_and_kept_if_the_runtime_does_not_answer() -> None:
    node = kata_node()
    node.readings = lambda: (read("imagefs.available", 900), on(LAZY, 50))
    calls, read_layout = [], node.read_layout

    async def counted() -> SignalLayout:
        calls.append(node.clock.seconds)
        if len(calls) == 3:
            raise NodeAgentError("no answer")
        return await read_layout()

    node.read_layout = counted  # type: ignore[method-assign]
    loop = node.loop()
    await run_pass(node, loop)
    node.others, node.pods = (KATA, LAZY), (replace(PODS[0], usage=None),)
    await run_pass(node, loop)
    assert (len(calls), node.events("threshold_met")) == (1, [])
    node.clock.seconds += 61
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert [each["threshold"] for each in node.events("threshold_met")] == ["imagefs.available<100Mi on /lazy"]
    node.readings = lambda: (read("imagefs.available", 900), on(LAZY, 900))
    node.clock.seconds += 61
    await run_pass(node, loop)
    assert len(calls) == 3
    node.readings = lambda: (read("imagefs.available", 900), on(LAZY, 50))
    await run_pass(node, loop)
    assert len(node.events("threshold_met")) == 2
    assert not node.evicted


async def test_changed_layout_of_nodefs_and_imagefs_is_not_adopted() -> None:
    node = kata_node()
    node.readings = lambda: (read("imagefs.available", 900), on(LAZY, 50))
    loop = node.loop()
    await run_pass(node, loop)
    node.others, node.layout = (KATA, LAZY), FilesystemLayout.SINGLE
    node.clock.seconds += 61
    await run_pass(node, loop)
    await run_pass(node, loop)
    assert node.events("threshold_met") == []


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize(
    ("others", "reading", "evicted"),
    [
        ((LOGS,), on(LOGS, 50, "nodefs.available"), {"chatty": True}),
        ((LOGS,), read("nodefs.available", 50), {"writer": False}),
        ((), read("nodefs.available", 50), {"writer": True}),
    ],
    ids=["logs", "nodefs", "nodefs-with-logs"],
)
async def test_logs_of_an_evicted_pod_are_removed_for_their_filesystem_only(
    others: tuple[OtherFilesystem, ...], reading: SignalReading, evicted: dict[str, bool]
) -> None:
    node = Node(limits="nodefs.available<100Mi", others=others)
    node.pods = (logger("writer", logs=1, writable=900), logger("chatty", logs=300))
    node.readings = lambda: (replace(reading, available=900 * float(MIB)) if node.evicted else reading,)
    loop = node.loop()
    await run_passes(node, loop, 5)
    assert node.evicted == [*evicted]
    assert {each.name: bool(each.log_directory) for each in loop.context.eviction.victims} == evicted
