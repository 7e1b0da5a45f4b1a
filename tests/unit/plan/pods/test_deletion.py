"""Inference of pod deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model import ContainerState, Role
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.pods.deletion import check_pods
from tests.unit.builders import ago, container, sandbox, snapshot

GRACE_S = 300.0
FROM_API_SERVER = replace(sandbox(), annotations={ANNOTATION_SOURCE: "api"})
DEAD = {"containers": (container("c"),), "sandboxes": (sandbox(),)}


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
            "a kubelet manages this node and its pod list is not available",
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
            {"sandboxes": (FROM_API_SERVER,), "live_pod_uids": frozenset()},
            True,
            "not in the pod list",
            id="from an API server, with a list",
        ),
        pytest.param(
            {"sandboxes": (replace(FROM_API_SERVER, annotations={ANNOTATION_SOURCE: "file"}),)},
            True,
            "inferred from CRI",
            id="from a file",
        ),
        pytest.param(
            {"role": Role.BESIDE_KUBELET, "live_pod_uids": frozenset()},
            True,
            "not in the pod list, no ready sandbox, nothing running, last activity 1h ago",
            id="beside a kubelet with its list",
        ),
        pytest.param(
            {"live_pod_uids": frozenset({"uid-web"})},
            False,
            "in the pod list, no ready sandbox, nothing running, last activity 1h ago",
            id="in the list",
        ),
        pytest.param(
            {"live_pod_uids": frozenset(), "booted_at": None}, True, "", id="with a list the boot is not an activity"
        ),
        pytest.param(
            {"live_pod_uids": frozenset(), "booted_at": ago(1)},
            True,
            "",
            id="with a list a recent boot is not an activity",
        ),
        pytest.param(
            {"live_pod_uids": frozenset(), "containers": (container("c", state=ContainerState.RUNNING),)},
            False,
            "a container is running",
            id="not in the list, running",
        ),
        pytest.param(
            {"live_pod_uids": frozenset(), "containers": (container("c", finished_s=10),)},
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
    status = check_pods(snapshot(**DEAD, live_pod_uids=frozenset({"uid-web"})), GRACE_S)["uid-web"]
    assert (status.deleted, status.finished) == (False, True)


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
