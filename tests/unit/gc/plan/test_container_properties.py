"""Property tests of container, sandbox and pod log plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, strategies as st

from nodeagent.gc.plan.containers import plan_container_gc
from nodeagent.gc.plan.planner import plan_all
from nodeagent.model.node import NodeSnapshot, Role
from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.deletion import check_pods, pod_uid_of
from nodeagent.record import replace
from tests.unit.builders import NOW, removed
from tests.unit.gc_strategies import EXAMPLES, container_policies, nodes, policies

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy


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
    removed_ids = {each.id for plan in made.plans for each in plan.removals}
    for directory in node.pod_log_directories:
        if directory.name in removed_ids:
            assert directory.is_directory
            assert all(each.id in removed_ids for each in node.sandboxes if each.uid == directory.uid)
            assert all(each.id in removed_ids for each in node.containers if each.pod_uid == directory.uid)
