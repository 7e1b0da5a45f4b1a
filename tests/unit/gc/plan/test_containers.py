"""Container GC: limits, deleted pods and precedence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from nodeagent.gc.plan.containers import plan_container_gc
from nodeagent.gc.plan.policy import ContainerGCPolicy
from nodeagent.model.node import Role
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from tests.unit.builders import codes, container, decided, kubelet_list, removed, sandbox, snapshot, synced

if TYPE_CHECKING:
    from nodeagent.model.pods import PodList

LIVE = (sandbox(ready=True),)


def attempts(count: int, name: str = "app", pod: str = "web", start: int = 0) -> tuple[Any, ...]:
    """Return ``count`` dead containers with attempts from ``start`` on; the highest attempt is the newest."""
    return tuple(
        container(f"{name}{n}", name=name, pod=pod, attempt=n, created_s=5000 - 100 * n, finished_s=4000)
        for n in range(start, start + count)
    )


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (-1, []),
        (0, ["app0", "app1", "app2", "app3"]),
        (1, ["app0", "app1", "app2"]),
        (2, ["app0", "app1"]),
        (4, []),
        (9, []),
    ],
)
def test_newest_containers_of_each_unit_are_kept(limit: int, expected: list[str]) -> None:
    policy = ContainerGCPolicy(max_per_pod_container=limit)
    assert removed(plan_container_gc(snapshot(containers=attempts(4), sandboxes=LIVE), policy)) == expected


def test_reasons_name_rank_and_limit() -> None:
    plan = plan_container_gc(snapshot(containers=attempts(2), sandboxes=LIVE), ContainerGCPolicy())
    assert (
        decided(plan, "app0").reason.sentence
        == "dead container 2 of shop/web/app, newest first; keeping 1 per container"
    )
    assert decided(plan, "app1").reason.sentence == (
        "dead container 1 of shop/web/app, newest first; within the limits, and its pod is not known to be deleted "
        "(sandbox ready)"
    )


def test_limit_applies_to_each_container_name_of_a_pod() -> None:
    containers = (*attempts(2, "app"), *attempts(2, "init"))
    assert removed(plan_container_gc(snapshot(containers=containers, sandboxes=LIVE), ContainerGCPolicy())) == [
        "app0",
        "init0",
    ]


def test_running_attempt_does_not_count_against_the_limit() -> None:
    containers = (*attempts(2), container("now", state=ContainerState.RUNNING))
    plan = plan_container_gc(snapshot(containers=containers, sandboxes=LIVE), ContainerGCPolicy())
    assert removed(plan) == ["app0"]
    assert decided(plan, "now").reason.sentence == "running"


@pytest.mark.difference("unknown-state", "unlabelled-items", "unknown-creation-time")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        pytest.param({"state": ContainerState.RUNNING}, "running", id="running"),
        pytest.param({"state": ContainerState.UNKNOWN}, "state-unknown", id="unknown"),
        pytest.param({"state": ContainerState.CREATED}, "over-per-container-limit", id="created is a candidate"),
        pytest.param({"labelled": False}, "not-kubelet-managed", id="unlabelled"),
        pytest.param({"uid": ""}, "not-kubelet-managed", id="empty uid label"),
        pytest.param({"created_s": None}, "age-unknown", id="no creation time"),
        pytest.param({"created_s": 99.999}, "created-recently", id="younger than the minimum"),
        pytest.param({"created_s": 100}, "over-per-container-limit", id="exactly the minimum age"),
        pytest.param({"created_s": -5}, "created-recently", id="created in the future"),
        pytest.param(
            {"sandbox_id": "not-listed"}, "over-per-container-limit", id="limits apply to containers without a sandbox"
        ),
        pytest.param({"uid": "uid-other"}, "sandbox-unknown", id="contradicts its sandbox"),
    ],
)
def test_container_has_the_reason_code_of_its_state_age_and_labels(fields: dict[str, Any], code: str) -> None:
    policy = ContainerGCPolicy(minimum_age_s=100, max_per_pod_container=0)
    plan = plan_container_gc(snapshot(containers=(container("c", **fields),), sandboxes=LIVE), policy)
    assert codes(plan) == {"c": code}
    assert plan.decisions[0].reason.sentence


def test_container_created_in_the_future_is_kept_without_a_minimum_age() -> None:
    policy = ContainerGCPolicy(max_per_pod_container=0)
    assert codes(plan_container_gc(snapshot(containers=(container("c", created_s=-1),)), policy)) == {
        "c": "created-recently"
    }


class TestDeletedPods:
    def test_containers_of_deleted_pods_are_removed_before_the_limits_oldest_first(self) -> None:
        containers = (*attempts(2), *attempts(2, "job", pod="deleted"))
        plan = plan_container_gc(
            snapshot(containers=containers, sandboxes=(*LIVE, sandbox("deleted"))),
            ContainerGCPolicy(max_per_pod_container=1),
        )
        assert removed(plan) == ["job0", "job1", "app0"]
        assert decided(plan, "job1").reason.sentence.startswith("pod deleted: no ready sandbox, nothing running")

    def test_containers_below_the_minimum_age_are_kept(self) -> None:
        containers = (container("c", created_s=1000, finished_s=900),)
        plan = plan_container_gc(snapshot(containers=containers), ContainerGCPolicy(minimum_age_s=1001))
        assert codes(plan) == {"c": "created-recently"}

    def test_no_pod_counts_as_deleted_beside_a_kubelet_without_its_list(self) -> None:
        plan = plan_container_gc(snapshot(containers=attempts(2), role=Role.BESIDE_KUBELET), ContainerGCPolicy())
        assert removed(plan) == ["app0"]
        assert "only a synced list of the API server proves a deletion" in decided(plan, "app1").reason.sentence

    def test_containers_of_deleted_pods_do_not_count_against_the_total(self) -> None:
        containers = (*attempts(2, "job", pod="deleted"), *attempts(2))
        plan = plan_container_gc(
            snapshot(containers=containers, sandboxes=LIVE),
            ContainerGCPolicy(max_per_pod_container=-1, max_containers=2),
        )
        assert removed(plan) == ["job0", "job1"]


class TestFinishedPods:
    FIELDS: ClassVar[dict[str, Any]] = {"containers": attempts(1), "pod_list": kubelet_list("uid-web")}

    def test_containers_are_kept_without_a_need_for_disk_space(self) -> None:
        assert not plan_container_gc(snapshot(**self.FIELDS), ContainerGCPolicy()).removals

    def test_containers_are_removed_when_disk_space_is_needed(self) -> None:
        plan = plan_container_gc(snapshot(**self.FIELDS), ContainerGCPolicy(), evict_non_deleted_pods=True)
        assert plan.removals[0].reason.sentence.startswith("pod finished, and disk space is needed: in the pod list")

    @pytest.mark.difference("finished-pod-beside-kubelet")
    @pytest.mark.parametrize("pods", [None, kubelet_list("uid-web"), synced("uid-web")], ids=["none", "kubelet", "api"])
    def test_containers_are_kept_beside_a_kubelet_even_if_disk_space_is_needed(self, pods: PodList | None) -> None:
        fields = self.FIELDS | {"pod_list": pods, "role": Role.BESIDE_KUBELET}
        assert not plan_container_gc(snapshot(**fields), ContainerGCPolicy(), evict_non_deleted_pods=True).removals


class TestTotal:
    NODE: ClassVar[dict[str, Any]] = {
        "containers": (*attempts(5, "a"), *attempts(3, "b"), *attempts(1, "c")),
        "sandboxes": LIVE,
    }

    @pytest.mark.parametrize(
        ("limit", "expected"),
        [
            pytest.param(-1, [], id="no limit"),
            pytest.param(9, [], id="not exceeded"),
            pytest.param(8, ["a0", "b0", "a1", "a2"], id="equal shares: two each"),
            pytest.param(6, ["a0", "b0", "a1", "a2"], id="two each are within the limit"),
            pytest.param(5, ["a0", "b0", "a1", "b1", "a2", "a3"], id="one each"),
            pytest.param(
                2, ["a0", "b0", "a1", "b1", "a2", "a3", "c0"], id="one kept for each container, then the oldest removed"
            ),
            pytest.param(0, ["a0", "b0", "a1", "b1", "a2", "a3", "c0", "b2", "a4"], id="none"),
        ],
    )
    def test_units_are_reduced_to_equal_shares_then_oldest_are_removed(self, limit: int, expected: list[str]) -> None:
        policy = ContainerGCPolicy(max_per_pod_container=-1, max_containers=limit)
        plan = plan_container_gc(snapshot(**self.NODE), policy)
        assert removed(plan) == expected
        for decision in plan.removals:
            assert decision.reason.sentence == f"9 dead containers, keeping {limit}; oldest first"

    def test_total_applies_after_the_limit_per_unit(self) -> None:
        policy = ContainerGCPolicy(max_per_pod_container=2, max_containers=4)
        plan = plan_container_gc(snapshot(**self.NODE), policy)
        assert removed(plan) == ["a0", "b0", "a1", "a2", "b1", "a3"]
        assert codes(plan)["b1"] == "over-total-limit"

    def test_all_dead_containers_are_removed_with_limits_of_zero(self) -> None:
        policy = ContainerGCPolicy(max_per_pod_container=0, max_containers=0)
        assert len(plan_container_gc(snapshot(**self.NODE), policy).removals) == 9

    @pytest.mark.difference("newest-dead-container")
    @pytest.mark.parametrize(("per_container", "total"), [(0, -1), (-1, 0), (0, 0), (1, 0), (-1, 2)])
    def test_newest_dead_container_of_each_unit_is_kept_beside_a_kubelet(self, per_container: int, total: int) -> None:
        policy = ContainerGCPolicy(max_per_pod_container=per_container, max_containers=total)
        plan = plan_container_gc(snapshot(**self.NODE, role=Role.BESIDE_KUBELET), policy)
        assert sorted(set(codes(plan)) - set(removed(plan))) == ["a4", "b2", "c0"]
        assert {codes(plan)[each] for each in ("a4", "b2", "c0")} <= {"newest-dead-container", "within-limits"}

    def test_dead_container_beside_a_running_attempt_is_kept_beside_a_kubelet(self) -> None:
        running = container("app9", attempt=9, created_s=100, state=ContainerState.RUNNING)
        policy = ContainerGCPolicy(max_per_pod_container=0)
        node = snapshot(containers=(*attempts(2), running), sandboxes=LIVE, role=Role.BESIDE_KUBELET)
        plan = plan_container_gc(node, policy)
        assert removed(plan) == ["app0"]
        assert decided(plan, "app1").reason.sentence == (
            "newest dead container shop/web/app of a pod not known to be deleted; the kubelet reads its log, exit and "
            "restart count"
        )


class TestUnlabelled:
    POLICY = ContainerGCPolicy(include_unlabelled=True)

    def test_unlabelled_containers_belong_to_the_pod_of_their_sandbox(self) -> None:
        containers = (
            container("old", labelled=False, created_s=900),
            container("new", labelled=False, created_s=800),
        )
        assert removed(plan_container_gc(snapshot(containers=containers, sandboxes=LIVE), self.POLICY)) == ["old"]

    def test_unlabelled_containers_without_sandbox_are_grouped_by_sandbox_id(self) -> None:
        containers = (
            container("a-old", labelled=False, sandbox_id="a", created_s=900),
            container("a-new", labelled=False, sandbox_id="a", created_s=800),
            container("b", labelled=False, sandbox_id="b", created_s=950),
        )
        assert removed(plan_container_gc(snapshot(containers=containers), self.POLICY)) == ["a-old"]

    def test_unlabelled_containers_have_their_own_name(self) -> None:
        plan = plan_container_gc(snapshot(containers=(container("x", labelled=False),)), ContainerGCPolicy())
        assert plan.decisions[0].name == "app"


def test_freed_bytes_are_the_known_size_of_the_writable_layer() -> None:
    plan = plan_container_gc(
        snapshot(containers=attempts(3), sandboxes=LIVE, writable_bytes={"app0": 7, "app2": 5}), ContainerGCPolicy()
    )
    assert [each.frees_bytes for each in plan.removals] == [7, None]
    assert decided(plan, "app2").frees_bytes == 5


def test_containers_are_ordered_by_creation_and_not_by_attempt() -> None:
    containers = (
        container("old", attempt=9, created_s=900),
        container("middle", attempt=0, created_s=500),
        container("new", attempt=3, created_s=100),
    )
    node = snapshot(containers=containers, sandboxes=LIVE)
    assert removed(plan_container_gc(node, ContainerGCPolicy())) == ["old", "middle"]
    by_total = ContainerGCPolicy(max_per_pod_container=-1, max_containers=1)
    assert removed(plan_container_gc(node, by_total)) == ["old", "middle"]
    deleted = snapshot(containers=tuple(replace(each, finished_at=each.created_at) for each in containers))
    no_grace = ContainerGCPolicy(deleted_pod_grace_s=0)
    assert removed(plan_container_gc(deleted, no_grace)) == ["old", "middle", "new"]


@pytest.mark.difference("created-container")
@pytest.mark.parametrize("minimum_age_s", [0, 30, 90])
def test_created_container_is_kept_for_a_minute_at_least(minimum_age_s: float) -> None:
    policy, minimum_s = ContainerGCPolicy(minimum_age_s, max_per_pod_container=0), max(60, minimum_age_s)
    for age_s, code in ((minimum_s - 0.001, "created-recently"), (minimum_s, "over-per-container-limit")):
        created = container("c", state=ContainerState.CREATED, created_s=age_s)
        assert codes(plan_container_gc(snapshot(containers=(created,), sandboxes=LIVE), policy)) == {"c": code}


@pytest.mark.difference("container-order")
def test_ties_are_ordered_by_attempt_then_id() -> None:
    containers = (
        container("b", attempt=1, created_s=500),
        container("a", attempt=1, created_s=500),
        container("z", attempt=0, created_s=500),
    )
    plan = plan_container_gc(snapshot(containers=containers, sandboxes=LIVE), ContainerGCPolicy())
    assert removed(plan) == ["z", "a"]


def test_running_container_has_the_size_of_its_layer_where_known() -> None:
    running = container("run", state=ContainerState.RUNNING)
    node = snapshot(containers=[running])
    for sizes in ({}, {"run": 7}, {"run": 8}, {"other": 9}):
        plan = plan_container_gc(replace(node, writable_bytes=sizes), ContainerGCPolicy())
        assert [(each.id, each.frees_bytes) for each in plan.decisions] == [("run", sizes.get("run"))]
