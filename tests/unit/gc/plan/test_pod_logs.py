"""Pod log GC: log directories of deleted pods, and container log symlinks with missing targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.gc.plan.pod_logs import plan_pod_logs
from nodeagent.gc.plan.policy import PodLogPolicy
from nodeagent.model.node import LogOpeners, Role
from nodeagent.model.runtime import ContainerState
from nodeagent.pods.plan.deletion import check_pods
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    ago,
    codes,
    container,
    kubelet_list,
    log_directory,
    log_link,
    removed,
    sandbox,
    snapshot,
    synced,
)

API_UID = "0f3b5c1e-7a61-4d0e-9f0e-1c2d3e4f5a6b"

if TYPE_CHECKING:
    from nodeagent.model.decision import Plan

CID = "c0ffee" + "0" * 58
ALL_REMOVED: dict[str, Any] = {"removed_containers": frozenset({"c"}), "removed_sandboxes": frozenset({"sb-web"})}
KNOWN: dict[str, Any] = {"containers": (container("c"),), "sandboxes": (sandbox(),)}


def plan_for(fields: dict[str, Any], **rest: Any) -> Plan:
    node = snapshot(**fields)
    return plan_pod_logs(node, PodLogPolicy(minimum_age_s=300), statuses=check_pods(node, 300), **rest)


@pytest.mark.difference("log-minimum-age", "log-directory-name")
@pytest.mark.parametrize(
    ("directory", "fields", "rest", "code"),
    [
        pytest.param({}, KNOWN, ALL_REMOVED, "pod-deleted", id="deleted, all its items removed"),
        pytest.param({}, KNOWN, {"removed_containers": frozenset({"c"})}, "pod-items-kept", id="its sandbox kept"),
        pytest.param(
            {}, KNOWN, {"removed_sandboxes": frozenset({"sb-web"})}, "pod-items-kept", id="its container kept"
        ),
        pytest.param({}, {"sandboxes": (sandbox(ready=True),)}, {}, "pod-present", id="alive"),
        pytest.param({}, {}, {}, "pod-deleted", id="unknown to the runtime"),
        pytest.param({"modified_s": 300}, {}, {}, "pod-deleted", id="exactly the minimum age"),
        pytest.param({"modified_s": 299}, {}, {}, "modified-recently", id="changed recently"),
        pytest.param({"modified_s": -5}, {}, {}, "modified-recently", id="changed in the future"),
        *[
            pytest.param(tree, fields, rest, code, id=f"{name}, {where}")
            for where, fields, rest in (("unknown to the runtime", {}, {}), ("deleted", KNOWN, ALL_REMOVED))
            for name, tree, code in (
                ("open for writing", {"openers": LogOpeners.WRITERS}, "log-open"),
                ("open for writing, old", {"openers": LogOpeners.WRITERS, "modified_s": 10 * DAY_S}, "log-open"),
                ("open for reading", {"openers": LogOpeners.READERS}, "log-open"),
                ("open for reading, a day old", {"openers": LogOpeners.READERS, "modified_s": DAY_S}, "pod-deleted"),
                ("read incompletely", {"problem": "too many entries"}, "log-not-read"),
                ("openers unknown", {"openers": LogOpeners.UNKNOWN}, "log-openers-unknown"),
                (
                    "openers unknown, equal for less than a period",
                    {"openers": LogOpeners.UNKNOWN, "unchanged_s": 59.9},
                    "log-openers-unknown",
                ),
                (
                    "openers unknown, equal for a period",
                    {"openers": LogOpeners.UNKNOWN, "unchanged_s": 60.0},
                    "pod-deleted",
                ),
            )
        ],
        pytest.param({}, {"role": Role.BESIDE_KUBELET}, {}, "pod-present", id="unknown, beside a kubelet"),
        pytest.param(
            {"uid": API_UID},
            {"role": Role.BESIDE_KUBELET, "pod_list": synced()},
            {},
            "pod-deleted",
            id="not in a synced list of the API server",
        ),
        pytest.param(
            {"uid": API_UID},
            {"role": Role.BESIDE_KUBELET, "pod_list": kubelet_list()},
            {},
            "pod-present",
            id="not in the kubelet's list",
        ),
        pytest.param(
            {},
            {"role": Role.BESIDE_KUBELET, "pod_list": synced()},
            {},
            "pod-present",
            id="static pod, not in the API server's list",
        ),
        pytest.param({}, {"pod_list": kubelet_list("uid-web")}, {}, "pod-present", id="only in the kubelet's list"),
        pytest.param({"is_directory": False}, KNOWN, ALL_REMOVED, "not-a-pod-log-directory", id="a symlink or a file"),
        pytest.param({"uid": "", "name": "x"}, {}, {}, "not-a-pod-log-directory", id="not a pod log directory"),
    ],
)
def test_log_directory_is_removed_only_with_its_deleted_pod(
    directory: dict[str, Any], fields: dict[str, Any], rest: dict[str, Any], code: str
) -> None:
    entry = log_directory(**({"uid": "uid-web"} | directory))
    plan = plan_for(fields | {"pod_log_directories": (entry,)}, **rest)
    assert codes(plan) == {entry.name: code}
    assert plan.decisions[0].reason.sentence


@pytest.mark.difference("unread-log-directory")
def test_directory_that_was_not_read_is_kept() -> None:
    plan = plan_for({"pod_log_directories": (replace(log_directory("uid-x"), tree=None),)})
    assert codes(plan) == {"shop_web_uid-x": "log-not-read"}


def test_one_reading_of_unknown_openers_is_not_enough_without_an_interval() -> None:
    node = snapshot(pod_log_directories=(log_directory("uid-x", openers=LogOpeners.UNKNOWN),))
    plan = plan_pod_logs(node, PodLogPolicy(period_s=0.0), statuses=check_pods(node, 300))
    assert codes(plan) == {"shop_web_uid-x": "log-openers-unknown"}


def test_log_of_an_evicted_pod_with_a_kept_sandbox_is_not_called_the_log_of_an_existing_pod() -> None:
    node = snapshot(**KNOWN, pod_log_directories=(log_directory("uid-web"),))
    statuses = check_pods(node, 300, evicted={"uid-web"})
    plan = plan_pod_logs(node, PodLogPolicy(minimum_age_s=300), statuses=statuses, removed_containers=frozenset({"c"}))
    sentence = "pod deleted (evicted by nodeagent, nothing running), but 1 of its containers and sandboxes are kept"
    assert [each.reason.sentence for each in plan.decisions] == [sentence]


def test_reason_has_the_evidence_of_the_deletion() -> None:
    plan = plan_for({"pod_log_directories": (log_directory("uid-x"),)})
    assert plan.removals[0].reason.sentence == "pod deleted: not in the runtime, last changed 1h ago"
    assert plan.removals[0].frees_bytes == 4096


@pytest.mark.parametrize(
    ("link", "fields", "code"),
    [
        pytest.param({}, {}, "link-target-missing", id="container unknown, old"),
        pytest.param({"modified_s": 299}, {}, "modified-recently", id="container unknown, young"),
        pytest.param({"modified_s": 300}, {}, "link-target-missing", id="container unknown, exactly old enough"),
        pytest.param({"modified_s": 1}, {"containers": (container(CID),)}, "link-target-missing", id="exited"),
        *[
            pytest.param({}, {"containers": (container(CID, state=state),)}, "container-present", id=state.value)
            for state in (ContainerState.RUNNING, ContainerState.CREATED, ContainerState.UNKNOWN)
        ],
        pytest.param(
            {"container_id": CID[:20]},
            {"containers": (container(CID, state=ContainerState.RUNNING),)},
            "container-present",
            id="a truncated id is resolved",
        ),
        pytest.param(
            {"container_id": "c0ffee"},
            {"containers": (container("c0ffee1"), container("c0ffee2", state=ContainerState.RUNNING))},
            "container-present",
            id="a truncated id is ambiguous",
        ),
        pytest.param({"container_id": "", "name": "x.log"}, {}, "link-target-missing", id="no id, old"),
        pytest.param(
            {"container_id": "", "name": "x.log", "modified_s": 9},
            {"containers": (container(CID),)},
            "modified-recently",
            id="no id, young",
        ),
    ],
)
def test_dead_link_of_an_active_container_is_kept(link: dict[str, Any], fields: dict[str, Any], code: str) -> None:
    entry = log_link(**({"container_id": CID} | link))
    plan = plan_for(fields | {"dead_log_links": (entry,)})
    assert codes(plan) == {entry.name: code}
    assert plan.decisions[0].reason.sentence


@pytest.mark.difference("log-minimum-age")
@pytest.mark.parametrize(("uptime_s", "is_kept"), [(0, True), (299, True), (300, False)])
def test_log_of_an_unknown_pod_is_kept_for_the_minimum_age_after_a_boot(uptime_s: float, *, is_kept: bool) -> None:
    # A log of the current boot can have a time before the boot if the wall clock was corrected afterwards.
    directory, link = log_directory("uid-x"), log_link(CID)
    node = {"pod_log_directories": (directory,), "dead_log_links": (link,), "booted_at": ago(uptime_s)}
    code = {directory.name: "pod-deleted", link.name: "link-target-missing"}
    assert codes(plan_for(node)) == (dict.fromkeys(code, "booted-recently") if is_kept else code)


def test_removals_precede_kept_items_and_directories_precede_links() -> None:
    fields = {
        "pod_log_directories": (log_directory("b"), log_directory("a"), log_directory("", name="0")),
        "dead_log_links": (log_link(CID),),
    }
    plan = plan_for(fields)
    assert removed(plan) == ["shop_web_a", "shop_web_b", f"web_shop_app-{CID}.log"]
    assert [each.id for each in plan.decisions][-1] == "0"
