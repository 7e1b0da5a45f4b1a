"""Invariants of the plans for every node and every policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.act.gc.outcomes import PassEnd
from nodeagent.act.gc.preview import Preview, plans_for, plans_for_saved
from nodeagent.model import (
    Container,
    ContainerState,
    Image,
    ImageUsage,
    NodeSnapshot,
    PieceKind,
    PodList,
    PodListSource,
    ReferenceKind,
    Role,
    StorageGraph,
    StoredPiece,
)
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.decision import Accounting, ItemKind, Plan, Verdict
from nodeagent.plan.gc.containers import ContainerGCPolicy, plan_container_gc
from nodeagent.plan.gc.image_keep_rules import keep_reasons
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.image_users import images_in_use
from nodeagent.plan.gc.images import ImageGCPolicy, plan_image_gc
from nodeagent.plan.gc.pass_limits import Spent
from nodeagent.plan.gc.planner import GCPlan, GCPolicy, plan_all, plan_containers
from nodeagent.plan.gc.pod_logs import PodLogPolicy
from nodeagent.plan.gc.sandboxes import SandboxGCPolicy
from nodeagent.plan.gc.saved_plan import SavedItem, SavedPlan, find_drift
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.pods.deletion import check_pods, pod_uid_of
from tests.unit.builders import (
    MIB,
    NOW,
    ago,
    container,
    filesystem,
    log_directory,
    log_link,
    removed,
    sandbox,
    snapshot,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

EXAMPLES = settings(suppress_health_check=[HealthCheck.too_slow])
"""A node is generated from many draws, so that generation is slow."""

PODS = ("p0", "p1", "p2", "p3")
HEX = "0123456789abcdef"
RULES = ("r.io/app0", "regex:app1:", "*/web0*", "r.io/team/*:1")


def image_id(number: int) -> str:
    return f"sha256:{number:02x}" + HEX[number % 16] * 62


seconds = st.one_of(st.integers(0, 4000), st.sampled_from([0, 120, 299, 300, 301, -60, 10**6]))
maybe_seconds = st.one_of(st.none(), seconds)


@st.composite
def images(draw: st.DrawFn, *, pins: bool = True) -> tuple[tuple[Image, ...], dict[str, ImageUsage]]:
    listed, usage = [], {}
    for number in range(draw(st.integers(0, 9))):
        repository = draw(
            st.sampled_from(["r.io/app0", "r.io/app1", "r.io/web0", "r.io/team/x", "r.io:5000/y", "k.io/pause"])
        )
        tags = (f"{repository}:{number}",) if draw(st.integers(0, 4)) else ()
        digests = (f"{repository}@sha256:{'d' * 62}{number:02x}",) if draw(st.booleans()) else ()
        size_bytes = draw(st.one_of(st.none(), st.integers(0, 200).map(lambda mib: mib * MIB)))
        pinned = pins and draw(st.integers(0, 7)) == 0
        listed.append(Image(image_id(number), tags, digests, size_bytes, pinned))
        if draw(st.integers(0, 6)):
            last_s = draw(maybe_seconds)
            usage[image_id(number)] = ImageUsage(ago(draw(seconds)), None if last_s is None else ago(last_s))
    return tuple(listed), usage


@st.composite
def storages(draw: st.DrawFn, listed: tuple[Image, ...]) -> StorageGraph:
    holders = st.one_of(st.just(()), st.just(()), st.just(()), st.just((ReferenceKind.CONTAINER,)))
    pieces = tuple(
        StoredPiece(f"p{n}", PieceKind.SNAPSHOT, draw(st.integers(0, 90)) * MIB, draw(st.integers(0, 9)), draw(holders))
        for n in range(draw(st.integers(1, 8)))
    )
    references = {
        each.id: tuple(sorted(draw(st.sets(st.integers(0, len(pieces) - 1)))))
        for each in listed
        if draw(st.integers(0, 8))
    }
    return StorageGraph(pieces, references)


@st.composite
def references(draw: st.DrawFn, listed: tuple[Image, ...]) -> dict[str, str]:
    """Return a container's reference to one of the images, or to an unlisted one."""
    if not listed or draw(st.integers(0, 5)) == 0:
        return {"image_ref": "sha256:" + "9" * 64}
    chosen = draw(st.sampled_from(listed))
    forms = [chosen.id, chosen.id.removeprefix("sha256:"), *chosen.repo_tags, *chosen.repo_digests]
    field = draw(st.sampled_from(["image_ref", "image_id", "image_name"]))
    return {field: draw(st.sampled_from(forms))}


@st.composite
def workloads(draw: st.DrawFn, listed: tuple[Image, ...]) -> dict[str, Any]:
    containers = [
        container(
            f"c{number}",
            pod=draw(st.sampled_from(PODS)),
            name=draw(st.sampled_from(["a", "b"])),
            state=draw(st.sampled_from([*ContainerState, ContainerState.EXITED, ContainerState.EXITED])),
            created_s=draw(maybe_seconds),
            finished_s=draw(maybe_seconds),
            labelled=draw(st.integers(0, 5)) > 0,
            attempt=draw(st.integers(0, 3)),
            **draw(references(listed)),
        )
        for number in range(draw(st.integers(0, 10)))
    ]
    sandboxes = [
        sandbox(
            pod,
            sandbox_id=f"sb-{pod}" if copy == 0 else f"sb-{pod}-{copy}",
            ready=draw(st.integers(0, 3)) == 0,
            created_s=draw(maybe_seconds),
            labelled=draw(st.integers(0, 5)) > 0,
            image=draw(st.sampled_from(["", *(each.id for each in listed)])),
            annotations={} if draw(st.integers(0, 4)) else {ANNOTATION_SOURCE: "api"},
        )
        for pod in PODS
        for copy in range(draw(st.integers(0, 3)))
    ]
    return {
        "containers": tuple(containers),
        "sandboxes": tuple(sandboxes),
        "writable_bytes": {each.id: draw(st.integers(0, 50)) * MIB for each in containers if draw(st.booleans())},
        "pod_log_directories": tuple(
            log_directory(f"uid-{pod}", modified_s=draw(seconds), is_directory=draw(st.integers(0, 5)) > 0)
            for pod in (*PODS, "px", "py")
            if draw(st.booleans())
        ),
        "dead_log_links": tuple(
            log_link(f"c{number}", modified_s=draw(seconds)) for number in range(12) if draw(st.integers(0, 3)) == 0
        ),
    }


POD_LISTS = st.builds(
    PodList,
    st.sampled_from(PodListSource),
    st.sets(st.sampled_from([f"uid-{pod}" for pod in PODS])).map(frozenset),
    st.booleans(),
)


@st.composite
def nodes(draw: st.DrawFn, *, pins: bool = True) -> NodeSnapshot:
    listed, usage = draw(images(pins=pins))
    fields = draw(workloads(listed))
    return snapshot(
        images=listed,
        image_usage=usage,
        image_filesystem=draw(st.one_of(st.none(), st.integers(0, 100).map(filesystem))),
        storage=draw(st.one_of(st.none(), storages(listed))),
        role=draw(st.sampled_from(list(Role))),
        pod_list=draw(st.one_of(st.none(), POD_LISTS)),
        booted_at=draw(st.sampled_from([None, ago(100), ago(10**7), ago(10**7)])),
        sandboxes_unread=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"sb-p0"})])),
        sandbox_images=draw(st.sampled_from([frozenset(), frozenset({"r.io/web0:2"})])),
        **fields,
    )


@st.composite
def image_policies(draw: st.DrawFn, *, limits: bool = True, gain: bool = True) -> ImageGCPolicy:
    high = draw(st.integers(1, 100))
    rules = tuple(map(parse_rule, draw(st.sets(st.sampled_from(RULES)))))
    return ImageGCPolicy(
        high_threshold_percent=high,
        low_threshold_percent=draw(st.integers(0, high - 1)),
        minimum_age_s=draw(st.sampled_from([0.0, 120.0, 1000.0])),
        maximum_unused_age_s=draw(st.sampled_from([0.0, 0.0, 300.0])),
        minimum_gain_bytes=draw(st.sampled_from([0, 0, 30 * MIB])) if gain else 0,
        max_images_per_pass=draw(st.sampled_from([0, 0, 1, 3])) if limits else 0,
        max_bytes_per_pass=draw(st.sampled_from([0, 0, 100 * MIB])) if limits else 0,
        protection=ProtectionPolicy(rules, draw(st.sampled_from([0, 0, 1, 2]))),
    )


container_policies = st.builds(
    ContainerGCPolicy,
    minimum_age_s=st.sampled_from([0.0, 300.0]),
    max_per_pod_container=st.integers(-1, 3),
    max_containers=st.sampled_from([-1, 0, 1, 2, 5]),
    deleted_pod_grace_s=st.sampled_from([0.0, 300.0]),
    include_unlabelled=st.booleans(),
)


@st.composite
def policies(draw: st.DrawFn, *, limits: bool = True) -> GCPolicy:
    containers = draw(container_policies)
    return GCPolicy(
        images=draw(image_policies(limits=limits)),
        containers=containers,
        sandboxes=SandboxGCPolicy(draw(st.sampled_from([0.0, 60.0])), containers.include_unlabelled),
        logs=PodLogPolicy(draw(st.sampled_from([0.0, 300.0]))),
    )


def by_id(plan: Plan) -> dict[tuple[ItemKind, str], Any]:
    return {(each.kind, each.id): each for each in plan.decisions}


@EXAMPLES
@given(nodes(), policies(), st.booleans(), st.booleans())
def test_every_item_has_exactly_one_decision_with_a_sentence(
    node: NodeSnapshot, policy: GCPolicy, evict: bool, everything: bool
) -> None:
    made = plan_all(node, policy, evict_non_deleted_pods=evict, remove_all_unused=everything)
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
    """The model compares every reference with every image."""
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
    if plan.wanted_bytes and plan.removals and plan.removals[-1].reason.code.value == "least-recently-used":
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
def test_failed_items_are_never_removed(node: NodeSnapshot, policy: GCPolicy, data: st.DataObject) -> None:
    ids = [each.id for plan in plan_all(node, policy).plans for each in plan.removals]
    aside = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
    made = plan_all(node, policy, failed=dict.fromkeys(aside, "busy"))
    for plan in made.plans:
        assert not aside & set(removed(plan))


def remembered(node: NodeSnapshot) -> NodeSnapshot:
    """Return the node with the image use recorded at the time of planning: images in use were last used now."""
    used = images_in_use(node)
    usage = {}
    for each in node.images:
        known = node.image_usage.get(each.id, ImageUsage(NOW))
        usage[each.id] = ImageUsage(known.first_detected, NOW if each.id in used else known.last_used)
    return replace(node, image_usage=usage)


def applied(node: NodeSnapshot, made: GCPlan) -> NodeSnapshot:
    """Return the node after a run without failures, as the agent would observe it."""
    removed_ids = {(each.kind, each.id) for each in made.removals}
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
    """Exception: items of a pod that counts as deleted only after the first pass."""
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


@EXAMPLES
@given(nodes(), container_policies, st.booleans())
def test_only_removable_dead_containers_are_removed(node: NodeSnapshot, policy: ContainerGCPolicy, evict: bool) -> None:
    plan = plan_container_gc(node, policy, evict_non_deleted_pods=evict)
    removed_ids = set(removed(plan))
    for each in node.containers:
        if each.id in removed_ids:
            assert each.state in (ContainerState.EXITED, ContainerState.CREATED)
            assert each.created_at is not None
            assert (NOW - each.created_at).total_seconds() >= policy.minimum_age_s
            assert each.has_kubelet_labels or policy.include_unlabelled


@EXAMPLES
@given(nodes(), container_policies)
def test_container_limits_are_met_after_the_removals(node: NodeSnapshot, policy: ContainerGCPolicy) -> None:
    plan = plan_container_gc(node, policy)
    within_limits = [each for each in plan.decisions if each.reason.code.value == "within-limits"]
    if policy.max_containers >= 0:
        assert len(within_limits) <= policy.max_containers
    if policy.max_per_pod_container >= 0:
        assert all(int(str(each.reason.details["rank"])) <= policy.max_per_pod_container for each in within_limits)


@EXAMPLES
@given(nodes(), container_policies, st.booleans())
def test_each_container_of_an_existing_pod_keeps_a_dead_one_beside_a_kubelet(
    node: NodeSnapshot, policy: ContainerGCPolicy, evict: bool
) -> None:
    node = replace(node, role=Role.BESIDE_KUBELET)
    plan = plan_container_gc(node, policy, evict_non_deleted_pods=evict)
    statuses, by_id = check_pods(node, policy.deleted_pod_grace_s), {each.id: each for each in node.sandboxes}
    lost: set[tuple[str, str]] = set()
    left: set[tuple[str, str]] = set()
    gone = set(removed(plan))
    for each in node.containers:
        if each.state is not ContainerState.RUNNING:
            unit = pod_uid_of(each, by_id) or each.sandbox_id, each.name
            (lost if each.id in gone else left).add(unit)
    assert all(statuses[uid].deleted for uid, name in lost - left if uid in statuses)


@EXAMPLES
@given(nodes(), st.sampled_from([0.0, 300.0, 5000.0]))
def test_deleted_pod_has_no_running_container(node: NodeSnapshot, grace_s: float) -> None:
    statuses = check_pods(node, grace_s)
    for uid, status in statuses.items():
        mine = [each for each in node.containers if each.pod_uid == uid]
        if status.deleted:
            assert status.finished
            assert not any(each.ready for each in node.sandboxes if each.uid == uid)
            assert not any(each.state in (ContainerState.RUNNING, ContainerState.UNKNOWN) for each in mine)
            proven = node.pod_list is not None and node.pod_list.proves_absence
            assert proven or node.role is Role.STANDALONE
            own = [each for each in node.sandboxes if each.uid == uid]
            assert proven or not any(each.from_api_server for each in own)
            assert node.pod_list is None or uid not in node.pod_list.uids


@EXAMPLES
@given(nodes(), policies())
def test_log_directory_is_removed_only_with_all_containers_and_sandboxes_of_its_pod(
    node: NodeSnapshot, policy: GCPolicy
) -> None:
    made = plan_all(node, policy)
    removed_ids = {each.id for each in made.removals}
    for directory in node.pod_log_directories:
        if directory.name in removed_ids:
            assert directory.is_directory
            assert all(each.id in removed_ids for each in node.sandboxes if each.uid == directory.uid)
            assert all(each.id in removed_ids for each in node.containers if each.pod_uid == directory.uid)


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
    """Plan and measurement round equally for any capacity."""
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


ANY_ID = st.one_of(
    st.sampled_from([f"c{number}" for number in range(10)] + [f"sb-{pod}" for pod in PODS]),
    st.integers(0, 8).map(image_id),
)


def saved_plan(scope: Scope, policy: GCPolicy, plans: tuple[Plan, ...], forged: Iterable[str]) -> SavedPlan:
    """Return a plan that lists the removals of ``plans`` and, as if forged, further ids."""
    items = [
        SavedItem(each.kind, each.id, each.name, each.verdict, each.reason.code.value, "", each.frees_bytes)
        for plan in plans
        for each in plan.removals
    ]
    extra = [SavedItem(ItemKind.IMAGE, each, each, Verdict.REMOVE, "all-unused", "", None) for each in forged]
    return SavedPlan("id", NOW, NOW + timedelta(hours=1), "node", scope, policy, (*items, *extra))


@settings(EXAMPLES)
@given(
    st.sampled_from([Scope.IMAGES, Scope.CONTAINERS, Scope.ALL]),
    nodes(),
    nodes(),
    policies(),
    policies(),
    st.sets(ANY_ID),
)
def test_applying_any_plan_removes_only_listed_items_that_the_policy_in_force_removes(  # noqa: PLR0917
    scope: Scope, then: NodeSnapshot, now: NodeSnapshot, policy: GCPolicy, current: GCPolicy, forged: set[str]
) -> None:
    saved = saved_plan(scope, policy, plans_for(scope, then, policy), forged)
    listed = {item.id for item in saved.removals}
    in_force, plans = plans_for_saved(saved, now, current)
    removed_ids = {each.id for plan in plans for each in plan.removals}
    assert removed_ids <= listed
    assert removed_ids <= {each.id for plan in in_force for each in plan.removals}
    assert removed_ids | {each.item.id for each in find_drift(saved, (*in_force, *plans))} >= listed
    if scope is not Scope.IMAGES:
        everything = {each.id for each in plan_containers(now, current).removals}
        assert {each.id for plan in plans if plan.kind == "containers" for each in plan.removals} <= everything


@settings(EXAMPLES)
@given(nodes(), policies(), policies(), st.sets(ANY_ID))
def test_applying_a_forged_image_plan_removes_no_image_that_the_policy_in_force_keeps(
    node: NodeSnapshot, policy: GCPolicy, current: GCPolicy, forged: set[str]
) -> None:
    """The result is checked by the keep rules of the policy in force, without the planner."""
    saved = saved_plan(Scope.IMAGES, policy, (), [each.id for each in node.images] + sorted(forged))
    (plan,) = plans_for_saved(saved, node, current)[1]
    rules = current.images
    assert keep_reasons(node, rules.protection, removed(plan)) == dict.fromkeys(removed(plan), ())
    if rules.max_images_per_pass:
        assert len(plan.removals) <= rules.max_images_per_pass
    fs = node.image_filesystem
    over = fs is not None and rules.high_threshold_percent < 100 and fs.used_percent >= rules.high_threshold_percent
    for image in removed(plan):
        usage = node.image_usage.get(image, ImageUsage(NOW, None))
        unused_s = (NOW - (usage.last_used or usage.first_detected)).total_seconds()
        age_s = (NOW - usage.first_detected).total_seconds()
        by_age = 0 < rules.maximum_unused_age_s < unused_s
        assert by_age or (over and age_s >= rules.minimum_age_s)


@EXAMPLES
@given(nodes(), policies())
def test_planning_changes_no_argument(node: NodeSnapshot, policy: GCPolicy) -> None:
    before = repr(node), repr(policy)
    plan_all(node, policy)
    assert (repr(node), repr(policy)) == before


@EXAMPLES
@given(st.integers(2, 40), st.integers(0, 39))
def test_stack_of_derived_images_frees_bytes_only_with_the_last_removal(depth: int, low: int) -> None:
    """Each image is derived from the one before, least recently used first: only the last removal frees bytes."""
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
