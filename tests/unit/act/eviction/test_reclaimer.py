"""Node-level reclaim steps: collection of dead containers, logs and images before an eviction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.act.eviction.reclaimer import Reclaimer
from nodeagent.act.gc.outcomes import Outcome, PassEnd, PassReport, Result
from nodeagent.errors import RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.model import NodeSnapshot, Role
from nodeagent.model.pressure import FilesystemRole
from nodeagent.plan.eviction.reclaim import ReclaimAction, ReclaimStep
from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.plan.gc.policy import GCPolicy, ImageGCPolicy
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import replace
from tests.unit.builders import MIB, NOW, RUNTIME, ago, container, image, log_directory, sandbox, used

if TYPE_CHECKING:
    from nodeagent.act.gc.preview import Preview
    from nodeagent.model import Sandbox

POLICY = GCPolicy(images=ImageGCPolicy(minimum_age_s=0.0))
SNAPSHOT = NodeSnapshot(
    NOW, RUNTIME, images=(image("old"), image("older")), image_usage={"old": used(9), "older": used(99)}
)


class Node:
    def __init__(self, snapshot: NodeSnapshot = SNAPSHOT, outcome: Outcome = Outcome.DONE) -> None:
        self.snapshot = snapshot
        self.outcome = outcome
        self.observed: list[Scope] = []
        self.previews: list[Preview] = []
        self.collections = 0
        self.collect_error: Exception | None = None

    async def observe(self, scope: Scope) -> NodeSnapshot:
        self.observed.append(scope)
        return self.snapshot

    async def run(self, preview: Preview, stop: asyncio.Event) -> PassReport:
        assert not stop.is_set()
        self.previews.append(preview)
        results = tuple(Result(each, self.outcome) for each in preview.removals)
        return PassReport(
            "id", preview.scope.value, "eviction", NOW, 0.1, False, preview.plans, results, PassEnd.COMPLETE
        )

    async def collect_garbage(self) -> None:
        self.collections += 1
        if self.collect_error is not None:
            raise self.collect_error


def step(action: ReclaimAction) -> ReclaimStep:
    return ReclaimStep(action, FilesystemRole.IMAGEFS)


async def test_all_unused_images_are_removed_regardless_of_thresholds() -> None:
    node = Node()
    done = await Reclaimer(node.observe, POLICY, node.run).run(step(ReclaimAction.UNUSED_IMAGES), asyncio.Event())
    assert done.report is not None
    (preview,) = node.previews
    assert node.observed == [Scope.IMAGES]
    assert [each.id for each in preview.removals] == ["older", "old"]


@pytest.mark.parametrize(
    ("treatment", "first", "second"),
    [
        (Irreplaceable.LAST, ["old"], ["old", "older"]),
        (Irreplaceable.NEVER, ["old"], ["old"]),
        (Irreplaceable.IGNORE, ["older", "old"], ["older", "old"]),
    ],
)
async def test_images_that_cannot_be_pulled_again_are_removed_in_the_last_step(
    treatment: Irreplaceable, first: list[str], second: list[str]
) -> None:
    node = Node()
    sources = {"old": frozenset({"registry.example/old"}), "older": frozenset[str]()}
    node.snapshot = replace(SNAPSHOT, image_sources=sources)
    policy = replace(POLICY, images=replace(POLICY.images, protection=ProtectionPolicy(irreplaceable=treatment)))
    reclaimer = Reclaimer(node.observe, policy, node.run)
    removed = [
        [each.id for each in (await reclaimer.preview(step(action))).removals]
        for action in (ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES)
    ]
    assert removed == [first, second]


@pytest.mark.parametrize(
    ("action", "unknown", "expected"),
    [
        (ReclaimAction.UNUSED_IMAGES, False, 300 * MIB),
        (ReclaimAction.IRREPLACEABLE_IMAGES, False, 300 * MIB),
        (ReclaimAction.UNUSED_IMAGES, True, None),
        (ReclaimAction.DEAD_CONTAINERS, False, None),
        (ReclaimAction.LOGS, False, None),
    ],
)
async def test_image_step_reports_the_bytes_of_all_image_steps_before_its_first_removal(
    action: ReclaimAction, unknown: bool, expected: int | None
) -> None:
    node = Node()
    images = (image("old"), image("older", size_mib=None if unknown else 200))
    sources = {"old": frozenset({"registry.example/old"}), "older": frozenset[str]()}
    node.snapshot = replace(SNAPSHOT, images=images, image_sources=sources)
    reported: list[tuple[int | None, int]] = []
    reclaimer = Reclaimer(node.observe, POLICY, node.run)
    await reclaimer.run(
        step(action), asyncio.Event(), lambda found: reported.append((found.size_bytes, len(node.previews)))
    )
    assert reported == [(expected, 0)]


async def test_step_without_removals_runs_no_pass() -> None:
    node = Node()
    reclaimer = Reclaimer(node.observe, POLICY, node.run)
    for action in (ReclaimAction.DEAD_CONTAINERS, ReclaimAction.LOGS):
        done = await reclaimer.run(step(action), asyncio.Event())
        assert done.report is None
    assert node.observed == [Scope.CONTAINERS] * 2
    assert node.previews == []


async def test_each_step_makes_only_the_plans_of_its_kinds() -> None:
    reclaimer = Reclaimer(Node().observe, POLICY, Node().run)
    kinds = {action: [plan.kind for plan in (await reclaimer.preview(step(action))).plans] for action in ReclaimAction}
    assert kinds == {
        ReclaimAction.DEAD_CONTAINERS: ["containers", "sandboxes"],
        ReclaimAction.LOGS: ["logs"],
        ReclaimAction.UNUSED_IMAGES: ["images"],
        ReclaimAction.IRREPLACEABLE_IMAGES: ["images"],
    }


DEAD = replace(
    SNAPSHOT,
    containers=(container("c", finished_s=1),),
    sandboxes=(sandbox(created_s=7200),),
    pod_log_directories=(log_directory("uid-web"),),
    role=Role.STANDALONE,
    booted_at=ago(9000),
)
EVICTED = {"uid-web": ("sb-web",)}


@pytest.mark.parametrize(
    ("error", "confirmed"),
    [
        (None, True),
        (RuntimeUnsupportedError("leases.Create", "", "UNIMPLEMENTED", "not containerd"), True),
        (RuntimeRequestError("leases.Delete", "", "DEADLINE_EXCEEDED", "busy"), False),
    ],
    ids=["collected", "not-containerd", "busy"],
)
async def test_removed_containers_are_confirmed_by_a_garbage_collection(
    error: Exception | None, confirmed: bool
) -> None:
    node = Node(DEAD)
    node.collect_error = error
    reclaimer = Reclaimer(node.observe, POLICY, node.run, evicted=lambda: EVICTED, collect_garbage=node.collect_garbage)
    done = await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), asyncio.Event())
    assert (done.confirmed, node.collections) == (confirmed, 1)
    assert done.freed() is None  # containerd reports no writable layer size for a dead container


async def test_step_that_removed_nothing_is_not_confirmed() -> None:
    node = Node(DEAD, Outcome.CHANGED)
    reclaimer = Reclaimer(node.observe, POLICY, node.run, evicted=lambda: EVICTED, collect_garbage=node.collect_garbage)
    done = await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), asyncio.Event())
    assert (done.confirmed, node.collections, done.freed()) == (False, 0, 0)


async def test_removal_is_unconfirmed_without_a_garbage_collection_call() -> None:
    node = Node(DEAD)
    reclaimer = Reclaimer(node.observe, POLICY, node.run, evicted=lambda: EVICTED)
    assert not (await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), asyncio.Event())).confirmed


async def test_images_are_confirmed_by_their_removal() -> None:
    node = Node()
    done = await Reclaimer(node.observe, POLICY, node.run).run(step(ReclaimAction.UNUSED_IMAGES), asyncio.Event())
    assert done.confirmed


@pytest.mark.parametrize(
    ("evicted", "sandboxes", "containers", "logs"),
    [
        pytest.param({}, (), [], [], id="no-eviction"),
        pytest.param(EVICTED, (), ["container", "sandbox"], ["sandbox", "pod-log-directory"], id="this-pod"),
        pytest.param({"another": ("sb-web",)}, (), [], [], id="another-pod"),
        pytest.param(EVICTED, (sandbox(sandbox_id="sb-new", created_s=90),), [], [], id="pod-created-again"),
        pytest.param(EVICTED, (sandbox(sandbox_id="sb-new", created_s=None),), [], [], id="order-of-sandboxes-unknown"),
    ],
)
async def test_containers_sandbox_and_logs_of_an_evicted_pod_are_removed_without_grace_period(
    evicted: dict[str, tuple[str, ...]], sandboxes: tuple[Sandbox, ...], containers: list[str], logs: list[str]
) -> None:
    for order in (1, -1):
        found = replace(DEAD, sandboxes=(*DEAD.sandboxes, *sandboxes)[::order])
        reclaimer = Reclaimer(Node(found).observe, POLICY, Node().run, evicted=lambda: evicted)
        for action, kinds in ((ReclaimAction.DEAD_CONTAINERS, containers), (ReclaimAction.LOGS, logs)):
            preview = await reclaimer.preview(step(action))
            assert [each.kind.value for each in preview.removals] == kinds, (order, action)
