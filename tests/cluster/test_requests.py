"""Tests of the agent's API client with a real API server: validation, conflicts, disruption budgets, watches."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from nodeagent.cluster.failed_pod_api import list_failed_pods
from nodeagent.cluster.plan.conditions import OWN_TYPES, conditions_patch
from nodeagent.cluster.plan.events import Occurrence, PodReference, event_body
from nodeagent.cluster.plan.failed_pods import PodVerdict, plan_deletions
from nodeagent.cluster.plan.heartbeat import renewed_lease
from nodeagent.errors import ApiServerRefusedError
from nodeagent.eviction.api_evictor import EvictionApi
from nodeagent.eviction.plan.api_eviction import SEVERAL_BUDGETS
from nodeagent.kube.api_client import ApiClient, NodeApi
from nodeagent.kube.api_credentials import ApiCredentials
from nodeagent.model.kubernetes import ApiAccess, StatusCondition
from nodeagent.pods.plan.watch import EventKind
from nodeagent.pods.pod_api import PodApi, PodWatch
from tests.support.cluster import EVENTS, NODES, PODS, STRATEGIC
from tests.support.cluster_node import NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.cluster import Cluster, Document

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


class Clients:
    """API clients with the node's certificate."""

    def __init__(self, access: ApiAccess) -> None:
        self.access = access
        self.credentials = ApiCredentials(access)
        self.client = ApiClient(access, self.credentials)
        self.nodes = NodeApi(self.client, NAME)
        self.pods = PodApi(self.client, NAME)
        self.evictions = EvictionApi(self.client)


@pytest.fixture
async def clients(cluster: Cluster) -> AsyncIterator[Clients]:
    if not cluster.exists(ACCOUNT):
        cluster.request("POST", ACCOUNT.rpartition("/")[0], {"metadata": {"name": "default"}})
    if not cluster.exists(f"{NODES}/{NAME}"):
        cluster.request("POST", NODES, {"metadata": {"name": NAME}})
    async with relayed(cluster.node.base / "api.sock") as port:
        access = ApiAccess(
            url=f"https://127.0.0.1:{port}",
            ca_file=cluster.authority.ca_file,
            certificate_file=cluster.authority.directory / "node.crt",
            key_file=cluster.authority.directory / "node.key",
        )
        made = Clients(access)
        yield made
        made.client.close()


@contextlib.asynccontextmanager
async def relayed(path: Path) -> AsyncIterator[int]:
    """Relay a port of this machine to the API server in its network namespace; yield the port."""

    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(64 << 10):
                target.write(data)
                await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(str(path))
        writers.extend((writer, upstream_writer))
        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(relay(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in writers:
            each.close()
        await asyncio.gather(*tasks)


def make_pod(cluster: Cluster, name: str, **labels: str) -> Document:
    """Create a pod object that is bound to the node and has the status Running."""
    made = cluster.request(
        "POST",
        PODS,
        {
            "metadata": {"name": name, "labels": {"app": name, **labels}},
            "spec": {"nodeName": NAME, "containers": [{"name": "app", "image": "registry.test/app:v1"}]},
        },
    )
    ready = [{"type": "Ready", "status": "True"}]
    patch = {"status": {"phase": "Running", "conditions": ready}}
    return cluster.request("PATCH", f"{PODS}/{made['metadata']['name']}/status", patch, content_type=STRATEGIC)


def identity(pod: Document) -> tuple[str, str, str, str]:
    metadata = pod["metadata"]
    return metadata["namespace"], metadata["name"], metadata["uid"], metadata["resourceVersion"]


@pytest.mark.parametrize("count", [1, 3])
async def test_event_about_node_and_pod_is_accepted(cluster: Cluster, clients: Clients, count: int) -> None:
    pod = make_pod(cluster, f"event-{count}")
    node = await clients.nodes.get_node()
    assert node is not None
    for reference in (None, PodReference("default", pod["metadata"]["name"], pod["metadata"]["uid"])):
        reason = f"Evicted{count}{'Pod' if reference else 'Node'}"
        occurrence = Occurrence(
            reason, "Warning", "a note " * 142, NOW, NOW + timedelta(seconds=9), 0.0, count=count, pod=reference
        )
        body = event_body(occurrence, NAME, node.metadata.uid)
        await clients.nodes.create_event(body)
        with pytest.raises(ApiServerRefusedError) as repeated:
            await clients.nodes.create_event(body)
        assert repeated.value.status == 409
        (stored,) = [each for each in cluster.items(EVENTS) if each["reason"] == reason]
        assert stored["eventTime"] == "2026-01-02T03:04:05.678901Z"
        assert stored.get("series", {}).get("count", 1) == count
        assert stored["regarding"]["kind"] == ("Pod" if reference else "Node")


async def test_conditions_are_written_and_removed_and_the_rest_of_the_status_is_kept(
    cluster: Cluster, clients: Clients
) -> None:
    cluster.request("DELETE", f"{NODES}/{NAME}")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"conditions": [ready], "capacity": {"pods": "110"}, "addresses": [{"type": "Hostname", "address": NAME}]}
    owner = "fieldManager=kubelet"  # which owns no field of the status with which it creates the object
    metadata = {"name": NAME, "labels": {"kubernetes.io/hostname": NAME}}
    cluster.request("POST", f"{NODES}?{owner}", {"metadata": metadata, "status": status})
    beat = {"type": "Ready", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}
    patch = {"status": {"conditions": [beat]}}
    cluster.request("PATCH", f"{NODES}/{NAME}/status?{owner}", patch, content_type=STRATEGIC)
    before = cluster.node_object()
    uid = before["metadata"]["uid"]
    images, containers, shortage = (
        StatusCondition(type=each, status="True", last_heartbeat_time=NOW, reason="R", message="text")
        for each in OWN_TYPES
    )
    shortage = msgspec.structs.replace(shortage, status="Unknown")
    unexplained = msgspec.structs.replace(images, message="")
    for written in ((images, containers, shortage), (unexplained,)):
        await clients.nodes.patch_status(conditions_patch(uid, written))
        found = [cluster.condition(each) for each in OWN_TYPES]
        assert [(each["type"], each.get("message", "")) for each in found if each] == [
            (each.type, each.message) for each in written
        ]
    for conditions in ((containers,), ()):
        with pytest.raises(ApiServerRefusedError) as replaced:
            await clients.nodes.patch_status(conditions_patch("00000000-0000-0000-0000-000000000000", conditions))
        assert replaced.value.status == 422
    assert cluster.condition(images.type)
    await clients.nodes.patch_status(conditions_patch(uid, ()))
    assert cluster.node_object()["status"] == before["status"]


async def test_lease_is_created_renewed_and_refused_with_an_outdated_version(clients: Clients) -> None:
    node = await clients.nodes.get_node()
    assert node is not None
    created = await clients.nodes.write_lease(renewed_lease(None, node, NOW))
    renewed = await clients.nodes.write_lease(renewed_lease(created, node, NOW + timedelta(seconds=10)))
    assert renewed.spec.renew_time == "2026-01-02T03:04:15.678901Z"
    assert renewed.metadata.owner_references == created.metadata.owner_references
    with pytest.raises(ApiServerRefusedError) as outdated:
        await clients.nodes.write_lease(renewed_lease(created, node, NOW + timedelta(seconds=20)))
    assert (outdated.value.status, outdated.value.reason) == (409, "Conflict")


async def test_eviction_is_accepted_with_its_version_and_refused_with_another(
    cluster: Cluster, clients: Clients
) -> None:
    pod = make_pod(cluster, "evicted")
    namespace, name, uid, version = identity(pod)
    for other in ((uid, "1"), ("00000000-0000-0000-0000-000000000000", version)):
        with pytest.raises(ApiServerRefusedError) as conflict:
            await clients.evictions.evict(namespace, name, *other, 30)
        assert (conflict.value.status, conflict.value.reason) == (409, "Conflict")
    await clients.evictions.evict(namespace, name, uid, version, 30)
    stored = cluster.get(f"{PODS}/{name}")
    assert stored["metadata"]["deletionGracePeriodSeconds"] == 30
    disrupted = next(each for each in stored["status"]["conditions"] if each["type"] == "DisruptionTarget")
    assert disrupted["reason"] == "EvictionByEvictionAPI"
    await clients.evictions.delete(*identity(stored), 0)
    with pytest.raises(ApiServerRefusedError) as gone:
        await clients.evictions.evict(namespace, name, uid, version, 30)
    assert (gone.value.status, gone.value.kind) == (404, "pod"), "by NodeRestriction, before the pod is looked up"


async def test_eviction_is_refused_by_a_budget_with_its_cause(cluster: Cluster, clients: Clients) -> None:
    pod = make_pod(cluster, "budgeted")
    budget: dict[str, Any] = {
        "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "budgeted"}}},
    }
    cluster.request("POST", BUDGETS, budget)
    with pytest.raises(ApiServerRefusedError) as unprocessed:
        await clients.evictions.evict(*identity(pod), 30)
    assert unprocessed.value.status == 429
    status = {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1}
    patch = {"status": {**status, "expectedPods": 1}}
    cluster.request("PATCH", f"{BUDGETS}/budget/status", patch, content_type="application/merge-patch+json")
    with pytest.raises(ApiServerRefusedError) as refused:
        await clients.evictions.evict(*identity(pod), 30)
    assert refused.value.status == 429
    assert refused.value.causes == ("DisruptionBudget",)
    assert "needs 1 healthy pods" in str(refused.value)


async def test_pods_are_listed_in_pages_and_their_changes_watched(cluster: Cluster, clients: Clients) -> None:
    for number in range(60):
        make_pod(cluster, f"page-{number}")
    listed, version, _ = await clients.pods.list()
    assert {f"page-{number}" for number in range(60)} <= {each.name for each in listed}
    watch = PodWatch(clients.access, clients.credentials, NAME)
    try:
        await watch.open(version, 20)
        made = make_pod(cluster, "watched")
        cluster.request("DELETE", f"{PODS}/watched", {"gracePeriodSeconds": 0})
        seen = []
        while (event := await watch.next_event()) is not None:
            if event.pod is not None and event.pod.name == "watched":
                seen.append(event)
            if event.kind is EventKind.DELETED:
                break
    finally:
        watch.close()
    assert [seen[0].kind, seen[-1].kind] == [EventKind.ADDED, EventKind.DELETED]
    assert {each.pod.uid for each in seen if each.pod is not None} == {made["metadata"]["uid"]}


async def test_evicted_pod_is_deleted_at_once_by_its_uid_and_version_unless_its_job_has_not_counted_it(
    cluster: Cluster, clients: Clients
) -> None:
    for name, finalizers in (("evicted", []), ("counted", ["batch.kubernetes.io/job-tracking"])):
        pod = make_pod(cluster, name)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-1", "controller": True}
        metadata = {"ownerReferences": [owner], "finalizers": finalizers}
        cluster.request("PATCH", f"{PODS}/{name}", {"metadata": metadata}, content_type=STRATEGIC)
        ended = {"status": {"phase": "Failed", "reason": "Evicted"}}
        cluster.request("PATCH", f"{PODS}/{name}/status", ended, content_type=STRATEGIC)
        with pytest.raises(ApiServerRefusedError) as outdated:
            await clients.evictions.delete(*identity(pod), 30)
        assert outdated.value.status == 409
    pods, now = await list_failed_pods(clients.client, NAME)
    assert now is not None
    assert plan_deletions(pods, NAME, now, 3600).deletions == ()
    plan = plan_deletions(pods, NAME, now + timedelta(hours=1), 3500)
    (found,) = [each.pod for each in plan.deletions if each.pod.name in ("evicted", "counted")]
    assert found.written_at is not None
    assert abs(now - found.written_at) < timedelta(minutes=1)
    assert found.name == "evicted"
    await clients.evictions.delete(found.namespace, found.name, found.uid, found.resource_version, 30)
    assert not cluster.exists(f"{PODS}/evicted")
    assert {each.pod.name: each.verdict for each in plan.kept}["counted"] is PodVerdict.COUNTED


async def test_watch_without_a_change_of_its_node_has_bookmarks(cluster: Cluster, clients: Clients) -> None:
    _, version, _ = await clients.pods.list()
    watch = PodWatch(clients.access, clients.credentials, NAME)
    try:
        await watch.open(version, 75)
        # The server sends no bookmark before it has seen a change of any pod, or the progress of etcd (10 minutes).
        unbound = {"containers": [{"name": "app", "image": "registry.test/app:v1"}]}
        cluster.request("POST", PODS, {"metadata": {"name": "unbound"}, "spec": unbound})
        event = await watch.next_event()
        while event is not None and event.kind is not EventKind.BOOKMARK:
            event = await watch.next_event()
        assert event is not None, "a bookmark within 75 s"
        assert event.resource_version
    finally:
        watch.close()


async def test_watch_from_before_a_compaction_is_refused_as_expired(cluster: Cluster, clients: Clients) -> None:
    _, version, _ = await clients.pods.list()
    make_pod(cluster, "later")
    cluster.node.stop("kube-apiserver", kill=True)
    cluster.compact()
    cluster.restart_api_server()
    watch = PodWatch(clients.access, clients.credentials, NAME)

    async def follow() -> None:
        await watch.open(version, 20)
        while await watch.next_event() is not None:
            pass

    try:
        with pytest.raises(ApiServerRefusedError) as expired:
            await follow()
    finally:
        watch.close()
    assert expired.value.status == 410
    listed, _, _ = await clients.pods.list()
    assert "later" in {each.name for each in listed}


async def test_pod_with_two_budgets_is_refused_without_reason(cluster: Cluster, clients: Clients) -> None:
    pod = make_pod(cluster, "double")
    for name in ("first", "second"):
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "double"}}}
        cluster.request("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
    with pytest.raises(ApiServerRefusedError) as refused:
        await clients.evictions.evict(*identity(pod), 30)
    assert (refused.value.status, refused.value.reason) == (500, "")
    assert SEVERAL_BUDGETS in str(refused.value)


async def test_conflict_uses_a_disruption_of_the_budget(cluster: Cluster, clients: Clients) -> None:
    pod = make_pod(cluster, "reserved")
    namespace, name, uid, version = identity(pod)
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "reserved"}}}
    cluster.request("POST", BUDGETS, {"metadata": {"name": "reserved"}, "spec": spec})
    status = {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0}
    patch = {"status": {**status, "expectedPods": 1}}
    cluster.request("PATCH", f"{BUDGETS}/reserved/status", patch, content_type="application/merge-patch+json")
    statuses = []
    for given in ("1", version):
        with pytest.raises(ApiServerRefusedError) as refused:
            await clients.evictions.evict(namespace, name, uid, given, 30)
        statuses.append(refused.value.status)
    assert statuses == [409, 429]
