"""Deletion of failed pods: only those that an eviction or a shutdown left, old enough, and completely known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodeagent.cluster.plan.failed_pods import MAX_DELETIONS, FailedPod, PodVerdict, decide, plan_deletions
from nodeagent.record import replace

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
AFTER_S = 3600.0
LONG_AGO = NOW - timedelta(hours=2)
EVICTED = FailedPod(
    "uid-web",
    "shop",
    "web",
    "7",
    "node-1",
    "Failed",
    reason="Evicted",
    controller="ReplicaSet",
    written_at=LONG_AGO,
    ended_at=LONG_AGO,
)


def verdict(**changes: Any) -> PodVerdict:
    return decide(replace(EVICTED, **changes), "node-1", NOW, AFTER_S).verdict


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Evicted", "evicted 2h ago or earlier"),
        ("Terminated", "terminated by a shutdown of the node 2h ago or earlier"),
        ("NodeShutdown", "rejected during a shutdown of the node 2h ago or earlier"),
    ],
)
def test_pod_left_by_an_eviction_or_a_shutdown_is_deleted_with_its_reason(reason: str, sentence: str) -> None:
    found = decide(replace(EVICTED, reason=reason), "node-1", NOW, AFTER_S)
    assert (found.verdict, found.sentence) == (PodVerdict.DELETE, sentence)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"node": "node-2"}, PodVerdict.OTHER_NODE),
        ({"node": ""}, PodVerdict.OTHER_NODE),
        ({"phase": "Running"}, PodVerdict.NOT_FAILED),
        ({"phase": "Succeeded"}, PodVerdict.NOT_FAILED),
        ({"phase": ""}, PodVerdict.NOT_FAILED),
        ({"reason": ""}, PodVerdict.OTHER_CAUSE),
        ({"reason": "Preempting"}, PodVerdict.OTHER_CAUSE),
        ({"reason": "DeadlineExceeded"}, PodVerdict.OTHER_CAUSE),
        ({"reason": "NodeLost"}, PodVerdict.OTHER_CAUSE),
        ({"is_static": True}, PodVerdict.STATIC),
        ({"deleting": True}, PodVerdict.DELETING),
        ({"controller": "Job", "finalizers": ("batch.kubernetes.io/job-tracking",)}, PodVerdict.COUNTED),
        ({"finalizers": ("example.com/backup",)}, PodVerdict.FINALIZER),
        ({"controller": ""}, PodVerdict.NO_CONTROLLER),
        ({"has_running_container": True}, PodVerdict.RUNNING),
        ({"uid": ""}, PodVerdict.UNKNOWN),
        ({"resource_version": ""}, PodVerdict.UNKNOWN),
        ({"written_at": None}, PodVerdict.UNKNOWN),
    ],
)
def test_other_pod_is_kept(changes: dict[str, Any], expected: PodVerdict) -> None:
    assert verdict(**changes) is expected


def test_pod_of_a_job_that_counted_it_is_deleted() -> None:
    assert verdict(controller="Job") is PodVerdict.DELETE


@pytest.mark.parametrize("name", ["written_at", "ended_at"])
@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(3599, PodVerdict.RECENT), (3600, PodVerdict.DELETE), (-86400, PodVerdict.RECENT)],
)
def test_both_times_have_to_be_old_enough(name: str, age_s: int, expected: PodVerdict) -> None:
    assert verdict(**{name: NOW - timedelta(seconds=age_s)}) is expected


def test_pod_without_a_time_of_the_kubelet_is_decided_by_that_of_the_api_server() -> None:
    assert verdict(ended_at=None) is PodVerdict.DELETE


def test_no_pod_is_deleted_while_the_time_of_the_api_server_is_unknown() -> None:
    plan = plan_deletions([EVICTED], "node-1", None, AFTER_S)
    assert plan.deletions == ()
    assert [each.verdict for each in plan.kept] == [PodVerdict.UNKNOWN]


def test_number_of_deletions_is_limited_and_the_oldest_are_first() -> None:
    pods = [
        replace(EVICTED, uid=f"uid-{number}", written_at=LONG_AGO - timedelta(seconds=number))
        for number in range(MAX_DELETIONS + 5)
    ]
    plan = plan_deletions(pods, "node-1", NOW, AFTER_S)
    assert [each.pod for each in plan.deletions] == pods[:4:-1]
    assert plan.postponed == 5


def test_pods_with_a_failed_deletion_are_after_the_others_so_that_they_do_not_use_up_the_limit() -> None:
    old = [replace(EVICTED, uid=f"refused-{number}") for number in range(MAX_DELETIONS)]
    new = replace(EVICTED, uid="new", written_at=LONG_AGO + timedelta(seconds=1))
    plan = plan_deletions([*old, new], "node-1", NOW, AFTER_S, {each.uid for each in old})
    assert plan.deletions[0].pod == new
    assert plan.postponed == 1
