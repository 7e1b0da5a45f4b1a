"""Status of pods that ended on a node without a kubelet: the proofs before a publication, and the patch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.pod_status import (
    RUNNING_S,
    EndedPod,
    RuntimePod,
    StatusVerdict,
    decide,
    is_out_of_service,
    pods_of_stops,
    status_patch,
)
from nodeagent.model.kubernetes import Node, NodeSpec, Taint
from nodeagent.model.pods import PodList, PodListSource, PodSpec
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.model.stops import NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.record import replace

T0 = datetime(2026, 11, 21, 12, tzinfo=UTC)
POD = EndedPod("u", "default", "web", "Evicted", "The node was low on resource: memory. ", T0)
WATCHED = PodSpec("u", "default", "web", phase="Running")
EXITED = Container("c", "app", "s", ContainerState.EXITED, created_at=T0 - timedelta(hours=1))
SANDBOX = Sandbox("s", "web", "default", "u", ready=False, created_at=T0 - timedelta(hours=1))
RUNNING = replace(EXITED, state=ContainerState.RUNNING)


def listed(*uids: str, at: datetime = T0, **changes: Any) -> PodList:
    found = PodList(PodListSource.API_SERVER, frozenset(uids), synced=True, listed_at=at)
    return replace(found, **changes)


def verdict(
    watched: PodSpec | None = WATCHED,
    pods: PodList | None = listed("u"),  # noqa: B008 - immutable
    containers: tuple[Container, ...] | None = (EXITED,),
    sandboxes: tuple[Sandbox, ...] = (SANDBOX,),
    age_s: float = 1.0,
) -> StatusVerdict:
    known = {} if watched is None else {watched.uid: watched}
    found = None if containers is None else RuntimePod(sandboxes, containers)
    return decide(POD, known, pods, found, T0 + timedelta(seconds=age_s)).verdict


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, StatusVerdict.PUBLISH),
        ({"watched": replace(WATCHED, phase="Pending")}, StatusVerdict.PUBLISH),
        ({"watched": replace(WATCHED, deleting=True)}, StatusVerdict.PUBLISH),
        ({"containers": ()}, StatusVerdict.PUBLISH),
        ({"pods": None}, StatusVerdict.WAIT),
        ({"containers": None}, StatusVerdict.WAIT),
        ({"containers": (EXITED, RUNNING)}, StatusVerdict.WAIT),
        ({"containers": (replace(EXITED, state=ContainerState.UNKNOWN),)}, StatusVerdict.WAIT),
        ({"containers": (RUNNING,), "age_s": RUNNING_S}, StatusVerdict.WAIT),
        ({"containers": (RUNNING,), "age_s": RUNNING_S + 1}, StatusVerdict.DROP),
        ({"containers": (replace(EXITED, created_at=T0 + timedelta(seconds=1)),)}, StatusVerdict.DROP),
        ({"containers": (replace(EXITED, created_at=None),)}, StatusVerdict.DROP),
        ({"sandboxes": (replace(SANDBOX, created_at=T0 + timedelta(seconds=1)),)}, StatusVerdict.DROP),
        ({"sandboxes": (replace(SANDBOX, ready=True),)}, StatusVerdict.PUBLISH),
        ({"watched": replace(WATCHED, phase="Failed")}, StatusVerdict.DONE),
        ({"watched": replace(WATCHED, phase="Succeeded")}, StatusVerdict.DONE),
        ({"watched": replace(WATCHED, name="other")}, StatusVerdict.DROP),
        ({"watched": replace(WATCHED, namespace="other")}, StatusVerdict.DROP),
        ({"watched": replace(WATCHED, malformed="spec")}, StatusVerdict.DROP),
        ({"watched": replace(WATCHED, annotations={"kubernetes.io/config.mirror": "u"})}, StatusVerdict.DROP),
        ({"watched": None}, StatusVerdict.DROP),
        ({"watched": None, "pods": listed(at=T0)}, StatusVerdict.WAIT),
        ({"watched": None, "pods": listed(at=T0 + timedelta(seconds=1))}, StatusVerdict.DROP),
        ({"watched": None, "pods": listed(at=T0, deleted=frozenset({"u"}))}, StatusVerdict.DROP),
        ({"watched": None, "pods": listed(at=T0 + timedelta(seconds=1), synced=False)}, StatusVerdict.WAIT),
        ({"watched": replace(WATCHED, uid="new"), "pods": listed("new", at=T0)}, StatusVerdict.WAIT),
    ],
)
def test_status_is_published_only_with_every_proof(changes: dict[str, Any], expected: StatusVerdict) -> None:
    assert verdict(**changes) is expected


@given(
    st.sampled_from(["", "Pending", "Running", "Failed", "Succeeded"]),
    st.booleans(),
    st.none() | st.lists(st.tuples(st.sampled_from(ContainerState), st.integers(-10, 10)), max_size=3),
)
def test_pod_with_a_container_that_is_not_known_to_have_exited_is_never_published(
    phase: str, current: bool, containers: list[tuple[ContainerState, int]] | None
) -> None:
    known = (
        None
        if containers is None
        else tuple(replace(EXITED, state=state, created_at=T0 + timedelta(seconds=at)) for state, at in containers)
    )
    found = verdict(replace(WATCHED, phase=phase), listed("u") if current else None, known)
    if found is StatusVerdict.PUBLISH:
        assert current
        assert phase not in ("Failed", "Succeeded")
        assert containers is not None
        assert all(state is ContainerState.EXITED and at <= 0 for state, at in containers)


def test_patch_has_the_form_of_the_kubelets_patch_with_the_uid_and_a_reason_of_the_agent() -> None:
    patch = status_patch(POD, T0 + timedelta(milliseconds=1500))
    at = "2026-11-21T12:00:01Z"
    unready = {"status": "False", "reason": "PodFailed", "message": None, "lastTransitionTime": at}
    assert patch == {
        "metadata": {"uid": "u"},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": POD.message,
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "TerminationByNodeagent",
                    "message": POD.message,
                    "lastTransitionTime": at,
                },
                {"type": "Ready", **unready},
                {"type": "ContainersReady", **unready},
            ],
        },
    }


def test_eviction_for_a_storage_limit_of_the_pod_is_no_disruption() -> None:
    conditions = status_patch(replace(POD, is_disruption=False), T0)["status"]["conditions"]
    assert [each["type"] for each in conditions] == ["Ready", "ContainersReady"]


STOPPED = StoppedPod("stopped", "default", "web", outcome=PodOutcome.STOPPED)
KILLED = StoppedPod("killed", "default", "web", outcome=PodOutcome.KILLED)
FAILED = StoppedPod("failed", "default", "web", outcome=PodOutcome.FAILED)
LEFT = StoppedPod("left", "default", "web")
PODS = (STOPPED, KILLED, FAILED, LEFT)
BOOTED = T0 + timedelta(hours=1)


def stop(boot: str, kind: StopKind = StopKind.SIGNAL, end: StopEnd = StopEnd.COMPLETE) -> NodeStop:
    return NodeStop(boot, kind, T0, end=end, pods=PODS)


@pytest.mark.parametrize(
    ("recorded", "uids", "reason", "at"),
    [
        (stop("now"), ["stopped", "killed"], "Terminated", T0),
        (stop("now", end=StopEnd.CANCELLED), ["stopped", "killed"], "Terminated", T0),
        (stop("last"), ["stopped", "killed", "failed", "left"], "Terminated", BOOTED),
        (stop("last", end=StopEnd.INCOMPLETE), ["stopped", "killed", "failed", "left"], "Terminated", BOOTED),
        (stop("last", end=StopEnd.CANCELLED), ["stopped", "killed"], "Terminated", BOOTED),
        (
            stop("last", StopKind.UNCLEAN, StopEnd.UNKNOWN),
            ["stopped", "killed", "failed", "left"],
            "NodeStopped",
            BOOTED,
        ),
    ],
)
def test_pods_of_a_stop_have_ended_by_their_outcome_or_with_an_earlier_boot(
    recorded: NodeStop, uids: list[str], reason: str, at: datetime
) -> None:
    found = pods_of_stops([recorded], "now", BOOTED)
    assert [each.uid for each in found] == uids
    assert {(each.reason, each.at) for each in found} == {(reason, at)}


def test_containers_that_were_created_after_a_stop_before_the_last_boot_are_not_part_of_it() -> None:
    found = pods_of_stops([stop("last"), stop("former")], "now", BOOTED)
    assert [each.at for each in found if each.uid == "left"] == [BOOTED, T0]


@pytest.mark.parametrize(
    ("key", "expected"), [("node.kubernetes.io/out-of-service", True), ("node.kubernetes.io/not-ready", False)]
)
def test_node_is_out_of_service_with_the_taint(key: str, expected: bool) -> None:
    assert is_out_of_service(Node(spec=NodeSpec(taints=(Taint(key, "NoExecute", "nodeshutdown"),)))) is expected
