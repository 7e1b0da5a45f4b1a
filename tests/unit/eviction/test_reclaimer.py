"""Node-level reclaim steps: collection of dead containers, logs and images before an eviction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import RuntimeRequestError, RuntimeUnsupportedError
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.eviction.reclaimer import Reclaimer
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, Result
from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.node import LogSpace, NodeSnapshot, Role
from nodeagent.model.pressure import FilesystemRole, OtherFilesystem
from nodeagent.record import replace
from tests.unit.builders import MIB, NOW, RUNTIME, ago, container, image, log_directory, sandbox, used

if TYPE_CHECKING:
    from nodeagent.gc.pass_state import Preview
    from nodeagent.model.runtime import Sandbox

EVERYTHING = SpaceNeeded(300 * MIB)
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


async def test_unused_images_are_removed_regardless_of_the_usage_of_the_filesystem() -> None:
    node = Node()
    done = await Reclaimer(node.observe, POLICY, node.run).run(
        step(ReclaimAction.UNUSED_IMAGES), EVERYTHING, asyncio.Event()
    )
    assert done.report is not None
    (preview,) = node.previews
    assert node.observed == [Scope.IMAGES]
    assert [each.id for each in preview.removals] == ["older", "old"]


@pytest.mark.difference("reclaim-steps")
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
        [each.id for each in (await reclaimer.preview(step(action), SpaceNeeded(200 * MIB))).removals]
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
        step(action), EVERYTHING, asyncio.Event(), lambda found: reported.append((found.size_bytes, len(node.previews)))
    )
    assert reported == [(expected, 0)]


async def test_step_without_removals_runs_no_pass() -> None:
    node = Node()
    reclaimer = Reclaimer(node.observe, POLICY, node.run)
    for action in (ReclaimAction.DEAD_CONTAINERS, ReclaimAction.LOGS):
        done = await reclaimer.run(step(action), EVERYTHING, asyncio.Event())
        assert done.report is None
    assert node.observed == [Scope.CONTAINERS] * 2
    assert node.previews == []


async def test_each_step_makes_only_the_plans_of_its_kinds() -> None:
    reclaimer = Reclaimer(Node().observe, POLICY, Node().run)
    kinds = {
        action: [plan.kind for plan in (await reclaimer.preview(step(action), EVERYTHING)).plans]
        for action in ReclaimAction
    }
    assert kinds == {
        ReclaimAction.DEAD_CONTAINERS: ["containers", "sandboxes"],
        ReclaimAction.LOGS: ["containers", "sandboxes", "logs"],
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
    done = await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), EVERYTHING, asyncio.Event())
    assert (done.confirmed, node.collections) == (confirmed, 1)
    assert done.freed() is None  # containerd reports no writable layer size for a dead container


async def test_step_that_removed_nothing_is_not_confirmed() -> None:
    node = Node(DEAD, Outcome.CHANGED)
    reclaimer = Reclaimer(node.observe, POLICY, node.run, evicted=lambda: EVICTED, collect_garbage=node.collect_garbage)
    done = await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), EVERYTHING, asyncio.Event())
    assert (done.confirmed, node.collections, done.freed()) == (False, 0, 0)


async def test_removal_is_unconfirmed_without_a_garbage_collection_call() -> None:
    node = Node(DEAD)
    reclaimer = Reclaimer(node.observe, POLICY, node.run, evicted=lambda: EVICTED)
    assert not (await reclaimer.run(step(ReclaimAction.DEAD_CONTAINERS), EVERYTHING, asyncio.Event())).confirmed


async def test_images_are_confirmed_by_their_removal() -> None:
    node = Node()
    done = await Reclaimer(node.observe, POLICY, node.run).run(
        step(ReclaimAction.UNUSED_IMAGES), EVERYTHING, asyncio.Event()
    )
    assert done.confirmed


OF_A_POD = ["container", "sandbox", "pod-log-directory"]


@pytest.mark.parametrize(
    ("evicted", "sandboxes", "is_removed"),
    [
        pytest.param({}, (), False, id="no-eviction"),
        pytest.param(EVICTED, (), True, id="this-pod"),
        pytest.param({"another": ("sb-web",)}, (), False, id="another-pod"),
        pytest.param(EVICTED, (sandbox(sandbox_id="sb-new", created_s=90),), False, id="pod-created-again"),
        pytest.param(EVICTED, (sandbox(sandbox_id="sb-new", created_s=None),), False, id="order-of-sandboxes-unknown"),
    ],
)
@pytest.mark.parametrize(
    ("action", "filesystem", "kinds"),
    [
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, OF_A_POD),
        (ReclaimAction.LOGS, FilesystemRole.NODEFS, OF_A_POD),
        pytest.param(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS, OF_A_POD[:1], id="logs-elsewhere"),
    ],
)
@pytest.mark.parametrize("age_s", [1, 10, 75, 7200])
async def test_containers_sandbox_and_logs_of_an_evicted_pod_are_one_step_at_any_age(  # noqa: PLR0917
    evicted: dict[str, tuple[str, ...]],
    sandboxes: tuple[Sandbox, ...],
    is_removed: bool,
    action: ReclaimAction,
    filesystem: FilesystemRole,
    kinds: list[str],
    age_s: float,
) -> None:
    policy = replace(POLICY, containers=ContainerGCPolicy(minimum_age_s=3600.0, deleted_pod_grace_s=10_000.0))
    pod = replace(
        DEAD,
        containers=(container("c", created_s=age_s, finished_s=1),),
        sandboxes=(sandbox(created_s=age_s),),
        pod_log_directories=(log_directory("uid-web", modified_s=0),),
    )
    newer = age_s > 90 or not any(each.created_at for each in sandboxes)
    for order in (1, -1):
        found = replace(pod, sandboxes=(*pod.sandboxes, *sandboxes)[::order])
        reclaimer = Reclaimer(Node(found).observe, policy, Node().run, evicted=lambda: evicted)
        preview = await reclaimer.preview(ReclaimStep(action, filesystem), EVERYTHING)
        if newer:
            assert [each.kind.value for each in preview.removals] == (kinds if is_removed else [])


def with_logs(name: str, layer_mib: int, *logs_mib: int) -> dict[str, Any]:
    """Return a deleted pod with one container for each log; its log directory also has 1 MiB of other files."""
    sizes = {f"app/{number}.log": LogSpace(each * MIB, 2) for number, each in enumerate(logs_mib)}
    tree: dict[str, Any] = {"size": LogSpace((sum(logs_mib) + 1) * MIB, 2 * len(logs_mib) + 3), "container_logs": sizes}
    age_s = {"a": 9000, "b": 8000}[name]
    containers = tuple(
        container(f"{name}-{each}", pod=name, attempt=each, created_s=age_s - each) for each in range(len(logs_mib))
    )
    return {
        "containers": containers,
        "sandboxes": (sandbox(name, created_s=age_s),),
        "pod_log_directories": (log_directory(f"uid-{name}", pod=name, **tree),),
        "writable_bytes": {each.id: layer_mib * MIB for each in containers},
        "writable_inodes": {each.id: 10 for each in containers},
    }


def joined(*pods: dict[str, Any]) -> NodeSnapshot:
    """Return a snapshot with the items of all pods."""
    fields: dict[str, Any] = {}
    for pod in pods:
        for key, value in pod.items():
            fields[key] = (
                value
                if key not in fields
                else {**fields[key], **value}
                if isinstance(value, dict)
                else (
                    *fields[key],
                    *value,
                )
            )
    return replace(DEAD, **fields)


TWO_PODS = joined(with_logs("a", 20, 30, 0), with_logs("b", 0, 50))
SANDBOXES = ["sb-a", "sb-b"]


@pytest.mark.difference("reclaim-goal")
@pytest.mark.parametrize(
    ("action", "filesystem", "needed", "removed"),
    [
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, SpaceNeeded(50 * MIB), ["a-0"]),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, SpaceNeeded(50 * MIB + 1), ["a-0", "a-1"]),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, SpaceNeeded(70 * MIB + 1), ["a-0", "a-1", "b-0"]),
        (
            ReclaimAction.DEAD_CONTAINERS,
            FilesystemRole.NODEFS,
            SpaceNeeded(121 * MIB),
            ["a-0", "a-1", "b-0", *SANDBOXES, "shop_a_uid-a"],
        ),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, SpaceNeeded(inodes=12), ["a-0"]),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS, SpaceNeeded(inodes=13), ["a-0", "a-1"]),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS, SpaceNeeded(20 * MIB), ["a-0"]),
        (ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS, SpaceNeeded(40 * MIB), ["a-0", "a-1"]),
        (ReclaimAction.LOGS, FilesystemRole.NODEFS, SpaceNeeded(30 * MIB), ["a-0"]),
        (ReclaimAction.LOGS, FilesystemRole.NODEFS, SpaceNeeded(31 * MIB), ["a-0", "a-1", "b-0"]),
    ],
)
async def test_step_ends_with_the_removal_that_frees_the_needed_space(
    action: ReclaimAction, filesystem: FilesystemRole, needed: SpaceNeeded, removed: list[str]
) -> None:
    node = Node(TWO_PODS)
    done = await Reclaimer(node.observe, POLICY, node.run).run(ReclaimStep(action, filesystem), needed, asyncio.Event())
    (preview,) = node.previews
    assert [each.id for each in preview.removals] == removed
    assert not done.complete
    size_bytes = sum(each.frees_bytes or 0 for each in preview.removals[:-1])
    inodes = sum(each.frees_inodes or 0 for each in preview.removals[:-1])
    assert not needed.met_by(size_bytes, inodes)
    freed = done.freed(inodes=bool(needed.inodes))
    assert freed is not None
    assert freed >= max(needed.size_bytes, needed.inodes)


LOG_FILESYSTEM = OtherFilesystem("/var/log/pods", 7, frozenset())


@pytest.mark.difference("log-filesystem")
@pytest.mark.parametrize(
    ("reclaim", "freed_mib"),
    [
        (ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS), 40),
        (ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS), 40),
        (ReclaimStep(ReclaimAction.LOGS, FilesystemRole.NODEFS, LOG_FILESYSTEM), 82),
    ],
)
async def test_logs_on_their_own_filesystem_count_as_freed_there_only(reclaim: ReclaimStep, freed_mib: int) -> None:
    async def has_separate_logs() -> bool:
        return True

    node = Node(TWO_PODS)
    reclaimer = Reclaimer(node.observe, POLICY, node.run, has_separate_logs=has_separate_logs)
    done = await reclaimer.run(reclaim, EVERYTHING, asyncio.Event())
    assert done.freed() == freed_mib * MIB


async def test_step_is_complete_if_all_items_are_removed_or_no_removal_had_an_effect() -> None:
    whole = ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.NODEFS)
    for outcome, needed in (
        (Outcome.DONE, EVERYTHING),
        (Outcome.CHANGED, SpaceNeeded(1)),
        (Outcome.FAILED, SpaceNeeded(1)),
    ):
        node = Node(TWO_PODS, outcome)
        assert (await Reclaimer(node.observe, POLICY, node.run).run(whole, needed, asyncio.Event())).complete


@pytest.mark.parametrize(("needed_mib", "removed"), [(1, ["older"]), (100, ["older"]), (101, ["older", "old"])])
async def test_images_are_removed_in_removal_order_until_the_needed_space_is_freed(
    needed_mib: int, removed: list[str]
) -> None:
    node = Node()
    reclaimer = Reclaimer(node.observe, POLICY, node.run)
    done = await reclaimer.run(step(ReclaimAction.UNUSED_IMAGES), SpaceNeeded(needed_mib * MIB), asyncio.Event())
    (preview,) = node.previews
    assert ([each.id for each in preview.removals], done.complete) == (removed, len(removed) == 2)
