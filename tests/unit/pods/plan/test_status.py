"""Status words of containers and pods."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.status import container_statuses, exit_reason, pod_summary
from tests.unit.builders import NOW, container, sandbox

EXITED, RUNNING = ContainerState.EXITED, ContainerState.RUNNING


def word(ready: bool, **fields: Any) -> str:
    (status,) = container_statuses([container("c", **fields)], {"sb-web"} if ready else (), NOW).values()
    return status


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"state": RUNNING}, "Running"),
        ({"state": RUNNING, "attempt": 9}, "Running"),
        ({"state": ContainerState.CREATED}, "Created"),
        ({"state": ContainerState.UNKNOWN}, "Unknown"),
        ({"exit_code": 0}, "Completed"),
        ({"exit_code": 1}, "Error"),
        ({"exit_code": 1, "exit_reason": "Error"}, "Error"),
        ({"exit_code": 1, "exit_reason": "Completed"}, "Error"),
        ({"exit_code": 0, "exit_reason": "Error"}, "Completed"),
        ({"exit_code": 128, "exit_reason": "StartError"}, "Error"),
        ({"exit_code": 137, "exit_reason": "OOMKilled"}, "OOMKilled"),
        ({"exit_code": 0, "exit_reason": "OOMKilled"}, "OOMKilled"),
        ({"exit_code": None}, "Exited"),
        ({"exit_code": None, "exit_reason": "OOMKilled"}, "Exited"),
        ({"exit_code": 1, "finished_s": 60, "attempt": 0}, "Error"),
        ({"exit_code": 1, "finished_s": 60, "attempt": 5}, "CrashLoop"),
        ({"exit_code": 137, "exit_reason": "OOMKilled", "finished_s": 60, "attempt": 5}, "CrashLoop"),
        ({"exit_code": 0, "finished_s": 60, "attempt": 5}, "Completed"),
        ({"exit_code": 1, "finished_s": 600, "attempt": 5}, "CrashLoop"),
        ({"exit_code": 1, "finished_s": 601, "attempt": 5}, "Error"),
        ({"exit_code": 1, "finished_s": None, "attempt": 5}, "Error"),
    ],
)
def test_status_of_a_container_follows_from_state_exit_and_restarts(fields: dict[str, Any], status: str) -> None:
    assert word(ready=True, **fields) == status


def test_container_of_a_sandbox_that_is_not_ready_is_in_no_crash_loop() -> None:
    assert word(ready=False, exit_code=1, finished_s=60, attempt=5) == "Error"


def test_only_the_newest_instance_is_in_a_crash_loop() -> None:
    instances = [container(f"c{n}", exit_code=2, finished_s=60, attempt=n) for n in (3, 5, 4)]
    other = container("o", exit_code=2, finished_s=60, attempt=1, name="sidecar")
    assert container_statuses([*instances, other], {"sb-web"}, NOW) == {
        "c3": "Error",
        "c5": "CrashLoop",
        "c4": "Error",
        "o": "CrashLoop",
    }


def test_containers_without_a_pod_are_instances_of_no_other_container() -> None:
    pair = [container(each, uid="", exit_code=1, finished_s=60, attempt=1) for each in ("a", "b")]
    assert set(container_statuses(pair, {"sb-web"}, NOW).values()) == {"CrashLoop"}


@pytest.mark.parametrize(
    "reason", ["", "Error", "Completed", "rm -rf", "\x1b[2J", "oomKilled", "X" * 42, "OOM\nKilled", "ÄError"]
)
def test_reason_in_another_form_is_no_reason(reason: str) -> None:
    assert exit_reason(container("c", exit_code=1, exit_reason=reason)) == ""


@pytest.mark.parametrize(
    ("ready", "containers", "summary"),
    [
        (True, [("app", RUNNING, 0, None), ("init", EXITED, 0, 0)], ("Running", 1, 1, 0)),
        (True, [("app", RUNNING, 2, None), ("app", EXITED, 1, 1)], ("Running", 1, 1, 2)),
        (True, [("app", RUNNING, 0, None), ("job", EXITED, 0, 1)], ("Error", 1, 2, 0)),
        (False, [("a", EXITED, 0, 0), ("b", EXITED, 0, 0)], ("Completed", 0, 2, 0)),
        (True, [("a", ContainerState.UNKNOWN, 0, None), ("b", RUNNING, 0, None)], ("Unknown", 1, 2, 0)),
        (True, [("a", EXITED, 4, 1), ("b", RUNNING, 1, None)], ("CrashLoop", 1, 2, 5)),
        (True, [], ("Created", 0, 0, 0)),
        (False, [], ("NotReady", 0, 0, 0)),
    ],
)
def test_status_of_a_pod_is_the_worst_of_its_newest_containers(
    ready: bool, containers: list[tuple[str, ContainerState, int, int | None]], summary: tuple[str, int, int, int]
) -> None:
    listed = [
        container(f"c{n}", name=name, state=state, attempt=attempt, exit_code=code, finished_s=60)
        for n, (name, state, attempt, code) in enumerate(containers)
    ]
    words = container_statuses(listed, {"sb-web"} if ready else (), NOW)
    found = pod_summary([sandbox(ready=ready)], listed, words, deleted=False)
    assert (found.status, found.running, found.expected, found.restarts) == summary
    assert pod_summary([sandbox(ready=ready)], listed, words, deleted=True).status == "Deleted"
