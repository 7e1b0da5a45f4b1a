"""Property tests of GC plans for all nodes and policies."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.gc.executor import PassEnd
from nodeagent.gc.pass_state import Preview, plans_for
from nodeagent.gc.plan.image_users import images_in_use
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.planner import GCPlan, plan_all, plan_containers
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope, Spent
from nodeagent.model.decision import Accounting, ItemKind, Plan, Verdict
from nodeagent.model.runtime import Container, ContainerState, Image, ImageUsage, PieceKind, StorageGraph, StoredPiece
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.record import replace
from tests.unit.builders import MIB, NOW, ago, filesystem, removed, snapshot
from tests.unit.gc_strategies import EXAMPLES, image_policies, nodes, policies

if TYPE_CHECKING:
    import random

    from nodeagent.model.node import NodeSnapshot


@EXAMPLES
@given(nodes(), policies(), st.booleans(), st.booleans())
def test_every_item_has_exactly_one_decision_with_a_sentence(
    node: NodeSnapshot, policy: GCPolicy, evict: bool, everything: bool
) -> None:
    images = plan_image_gc(node, policy.images, remove_all_unused=everything)
    made = replace(plan_containers(node, policy, evict_non_deleted_pods=evict), images=images)
    assert made.images is not None
    listed: dict[str, tuple[Any, ...]] = {
        "containers": node.containers,
        "sandboxes": node.sandboxes,
        "images": node.images,
    }
    for plan in made.plans:
        if plan.kind in listed:
            assert sorted(each.id for each in plan.decisions) == sorted(each.id for each in listed[plan.kind])
        verdicts = [each.verdict is not Verdict.REMOVE for each in plan.decisions]
        assert verdicts == sorted(verdicts), "removals are first"
        for decision in plan.decisions:
            assert decision.reason.sentence
            assert decision.name
    logs = [each.name for each in node.pod_log_directories] + [each.name for each in node.dead_log_links]
    assert sorted(each.id for each in made.logs.decisions) == sorted(logs)


@pytest.mark.difference("image-order")
@EXAMPLES
@given(nodes(), policies(), st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_input_order(node: NodeSnapshot, policy: GCPolicy, rng: random.Random) -> None:
    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rng.sample(items, len(items)))

    other = replace(
        node,
        images=shuffled(node.images),
        containers=shuffled(node.containers),
        sandboxes=shuffled(node.sandboxes),
        pod_log_directories=shuffled(node.pod_log_directories),
        dead_log_links=shuffled(node.dead_log_links),
        image_usage=dict(shuffled(tuple(node.image_usage.items()))),
    )
    assert plan_all(other, policy) == plan_all(node, policy)


def _with_new_tuples(node: NodeSnapshot) -> NodeSnapshot:
    """Return an equal snapshot with new list objects, so that cached results are not reused."""
    return replace(
        node, images=(*node.images[:1], *node.images[1:]), containers=(*node.containers[:1], *node.containers[1:])
    )


@EXAMPLES
@given(nodes(), nodes(), policies())
def test_plan_does_not_depend_on_earlier_plans(first: NodeSnapshot, second: NodeSnapshot, policy: GCPolicy) -> None:
    mixed = replace(second, images=first.images)
    expected = [plan_all(_with_new_tuples(each), policy) for each in (first, second, mixed)]
    assert [plan_all(each, policy) for each in (first, second, mixed)] == expected
    assert plan_all(mixed, policy) == expected[2]


@EXAMPLES
@given(nodes(), image_policies(), st.booleans())
def test_items_in_use_are_kept(node: NodeSnapshot, policy: ImageGCPolicy, everything: bool) -> None:
    plan = plan_image_gc(node, policy, remove_all_unused=everything)
    removed_ids = set(removed(plan))
    used = images_in_use(node)
    protected = policy.protection.reasons(node.images, node.image_usage)
    for image in node.images:
        if image.id not in removed_ids:
            continue
        assert image.id not in used
        assert not image.pinned
        assert image.id not in protected
        assert not any("pause" in name or name in node.sandbox_images for name in image.references)
        usage = node.image_usage.get(image.id, ImageUsage(NOW))
        old_enough = NOW - usage.first_detected >= timedelta(seconds=policy.minimum_age_s)
        since = max(usage.last_used or usage.first_detected, usage.first_detected)
        expired = 0 < policy.maximum_unused_age_s < (NOW - since).total_seconds()
        assert old_enough or policy.minimum_age_s == 0 or (expired and not everything)


@EXAMPLES
@given(nodes())
def test_every_reference_of_every_container_counts_as_use(node: NodeSnapshot) -> None:
    """Compare the images in use with a model that matches every reference against every image."""
    used = images_in_use(node)
    texts = {each.image for each in node.sandboxes}
    for each in node.containers:
        texts |= {each.image_ref, each.image_id, each.image_name}
    for image in node.images:
        digests = {reference.partition("@")[2] for reference in image.repo_digests}
        named = {image.id, image.id.removeprefix("sha256:"), *image.references}
        by_digest = {text for text in texts if text.partition("@")[2] in digests and "@" in text}
        assert (image.id in used) == bool(texts & named or by_digest)


@EXAMPLES
@given(nodes(), image_policies(limits=False, gain=False))
def test_removals_by_threshold_are_no_more_than_needed(node: NodeSnapshot, policy: ImageGCPolicy) -> None:
    plan = plan_image_gc(node, policy)
    for_space = ("least-recently-used", "untagged-first")
    if plan.wanted_bytes and plan.removals and plan.removals[-1].reason.code.value in for_space:
        assert sum(each.frees_bytes or 0 for each in plan.removals[:-1]) < plan.wanted_bytes


@EXAMPLES
@given(nodes(), image_policies(gain=False))
def test_shortfall_leaves_no_removable_image(node: NodeSnapshot, policy: ImageGCPolicy) -> None:
    plan = plan_image_gc(node, policy)
    if plan.shortfall_bytes:
        kept = {each.reason.code.value for each in plan.decisions if each.verdict is not Verdict.REMOVE}
        assert not kept & {"enough-freed", "below-high-threshold", "threshold-disabled"}


@EXAMPLES
@given(nodes(), image_policies(), st.integers(0, 99))
def test_higher_low_threshold_never_removes_more(node: NodeSnapshot, policy: ImageGCPolicy, low: int) -> None:
    lower, higher = sorted((min(low, policy.high_threshold_percent - 1), policy.low_threshold_percent))
    much = removed(plan_image_gc(node, replace(policy, low_threshold_percent=lower)))
    little = removed(plan_image_gc(node, replace(policy, low_threshold_percent=higher)))
    assert much[: len(little)] == little


@EXAMPLES
@given(nodes(), image_policies(limits=False), st.integers(0, 5000))
def test_higher_minimum_age_never_removes_more(node: NodeSnapshot, policy: ImageGCPolicy, more_s: int) -> None:
    policy = replace(policy, minimum_gain_bytes=0)
    older = replace(policy, minimum_age_s=policy.minimum_age_s + more_s)
    assert set(removed(plan_image_gc(node, older, remove_all_unused=True))) <= set(
        removed(plan_image_gc(node, policy, remove_all_unused=True))
    )


@EXAMPLES
@given(nodes(), image_policies(), st.integers(0, 4), st.integers(0, 200))
def test_limits_per_pass_are_never_exceeded(
    node: NodeSnapshot, policy: ImageGCPolicy, images_spent: int, mib_spent: int
) -> None:
    spent = Spent(images_spent, mib_spent * MIB if images_spent else 0)
    plan = plan_image_gc(node, policy, spent=spent)
    count = len(plan.removals)
    if policy.max_images_per_pass:
        assert count <= max(0, policy.max_images_per_pass - images_spent)
    if policy.max_bytes_per_pass and count:
        alone = images_spent == 0 and all(not each.frees_bytes for each in plan.removals[1:])
        assert alone or spent.size_bytes + plan.frees_bytes <= policy.max_bytes_per_pass


@EXAMPLES
@given(nodes(), policies(), st.data())
def test_failed_images_are_never_removed(node: NodeSnapshot, policy: GCPolicy, data: st.DataObject) -> None:
    ids = removed(plan_image_gc(node, policy.images))
    aside = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
    assert not aside & set(removed(plan_image_gc(node, policy.images, failed=dict.fromkeys(aside, "busy"))))


def remembered(node: NodeSnapshot) -> NodeSnapshot:
    """Return the node with recorded image use: images in use have the current time as last use."""
    used = images_in_use(node)
    usage = {}
    for each in node.images:
        known = node.image_usage.get(each.id, ImageUsage(NOW))
        usage[each.id] = ImageUsage(known.first_detected, NOW if each.id in used else known.last_used)
    return replace(node, image_usage=usage)


def applied(node: NodeSnapshot, made: GCPlan) -> NodeSnapshot:
    """Return the node as observed after a pass that executes the plan without failures."""
    removed_ids = {(each.kind, each.id) for plan in made.plans for each in plan.removals}
    freed = sum(plan.frees_bytes for plan in (made.containers, made.images) if plan is not None)
    fs = node.image_filesystem
    storage = node.storage
    if storage is not None:
        kept = {
            key: references for key, references in storage.by_image.items() if (ItemKind.IMAGE, key) not in removed_ids
        }
        storage = replace(storage, by_image=kept)
    return replace(
        node,
        images=tuple(each for each in node.images if (ItemKind.IMAGE, each.id) not in removed_ids),
        containers=tuple(each for each in node.containers if (ItemKind.CONTAINER, each.id) not in removed_ids),
        sandboxes=tuple(each for each in node.sandboxes if (ItemKind.SANDBOX, each.id) not in removed_ids),
        sandboxes_unread=frozenset(
            each for each in node.sandboxes_unread if (ItemKind.SANDBOX, each) not in removed_ids
        ),
        pod_log_directories=tuple(
            each for each in node.pod_log_directories if (ItemKind.POD_LOG_DIRECTORY, each.name) not in removed_ids
        ),
        dead_log_links=tuple(
            each for each in node.dead_log_links if (ItemKind.CONTAINER_LOG_LINK, each.name) not in removed_ids
        ),
        image_filesystem=fs and replace(fs, available_bytes=min(fs.capacity_bytes, fs.available_bytes + freed)),
        storage=storage,
    )


@EXAMPLES
@given(nodes(), policies(limits=False))
def test_second_pass_removes_nothing(node: NodeSnapshot, policy: GCPolicy) -> None:
    """Plan again after a pass; only items of pods that count as deleted after the first pass can be removed."""
    node = remembered(node)
    made = plan_all(node, policy)
    after = applied(node, made)
    grace_s = policy.containers.deleted_pod_grace_s
    before, since = check_pods(node, grace_s), check_pods(after, grace_s)
    cleared = {uid for uid, status in since.items() if status.deleted and not before[uid].deleted}
    pods = {each.id: each.pod_uid or each.sandbox_id.replace("sb-", "uid-") for each in after.containers}
    pods |= {each.id: each.uid for each in after.sandboxes}
    again = plan_all(after, policy)
    assert {pods[each.id] for each in again.containers.removals + again.sandboxes.removals} <= cleared
    assert removed(plan_image_gc(after, policy.images)) == []


@EXAMPLES
@given(nodes(), policies(limits=False))
def test_combined_plan_equals_the_plans_step_by_step(node: NodeSnapshot, policy: GCPolicy) -> None:
    node = remembered(node)
    made = plan_all(node, policy)
    halfway = applied(node, replace(made, images=None))
    assert made.images is not None
    assert removed(plan_image_gc(halfway, policy.images)) == removed(made.images)


@EXAMPLES
@given(nodes(), image_policies(), st.booleans())
def test_marginal_accounting_equals_a_full_recount(node: NodeSnapshot, policy: ImageGCPolicy, everything: bool) -> None:
    plan = plan_image_gc(node, policy, remove_all_unused=everything)
    if node.storage is None:
        assert plan.accounting is Accounting.UPPER_BOUND
        return
    assert plan.accounting is Accounting.LAYERS
    graph = node.storage

    def total(removed_ids: set[str]) -> tuple[int, int]:
        references = {index for key, indexes in graph.by_image.items() if key not in removed_ids for index in indexes}
        free = [
            each
            for n, each in enumerate(graph.pieces)
            if n not in references and not each.references and any(n in i for i in graph.by_image.values())
        ]
        return sum(each.size_bytes for each in free), sum(each.inodes for each in free)

    removed_ids: set[str] = set()
    for decision in plan.removals:
        before = total(removed_ids)
        removed_ids.add(decision.id)
        after = total(removed_ids)
        if decision.id in graph.by_image:
            assert (decision.frees_bytes, decision.frees_inodes) == (after[0] - before[0], after[1] - before[1])
        else:
            assert decision.frees_bytes is None
    assert plan.frees_bytes == total(removed_ids)[0]
    for decision in plan.decisions:
        if decision.verdict is not Verdict.REMOVE and decision.id in graph.by_image:
            assert decision.frees_bytes == total(removed_ids | {decision.id})[0] - total(removed_ids)[0]


@settings(EXAMPLES)
@given(
    st.sampled_from([Scope.IMAGES, Scope.ALL]),
    nodes(),
    policies(),
    st.integers(1, 10**9),
    st.floats(0, 1),
)
def test_predicted_shortfall_equals_the_measured_one(
    scope: Scope, node: NodeSnapshot, policy: GCPolicy, capacity_bytes: int, available: float
) -> None:
    """Compare the shortfall of the plan with the shortfall measured after the pass, for any capacity."""
    fs = replace(
        filesystem(0),
        capacity_bytes=capacity_bytes,
        available_bytes=min(capacity_bytes, int(capacity_bytes * available)),
    )
    node = remembered(replace(node, image_filesystem=fs))
    made = plan_all(node, policy) if scope is Scope.ALL else None
    plans = plans_for(scope, node, policy)
    end, detail = Preview(scope, node, plans).predicted_end
    images = plans[-1]
    assert images.kind == "images"
    if not images.wanted_bytes:
        assert end is not PassEnd.SHORTFALL
        return
    containers = made.containers if made is not None else Plan("containers", NOW, ())
    nothing = Plan("none", NOW, ())
    after = applied(node, GCPlan(containers, nothing, nothing, images)).image_filesystem
    assert after is not None
    target_bytes = capacity_bytes * (100 - policy.images.low_threshold_percent) // 100
    assert (end is PassEnd.SHORTFALL) == (after.available_bytes < target_bytes)
    assert bool(detail) == (end is PassEnd.SHORTFALL)


@EXAMPLES
@given(nodes(), policies())
def test_planning_changes_no_argument(node: NodeSnapshot, policy: GCPolicy) -> None:
    before = repr(node), repr(policy)
    plan_all(node, policy)
    assert (repr(node), repr(policy)) == before


@EXAMPLES
@given(st.integers(2, 40), st.integers(0, 39))
def test_stack_of_derived_images_frees_bytes_only_with_the_last_removal(depth: int, low: int) -> None:
    """Plan a stack of derived images, base image first: all bytes are freed by the last removal."""
    pieces = tuple(StoredPiece(f"l{n}", PieceKind.SNAPSHOT, (n + 1) * MIB, 1) for n in range(depth))
    listed = tuple(Image(f"i{n:02}", (), (), sum(range(n + 2)) * MIB) for n in range(depth))
    references = {f"i{n:02}": tuple(range(n + 1)) for n in range(depth)}
    node = snapshot(
        *((each, ImageUsage(ago(9000), ago(5000 - n))) for n, each in enumerate(listed)),
        storage=StorageGraph(pieces, references),
        image_filesystem=filesystem(99, capacity_mib=sum(range(depth + 1))),
    )
    plan = plan_image_gc(node, ImageGCPolicy(low_threshold_percent=low))
    assert len(plan.removals) == depth
    assert [each.frees_bytes for each in plan.removals[:-1]] == [0] * (depth - 1)
    assert plan.frees_bytes == sum(range(depth + 1)) * MIB


@pytest.mark.parametrize("field", ["created_at", "finished_at"])
def test_container_attributes_cannot_be_changed(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Container("c", "n", "s", ContainerState.EXITED), field, NOW)
