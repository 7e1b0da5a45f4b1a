"""Inference of pod deletion from CRI and from pod lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.model.node import Role
from nodeagent.model.runtime import ANNOTATION_SOURCE, ContainerState
from nodeagent.pods.plan.deletion import check_pods, checked_pod_list, is_in_pod_list
from nodeagent.record import replace
from tests.unit.builders import ago, container, kubelet_list, sandbox, snapshot, synced

if TYPE_CHECKING:
    from nodeagent.model.pods import PodList

GRACE_S = 300.0
UID, HASH = "0f3b5c1e-7a61-4d0e-9f0e-1c2d3e4f5a6b", "5f1e7c62d3b04a8f9e1d2c3b4a596877"
FROM_API_SERVER = replace(sandbox(), annotations={ANNOTATION_SOURCE: "api"})
DEAD = {"containers": (container("c"),), "sandboxes": (sandbox(),)}
BESIDE = {"role": Role.BESIDE_KUBELET, "sandboxes": (FROM_API_SERVER,)}
ABSENT = {"sandboxes": (FROM_API_SERVER,), "pod_list": synced()}


@pytest.mark.difference("pod-deletion")
@pytest.mark.parametrize(
    ("fields", "deleted", "how"),
    [
        pytest.param(
            {},
            True,
            "no ready sandbox, nothing running, last activity 1h ago (inferred from CRI)",
            id="quiet",
        ),
        pytest.param({"sandboxes": (sandbox(ready=True),)}, False, "sandbox ready", id="ready sandbox"),
        pytest.param(
            {"sandboxes": (sandbox(), sandbox(sandbox_id="second", ready=True))},
            False,
            "sandbox ready",
            id="one of two sandboxes ready",
        ),
        pytest.param(
            {"containers": (container("c", state=ContainerState.RUNNING),)},
            False,
            "a container is running",
            id="running",
        ),
        pytest.param(
            {"containers": (container("c", state=ContainerState.UNKNOWN),)},
            False,
            "a container may be running: state unknown to the runtime",
            id="unknown state",
        ),
        pytest.param(
            {"containers": (container("c", finished_s=299),)},
            False,
            "last activity 4m59s ago, grace period 5m",
            id="exited recently",
        ),
        pytest.param(
            {"containers": (container("c", finished_s=300),)}, True, "last activity 5m ago", id="exactly the grace"
        ),
        pytest.param(
            {"containers": (container("c", finished_s=-500),)},
            False,
            "last activity 0s ago",
            id="ended in the future",
        ),
        pytest.param(
            {"containers": (container("c", state=ContainerState.CREATED, created_s=100),)},
            False,
            "last activity 1m40s ago",
            id="container just created",
        ),
        pytest.param(
            {"containers": (container("c", state=ContainerState.CREATED, created_s=400),)},
            True,
            "",
            id="created long ago",
        ),
        pytest.param(
            {"sandboxes": (sandbox(created_s=10),)}, False, "last activity 10s ago", id="sandbox just created"
        ),
        pytest.param(
            {"containers": (container("c", finished_s=None),)},
            False,
            "finish time of container app unknown",
            id="no finish time",
        ),
        pytest.param(
            {"containers": (container("c", state=ContainerState.CREATED, created_s=None),)},
            False,
            "creation time of container app unknown",
            id="no creation time",
        ),
        pytest.param(
            {"containers": (container("c", created_s=None),)},
            True,
            "",
            id="unknown creation time with a known finish time",
        ),
        pytest.param(
            {"sandboxes": (sandbox(created_s=None),)},
            False,
            "creation time of a sandbox unknown",
            id="no sandbox time",
        ),
        pytest.param({"booted_at": ago(200)}, False, "last activity 3m20s ago", id="just booted"),
        pytest.param({"booted_at": None}, False, "boot time of the node unknown", id="boot time unknown"),
        pytest.param({"sandboxes": ()}, True, "last activity 1h ago", id="no sandbox"),
        pytest.param({"containers": ()}, True, "last activity 2h ago", id="sandbox alone"),
        pytest.param(
            {"role": Role.BESIDE_KUBELET},
            False,
            "only a synced list of the API server proves a deletion",
            id="beside a kubelet",
        ),
        pytest.param(
            {"sandboxes": (FROM_API_SERVER,)},
            False,
            "created from an API server (kubernetes.io/config.source=api); no pod list confirms its deletion",
            id="from an API server",
        ),
        pytest.param(
            {"sandboxes": (sandbox(), replace(FROM_API_SERVER, id="second"))},
            False,
            "created from an API server",
            id="one sandbox from an API server",
        ),
        pytest.param(
            {"sandboxes": (FROM_API_SERVER,), "pod_list": synced()},
            True,
            "not in the pod list of the API server",
            id="from an API server, not in its list",
        ),
        pytest.param(
            {"sandboxes": (FROM_API_SERVER,), "pod_list": replace(synced(), synced=False)},
            False,
            "created from an API server",
            id="from an API server, not in a list that is not synced",
        ),
        pytest.param(
            {"sandboxes": (FROM_API_SERVER,), "pod_list": kubelet_list()},
            False,
            "created from an API server",
            id="from an API server, not in the kubelet's list",
        ),
        pytest.param(
            {"sandboxes": (replace(FROM_API_SERVER, annotations={ANNOTATION_SOURCE: "file"}),)},
            True,
            "inferred from CRI",
            id="from a file",
        ),
        pytest.param(
            BESIDE | {"pod_list": synced("uid-other")},
            True,
            "not in the pod list of the API server, no ready sandbox, nothing running, last activity 1h ago",
            id="beside a kubelet, not in a synced list of the API server",
        ),
        pytest.param(
            BESIDE | {"pod_list": replace(synced("uid-other"), synced=False)},
            False,
            "proves a deletion",
            id="beside a kubelet, not in a list of the API server that is not synced",
        ),
        pytest.param(
            BESIDE | {"pod_list": kubelet_list()}, False, "proves a deletion", id="beside a kubelet with an empty list"
        ),
        pytest.param(
            BESIDE | {"pod_list": kubelet_list("uid-static")},
            False,
            "proves a deletion",
            id="beside a kubelet with static pods in its list",
        ),
        pytest.param(
            BESIDE | {"sandboxes": (sandbox(),), "pod_list": synced("uid-other")},
            False,
            "proves a deletion",
            id="beside a kubelet, static pod not in the API server's list",
        ),
        pytest.param(
            {"pod_list": synced()}, True, "inferred from CRI", id="not from an API server, whose list does not decide"
        ),
        pytest.param(
            {"pod_list": kubelet_list("uid-web")},
            False,
            "in the pod list of the kubelet, no ready sandbox, nothing running, last activity 1h ago",
            id="in the list",
        ),
        pytest.param(ABSENT | {"booted_at": None}, True, "", id="with a list that decides the boot is not an activity"),
        pytest.param(
            ABSENT | {"booted_at": ago(1)}, True, "", id="with a list that decides a recent boot is not an activity"
        ),
        pytest.param(
            {"pod_list": kubelet_list(), "booted_at": ago(1)},
            False,
            "last activity 1s ago",
            id="with a list that does not decide the boot is an activity",
        ),
        pytest.param(
            ABSENT | {"containers": (container("c", state=ContainerState.RUNNING),)},
            False,
            "a container is running",
            id="not in the list, running",
        ),
        pytest.param(
            ABSENT | {"containers": (container("c", finished_s=10),)},
            False,
            "last activity 10s ago",
            id="not in the list, recent activity",
        ),
    ],
)
def test_pod_is_deleted_only_without_activity_and_with_complete_facts(
    fields: dict[str, Any], deleted: bool, how: str
) -> None:
    status = check_pods(snapshot(**(DEAD | fields)), GRACE_S)["uid-web"]
    assert status.deleted is deleted
    assert how in status.how


def test_listed_pod_without_running_container_is_finished_and_not_deleted() -> None:
    status = check_pods(snapshot(**DEAD, pod_list=kubelet_list("uid-web")), GRACE_S)["uid-web"]
    assert (status.deleted, status.finished) == (False, True)


@pytest.mark.difference("contradictory-container")
def test_contradictory_container_keeps_both_pods() -> None:
    stray = container("c", pod="other", sandbox_id="sb-web")
    statuses = check_pods(snapshot(containers=(stray,), sandboxes=(sandbox(), sandbox("other"))), GRACE_S)
    assert {uid: status.deleted for uid, status in statuses.items()} == {"uid-web": False, "uid-other": False}
    assert "label has pod uid-other, sandbox has pod uid-web" in statuses["uid-web"].how


def test_unlabelled_container_belongs_to_the_pod_of_its_sandbox() -> None:
    stray = container("c", labelled=False, state=ContainerState.RUNNING)
    statuses = check_pods(snapshot(containers=(stray,), sandboxes=(sandbox(),)), GRACE_S)
    assert not statuses["uid-web"].deleted


def test_container_without_pod_is_ignored() -> None:
    lone = container("c", labelled=False, sandbox_id="")
    nameless = replace(sandbox(), uid="")
    assert check_pods(snapshot(containers=(lone,), sandboxes=(nameless,)), GRACE_S) == {}


def test_pod_with_a_running_attempt_is_not_deleted() -> None:
    attempts = (container("c1"), container("c2", state=ContainerState.RUNNING))
    assert not check_pods(snapshot(containers=attempts), GRACE_S)["uid-web"].deleted


@pytest.mark.parametrize(
    ("fields", "deleted"),
    [
        pytest.param({"containers": (container("c", finished_s=1),)}, True, id="ended-a-second-ago"),
        pytest.param({"containers": ()}, True, id="only its sandbox"),
        pytest.param({"sandboxes": (sandbox(ready=True),)}, False, id="sandbox-ready"),
        pytest.param({"containers": (container("c", state=ContainerState.RUNNING),)}, False, id="running"),
        pytest.param({"containers": (container("c", state=ContainerState.UNKNOWN),)}, False, id="state-unknown"),
        pytest.param({"role": Role.BESIDE_KUBELET}, False, id="beside-a-kubelet"),
    ],
)
def test_evicted_pod_is_deleted_without_grace_period_once_nothing_is_running(
    fields: dict[str, Any], deleted: bool
) -> None:
    found = snapshot(**{**DEAD, **fields})
    (uid,) = check_pods(found, GRACE_S)
    status = check_pods(found, GRACE_S, frozenset({uid}))[uid]
    assert status.deleted is deleted
    assert ("evicted by nodeagent" in status.how) is deleted


@pytest.mark.difference("pod-deletion-beside-kubelet")
@pytest.mark.parametrize(
    ("uid", "pods", "exists"),
    [
        pytest.param(UID, None, None, id="no list"),
        pytest.param(UID, synced(UID), True, id="in the API server's list"),
        pytest.param(UID, kubelet_list(UID), True, id="in the kubelet's list"),
        pytest.param(UID, synced(), False, id="not in the API server's list"),
        pytest.param(UID, kubelet_list(), None, id="not in the kubelet's list"),
        pytest.param(HASH, synced(), None, id="static pod not in the API server's list"),
        pytest.param(HASH, synced(HASH), True, id="mirror pod in the API server's list"),
        pytest.param("", synced(), None, id="no UID"),
    ],
)
def test_only_a_synced_list_of_the_api_server_decides_on_a_missing_pod(
    uid: str, pods: PodList | None, exists: bool | None
) -> None:
    assert is_in_pod_list(uid, (), pods, ago(10)) is exists


@pytest.mark.parametrize(
    ("active_s", "changes", "exists"),
    [
        pytest.param(10, {"listed_at": ago(5)}, False, id="bound before the list"),
        pytest.param(5, {"listed_at": ago(5)}, None, id="at the time of the list"),
        pytest.param(1, {"listed_at": ago(5)}, None, id="newer than the list"),
        pytest.param(None, {"listed_at": ago(5)}, None, id="no trace with a time"),
        pytest.param(10, {"listed_at": None}, None, id="no list"),
        pytest.param(1, {"listed_at": None, "deleted": frozenset({UID})}, False, id="deletion reported"),
        pytest.param(10, {"synced": False, "deleted": frozenset({UID})}, None, id="watch interrupted"),
    ],
)
def test_missing_pod_is_deleted_only_if_reported_or_older_than_the_list(
    active_s: float | None, changes: dict[str, Any], exists: bool | None
) -> None:
    active_at = None if active_s is None else ago(active_s)
    assert is_in_pod_list(UID, (), replace(synced(), **changes), active_at) is exists


@pytest.mark.parametrize(
    ("running", "listed", "proves"),
    [
        pytest.param((), (), True, id="nothing runs"),
        pytest.param(("a", "b"), ("b",), True, id="one of two listed"),
        pytest.param(("a",), ("c",), False, id="none listed"),
    ],
)
def test_list_without_any_running_pod_of_the_api_server_proves_nothing(
    running: tuple[str, ...], listed: tuple[str, ...], proves: bool
) -> None:
    ready = [replace(sandbox(each, ready=True), uid=each, annotations={ANNOTATION_SOURCE: "api"}) for each in running]
    found = checked_pod_list(synced(*listed), ready)
    assert found is not None
    assert found.proves_absence is proves
