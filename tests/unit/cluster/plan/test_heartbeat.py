"""Heartbeats: the back-off table, reasons for status reports, the Lease."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.heartbeat import (
    LeaseSighting,
    ReportMemory,
    ReportReason,
    complete_status,
    is_lease_free,
    remember_report,
    renewed_lease,
    report_reason,
    retry_delay_s,
    sight_lease,
    status_patch,
)
from nodeagent.model.kubernetes import (
    ContainerImage,
    Lease,
    LeaseSpec,
    Node,
    NodeAddress,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
    StatusCondition,
)

RECORDED = json.loads((Path(__file__).parents[3] / "data/kubernetes/lease.json").read_text())
NOW = datetime(2026, 11, 21, 13, 40, 38, 306953, tzinfo=UTC)


def test_back_off_after_failures_is_from_200_ms_to_7_s() -> None:
    assert [retry_delay_s(failures) for failures in range(1, 10)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7.0, 7.0, 7.0]
    assert retry_delay_s(10**6) == 7.0


@pytest.mark.parametrize(("failures", "stated", "delay_s"), [(1, 5.0, 5.0), (6, 1.0, 6.4), (7, 30.0, 30.0)])
def test_time_stated_by_the_server_is_a_lower_bound(failures: int, stated: float, delay_s: float) -> None:
    assert retry_delay_s(failures, stated) == delay_s


def status(ready: str = "True", heartbeat: datetime = NOW, images: int = 1) -> NodeStatus:
    condition = StatusCondition(type="Ready", status=ready, last_heartbeat_time=heartbeat, last_transition_time=NOW)
    return NodeStatus(
        conditions=(condition,),
        capacity={"cpu": "2", "memory": "4Gi"},
        images=tuple(ContainerImage(names=(f"i{n}",)) for n in range(images)),
        node_info=NodeSystemInfo(container_runtime_version="containerd://1"),
    )


@pytest.mark.parametrize(
    ("memory", "found", "now_s", "reason"),
    [
        (ReportMemory(), status(), 0.0, ReportReason.FIRST),
        (ReportMemory(status(), 300.0), status(heartbeat=NOW + timedelta(minutes=1)), 299.9, ReportReason.UNCHANGED),
        (ReportMemory(status(), 300.0), status(), 300.0, ReportReason.HEARTBEAT),
        (ReportMemory(status(), 300.0), status(ready="False"), 1.0, ReportReason.CHANGED),
        (ReportMemory(status(), 300.0), status(images=2), 1.0, ReportReason.CHANGED),
    ],
    ids=["first", "heartbeat-time-only", "due", "condition", "images"],
)
def test_status_is_reported_on_change_and_when_due(
    memory: ReportMemory, found: NodeStatus, now_s: float, reason: ReportReason
) -> None:
    assert report_reason(memory, found, now_s) is reason


@given(st.floats(0, 1), st.floats(0, 1e9))
def test_unchanged_status_is_due_within_the_last_minute_of_five(jitter: float, now_s: float) -> None:
    due_s = remember_report(status(), now_s, jitter).due_s
    assert now_s + 239.99 <= due_s <= now_s + 300


def test_unread_parts_are_no_change() -> None:
    memory = ReportMemory(status(), 300.0)
    unread = NodeStatus(conditions=status().conditions, capacity={"cpu": "2"}, node_info=NodeSystemInfo())
    assert report_reason(memory, unread, 1.0) is ReportReason.CHANGED
    assert report_reason(memory, complete_status(unread, memory), 1.0) is ReportReason.UNCHANGED


def test_patch_replaces_addresses_and_leaves_absent_parts_out() -> None:
    address = NodeAddress(type="InternalIP", address="192.0.2.1")
    patch = status_patch(NodeStatus(addresses=(address,), conditions=status().conditions), ())
    assert patch["status"]["addresses"] == [{"type": "InternalIP", "address": "192.0.2.1"}, {"$patch": "replace"}]
    assert set(patch["status"]) == {"addresses", "conditions"}


@pytest.mark.parametrize(
    ("configured", "kept"), [((), ["ExternalIP", "InternalDNS"]), (("ExternalIP",), ["InternalDNS"])]
)
def test_patch_keeps_the_addresses_of_types_that_others_set(configured: tuple[str, ...], kept: list[str]) -> None:
    types = ("InternalIP", "Hostname", "ExternalIP", "InternalDNS")
    found = tuple(NodeAddress(type=each, address=f"{each} of the cloud") for each in types)
    own = tuple(NodeAddress(type=each, address="own") for each in ("Hostname", *configured))
    *addresses, _ = status_patch(NodeStatus(addresses=own), found)["status"]["addresses"]
    assert [each["type"] for each in addresses if each["address"] == "own"] == ["Hostname", *configured]
    assert [each["type"] for each in addresses if each["address"] != "own"] == kept


def test_lease_is_the_recorded_lease_of_a_kubelet() -> None:
    node = Node(metadata=ObjectMeta(name="node-1", uid=RECORDED["metadata"]["ownerReferences"][0]["uid"]))
    found = msgspec.convert(RECORDED, Lease)
    written = json.loads(msgspec.json.encode(renewed_lease(found, node, NOW + timedelta(seconds=10))))
    expected = {**RECORDED, "metadata": {**RECORDED["metadata"]}}
    expected["spec"] = {**RECORDED["spec"], "renewTime": "2026-11-21T13:40:48.306953Z"}
    del expected["metadata"]["creationTimestamp"]  # set by the API server, which ignores the field in updates
    assert written == expected


def test_renew_time_has_six_digits_on_a_whole_second() -> None:
    lease = renewed_lease(None, Node(metadata=ObjectMeta(name="n", uid="u")), NOW.replace(microsecond=0))
    assert lease.spec.renew_time == "2026-11-21T13:40:38.000000Z"
    assert "resourceVersion" not in msgspec.to_builtins(lease)["metadata"]


@pytest.mark.parametrize("behind", [timedelta(0), timedelta(minutes=59), timedelta(days=3650)])
@pytest.mark.parametrize(("found", "written"), [(True, ""), (False, "2026-11-21T13:40:38.306953Z")])
def test_renew_time_is_later_than_the_found_and_the_written_one_with_a_clock_set_back(
    behind: timedelta, *, found: bool, written: str
) -> None:
    node = Node(metadata=ObjectMeta(name="node-1", uid="u"))
    lease = renewed_lease(msgspec.convert(RECORDED, Lease) if found else None, node, NOW - behind, written)
    assert lease.spec.renew_time == "2026-11-21T13:40:38.306954Z"


@pytest.mark.parametrize("found", ["", "soon", "2026-11-21T13:40:38", "9999-12-31T23:59:59.999999Z"])
def test_renew_time_that_nothing_follows_is_ignored(found: str) -> None:
    lease = renewed_lease(Lease(spec=LeaseSpec(renew_time=found)), Node(metadata=ObjectMeta(name="n")), NOW)
    assert lease.spec.renew_time == "2026-11-21T13:40:38.306953Z"


def test_lease_is_free_once_it_was_not_renewed_for_its_duration_by_the_own_clock() -> None:
    lease = msgspec.convert(RECORDED, Lease)
    first = sight_lease(None, lease, 100.0)
    assert not is_lease_free(first, 139.9)
    assert is_lease_free(sight_lease(first, lease, 140.0), 140.0)
    renewed = msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, renew_time="later"))
    assert not is_lease_free(sight_lease(first, renewed, 140.0), 140.0)
    absent = sight_lease(None, None, 0.0)
    assert not is_lease_free(absent, 39.9)
    assert is_lease_free(absent, 40.0)
    assert not is_lease_free(sight_lease(absent, lease, 39.0), 41.0)
    assert sight_lease(LeaseSighting("", 0.0), None, 5.0) == LeaseSighting("", 0.0)
