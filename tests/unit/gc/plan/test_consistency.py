"""Cross-checks of the runtime's lists, and plans with contradictory lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.consistency import RuntimeLists, SuspicionKind, find_suspicions, persistent
from nodeagent.gc.plan.planner import plan_all
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy
from nodeagent.model.decision import ReasonCode
from nodeagent.model.runtime import ContainerState, ListContradiction
from nodeagent.record import replace
from tests.unit.builders import container, filesystem, image, log_directory, log_link, sandbox, snapshot

if TYPE_CHECKING:
    from nodeagent.model.runtime import Container

REFERENCE = "registry.example/a:1"


def running(container_id: str, pod: str = "web", **rest: Any) -> Container:
    return container(container_id, pod=pod, state=ContainerState.RUNNING, **({"image_ref": "a"} | rest))


def lists(**fields: Any) -> RuntimeLists:
    defaults: dict[str, Any] = {
        "images": (image("a"),),
        "containers": (running("c1"), running("c2", "db")),
        "sandboxes": (sandbox("web", ready=True), sandbox("db", ready=True)),
        "existing": frozenset({"c1", "sb-web"}),
        "running_known": True,
    }
    return RuntimeLists(**(defaults | fields))


EMPTY = {"containers": (), "existing": frozenset()}


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        pytest.param({}, [], id="consistent"),
        pytest.param({"images": None}, [], id="images not listed"),
        pytest.param({"containers": (running("c1"), running("c1"))}, ["duplicate-id"], id="container twice"),
        pytest.param({"containers": (running("c1"), running(""))}, ["id-missing"], id="container without id"),
        pytest.param({"images": (image("sha256:i"), image(""))}, ["id-missing"], id="image without id"),
        pytest.param({"containers": (running("c1"), running("sb-web"))}, ["duplicate-id"], id="container and sandbox"),
        pytest.param(
            {"sandboxes": (sandbox("web", ready=True), sandbox("db", ready=True), sandbox("db"))},
            ["duplicate-id"],
            id="sandbox twice",
        ),
        pytest.param({"sandboxes": (sandbox("web", ready=True),)}, ["sandbox-unlisted"], id="sandbox missing"),
        pytest.param({"containers": (container("u", sandbox_id=""),), "existing": frozenset()}, [], id="no sandbox id"),
        pytest.param({"images": (image("b"),)}, ["image-unlisted"], id="image missing"),
        pytest.param({"images": ()}, ["image-unlisted"], id="no image"),
        pytest.param({"images": (image("sha256:a"),)}, [], id="image id without sha256: in containers"),
        pytest.param(
            {"containers": (running("c1"), running("c2", "db", image_ref="sha256:b"))},
            ["image-unlisted"],
            id="image of one container of two missing",
        ),
        pytest.param(
            {"containers": (running("c1", image_ref="sha256:b", image_id="a"),)}, [], id="image by the second id only"
        ),
        pytest.param(
            {
                "images": (image("x", "registry.example/a:1"),),
                "containers": (running("c1", image_ref="registry.example/a:1"),),
            },
            [],
            id="image by name",
        ),
        pytest.param({"containers": (running("c1", image_ref=""),)}, [], id="image of a container unknown"),
        pytest.param({"existing": frozenset({"c1", "c9"})}, ["object-unlisted"], id="running and not listed"),
        pytest.param({"containers": (), "existing": frozenset({"c1"})}, ["object-unlisted"], id="no container"),
        pytest.param(EMPTY, [], id="pods without containers, running ones known"),
        pytest.param(EMPTY | {"running_known": False}, ["pods-without-containers"], id="pods without containers"),
        pytest.param(
            {"containers": (running("c1"),), "existing": frozenset(), "running_known": False},
            [],
            id="one pod of two without containers, as during a failing image pull",
        ),
        pytest.param(
            EMPTY | {"sandboxes": (sandbox("web"), sandbox("db")), "running_known": False}, [], id="no ready sandbox"
        ),
    ],
)
def test_mismatch_of_the_lists_is_a_suspicion(fields: dict[str, Any], kinds: list[str]) -> None:
    assert [each.kind.value for each in find_suspicions(lists(**fields))] == kinds


def test_suspicion_of_one_listing_only_is_not_persistent() -> None:
    first = find_suspicions(lists(existing=frozenset({"c8", "c9"})))
    second = find_suspicions(lists(existing=frozenset({"c9", "c10"})))
    assert [(each.kind, each.id) for each in persistent(first, second)] == [(SuspicionKind.OBJECT_UNLISTED, "c9")]


NODE = snapshot(
    image("a"),
    image("b"),
    image_filesystem=filesystem(95),
    containers=(container("dead", pod="gone"), container("dead2", pod="gone")),
    sandboxes=(sandbox("gone"),),
    pod_log_directories=(log_directory("uid-other"),),
    dead_log_links=(log_link("c0ffee"),),
)
POLICY = GCPolicy(images=ImageGCPolicy(minimum_age_s=0.0))


def test_plan_of_the_consistent_node_removes_every_kind() -> None:
    plans = plan_all(NODE, POLICY).plans
    assert [bool(plan.removals) for plan in plans] == [True, True, True, True]


@pytest.mark.difference("contradictory-lists")
@pytest.mark.parametrize(
    ("contradictions", "kept"),
    [
        ([ListContradiction("x")], [True, True, True, True]),
        ([ListContradiction("x", images_only=True)], [False, False, False, True]),
        ([ListContradiction("x", images_only=True), ListContradiction("y")], [True, True, True, True]),
    ],
)
def test_contradiction_keeps_all_items_of_the_kinds_that_depend_on_the_list(
    contradictions: list[ListContradiction], kept: list[bool]
) -> None:
    node = replace(NODE, contradictions=tuple(contradictions))
    plans = plan_all(node, POLICY).plans
    assert [not plan.removals for plan in plans] == kept
    assert [bool(plan.blocked) for plan in plans] == kept
    images = plans[-1]
    assert images.pending_bytes == 0
    assert {each.reason.code for each in images.decisions} == {ReasonCode.RUNTIME_INCONSISTENT}
    assert images.blocked.startswith("the lists of the runtime contradict each other: ")
