"""Log of an eviction loop whose state does not change: each state once, again at its change and after an hour."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import NodeAgentError, PassBusyError, RuntimeUnavailableError
from nodeagent.eviction.plan.policy import EvictionPolicy
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.eviction.reclaimer import Reclaimed
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, Result
from nodeagent.model.decision import Decision, ItemKind, Reason, ReasonCode, Verdict
from nodeagent.model.pressure import FilesystemRole
from nodeagent.telemetry.counters import Counters
from nodeagent.telemetry.logging import STATE_REPEAT_S, subscribe, unsubscribe
from tests.unit.eviction.eviction_node import Node, disk_node, run_pass, run_passes
from tests.unit.eviction.plan.cases import at, disk, known, pod, read

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = ["dead-containers on imagefs", "unused-images on imagefs", "irreplaceable-images on imagefs"]
PROTECTED = (pod("static", static=known(value=True), writable=disk(300)),)
OF_A_START = ["condition_changed", "threshold_met"]


def reclaimed(*outcomes: Outcome) -> Reclaimed:
    """Return a finished image reclaim step with one removal per outcome."""
    results = tuple(
        Result(Decision(ItemKind.IMAGE, str(n), str(n), Verdict.REMOVE, Reason(ReasonCode.ALL_UNUSED), 1), each, "busy")
        for n, each in enumerate(outcomes)
    )
    report = PassReport("id", "images", "eviction", at(0).at, 0.0, False, (), results, PassEnd.COMPLETE)
    return Reclaimed(ReclaimStep(ReclaimAction.UNUSED_IMAGES, FilesystemRole.IMAGEFS), report)


def full_disk(**fields: Any) -> Node:
    """Return a node with a met hard threshold, nothing to reclaim, and no pod that may be evicted."""
    return disk_node(**({"pods": PROTECTED} | fields))


def names(node: Node) -> list[str]:
    return [f"{each['event']} {each.get('step', '')}".rstrip() for each in node.events()]


@pytest.fixture
def counters() -> Iterator[Counters]:
    made = Counters(Node().clock)
    subscribe(made.count_event)
    yield made
    unsubscribe(made.count_event)


async def test_full_disk_is_logged_once_in_117_s_and_each_reclaim_is_counted(counters: Counters) -> None:
    node = full_disk()
    await run_passes(node, node.loop(), 117.0)
    assert sorted(names(node)) == sorted([*OF_A_START, *(f"reclaimed {each}" for each in STEPS), "no_evictable_pod"])
    (count,) = counters.values["nodeagent_reclaims_total"].values()
    assert count > 100


async def test_full_disk_without_a_pod_to_evict_has_not_the_result_reclaimed() -> None:
    node = full_disk()
    await run_pass(node)
    assert node.result() == "no-pod"


async def test_full_disk_is_logged_again_after_an_hour_and_at_each_change() -> None:
    node = full_disk()
    loop = node.loop()
    await run_passes(node, loop, 10.0)
    before = len(node.events())
    node.clock.seconds += STATE_REPEAT_S
    await run_passes(node, loop, 10.0)
    assert Counter(names(node)[before:]) == dict.fromkeys(
        [*(f"reclaimed {each}" for each in STEPS), "no_evictable_pod"], 1
    )
    before = len(node.events())
    node.reclaims[STEPS[1]] = lambda: reclaimed(Outcome.FAILED)
    await run_passes(node, loop, 10.0)
    node.reclaims[STEPS[1]] = reclaimed
    await run_passes(node, loop, 10.0)
    assert names(node)[before:] == [f"reclaimed {STEPS[1]}"] * 2


async def test_pressure_that_begins_again_is_logged_again() -> None:
    node = full_disk()
    loop = node.loop()
    await run_passes(node, loop, 5.0)
    full = node.readings
    node.readings = lambda: (read("imagefs.available", 500),)
    await run_pass(node, loop)
    node.readings = full
    await run_passes(node, loop, 5.0)
    assert Counter(names(node))["no_evictable_pod"] == 2
    assert Counter(names(node))[f"reclaimed {STEPS[0]}"] == 2


def _raising(error: Exception) -> Any:
    def work() -> Reclaimed:
        raise error

    return work


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="nothing-to-reclaim"),
        pytest.param({"dry_run": True}, id="dry-run"),
        pytest.param({"pods": (pod("writer", writable=disk(300)),), "dry_run": True}, id="dry-run-with-a-victim"),
        pytest.param({"pods": ()}, id="no-pod"),
        pytest.param({"pods_error": NodeAgentError("12 pods in 3.4 s")}, id="pods-unreadable"),
        pytest.param({"pods_error": RuntimeUnavailableError("no socket")}, id="runtime-unavailable"),
        pytest.param({"pods_error": KeyError("defect")}, id="defect"),
        pytest.param({"reclaims": {STEPS[1]: _raising(NodeAgentError("refused after 1.5 s"))}}, id="reclaim-fails"),
        pytest.param({"reclaims": {STEPS[1]: _raising(PassBusyError("gc runs"))}}, id="reclaim-busy"),
        pytest.param({"reclaims": {STEPS[1]: lambda: reclaimed(Outcome.FAILED)}}, id="removals-fail"),
        pytest.param(
            {"pods": disk_node().pods, "policy": EvictionPolicy(max_evictions_per_window=1)}, id="limited-evictions"
        ),
    ],
)
async def test_lasting_state_is_logged_once(fields: dict[str, Any]) -> None:
    node = full_disk(**fields)
    await run_passes(node, node.loop(), 60.0)
    repeated = {name: count for name, count in Counter(names(node)).items() if count > 1}
    assert repeated == {}
