"""Registration and heartbeats with a fake API server, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from nodeagent.cluster.node_session import SessionEnd
from nodeagent.cluster.plan.conditions import REPORT_S
from nodeagent.cluster.plan.registration import RegistrationPolicy
from nodeagent.model.pressure import NodeCondition
from nodeagent.model.runtime import Image
from nodeagent.model.stops import NodeStop, StopEnd, StopKind
from nodeagent.record import replace
from tests.support.api_server import LEASES, NODES, Fault
from tests.support.virtual_time import START
from tests.unit.cluster.cluster import FACTS, KUBELET_NODE, Cluster

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import NodeFacts


def test_new_node_is_registered_cordoned_tainted_and_ready_with_a_lease() -> None:
    cluster = Cluster()
    assert cluster.run(5) is SessionEnd.STOPPED
    node, lease = cluster.server.node, cluster.server.lease
    assert node["spec"]["unschedulable"]
    assert {each["effect"] for each in node["spec"]["taints"]} == {"NoSchedule", "NoExecute"}
    assert cluster.ready()["status"] == "True"
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert [each["verdict"] for each in cluster.logged("node_registered")] == ["create"]


def test_lease_is_renewed_about_every_10_s_and_an_unchanged_status_every_5_minutes() -> None:
    cluster = Cluster()
    cluster.run(3000)
    renewals = cluster.lease_api.times("PUT")
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(renewals)]
    assert set(gaps) == {11.2}
    reports = cluster.status_api.times("/status")
    readings = len(cluster.status_api.times(f"{NODES}/node-1")) - len(reports)
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(reports)]
    assert set(gaps) <= {300.0, 310.0}  # sent at the first 10 s poll after 300 s
    # At most one request in 10 s, including one condition update in 5 minutes, excluding the registration.
    assert len(cluster.lease_api.sent) + len(reports) + readings + 3000 / REPORT_S <= 300


@pytest.mark.difference("pressure-report")
def test_pressure_is_reported_within_half_a_second_and_its_end_at_the_next_poll() -> None:
    cluster = Cluster()

    async def script() -> None:
        for pressure in ({NodeCondition.DISK_PRESSURE}, set()):
            await asyncio.sleep(31.2)
            cluster.facts = replace(FACTS, pressure=frozenset(pressure))

    cluster.run(90, script)
    _, raised_s, cleared_s = cluster.status_api.times("/status")
    assert 31.2 < raised_s <= 31.7
    assert 62.4 < cleared_s <= 72.4


@pytest.mark.parametrize(
    "changed",
    [
        replace(FACTS, machine=replace(FACTS.machine, memory_bytes=8 << 30)),
        replace(FACTS, machine=replace(FACTS.machine, cpu_millis=4000)),
        replace(FACTS, machine=replace(FACTS.machine, addresses=("192.0.2.11",))),
        replace(FACTS, images=(Image("sha256:1", repo_tags=("registry.test/a:v1",), size_bytes=5),)),
        replace(FACTS, ephemeral_bytes=20 << 30),
    ],
    ids=["memory", "cpu", "address", "image", "nodefs"],
)
def test_resource_that_changes_at_run_time_is_reported_at_the_next_poll(changed: NodeFacts) -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(95)
        cluster.facts = changed

    cluster.run(300, script)
    first, second = cluster.status_api.times("/status")
    assert (first, 95 < second <= 105) == (0, True)
    status, machine = cluster.server.node["status"], changed.machine
    assert status["capacity"]["memory"] == f"{(machine.memory_bytes or 0) >> 30}Gi"
    assert status["capacity"]["cpu"] == str((machine.cpu_millis or 0) // 1000)
    assert status["capacity"]["ephemeral-storage"] == f"{(changed.ephemeral_bytes or 0) >> 30}Gi"
    assert status["addresses"][0]["address"] == machine.addresses[0]
    assert len(status.get("images", ())) == len(changed.images or ())


def test_external_address_of_a_cloud_controller_is_kept() -> None:
    cluster = Cluster()
    external = {"type": "ExternalIP", "address": "203.0.113.5"}

    async def script() -> None:
        await asyncio.sleep(95)
        cluster.server.node["status"]["addresses"].append(external)
        cluster.facts = replace(FACTS, machine=replace(FACTS.machine, addresses=("192.0.2.11",)))

    cluster.run(300, script)
    addresses = cluster.server.node["status"]["addresses"]
    assert (addresses[0]["address"], external in addresses) == ("192.0.2.11", True)


def test_extended_resource_of_another_program_is_kept() -> None:
    cluster = Cluster()
    gpus = {"example.com/gpu": "4"}

    async def script() -> None:
        await asyncio.sleep(5)
        status = cluster.server.node["status"]
        both = {each: {**status[each], **gpus} for each in ("capacity", "allocatable")}
        cluster.server.put(NODES, "node-1", {**cluster.server.node, "status": {**status, **both}})
        cluster.facts = replace(FACTS, machine=replace(FACTS.machine, memory_bytes=8 << 30))

    cluster.run(700, script)
    assert len(cluster.status_api.times("/status")) >= 3
    status = cluster.server.node["status"]
    assert status["capacity"]["example.com/gpu"] == status["allocatable"]["example.com/gpu"] == "4"
    assert status["capacity"]["memory"] == "8Gi"


def test_labels_follow_the_configuration_at_run_time_and_those_of_an_operator_are_kept() -> None:
    zone = "topology.kubernetes.io/zone"
    cluster = Cluster(labels={zone: "a", "pool": "edge"})
    cluster.server.node_identity = True
    seen: list[dict[str, str]] = []

    async def script() -> None:
        for labels in ({zone: "b", "pool": "core"}, None, {zone: "c"}):
            await asyncio.sleep(25)
            node = cluster.server.node
            seen.append(dict(node["metadata"]["labels"]))
            if len(seen) == 1:
                changed = {**node["metadata"], "labels": {**node["metadata"]["labels"], "pool": "of-operator"}}
                cluster.server.put(NODES, "node-1", {**node, "metadata": changed})
            cluster.labels = labels
        await asyncio.sleep(25)
        seen.append(dict(cluster.server.node["metadata"]["labels"]))

    cluster.run(110, script)
    assert [(each[zone], each["pool"]) for each in seen] == [
        ("a", "edge"),
        ("b", "of-operator"),
        ("b", "of-operator"),
        ("c", "of-operator"),
    ]
    assert [(each["labels"], each["kept"]) for each in cluster.logged("node_labels_changed")] == [
        ([f"{zone}=b"], ["pool=of-operator"]),
        ([f"{zone}=c"], []),
    ]


def test_refused_label_does_not_affect_the_heartbeats() -> None:
    cluster = Cluster()
    cluster.server.node_identity = True

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.labels = {"node-role.kubernetes.io/edge": ""}

    cluster.run(700, script)
    assert "node-role.kubernetes.io/edge" not in cluster.server.node["metadata"]["labels"]
    (failed,) = cluster.logged("api_request_failed")
    assert (failed["part"], "not allowed to modify labels" in failed["error"]) == ("labels", True)
    assert len(cluster.lease_api.times("PUT")) > 55
    assert len(cluster.status_api.times("/status")) == 3


def test_changed_labels_are_applied_after_a_restart_and_after_a_conflict() -> None:
    cluster = Cluster(labels={"zone": "a"})
    cluster.run(5)
    cluster.labels = {"zone": "b"}
    cluster.status_api.outdated = 1
    cluster.run(15)
    assert cluster.server.node["metadata"]["labels"]["zone"] == "b"


def test_labels_that_are_absent_in_one_reading_are_kept() -> None:
    cluster = Cluster(labels={"zone": "a"})

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.labels = {}  # the file is rewritten in place
        await asyncio.sleep(10)
        cluster.labels = {"zone": "a"}
        await asyncio.sleep(10)
        cluster.labels = None  # an unreadable file between two equal readings
        await asyncio.sleep(10)
        cluster.labels = {}
        await asyncio.sleep(10)
        assert cluster.server.node["metadata"]["labels"]["zone"] == "a"
        await asyncio.sleep(10)

    cluster.run(70, script)
    assert "zone" not in cluster.server.node["metadata"]["labels"]


def test_labels_that_are_absent_at_a_restart_only_are_kept() -> None:
    cluster = Cluster(labels={"zone": "a"})
    cluster.run(5)
    cluster.labels = {}

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.labels = {"zone": "a"}

    cluster.run(60, script)
    assert cluster.server.node["metadata"]["labels"]["zone"] == "a"
    assert not cluster.logged("node_labels_changed")


def test_start_and_cancellation_of_a_shutdown_are_reported_within_a_second() -> None:
    cluster = Cluster()
    seen = []

    async def script() -> None:
        await asyncio.sleep(33)
        for shutting_down in (True, False):
            cluster.shutting_down = shutting_down
            await asyncio.sleep(1)
            seen.append((cluster.ready()["status"], cluster.ready()["message"]))

    cluster.run(40, script)
    assert seen == [("False", "node is shutting down"), ("True", "kubelet is posting ready status")]


def test_lease_is_retried_by_the_back_off_table_while_the_server_is_away() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.lease_api.down = cluster.status_api.down = True
        await asyncio.sleep(600)
        cluster.lease_api.down = cluster.status_api.down = False

    cluster.run(640, script)
    failed = [at_s for at_s in cluster.lease_api.times("leases") if 15 < at_s < 615]
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(failed)]
    assert gaps[:8] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 7.0, 7.0]
    renewals = cluster.lease_api.times("PUT")
    assert renewals[-1] > 615
    assert [each["part"] for each in cluster.logged("api_request_failed")].count("lease") == 1
    assert [each["part"] for each in cluster.logged("api_request_recovered")].count("lease") == 1


def test_unchanged_status_of_a_short_outage_is_sent_once_after_it() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.status_api.down = True
        cluster.facts = replace(FACTS, pressure=frozenset({NodeCondition.MEMORY_PRESSURE}))
        await asyncio.sleep(100)
        cluster.status_api.down = False

    cluster.run(200, script)
    reports = [each for each in cluster.server.requests if each.path.endswith("/status")]
    assert len(reports) == 2
    assert {each["type"]: each["status"] for each in cluster.server.node["status"]["conditions"]}[
        "MemoryPressure"
    ] == "True"


def test_lost_answer_of_a_renewal_is_not_mistaken_for_another_process() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.lease_api.lost = 3

    assert cluster.run(100, script) is SessionEnd.STOPPED
    assert cluster.lease_api.times("PUT")[-1] > 80


def test_time_stated_with_too_many_requests_is_waited_for() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.server.faults = [Fault(429)]

    cluster.run(40, script)
    times = [at_s for at_s in cluster.lease_api.times("leases") if at_s > 15]
    assert times[1] - times[0] == pytest.approx(7.0)


def test_lease_renewed_by_another_process_ends_the_session_without_a_further_write() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        spec = {**cluster.server.lease["spec"], "renewTime": "2026-11-21T12:00:16.000001Z"}
        cluster.server.put(LEASES, "node-1", {**cluster.server.lease, "spec": spec})

    assert cluster.run(100, script) is SessionEnd.CONTESTED
    assert cluster.server.lease["spec"]["renewTime"] == "2026-11-21T12:00:16.000001Z"
    assert len(cluster.logged("node_heartbeat_ended")) == 1


def test_contested_lease_is_taken_again_only_after_40_s_without_renewal() -> None:
    cluster = Cluster()
    cluster.run(5)
    before = cluster.server.lease["spec"]["renewTime"]
    cluster.contested = True
    assert cluster.run(39) is SessionEnd.STOPPED
    assert cluster.server.lease["spec"]["renewTime"] == before
    cluster.run(60)
    assert cluster.server.lease["spec"]["renewTime"] != before


def test_object_with_a_heartbeat_of_a_kubelet_is_not_changed() -> None:
    cluster = Cluster()
    cluster.server.put(NODES, "node-1", KUBELET_NODE)

    async def script() -> None:
        for second in range(100):
            cluster.server.put(LEASES, "node-1", {"spec": {"renewTime": f"2026-11-21T12:00:00.{second:06}Z"}})
            await asyncio.sleep(1)

    cluster.run(99, script)
    assert {each.method for each in cluster.server.requests} == {"GET"}
    assert len(cluster.logged("node_not_registered")) == 1


def test_object_without_heartbeat_is_adopted_after_40_s_and_keeps_the_values_of_others() -> None:
    cluster = Cluster(policy=RegistrationPolicy(labels={"kubernetes.io/os": "x", "pool": "edge"}))
    cluster.server.put(NODES, "node-1", KUBELET_NODE)
    cluster.server.put(LEASES, "node-1", {"spec": {"renewTime": "2026-11-21T11:00:00.000000Z"}})
    cluster.run(60)
    assert cluster.status_api.times("PATCH")[0] == pytest.approx(40.0)
    node = cluster.server.node
    assert node["metadata"]["labels"]["kubernetes.io/os"] == "linux"
    assert node["metadata"]["labels"]["pool"] == "edge"
    assert {"type": "NetworkUnavailable", "status": "False"} in node["status"]["conditions"]
    assert node["spec"]["taints"]
    assert cluster.ready()["status"] == "True"


def test_restart_of_the_agent_continues_its_heartbeats_at_once() -> None:
    cluster = Cluster()
    cluster.run(5)
    cluster.run(5)
    assert [each["verdict"] for each in cluster.logged("node_registered")] == ["create", "registered"]
    assert cluster.lease_api.times("PUT")[-1] < 1


def test_deleted_object_is_not_created_again() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        del cluster.server.objects[NODES]["node-1"]
        cluster.facts = replace(FACTS, not_ready=("x",))

    assert cluster.run(100, script) is SessionEnd.DELETED
    assert cluster.server.objects[NODES] == {}


def test_deleted_object_with_a_remaining_lease_is_noticed_at_the_next_failure_of_the_lease() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        del cluster.server.objects[NODES]["node-1"]
        cluster.server.faults = [Fault(409)]

    assert cluster.run(60, script) is SessionEnd.DELETED
    assert cluster.lease_api.sent[-1][0] < 30
    assert len([each for each in cluster.logged("node_heartbeat_ended") if "deleted" in each["because"]]) == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_lease_deleted_with_its_node_object_is_not_created_again(*, replaced: bool) -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        del cluster.server.objects[NODES]["node-1"]
        del cluster.server.objects[LEASES]["node-1"]  # by the garbage collector: the Node object was its owner
        if replaced:
            cluster.server.put(NODES, "node-1", KUBELET_NODE)

    assert cluster.run(60, script) is (SessionEnd.REPLACED if replaced else SessionEnd.DELETED)
    assert cluster.server.objects[LEASES] == {}


def test_lease_deleted_alone_is_created_again() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        del cluster.server.objects[LEASES]["node-1"]

    assert cluster.run(60, script) is SessionEnd.STOPPED
    assert cluster.server.lease["spec"]["holderIdentity"] == "node-1"


def test_object_created_again_by_another_owner_ends_the_session() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        del cluster.server.objects[NODES]["node-1"]
        cluster.server.put(NODES, "node-1", KUBELET_NODE)
        cluster.facts = replace(FACTS, not_ready=("x",))

    assert cluster.run(100, script) is SessionEnd.REPLACED


def test_kubelet_that_starts_ends_all_requests() -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.refusal = "a kubelet manages this node"

    assert cluster.run(100, script) is SessionEnd.REFUSED
    assert max(at_s for at_s, _ in (*cluster.lease_api.sent, *cluster.status_api.sent)) <= 20


def test_refusal_to_taint_an_adopted_object_prevents_ready_and_is_logged_once() -> None:
    cluster = Cluster()
    cluster.server.node_identity = True
    cluster.server.put(NODES, "node-1", KUBELET_NODE)
    cluster.run(600)
    assert "not allowed to modify taints" in cluster.logged("api_request_failed")[0]["error"]
    assert len(cluster.logged("api_request_failed")) == 1
    assert len(cluster.status_api.times("PATCH")) <= 18
    assert not cluster.status_api.times("/status")
    assert cluster.server.objects[LEASES] == {}


def test_node_certificate_registers_a_new_node_with_its_taint() -> None:
    cluster = Cluster()
    cluster.server.node_identity = True
    cluster.run(20)
    assert cluster.ready()["status"] == "True"
    assert cluster.server.node["spec"]["taints"]


UNCLEAN = NodeStop("earlier", StopKind.UNCLEAN, START, end=StopEnd.UNKNOWN)
CLEAN = NodeStop("earlier", StopKind.SIGNAL, START, end=StopEnd.COMPLETE)
ANNOTATION = "nodeagent.dev/unclean-stop"


def test_unclean_stop_is_annotated_once_until_a_start_after_a_shutdown() -> None:
    cluster = Cluster()
    seen = []
    for stops in ((UNCLEAN,), (UNCLEAN,), (), (CLEAN,)):
        cluster.stops = stops
        cluster.run(20)
        seen.append(cluster.server.node["metadata"]["annotations"].get(ANNOTATION))
    at = "2026-11-21T12:00:00Z"
    assert seen == [at, at, at, None]
    assert [each.body["metadata"]["annotations"] for each in cluster.server.seen("PATCH", "/node-1")] == [
        {ANNOTATION: at},
        {ANNOTATION: None},
    ]


def test_annotation_of_an_unclean_stop_is_repeated_after_an_outage() -> None:
    cluster = Cluster()
    cluster.stops = (UNCLEAN,)

    async def script() -> None:
        await asyncio.sleep(5)
        cluster.status_api.down = True
        await asyncio.sleep(60)
        cluster.status_api.down = False

    cluster.run(90, script)
    assert ANNOTATION in cluster.server.node["metadata"]["annotations"]


def test_missing_rule_on_status_does_not_stop_the_lease() -> None:
    cluster = Cluster()
    cluster.server.denied = {("PATCH", "nodes/status")}
    cluster.run(300)
    assert len(cluster.lease_api.times("PUT")) >= 26
    failures = cluster.logged("api_request_failed")
    assert len(failures) == 1
    assert 'cannot patch resource "nodes/status"' in failures[0]["error"]
    assert len(cluster.status_api.times("/status")) <= 13


@pytest.mark.parametrize("status", [401, 403])
def test_lease_does_not_expire_by_refusals_of_a_starting_api_server(status: int) -> None:
    cluster = Cluster()

    async def script() -> None:
        await asyncio.sleep(15)
        cluster.server.faults = [Fault(status) for _ in range(3)]

    cluster.run(45, script)
    renewed = datetime.fromisoformat(cluster.server.lease["spec"]["renewTime"])
    assert renewed > START + timedelta(seconds=30)
