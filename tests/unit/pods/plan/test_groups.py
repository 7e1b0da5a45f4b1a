"""Pods of the runtime, grouped from sandboxes and containers."""

from __future__ import annotations

from typing import Any

from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.pods.plan.facts import group_pods
from tests.unit.builders import ago
from tests.unit.pods.plan.pod_cases import UID


def sandbox(key: str, uid: str = UID, *, ready: bool = True, created_s: float = 100, name: str = "web") -> Sandbox:
    return Sandbox(key, name, "shop", uid, ready, created_at=ago(created_s))


def container(key: str, home: str, *, state: ContainerState = ContainerState.RUNNING, uid: str = UID) -> Container:
    return Container(key, key, home, state, created_at=ago(50), labels={"io.kubernetes.pod.uid": uid})


def grouped(sandboxes: list[Sandbox], containers: list[Container]) -> Any:
    return group_pods(sandboxes, containers, cgroup_parents={}, traits={}, memory_min_bytes={})


def test_only_active_pods_are_returned() -> None:
    exited = container("c", "down", state=ContainerState.EXITED)
    assert grouped([sandbox("down", ready=False)], [exited]) == ()
    for state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
        (pod,) = grouped([sandbox("down", ready=False)], [container("c", "down", state=state)])
        assert pod.sandbox_ids == ()
    (pod,) = grouped([sandbox("up")], [])
    assert pod.sandbox_ids == ("up",)


def test_main_sandbox_is_the_newest_ready_one() -> None:
    (pod,) = grouped([sandbox("old", ready=False, created_s=10), sandbox("up", created_s=99)], [])
    assert (pod.sandbox.id, pod.contradictions) == ("up", ())
    (pod,) = grouped([sandbox("older", created_s=99), sandbox("newer", created_s=1)], [])
    assert (pod.sandbox.id, pod.sandbox_ids) == ("newer", ("newer", "older"))
    assert pod.contradictions == ("more than one ready sandbox",)


def test_pod_without_uid_has_its_sandbox_id_and_is_kept() -> None:
    (pod,) = grouped([sandbox("s", uid="")], [])
    assert (pod.uid, pod.contradictions) == ("s", ("sandbox has no pod UID",))


def test_container_labelled_with_another_pod_makes_both_pods_contradictory() -> None:
    first, second = grouped(
        [sandbox("s1", uid="u1"), sandbox("s2", uid="u2", name="db")], [container("c", "s1", uid="u2")]
    )
    assert first.contradictions == second.contradictions
    assert "its label has pod u2" in first.contradictions[0]


def test_container_without_a_listed_sandbox_is_ignored() -> None:
    assert grouped([], [container("c", "gone")]) == ()
